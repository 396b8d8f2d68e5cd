"""samba.session: compiling a model, and running the sections of what was compiled.

`sambaflow.samba` has an object of this class under the module's own name, as the vendor's does.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from portwright.emulate.ledger import LEDGERS, Made
from portwright.emulate.sambaflow import _state
from portwright.emulate.sambaflow._compiler import (
    build,
    choose_precision,
    choose_strictness,
    choose_system,
    list_optimizers,
    retrace,
)
from portwright.emulate.sambaflow._device import Device
from portwright.emulate.sambaflow._model import match_inputs, plain
from portwright.emulate.sambaflow._names import REFUSED
from portwright.emulate.sambaflow._no_effect import Profiler
from portwright.emulate.sambaflow._pef import Pef
from portwright.emulate.sambaflow._refusal import SambaFlowError, refuse
from portwright.emulate.sambaflow._step import TracedStep
from portwright.emulate.sambaflow.logging import samba_logger
from portwright.emulate.sambaflow.samba.sambatensor import SambaTensor, from_torch_tensor, to_torch
from portwright.errors import suggest

_ledger = LEDGERS["sambaflow"]
_COMPILE_FIRST = (
    "Compile with samba.session.compile, then call utils.trace_graph(model, inputs, optimizer, pef=...)."
)


def _find_outputs(outputs: Sequence[SambaTensor], asked: Any) -> list[int]:
    """The numbers of the outputs that are asked for, by their names; all where nothing is."""
    if asked is None:
        return list(range(len(outputs)))
    names = {tensor.sn_name: index for index, tensor in enumerate(outputs)}
    found = []
    for tensor in [asked] if isinstance(asked, Tensor) else asked:
        name = getattr(tensor, "sn_name", None)
        if name not in names:
            raise SambaFlowError(
                f"output_tensors has a tensor named {name!r}, which is no output of the program.",
                "Give model.output_tensors, or what trace_graph returned.",
            )
        found.append(names[name])
    return found


def _check_hyperparameters(
    given: Mapping[str, float],
    model: nn.Module,
    device: Device,
    sections: Sequence[str],
    compiled: Sequence[Sequence[Mapping[str, float]]],
) -> dict[str, float]:
    """Refuses what the program has no such number for; `p` is the rate of every dropout."""
    valid = {u.owner.argin_region_name + key for u in device.updates for key in u.owner.hyperparameters}
    if any(isinstance(part, nn.Dropout) for part in model.modules()):
        valid.add("p")
    for key, value in given.items():
        if key not in valid:
            raise SambaFlowError(
                f"hyperparam_dict has '{key}', which this program has not.", suggest(str(key), valid)
            )
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise SambaFlowError(f"hyperparam_dict['{key}'] is {value!r}.", "Give a finite number.")
    if "p" in given and not 0 <= given["p"] < 1:
        raise SambaFlowError(f"hyperparam_dict['p'] is {given['p']}.", "Give a rate from 0 to below 1.")
    if "opt" in sections:
        _tell_left_out(given, device, compiled)
    return {str(key): float(value) for key, value in given.items()}


def _tell_left_out(
    given: Mapping[str, float], device: Device, compiled: Sequence[Sequence[Mapping[str, float]]]
) -> None:
    """A hyperparameter that a run leaves out has the value that was compiled: told of a rate, and of what the host has otherwise."""
    for update, groups in zip(device.updates, compiled, strict=True):
        for key in update.owner.hyperparameters:
            if update.owner.argin_region_name + key in given:
                continue
            here = [group[key] for group in update.owner.param_groups]
            there = [group[key] for group in groups]
            if key == "lr" or here != there:
                samba_logger.warning(
                    f"no {key} in hyperparam_dict: the device uses the compiled one, {there[0]:g}, and the optimizer on the "
                    f"host says {here[0]:g}",
                    log_limit=1,
                )


@dataclass(frozen=True)
class _Start:
    """Where backward starts, as a program was traced: `roots` are the outputs that loss_indices named."""

    outputs: Sequence[SambaTensor]
    roots: Sequence[int] | None
    init_output_grads: bool

    def gradients(
        self, step: TracedStep, wanted: Sequence[int], given: Sequence[Tensor | None] | Tensor | None
    ) -> list[Tensor]:
        """Gradients given for the outputs, else those set as sn_grad, else ones at the loss."""
        explicit = self._explicit(wanted, given)
        grads = [torch.zeros_like(output) for output in step.outputs]
        for index, grad in explicit.items():
            expected = step.outputs[index]
            if tuple(grad.shape) != tuple(expected.shape) or grad.dtype != expected.dtype:
                raise SambaFlowError(
                    f"the gradient of output {index} is {grad.dtype}{list(grad.shape)}, and the output "
                    f"{expected.dtype}{list(expected.shape)}.",
                    "Give it the output's shape and type, as model.output_tensors has them.",
                )
            grads[index] = to_torch(grad).detach().clone()
        if explicit:
            return grads
        if not self.init_output_grads:
            raise SambaFlowError(
                "section 'bckwd' has no gradient to start from: init_output_grads is False.",
                "Give grad_of_outputs, or set output.sn_grad, or trace with init_output_grads=True.",
            )
        for index in self._losses(step):
            grads[index] = torch.ones_like(step.outputs[index])
        return grads

    def _explicit(
        self, wanted: Sequence[int], given: Sequence[Tensor | None] | Tensor | None
    ) -> dict[int, Tensor]:
        found: dict[int, Tensor] = {
            index: tensor.sn_grad for index, tensor in enumerate(self.outputs) if tensor.sn_grad is not None
        }
        if given is None:
            return found
        listed = [given] if isinstance(given, Tensor) else list(given)
        if len(listed) != len(wanted):
            raise SambaFlowError(
                f"grad_of_outputs has {len(listed)} gradient(s) for {len(wanted)} output(s).",
                "Give one for each.",
            )
        return found | {index: grad for index, grad in zip(wanted, listed, strict=True) if grad is not None}

    def _losses(self, step: TracedStep) -> Sequence[int]:
        """The outputs that were named, or the one that no other output is computed from."""
        if self.roots is not None:
            return self.roots
        sinks = step.sinks()
        if len(sinks) != 1:
            raise SambaFlowError(
                f"the model has {len(sinks)} outputs that could be its loss (numbers {', '.join(map(str, sinks))}).",
                "Return one loss, name it with trace_graph(..., loss_indices=[0]), or give grad_of_outputs.",
            )
        return sinks


@dataclass
class _Program:
    """What trace_graph put on the device."""

    model: nn.Module
    inputs: Any
    device: Device
    pef: Pef
    start: _Start
    steps: dict[float | None, TracedStep]  # one for each dropout rate; the model's own rate is None
    entry: Made

    def step_for(self, dropout: float | None) -> TracedStep:
        """The program with another dropout rate, which the device takes as a number and we as another trace."""
        if dropout not in self.steps:
            parts = [part for part in self.model.modules() if isinstance(part, nn.Dropout)]
            kept = [part.p for part in parts]
            owners = [update.owner for update in self.device.updates]
            try:
                for part in parts:
                    part.p = float(dropout or 0.0)
                self.steps[dropout] = retrace(
                    self.pef, self.model, self.inputs, owners, init_output_grads=self.start.init_output_grads
                )
            finally:
                for part, rate in zip(parts, kept, strict=True):
                    part.p = rate
        return self.steps[dropout]


class SambaSession:
    """One program on one emulated RDU."""

    def __init__(self, pef_path: str = "") -> None:
        self.pef_path = pef_path
        self.tracing = False
        self.profiler = Profiler()
        self.buffer_dict: dict[str, SambaTensor] = {}
        self.dynamic_dims: dict[str, Any] = {}
        self._program: _Program | None = None

    def setup(self, *args: Any, **options: Any) -> None:
        """Accepted: the emulator needs nothing set up, and its run has no times worth keeping."""

    start_runtime_profile = end_runtime_profile = start_samba_profile = end_samba_profile = setup

    # -- compile -------------------------------------------------------------------------------------------

    def compile(
        self,
        model: nn.Module,
        inputs: Any,
        optimizers: Any = None,
        name: str | None = None,
        app_dir: str | None = None,
        squeeze_bs_dim: bool = False,
        init_output_grads: bool = True,
        config_dict: Mapping[str, Any] | None = None,
        pef_metadata: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        inference: bool | None = None,
        loss_indices: Sequence[Any] | None = None,
    ) -> str:
        """Traces the model, asks the table of ops, and writes OUTPUT_FOLDER/PEF_NAME/PEF_NAME.pef; gives its path."""
        config = dict(config_dict or {})
        if config.get("mapping") == "spatial" or (config.get("num_spatial_batches") or 1) > 1:
            refuse("mapping='spatial'", "sections alone are emulated.", "Leave it at 'section'.")
        listed = list_optimizers(optimizers, model)
        wants_inference = config.get("inference") if inference is None else inference
        if wants_inference and listed:
            raise SambaFlowError(
                "an optimizer was given, and inference asked for.",
                "Give optimizers=None, or leave inference out.",
            )
        if inference is False and not listed:
            raise SambaFlowError(
                "inference=False was given, and no optimizer.", "Give the optimizer to train with."
            )
        pef_name = str(config.get("pef_name") or name or f"{time.strftime('%m%d%H%M%S')}_{os.getpid()}")
        if Path(pef_name).name != pef_name or pef_name == "..":
            raise SambaFlowError(
                f"--pef-name is '{pef_name}'.", "Give a name, and the folder with --output-folder."
            )
        pef, _ = build(
            model,
            inputs,
            listed,
            name=name or pef_name,
            system=choose_system(config),
            num_tiles=config.get("num_tiles"),
            precision=choose_precision(config),
            init_output_grads=init_output_grads,
            unlisted_ops=choose_strictness(config),
            metadata=pef_metadata,
        )
        path = Path(config.get("output_folder") or "out") / pef_name / f"{pef_name}.pef"
        pef.write(path)
        _ledger.count("compile")
        _ledger.enter("compilation", type(model).__name__)
        self.pef_path = str(path)
        samba_logger.info("emulated: wrote %s; no RDU can run it", path)
        return str(path)

    # -- trace ---------------------------------------------------------------------------------------------

    def _trace(
        self,
        model: nn.Module,
        inputs: Any,
        optim: Any,
        *,
        pef: str,
        init_output_grads: bool,
        loss_indices: Sequence[Any] | None,
    ) -> tuple[SambaTensor, ...]:
        """utils.trace_graph: the model is traced again and must be what was compiled; its weights go to the device."""
        if not pef:
            raise SambaFlowError("trace_graph got no PEF.", f"Give pef=args.pef. {_COMPILE_FIRST}")
        compiled = Pef.read(Path(pef))
        listed = list_optimizers(optim, model)
        step = retrace(
            compiled, model, inputs, listed, init_output_grads=init_output_grads, expected=compiled
        )
        self._program = None
        roots = None if loss_indices is None else [_index(one, len(step.outputs)) for one in loss_indices]
        device = Device(model, step, listed)
        for update in device.updates:
            update.owner._bring_state = update.store_state
        outputs = [
            from_torch_tensor(torch.zeros_like(output), name=entry.name)
            for output, entry in zip(step.outputs, compiled.outputs, strict=True)
        ]
        model.output_tensors = tuple(outputs)  # type: ignore[assignment]
        self.buffer_dict = {
            name: from_torch_tensor(tensor.detach(), name=name) for name, tensor in model.named_buffers()
        }
        _ledger.count("trace_graph")
        entry = _ledger.enter("training" if listed else "inference", type(model).__name__)
        start = _Start(outputs, roots, init_output_grads)
        self._program = _Program(model, inputs, device, compiled, start, {None: step}, entry)
        self.pef_path = pef
        _state.stale.discard(model)
        return tuple(outputs)

    def _ready(self, what: str) -> _Program:
        if self._program is None:
            raise SambaFlowError(f"{what} before the program is there: no PEF was loaded.", _COMPILE_FIRST)
        return self._program

    # -- run -----------------------------------------------------------------------------------------------

    def run(
        self,
        input_tensors: Any,
        output_tensors: Any = None,
        grad_of_outputs: Sequence[Tensor | None] | None = None,
        hyperparam_dict: Mapping[str, float] | None = None,
        section_types: Sequence[str] | None = None,
        data_parallel: bool = False,
        reduce_on_rdu: bool = False,
    ) -> list[SambaTensor]:
        """Runs sections of the program on named inputs, all of them by default, and gives the outputs asked for."""
        program = self._ready("samba.session.run")
        model, device, outputs = program.model, program.device, program.start.outputs
        if data_parallel:
            refuse(
                "samba.session.run(data_parallel=True)",
                "one process is one RDU here.",
                "Run one process without it.",
            )
        if isinstance(section_types, str):
            section_types = [section_types]
        sections = (
            [str(one).lower() for one in section_types]
            if section_types is not None
            else list(device.sections())
        )
        if not sections:
            raise SambaFlowError("section_types is empty.", f"Name some of {', '.join(device.sections())}.")
        defaults = [entry.defaults for entry in program.pef.optimizers]
        wanted = _find_outputs(outputs, output_tensors)
        inputs = match_inputs(input_tensors, program.pef.inputs)
        values = plain(inputs)
        hyperparameters = _check_hyperparameters(hyperparam_dict or {}, model, device, sections, defaults)
        device.check_order(sections, values)
        device.step = program.step_for(hyperparameters.pop("p", None))
        grads = None
        if "bckwd" in sections:
            grads = program.start.gradients(device.step, wanted, grad_of_outputs)
        device.run(sections, values, grads, hyperparameters, defaults)
        _ledger.count("run")
        program.entry.is_used = True
        program.entry.calls += 1
        if "bckwd" in sections:
            self._hand_out_gradients(model, device, inputs)
        if "opt" in sections:
            _state.stale.add(model)
        results = [from_torch_tensor(device.outputs[index], name=outputs[index].sn_name) for index in wanted]
        for index, result in zip(wanted, results, strict=True):
            with torch.no_grad():
                outputs[index].copy_(result)
        return results

    def _hand_out_gradients(self, model: nn.Module, device: Device, inputs: Sequence[SambaTensor]) -> None:
        for name, parameter in model.named_parameters():
            parameter.sn_grad = device.last_grads.get(name)  # type: ignore[attr-defined]
        for index, grad in zip(device.step.graded_inputs, device.input_grads, strict=True):
            inputs[index].sn_grad = grad

    # -- moving --------------------------------------------------------------------------------------------

    def to_cpu(self, model: nn.Module) -> None:
        """Brings weights and optimizer state of the device to the host, which is stale until then."""
        program = self._program_of(model, "samba.session.to_cpu")
        _ledger.count("to_cpu")
        program.entry.is_used = True
        program.device.store(model)
        for update in program.device.updates:
            update.store_state()
        _state.stale.discard(model)

    def to_rdu(self, model: nn.Module) -> None:
        """Takes the host's weights and optimizer state to the device."""
        device = self._program_of(model, "samba.session.to_rdu").device
        device.load(model)
        for update in device.updates:
            update.load_state()
        _state.stale.discard(model)

    def to_device(self) -> None:
        self.to_rdu(self._ready("samba.session.to_device").model)

    def _program_of(self, model: nn.Module, what: str) -> _Program:
        program = self._ready(what)
        if program.model is not model:
            raise SambaFlowError(
                f"{what} got a {type(model).__name__} that is not on the device.",
                "Give the model that was traced.",
            )
        return program

    def get_tensors_by_name(self, names: Sequence[str]) -> list[SambaTensor]:
        """Weights, by their sn_name, and outputs as they are on the device."""
        program = self._ready("samba.session.get_tensors_by_name")
        there: dict[str, Tensor] = {str(tensor.sn_name): tensor for tensor in program.start.outputs}
        for path, parameter in program.model.named_parameters():
            there[str(parameter.sn_name)] = program.device.weights[path]  # type: ignore[attr-defined]
        for name in names:
            if name not in there:
                raise SambaFlowError(f"the device has no tensor '{name}'.", suggest(name, there))
        return [SambaTensor(there[name].detach().clone(), name=name) for name in names]

    def __getattr__(self, name: str) -> Any:
        if f"samba.session.{name}" in REFUSED:
            refuse(f"samba.session.{name}", *REFUSED[f"samba.session.{name}"])
        raise AttributeError(f"samba.session has no '{name}'. {suggest(name, vars(type(self)))}")


def _index(given: Any, count: int) -> int:
    index = given[0] if isinstance(given, tuple | list) and len(given) == 1 else given
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < count:
        raise SambaFlowError(f"loss_indices has {given!r}.", f"Give numbers of outputs, 0 to {count - 1}.")
    return index


session = SambaSession()
"""The one session of a process."""
