"""What is on the emulated IPUs: weights, random state, the compiled step, and one run of it over a call's micro-batches."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.func import functional_call

from portwright.emulate.poptorch import _rules
from portwright.emulate.poptorch._batching import Batching, Collector, Reduction, check_period
from portwright.emulate.poptorch._errors import refuse
from portwright.emulate.poptorch._inputs import (
    Signature,
    flattenTensorStructure,
    reconstructTensorStructure,
    to_device,
)
from portwright.emulate.poptorch._logging import logger
from portwright.emulate.poptorch._program import Program
from portwright.emulate.poptorch._program_trace import trace
from portwright.emulate.poptorch._rules import PythonState
from portwright.emulate.poptorch._update import UpdateRule
from portwright.errors import suggest


def on_device(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A private copy of a host tensor in the type that an IPU keeps it in."""
    if tensor.is_complex() or tensor.dtype == torch.bfloat16:
        raise refuse(f"{name} is {tensor.dtype}, which IPUs do not have. Use torch.float32 or torch.half.")
    if tensor.device.type != "cpu":
        raise refuse(
            f"{name} is on {tensor.device}: PopTorch takes host tensors. Leave the model on the CPU."
        )
    copy = tensor.detach().clone()
    if tensor.dtype == torch.float64:
        logger.warning("%s is torch.float64, which IPUs do not have: it is kept there as torch.float32", name)
        copy = copy.float()
    return copy


class Image:
    """The device's own copies; the host's tensors are read and written only when somebody asks for it."""

    def __init__(
        self, parameters: Mapping[str, torch.Tensor], buffers: Mapping[str, torch.Tensor], replicas: int
    ) -> None:
        self.parameters = {name: on_device(name, tensor) for name, tensor in parameters.items()}
        self._buffers = [
            {name: on_device(name, tensor) for name, tensor in buffers.items()} for _ in range(replicas)
        ]
        self._views = [{**self.parameters, **mine} for mine in self._buffers]

    def weights(self, replica: int = 0) -> dict[str, torch.Tensor]:
        """All tensors of one replica by name; programs and optimizers change them in place."""
        return self._views[replica]

    def read_host(self, host: Mapping[str, torch.Tensor], names: Sequence[str] | None = None) -> None:
        """Copies host tensors to every replica."""
        for name in host if names is None else names:
            for view in self._views:
                with torch.no_grad():
                    view[name].copy_(host[name].detach())

    def write_host(self, host: Mapping[str, torch.Tensor]) -> None:
        """Copies the weights, and the first replica's buffers, into the host's tensors that are still as they were."""
        with torch.no_grad():
            for name, tensor in host.items():
                mine = self._views[0].get(name)
                if mine is not None and mine.shape == tensor.shape:
                    tensor.data.copy_(mine)


class RandomState:
    """The random numbers of the device: its own sequence, apart from the host's generator."""

    def __init__(self, seed: int | None) -> None:
        self.set([secrets.randbits(32) if seed is None else seed])

    def get(self) -> list[int]:
        """The seed, followed by the state that has come of it."""
        return [self._seed, *self._state.tolist()]

    def set(self, values: Sequence[int]) -> None:
        """Takes a seed alone, or what get() gave."""
        if not values or not all(isinstance(value, int) for value in values):
            raise refuse("a random state is a list of integers: a seed, or what rng_state gave before.")
        generator = torch.Generator()
        generator.manual_seed(values[0])
        if len(values) > 1:
            try:
                generator.set_state(torch.tensor(values[1:], dtype=torch.uint8))
            except (RuntimeError, TypeError) as error:
                raise refuse(
                    f"this is no random state of the emulator ({len(values)} numbers): {error}"
                ) from error
        self._seed = values[0]
        self._state = generator.get_state()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Has torch draw from the device's sequence, and leaves the host's as it was."""
        host = torch.get_rng_state()
        torch.set_rng_state(self._state)
        try:
            yield
            self._state = torch.get_rng_state()
        finally:
            torch.set_rng_state(host)


GRADIENT = "Gradient___"
UPDATED = "UpdatedVar___"
WRITTEN = "written/"
"""Before the number of an input in the name of the output that has what forward() made of it in place."""
LOSS_SCALE = "lossScaling_FLOAT"
"""The name under which a program that scales its loss finds the factor among its weights."""


@dataclass(frozen=True)
class Executable:
    """What compiling gives; `results` says which output of the program has a name."""

    program: Program
    inputs: Signature
    template: Any  # what forward() returned, with an empty tensor in the place of each
    num_tensors: int  # in the template
    results: dict[str, int]
    tensor_names: list[str]
    training: bool
    scales_loss: bool
    memory: dict[str, Any]  # of each IPU


@dataclass(frozen=True)
class Anchor:
    """A tensor to be kept: which one, and of which micro-batches."""

    name: str
    mode: int
    period: int


def anchors_of(options: Any) -> dict[str, Anchor]:
    """The anchored tensors by their short name."""
    return {
        short: Anchor(name, mode, period)
        for short, (name, _, mode, period) in options.anchored_tensors.items()
    }


def compile_step(
    model: torch.nn.Module,
    args: Any,
    options: Any,
    image: Image,
    *,
    optimizer: torch.optim.Optimizer | None,
    scales_loss: bool,
    numbers: Sequence[str],
) -> Executable:
    """Runs the user's Python once, on the first micro-batch, and keeps what it computes as a program."""
    training = optimizer is not None
    trained = [name for name, p in model.named_parameters() if p.requires_grad] if training else []
    batching = Batching.of(options)
    check_period(options.output_mode, options.output_return_period, batching)
    anchors = anchors_of(options)
    for anchor in anchors.values():
        check_period(anchor.mode, anchor.period, batching, f"the anchor of {anchor.name}")
    flat = flattenTensorStructure((args.args, args.kwargs))
    inputs = [
        batching.first(tensor, f"input {index}").clone() for index, tensor in enumerate(to_device(flat))
    ]
    weights = {name: tensor.clone() for name, tensor in image.weights().items()}
    if scales_loss:
        weights[LOSS_SCALE] = torch.ones(())
    traced = _Traced(model, args, options, [anchor.name for anchor in anchors.values()])
    with RandomState(0).active(), _rules.watching(options, training=training) as watch:
        program = trace(
            traced.call,
            weights,
            inputs,
            training=training,
            find_loss=traced.find_loss(watch, scales_loss),
            trained=trained,
        )
    _check_buffers(program, options)
    memory = _rules.check_memory(watch, options, optimizer)
    signature = Signature.of(args)
    names = [f"input/{name}" for name in (*signature.names, *signature.named)]
    names += [*image.weights(), *traced.outputs]
    if training:
        names += ["loss", *(GRADIENT + name for name in trained), *(UPDATED + name for name in trained)]
    if "loss" not in traced.extra and training:
        names.remove("loss")  # it can be looked at where forward() returns it
    names += numbers  # of the optimizer
    for anchor in anchors.values():
        if anchor.name not in names:
            raise refuse(
                f"anchorTensor() names {anchor.name!r}, which is no tensor of this model. {suggest(anchor.name, names)}"
            )
    holes = [torch.empty(0)] * len(traced.flat)
    return Executable(
        program,
        signature,
        reconstructTensorStructure(traced.result, holes),
        len(traced.flat),
        traced.extra,
        names,
        training,
        scales_loss,
        memory.as_json(),
    )


class _Traced:
    """The user's model as a function of weights and inputs, which is what gets traced."""

    def __init__(self, model: torch.nn.Module, args: Any, options: Any, anchors: Sequence[str]) -> None:
        self._model = model
        self._args = args
        self._anchors = anchors
        self.outputs: dict[
            str, torch.Tensor
        ] = {}  # of modules, by "path/to/module/Class:k", k counting results
        self.extra: dict[str, int] = {}
        self._scale: torch.Tensor | None = None
        self.result: Any = None
        self.flat: list[torch.Tensor] = []  # the tensors of it

    def call(self, weights: dict[str, torch.Tensor], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        versions = [tensor._version for tensor in inputs]
        own = dict(weights)
        self._scale = own.pop(LOSS_SCALE, None)
        args, kwargs = reconstructTensorStructure((tuple(self._args.args), self._args.kwargs), inputs)
        for name, _ in self._model.named_parameters(remove_duplicate=False):
            # as torch marks those that are of no class of their own: isinstance() and get_parameter() ask
            if name in own:
                own[name].__dict__["_is_param"] = True
        state = PythonState(self._model)
        handle = self._model.register_forward_hook(_check_kept(dict(own)))
        tensors: list[tuple[dict[str, Any], dict[str, Any]]] = []
        for part in self._model.modules():
            tensors += [(part._parameters, {**part._parameters}), (part._buffers, {**part._buffers})]
        try:
            with self._recording():
                result = functional_call(self._model, own, args, kwargs)
        finally:
            handle.remove()
            for there, before in tensors:  # what forward() has taken out comes back
                there.clear()
                there.update(before)
        state.warn_of_changes()
        self.result, self.flat = result, flattenTensorStructure(result)
        named = {name: self.outputs[name] for name in self._anchors if name in self.outputs}
        for name, value in [*zip(self._args.arg_names, args, strict=True), *kwargs.items()]:
            if f"input/{name}" in self._anchors and isinstance(value, torch.Tensor):
                named[f"input/{name}"] = value
        for index, (tensor, version) in enumerate(zip(inputs, versions, strict=True)):
            if tensor._version != version:  # forward() has changed it in place, and the host is to see that
                named[f"{WRITTEN}{index}"] = tensor
        self.extra = {name: len(self.flat) + index for index, name in enumerate(named)}
        return [*self.flat, *named.values()]

    @contextmanager
    def _recording(self) -> Iterator[None]:
        counts: Counter[str] = Counter()

        def hook(name: str) -> Any:
            def record(module: torch.nn.Module, inputs: Any, result: Any) -> None:
                base = f"{name.replace('.', '/')}/{type(module).__name__}"
                for tensor in flattenTensorStructure(result):
                    self.outputs[f"{base}:{counts[base]}"] = tensor
                    counts[base] += 1

            return record

        with ExitStack() as stack:
            for name, module in self._model.named_modules():
                if name and not isinstance(module, torch.jit.ScriptModule):
                    stack.enter_context(module.register_forward_hook(hook(name)))
            yield

    def find_loss(self, watch: Any, scales: bool) -> Callable[[Any], torch.Tensor]:
        def find(_: Any) -> torch.Tensor:
            loss: torch.Tensor = watch.find_loss(self.result)
            for index, tensor in enumerate(self.flat):
                if tensor is loss:
                    self.extra["loss"] = index
            return loss * self._scale if scales and self._scale is not None else loss

        return find


def _check_kept(given: Mapping[str, torch.Tensor]) -> Callable[..., None]:
    """A hook that refuses a forward() which put another tensor in the place of a weight: the device has the old one."""

    def check(model: torch.nn.Module, inputs: Any, result: Any) -> None:
        now = {
            **dict(model.named_parameters(remove_duplicate=False)),
            **dict(model.named_buffers(remove_duplicate=False)),
        }
        for name, tensor in given.items():
            if name not in now:
                raise refuse(f"forward() removes {name} from the model, which the compiled program needs.")
            if now[name] is not tensor:
                raise refuse(
                    f"forward() puts a new tensor in the place of {name}, which the compiled program does not see. "
                    f"Change it in place: self.{name}.copy_(value)."
                )

    return check


def _check_buffers(program: Program, options: Any) -> None:
    changed = sorted(program.written)
    if changed and options.replication_factor > 1 and options.broadcast_buffers:
        raise refuse(
            f"forward() changes {', '.join(changed[:3])}{', ...' if len(changed) > 3 else ''}, and with "
            f"{options.replication_factor} replicas PopTorch does not keep such buffers alike. If the model can do with "
            "buffers that differ between replicas, set Options.broadcastBuffers(False)."
        )


class Run:
    """One call of an executable: all device iterations, accumulated micro-batches and replicas."""

    def __init__(
        self, executable: Executable, image: Image, options: Any, rule: UpdateRule | None, random: RandomState
    ) -> None:
        self._executable = executable
        self._image = image
        self._rule = rule
        self._random = random
        self._batching = Batching.of(options)
        self._reduction = Reduction(options, rule.accum_type) if rule is not None else None
        replicas, accumulation = self._batching.replicas, self._batching.accumulation
        mode, period = options.output_mode, options.output_return_period
        self._outputs = [
            Collector(mode, period, replicas, accumulation) for _ in range(executable.num_tensors)
        ]
        self._written = {
            int(name.removeprefix(WRITTEN)): place
            for name, place in executable.results.items()
            if name.startswith(WRITTEN)
        }
        self._host_inputs: list[torch.Tensor] = []
        self._anchors = anchors_of(options)
        self._kept = {
            short: Collector(
                anchor.mode, anchor.period, replicas, 1 if anchor.name.startswith(UPDATED) else accumulation
            )
            for short, anchor in self._anchors.items()
        }

    def __call__(self, flat: Sequence[torch.Tensor]) -> tuple[Any, dict[str, torch.Tensor]]:
        """Gives the results in the model's own structure, and the anchored tensors by their short names."""
        inputs = to_device(flat)
        for number in self._written:
            inputs[number] = inputs[number].clone()  # what one replica writes is not what the next one reads
        self._host_inputs = [tensor.detach() for tensor in flat]
        with self._random.active(), torch.no_grad():
            for iteration in range(self._batching.device_iterations):
                self._iterate(iteration, inputs)
        filled = reconstructTensorStructure(
            self._executable.template, [one.result() for one in self._outputs]
        )
        return filled, {short: collector.result() for short, collector in self._kept.items()}

    def _iterate(self, iteration: int, inputs: Sequence[torch.Tensor]) -> None:
        batching = self._batching
        observe = None
        if self._rule is not None and self._executable.scales_loss:
            scale = torch.tensor(self._rule.loss_scale)
            for replica in range(batching.replicas):
                self._image.weights(replica)[LOSS_SCALE] = scale
        if self._rule is not None and self._rule.scaling is not None:
            observe = self._rule.scaling.observe
        for accumulated in range(batching.accumulation):
            run = iteration * batching.accumulation + accumulated
            for replica in range(batching.replicas):
                weights = self._image.weights(replica)
                micro = [batching.micro_batch(tensor, run, replica) for tensor in inputs]
                results, gradients = self._executable.program.run(weights, micro, observe)
                for number, place in self._written.items():
                    batching.micro_batch(self._host_inputs[number], run, replica).copy_(results[place])
                self._keep(run, replica, results, gradients, weights)
                if self._reduction is not None:
                    self._reduction.add(replica, gradients)
        if self._rule is not None and self._reduction is not None:
            self._rule.apply(self._image.parameters, self._reduction.result())
            self._keep_updated(iteration)

    def _keep(
        self,
        run: int,
        replica: int,
        results: Sequence[torch.Tensor],
        gradients: Mapping[str, torch.Tensor],
        weights: Mapping[str, torch.Tensor],
    ) -> None:
        for collector, value in zip(self._outputs, results, strict=False):
            collector.add(run, replica, value)
        if not self._kept:
            return
        places = self._executable.results
        for short, anchor in self._anchors.items():
            name = anchor.name
            if name.startswith(GRADIENT):
                weight = name.removeprefix(GRADIENT)
                if weight not in gradients:
                    raise refuse(f"anchorTensor() names {name}, but the loss does not depend on {weight}.")
                self._kept[short].add(run, replica, gradients[weight])
            elif self._rule is not None and name in (numbers := self._rule.numbers()):
                self._kept[short].add(run, replica, numbers[name])
            elif not name.startswith(UPDATED):
                self._kept[short].add(
                    run, replica, results[places[name]] if name in places else weights[name]
                )

    def _keep_updated(self, iteration: int) -> None:
        for short, anchor in self._anchors.items():
            if anchor.name.startswith(UPDATED):
                value = self._image.parameters[anchor.name.removeprefix(UPDATED)]
                for replica in range(self._batching.replicas):
                    self._kept[short].add(iteration, replica, value)
