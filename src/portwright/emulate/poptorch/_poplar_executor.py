"""poptorch.PoplarExecutor: a wrapped model that runs on (here: emulated) IPUs and keeps its weights there."""

from __future__ import annotations

import copy
import json
import os
import textwrap
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Union

import torch

from portwright.emulate.ledger import LEDGERS
from portwright.emulate.poptorch import _host_model, _rules, enums, optim
from portwright.emulate.poptorch._batching import mark_results
from portwright.emulate.poptorch._dataloader import (
    batches_of_a_call,
    refuse_several_processes,
    warn_of_other_options,
)
from portwright.emulate.poptorch._errors import NOT_COMPILED, AssertedError, StateError, refuse
from portwright.emulate.poptorch._executable import Executable, Image, RandomState, Run, compile_step
from portwright.emulate.poptorch._host_model import HostChanges, _owner_of, release_looks, unseen, watch_looks
from portwright.emulate.poptorch._inputs import (
    ArgsParser,
    check_kinds,
    flattenTensorStructure,
    warn_requires_grad,
)
from portwright.emulate.poptorch._logging import logger
from portwright.emulate.poptorch._names import partly, with_others
from portwright.emulate.poptorch._rules import warn_of_training_mode
from portwright.emulate.poptorch._update import OptimizerLink, check_trains, scales_loss
from portwright.emulate.poptorch._watch import current
from portwright.emulate.poptorch.options import Options, PipelinedExecution, ShardedExecution
from portwright.job.atomic import atomic_write_text

if TYPE_CHECKING:
    from portwright.emulate import poptorch

_ledger = LEDGERS["poptorch"]
VERSION = "3.4.0+emulated"
_MOVES = {"to", "cuda", "cpu", "xpu", "ipu", "to_empty", "half", "float", "double", "bfloat16", "type"}
_said_emulated = False


@with_others()
class PoplarExecutor:
    """What trainingModel() and inferenceModel() give: call it like the model.

    The first call compiles. Weights then live on the device; the model's own follow on copyWeightsToHost() only.
    """

    def __init__(
        self,
        model: "torch.nn.Module",
        options: Optional["poptorch.Options"],
        training: bool,
        poptorch_version: str,
        optimizer: Optional["torch.optim.Optimizer"] = None,
        user_model: Optional["torch.nn.Module"] = None,
    ):
        self._user_model = user_model if user_model is not None else model
        self._model = model
        self._training = training
        self._poptorch_version = poptorch_version
        self._options: poptorch.Options = _settle(options, training)
        self._args_parser = ArgsParser(model)
        self._executable: Executable | None = None
        self._image: Image | None = None
        self._is_attached = False
        self._anchor_memory: Dict[str, torch.Tensor] = {}
        self._dirty_host_weights = False
        self._is_implicit = training and _host_model.copies_are_implicit()  # refuses an invalid setting
        self._said_stale = False
        self._host_weights_version = 0  # of a training model's copies to the host
        self._version_taken = 0  # the one that an inference model has
        self._runs_taken = 0  # how far its weights were trained when they were read
        # whose training an inference follows
        self._source: Callable[[], PoplarExecutor | None] = lambda: None
        self._num_runs = 0
        self._said_cut = False  # that a DataLoader has other options
        self._process = os.getpid()
        self._host_changes = HostChanges()
        self._random = RandomState(self._options.random_seed if self._options.exists("random_seed") else None)
        self._link: OptimizerLink | None = None
        if training:
            if optimizer is None:
                optimizer = optim.SGD(self._user_model.parameters(), lr=0.01)
            self._link = OptimizerLink(optimizer, self._options, self._user_model)
        elif optimizer is not None:
            raise refuse("inferenceModel() takes no optimizer.", AssertedError)
        self._options._freeze()
        self._made = _ledger.enter(
            "training" if training else "inference",
            type(self._user_model).__name__,
            device_iterations=None,
            memory=None,
        )
        if training:
            _warn_shared(self)
            _host_model.wrap(self._user_model, self)
            _rules.guard_host(self, self._user_model.parameters())
            if self._is_implicit:
                watch_looks(self._host_weights().values(), self)
        _say_emulated()

    # The device and the host

    def load_state_dict(self, state_dict: Dict[str, "torch.Tensor"], strict: bool = True):
        """Loads weights into the host's model and, where it runs on a device, copies them there."""
        result = self._user_model.load_state_dict(state_dict, strict)
        if self.isAttachedToDevice():
            self.copyWeightsToDevice()
        return result

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Brings the host's weights up to date, and says whether they were not."""
        if not self._dirty_host_weights:
            return False
        self.copyWeightsToHost()
        return True

    def copyWeightsToHost(self) -> None:
        """Copies the device's weights and buffers into the tensors of the user's model."""
        image = self._need_image()
        self._check_process("copyWeightsToHost()")
        host = self._host_weights()
        with unseen():
            self._host_changes.check_types(host)
            _ledger.count("copyWeightsToHost")
            image.write_host(host)
            self._host_changes.settle(host)
        self._dirty_host_weights = False
        self._host_weights_version += 1

    def copyWeightsToDevice(self) -> None:
        """Copies the host's weights and buffers to the device, over what was trained there."""
        self._take_over()
        host = self._host_weights()
        with unseen():  # the host's weights are taken as they are
            self._host_changes.check_types(host)
            self._need_image().read_host(host)
            self._host_changes.settle(host)
        self._dirty_host_weights = False

    def copyNamedBuffersToDevice(self) -> None:
        """Copies only the buffers that Options.updatableNamedBuffers names."""
        image = self._need_image()
        names = self._options._Popart.options.get("updatableNamedBuffers")
        if not names:
            raise refuse(
                "no buffer may be updated: name them in Options.updatableNamedBuffers() before compiling."
            )
        image.read_host(self._host_weights(), names)
        self._host_changes.settle(self._host_weights(), names)

    def attachToDevice(self) -> None:
        """Takes the device again after detachFromDevice(), with the host's weights."""
        self._need_image()
        if self._options.connection_type == enums.ConnectionType.Never:
            raise refuse(
                "attachToDevice(): the model was compiled for an offline target (ConnectionType.Never), which runs nothing. "
                "Compile it where there is a device.",
                AssertedError,
            )
        if self._is_attached:
            raise refuse("attachToDevice(): the device is attached already.")
        self._attach()

    def _attach(self) -> None:
        self._is_attached = True
        self.copyWeightsToDevice()
        if self._link is not None:
            self._link.attach()

    def detachFromDevice(self) -> None:
        """Reads weights and states back to the host, and lets the device go."""
        self._need_image()
        if not self._is_attached:
            raise refuse("detachFromDevice(): the device is not attached.")
        self._bring_back()
        self._is_attached = False

    def isAttachedToDevice(self) -> bool:
        return self.isCompiled() and self._is_attached

    def isCompiled(self) -> bool:
        return self._executable is not None

    def destroy(self) -> None:
        """Reads everything back, forgets the program, and makes the user's model a plain one again."""
        if not self.isCompiled():
            return
        self._host_changes = HostChanges()  # a model that was changed since gets back what it still has
        self._bring_back()
        if self._link is not None:
            self._link.rule = None
            _host_model.unwrap(self._user_model)
            release_looks(self._host_weights().values())
            _rules.release_host(self)
        self._executable = self._image = None
        self._host_changes = HostChanges()  # nothing is on a device
        self._is_attached = False

    def _bring_back(self) -> None:
        if self._link is not None:
            self.copyWeightsToHostIfNeeded()
            self._link.read_state()

    def setOptimizer(self, optimizer: "torch.optim.Optimizer"):
        """Sends an optimizer's variable values, such as the learning rate, to the device: nothing else does."""
        if self._link is None:
            raise refuse("setOptimizer(): this is an inferenceModel, which has no optimizer.")
        _ledger.count("setOptimizer")
        self._link.set(optimizer)
        if self.isAttachedToDevice():
            self._link.write_state()

    # Compiling

    def compile(self, *args, **kwargs) -> None:
        """Compiles for arguments like these, without running."""
        self._check_process("compile()")
        parsed = self._args_parser(args, kwargs, False)
        self._made.is_used = True
        if self._executable is not None:
            logger.warning("compile() has no effect: the model is compiled already")
            return
        self._compile(parsed)

    # or the device's weights could not be changed outside of the user's inference mode
    @torch.inference_mode(False)
    def _compile(self, parsed: Any) -> None:
        _check_run_options(self._options, self._model)
        check_trains(self._options, self._training)
        check_kinds(parsed)
        if not self._training:
            warn_of_training_mode(self._model)
        warn_requires_grad(flattenTensorStructure((parsed.args, parsed.kwargs)))
        image = Image(
            dict(self._model.named_parameters()),
            dict(self._model.named_buffers()),
            self._options.replication_factor,
        )
        rule = None if self._link is None else self._link.compile(dict(self._model.named_parameters()))
        executable = compile_step(
            self._model,
            parsed,
            self._options,
            image,
            optimizer=None if self._link is None else self._link.optimizer,
            scales_loss=scales_loss(rule),
            numbers=[] if rule is None else list(rule.numbers()),
        )
        self._made.details = {
            "device_iterations": self._options.device_iterations,
            "memory": executable.memory,
        }
        self._executable, self._image = executable, image
        if self._link is not None:
            self._link.rule = rule
        if self._options.connection_type != enums.ConnectionType.Never:
            self._attach()

    # Running

    def __call__(self, *args: List["torch.Tensor"], **kwargs: Dict[str, "torch.Tensor"]):
        if self._options.connection_type == enums.ConnectionType.Never:
            raise refuse(
                "the model was called, but its target is offline (ConnectionType.Never): use compile() or compileAndExport().",
                AssertedError,
            )
        self._check_process("a call")
        watch = current()
        if watch is not None:
            raise watch.refuse_here(
                f"forward() calls the executor made at {self._made.where} while it is compiled itself: one program cannot run another. "
                "Call the module, not its executor"
            )
        parsed = self._args_parser(args, kwargs, self.isCompiled())
        if self._executable is None:
            self._compile(parsed)
        if not self._is_attached:
            self.attachToDevice()
        self._follow_training()
        with unseen():
            self._host_changes.check(self._host_weights(), training=self._training)
        results = self._run(parsed)
        mark_results(flattenTensorStructure(results))
        return results

    @torch.inference_mode(False)
    def _run(self, parsed: Any) -> Any:
        executable, image, link = self._executable, self._need_image(), self._link
        assert executable is not None
        executable.inputs.check(parsed)
        if link is not None:
            link.write_state()
            link.warn_unsent()
        self._made.calls += 1
        self._made.is_used = True
        _ledger.count(self._made.kind)
        run = Run(executable, image, self._options, None if link is None else link.rule, self._random)
        flat = executable.inputs.flatten(parsed)
        if not self._said_cut:
            self._said_cut = warn_of_other_options(flat, batches_of_a_call(self._options))
        results, self._anchor_memory = run(flat)
        self._num_runs += 1
        if link is not None:
            link.note_trained()
            self._said_stale = False
            self._dirty_host_weights = True
        return results

    def _follow_training(self) -> None:
        """An inference model takes over what the training model that its weights belong to has learned."""
        trainer = self._source()
        if self._training or trainer is None:
            self._warn_of_order()
            return
        trainer.copyWeightsToHostIfNeeded()
        if self._version_taken != trainer._host_weights_version:
            self.copyWeightsToDevice()
            self._version_taken = trainer._host_weights_version

    def _trainers(self) -> list[PoplarExecutor]:
        """The training models whose weights this inference model has, or a part of."""
        if self._training:
            return []
        owners = map(_owner_of, self._model.parameters())
        return list({id(owner): owner for owner in owners if owner is not None}.values())

    def _take_over(self) -> None:
        """Whose host's weights are read, has them up to date first: PopTorch copies when it looks at them."""
        trainers = self._trainers()
        for trainer in trainers:
            trainer.copyWeightsToHostIfNeeded()
        self._runs_taken = sum(trainer._num_runs for trainer in trainers)

    def _warn_of_order(self) -> None:
        if self._said_stale or sum(trainer._num_runs for trainer in self._trainers()) <= self._runs_taken:
            return
        self._said_stale = True
        logger.warning(
            "the inferenceModel made at %s does not follow the training of its weights, as in the real one: it is older than the "
            "trainingModel, or of a part of its model. Make it after trainingModel() and of the same model, or call its "
            "copyWeightsToDevice()",
            self._made.where,
        )

    def _note_stale(self, reading: str) -> None:
        if self._dirty_host_weights and not self._said_stale and not self._is_implicit:
            self._said_stale = True
            logger.warning(
                "%s reads the host's weights, which are older than the device's: call copyWeightsToHost() first "
                "(or set %s=implicit, and they follow as in PopTorch 3.4)",
                reading,
                _host_model.COPIES,
            )

    @partly("the file says what was compiled, and has no program in it: loadExecutable() is refused.")
    def compileAndExport(
        self,
        filename: str,
        *args: List["torch.Tensor"],
        export_model: bool = True,
        **kwargs: Dict[str, "torch.Tensor"],
    ):
        """Compiles for arguments like these, and writes what was compiled."""
        self.compile(*args, **kwargs)
        assert self._executable is not None
        ops = [node.name for node in self._executable.program.nodes()]
        described = {"emulated": self._poptorch_version, "training": self._training, "ops": ops}
        try:
            atomic_write_text(Path(filename), json.dumps(described, indent=1) + "\n")
        except OSError as error:
            raise refuse(f"{filename} cannot be written: {error}.") from error

    # What can be asked

    @property
    def model(self) -> "torch.nn.Module":
        """The user's own model."""
        return self._user_model

    @property
    def options(self) -> "poptorch.Options":
        return self._options

    @property
    def rng_state(self) -> List[int]:
        """The device's seed, followed by the state of its random numbers."""
        self._need_image()
        return self._random.get()

    @rng_state.setter
    def rng_state(self, state: List[int]):
        self._need_image()
        self._random.set(list(state))

    def getTensorNames(self) -> List[str]:
        """The names that Options.anchorTensor() takes."""
        if self._executable is None:
            raise refuse(f"getTensorNames(): {NOT_COMPILED}", AssertedError)
        return list(self._executable.tensor_names)

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """What the last call computed for a tensor of Options.anchorTensor()."""
        if short_name not in self._anchor_memory:
            known = ", ".join(self._options.anchored_tensors) or "none"
            raise refuse(
                f"getAnchoredTensor(): nothing was kept under {short_name!r}. Anchored: {known}; values are there after a call.",
                AssertedError,
            )
        return self._anchor_memory[short_name]

    def __repr__(self) -> str:
        kind = "trainingModel" if self._training else "inferenceModel"
        return f"{kind} (PopTorch, emulated by Portwright on the CPU) of {module_repr(self._user_model)}"

    def __getattr__(self, attr: str) -> Any:
        if "_user_model" not in self.__dict__:  # while an object is made or copied
            raise AttributeError(attr)
        if attr in _MOVES:
            return _refuse_move(attr)
        if attr in ("train", "eval") and self.isCompiled():
            logger.warning(
                "%s() has no effect on a compiled model: call it on the model before wrapping", attr
            )
        value = getattr(self._user_model, attr)
        return _host_model.Weight(value) if isinstance(value, torch.nn.Parameter) else value

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise refuse(
            "an executor holds a device and cannot be copied or pickled. Save the state_dict() of the model."
        )

    def _check_process(self, what: str) -> None:
        if os.getpid() != self._process:
            raise refuse(
                f"{what} of the executor made at {self._made.where} comes from another process than the one that made it, such as a "
                "worker of a DataLoader: the device belongs to that one, and what is trained here would be lost. Call it there, "
                "or make an executor in this process."
            )

    def _need_image(self) -> Image:
        if self._image is None:
            raise refuse(NOT_COMPILED)
        return self._image

    def _host_weights(self) -> dict[str, torch.Tensor]:
        return {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}


def _warn_shared(executor: PoplarExecutor) -> None:
    """Weights that two executors train are two copies on two devices, which know nothing of each other."""
    for name, parameter in executor._user_model.named_parameters():
        other = _owner_of(parameter)
        if other is not None:
            logger.warning(
                "%s is also trained by the trainingModel made at %s. Each has a copy of its own on its device: between calls of "
                "one and the other, call copyWeightsToHost() of the first and copyWeightsToDevice() of the second",
                name,
                other._made.where,
            )
            return


def _refuse_move(name: str) -> Callable[..., Any]:
    """The method of that name: it may be looked at, and not called."""

    def move(*args: Any, **kwargs: Any) -> Any:
        raise refuse(
            f".{name}() of a wrapped model: the real one gives back the bare module, so that `model = model.{name}(...)` "
            "loses the wrapper and goes on silently on the CPU. Leave it out, or call it on the model before wrapping."
        )

    return move


def _say_emulated() -> None:
    global _said_emulated
    if not _said_emulated:
        _said_emulated = True
        logger.warning(
            "PopTorch 3.4, emulated by Portwright on the CPU of this machine: no IPU is used, and times say nothing about one"
        )


def _settle(options: Any, training: bool) -> Any:
    """A copy with an output mode of its own; the user's options are frozen."""
    if options is None:
        settled: Any = Options()
    elif isinstance(options, Options):
        options._freeze()
        settled = options.clone()
    else:
        raise refuse(f"options must be a poptorch.Options, not {type(options).__name__} ({options!r}).")
    if not training and settled.Training.gradient_accumulation != 1:
        more = ""
        strategy = settled._execution_strategy
        if isinstance(strategy, PipelinedExecution) and not isinstance(strategy, ShardedExecution):
            more = " To feed a pipeline enough batches a call, use Options.deviceIterations."
        raise refuse(
            "an inferenceModel accumulates no gradients: Options.Training.gradientAccumulation is "
            f"{settled.Training.gradient_accumulation}, and must be 1.{more}"
        )
    if settled.defaultOutputMode():
        settled.outputMode(enums.OutputMode.Final if training else enums.OutputMode.All)
    for anchor in settled.anchored_tensors.values():
        if anchor[1]:
            anchor[2] = settled.output_mode
            anchor[3] = settled.output_return_period if anchor[2] == enums.OutputMode.EveryN else 1
    return settled


def _check_run_options(options: Any, model: torch.nn.Module) -> None:
    """Refuses what cannot be emulated, and names of buffers that the model does not have."""
    refuse_several_processes(options)
    known = dict(model.named_buffers())
    for name in options._Popart.options.get("updatableNamedBuffers") or []:
        if name not in known:
            raise refuse(
                f"Options.updatableNamedBuffers names {name!r}, which is no buffer of the model. "
                f"Valid: {', '.join(known) or 'none'}."
            )


def trainingModel(
    model: Union["torch.nn.Module", "poptorch.PoplarExecutor"],
    options: Optional["poptorch.Options"] = None,
    optimizer: Optional["torch.optim.Optimizer"] = None,
) -> "poptorch.PoplarExecutor":
    """Wraps a model whose forward() computes the loss: each call trains it.

    Without an optimizer it is SGD at a rate of 0.01. The model itself stays with the host, and its weights there follow
    on copyWeightsToHost().
    """
    module = _module_of(model)
    if _host_model.is_wrapped(module):
        executor = _host_model.owner(module)
        where = f" at {executor._made.where}" if executor is not None and executor._made.where else ""
        raise refuse(
            f"{type(module).__bases__[0].__name__} has already been wrapped in trainingModel(){where}. "
            "Call destroy() on it before wrapping it again.",
            StateError,
        )
    return PoplarExecutor(
        model=copy.copy(module),
        options=options,
        training=True,
        optimizer=optimizer,
        user_model=module,
        poptorch_version=VERSION,
    )


def inferenceModel(
    model: Union["torch.nn.Module", "poptorch.PoplarExecutor"], options: Optional["poptorch.Options"] = None
) -> "poptorch.PoplarExecutor":
    """Wraps a model for inference; one that a trainingModel trains gets its weights at each call after training."""
    module = _module_of(model)
    executor = PoplarExecutor(
        model=copy.copy(module), options=options, training=False, poptorch_version=VERSION
    )
    trainer = _host_model.owner(module)
    if trainer is None and isinstance(model, PoplarExecutor):
        trainer = model._source()
    if trainer is not None:
        executor._source = weakref.ref(trainer)
    return executor


def _module_of(model: Any) -> Any:
    if isinstance(model, PoplarExecutor):
        return model._user_model
    if not isinstance(model, torch.nn.Module):
        raise refuse(f"a torch.nn.Module is wrapped, not {type(model).__name__} ({model!r}).")
    if isinstance(model, torch.jit.ScriptModule) or isinstance(
        getattr(model, "_orig_mod", None), torch.nn.Module
    ):
        raise refuse(
            f"{type(model).__name__} is a module that torch.jit or torch.compile has compiled. Wrap the module as it was written."
        )
    if isinstance(model, (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)):
        raise refuse(
            f"{type(model).__name__} spreads a model over GPUs or processes. Wrap the module that it holds (.module), and set "
            "Options.replicationFactor() for copies on several IPUs."
        )
    return model


def module_repr(m: torch.nn.Module):
    """The text of a module as torch writes it; a wrapped parameter's class does not show."""
    lines = m.extra_repr().split("\n") if m.extra_repr() else []
    children = [
        f"({name}): {module_repr(child) if child is not None else None}" for name, child in m._modules.items()
    ]
    hooks = "".join(f"{hook!r} " for hook in m._forward_pre_hooks.values())
    if not children and len(lines) <= 1:
        return f"{hooks}{m._get_name()}({''.join(lines)})"
    body = textwrap.indent("\n".join([*lines, *children]), "  ")
    return f"{hooks}{m._get_name()}(\n{body}\n)"


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """Whether there are that many IPUs: never under the emulator, which needs none."""
    return False


def ipuHardwareVersion() -> int:
    """The version of the IPUs; refused without any, as by the real one."""
    raise refuse("there is no IPU: PopTorch is emulated on the CPU.", AssertedError)
