"""samba.session: compiling a model, and running the sections of what was compiled.

`sambaflow.samba` has an object of this class under the module's own name, as the vendor's does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from portwright.emulate.sambaflow import _ledger, _state
from portwright.emulate.sambaflow._compiler import build, list_optimizers
from portwright.emulate.sambaflow._device import Device
from portwright.emulate.sambaflow._judge import choose_strictness
from portwright.emulate.sambaflow._model import match_inputs, plain
from portwright.emulate.sambaflow._pef import Pef
from portwright.emulate.sambaflow._refusal import SambaFlowError, refuse
from portwright.emulate.sambaflow._requests import Start, check_hyperparameters, find_outputs
from portwright.emulate.sambaflow._step import TracedStep
from portwright.emulate.sambaflow._systems import choose_precision, choose_system
from portwright.emulate.sambaflow.logging import samba_logger
from portwright.emulate.sambaflow.samba.profiler import Profiler
from portwright.emulate.sambaflow.samba.sambatensor import SambaTensor, from_torch_tensor
from portwright.errors import suggest

_COMPILE_FIRST = (
    "Compile with samba.session.compile, then call utils.trace_graph(model, inputs, optimizer, pef=...)."
)


class SambaSession:
    """One program on one emulated RDU."""

    def __init__(self, pef_path: str = "") -> None:
        self.pef_path = pef_path
        self.tracing = False
        self.profiler = Profiler()
        self.buffer_dict: dict[str, SambaTensor] = {}
        self.dynamic_dims: dict[str, Any] = {}
        self._forget()

    def _forget(self) -> None:
        self._model: nn.Module | None = None
        self._inputs: Any = None
        self._device: Device | None = None
        self._pef: Pef | None = None
        self._outputs: list[SambaTensor] = []
        self._roots: list[int] | None = None
        self._init_output_grads = True
        self._steps: dict[float | None, TracedStep] = {}
        self._entry: _ledger.Entry | None = None

    def setup(self, args: Any = None, **options: Any) -> None:
        """Accepted: the emulator needs nothing set up."""

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
        _ledger.note_program("compilation", type(model).__name__)
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
        transfer_device: bool = True,
    ) -> tuple[SambaTensor, ...]:
        """utils.trace_graph: the model is traced again and must be what was compiled; its weights go to the device."""
        if not pef:
            raise SambaFlowError("trace_graph got no PEF.", f"Give pef=args.pef. {_COMPILE_FIRST}")
        compiled = Pef.read(Path(pef))
        listed = list_optimizers(optim, model)
        _, step = build(
            model,
            inputs,
            listed,
            name=compiled.name,
            system=compiled.system,
            num_tiles=compiled.num_tiles,
            precision=compiled.precision,
            init_output_grads=init_output_grads,
            expected=compiled,
        )
        self._forget()
        self._model, self._inputs, self._pef, self.pef_path = model, inputs, compiled, pef
        self._init_output_grads = init_output_grads
        self._steps = {None: step}
        self._roots = (
            None if loss_indices is None else [_index(one, len(step.outputs)) for one in loss_indices]
        )
        self._device = Device(model, step, listed)
        for update in self._device.updates:
            update.owner._bring_state = lambda device=self._device, update=update: device.store_state(update)
        self._outputs = [
            from_torch_tensor(torch.zeros_like(output), name=entry.name)
            for output, entry in zip(step.outputs, compiled.outputs, strict=True)
        ]
        model.output_tensors = tuple(self._outputs)  # type: ignore[assignment]
        self.buffer_dict = {
            name: from_torch_tensor(tensor.detach(), name=name) for name, tensor in model.named_buffers()
        }
        _ledger.count("trace_graph")
        self._entry = _ledger.note_program("training" if listed else "inference", type(model).__name__)
        _state.mark_fresh(model)
        return tuple(self._outputs)

    def _ready(self, what: str) -> tuple[nn.Module, Device, Pef]:
        if self._model is None or self._device is None or self._pef is None:
            raise SambaFlowError(f"{what} before the program is there: no PEF was loaded.", _COMPILE_FIRST)
        return self._model, self._device, self._pef

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
        model, device, pef = self._ready("samba.session.run")
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
        defaults = [entry.defaults for entry in pef.optimizers]
        wanted = find_outputs(self._outputs, output_tensors)
        inputs = match_inputs(input_tensors, pef.inputs)
        values = plain(inputs)
        hyperparameters = check_hyperparameters(hyperparam_dict or {}, model, device, sections, defaults)
        device.check_order(sections, values)
        device.step = self._step_for(hyperparameters.pop("p", None))
        grads = None
        if "bckwd" in sections:
            start = Start(self._outputs, self._roots, self._init_output_grads)
            grads = start.gradients(device.step, wanted, grad_of_outputs)
        device.run(sections, values, grads, hyperparameters, defaults)
        self._count("run")
        if "bckwd" in sections:
            self._hand_out_gradients(model, device, inputs)
        if "opt" in sections:
            _state.mark_stale(model)
        results = [
            from_torch_tensor(device.outputs[index], name=self._outputs[index].sn_name) for index in wanted
        ]
        for index, result in zip(wanted, results, strict=True):
            with torch.no_grad():
                self._outputs[index].copy_(result)
        return results

    def _count(self, call: str) -> None:
        _ledger.count(call)
        if self._entry is not None:
            self._entry.used = True
            self._entry.calls += call == "run"

    def _step_for(self, dropout: float | None) -> TracedStep:
        """The program with another dropout rate, which the device takes as a number and we as another trace."""
        if dropout not in self._steps:
            model, device, pef = self._ready("run")
            parts = [part for part in model.modules() if isinstance(part, nn.Dropout)]
            kept = [part.p for part in parts]
            try:
                for part in parts:
                    part.p = float(dropout or 0.0)
                _, self._steps[dropout] = build(
                    model,
                    self._inputs,
                    [update.owner for update in device.updates],
                    name=pef.name,
                    system=pef.system,
                    num_tiles=pef.num_tiles,
                    precision=pef.precision,
                    init_output_grads=self._init_output_grads,
                )
            finally:
                for part, rate in zip(parts, kept, strict=True):
                    part.p = rate
        return self._steps[dropout]

    def _hand_out_gradients(self, model: nn.Module, device: Device, inputs: Sequence[SambaTensor]) -> None:
        for name, parameter in model.named_parameters():
            parameter.sn_grad = device.last_grads.get(name)  # type: ignore[attr-defined]
        for index, grad in zip(device.step.graded_inputs, device.input_grads, strict=True):
            inputs[index].sn_grad = grad

    # -- moving --------------------------------------------------------------------------------------------

    def to_cpu(self, model: nn.Module) -> None:
        """Brings weights and optimizer state of the device to the host, which is stale until then."""
        device = self._device_of(model, "samba.session.to_cpu")
        self._count("to_cpu")
        device.store(model)
        for update in device.updates:
            device.store_state(update)
        _state.mark_fresh(model)

    def to_rdu(self, model: nn.Module) -> None:
        """Takes the host's weights and optimizer state to the device."""
        device = self._device_of(model, "samba.session.to_rdu")
        device.load(model)
        for update in device.updates:
            device.load_state(update)
        _state.mark_fresh(model)

    def to_device(self) -> None:
        model, _, _ = self._ready("samba.session.to_device")
        self.to_rdu(model)

    def _device_of(self, model: nn.Module, what: str) -> Device:
        own, device, _ = self._ready(what)
        if own is not model:
            raise SambaFlowError(
                f"{what} got a {type(model).__name__} that is not on the device.",
                "Give the model that was traced.",
            )
        return device

    def get_tensors_by_name(self, names: Sequence[str]) -> list[SambaTensor]:
        """Weights, by their sn_name, and outputs as they are on the device."""
        model, device, _ = self._ready("samba.session.get_tensors_by_name")
        there: dict[str, Tensor] = {str(tensor.sn_name): tensor for tensor in self._outputs}
        for path, parameter in model.named_parameters():
            there[str(parameter.sn_name)] = device.weights[path]  # type: ignore[attr-defined]
        for name in names:
            if name not in there:
                raise SambaFlowError(f"the device has no tensor '{name}'.", suggest(name, there))
        return [SambaTensor(there[name].detach().clone(), name=name) for name in names]

    # -- what measures nothing here ------------------------------------------------------------------------

    def start_runtime_profile(self, *args: Any, **options: Any) -> None:
        """Accepted: an emulated run has no times worth keeping."""

    def end_runtime_profile(self, *args: Any, **options: Any) -> None:
        """Accepted."""

    def start_samba_profile(self, *args: Any, **options: Any) -> None:
        """Accepted."""

    def end_samba_profile(self, *args: Any, **options: Any) -> None:
        """Accepted."""

    def __getattr__(self, name: str) -> Any:
        from portwright.emulate.sambaflow._names import REFUSED_OF_SESSION

        if name in REFUSED_OF_SESSION:
            refuse(f"samba.session.{name}", REFUSED_OF_SESSION[name])
        raise AttributeError(f"samba.session has no '{name}'. {suggest(name, vars(type(self)))}")


def _index(given: Any, count: int) -> int:
    index = given[0] if isinstance(given, tuple | list) and len(given) == 1 else given
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < count:
        raise SambaFlowError(f"loss_indices has {given!r}.", f"Give numbers of outputs, 0 to {count - 1}.")
    return index


session = SambaSession()
"""The one session of a process."""
