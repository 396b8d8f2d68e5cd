"""From a converted model to a program: the checks of a compile, and the description that a PEF keeps."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from portwright.emulate import table_of, target_of
from portwright.emulate.sambaflow._model import is_converted, list_inputs, make_call, plain
from portwright.emulate.sambaflow._pef import OptimizerEntry, Pef, TensorEntry, shorten
from portwright.emulate.sambaflow._refusal import SambaFlowError
from portwright.emulate.sambaflow._step import TracedStep
from portwright.emulate.sambaflow.logging import samba_logger
from portwright.emulate.sambaflow.samba.optim import SambaOptimizer
from portwright.emulate.sambaflow.samba.sambatensor import SambaTensor
from portwright.errors import ExitStatus, suggest

SYSTEMS = ("sn10", "sn30", "sn40l")
_SYSTEM_VARIABLE = "PORTWRIGHT_RDU_SYSTEM"
# SambaFlow documentation, transition to SN30: a default compile takes the 8 tiles of an RDU as two halves, each with half the batch.
_HALF_OF_SN30 = 4
# SambaFlow documentation, mixed precision: unless a preset is named, the compiler forces inputs and operators to BF16; mp0 leaves them.
_PRESETS = {None: "bf16", "default": "bf16", "mp0": "fp32"}


def choose_system(config: Mapping[str, Any]) -> str:
    """The system to compile for: the flag --arch, else the variable, else SN30, whose rules are the strictest."""
    named = config.get("arch")
    chosen = str(
        named if named not in (None, "native") else os.environ.get(_SYSTEM_VARIABLE) or "sn30"
    ).lower()
    if chosen not in SYSTEMS:
        raise SambaFlowError(f"unknown system '{chosen}'.", suggest(chosen, SYSTEMS))
    return chosen


def choose_precision(config: Mapping[str, Any]) -> str:
    preset = config.get("graphamp_preset")
    if preset not in _PRESETS:
        raise SambaFlowError(
            f"--graphamp-preset {preset} is not emulated by Portwright.",
            "Leave it out (everything in BF16, the documented default), or use mp0 (the types of the model).",
        )
    return _PRESETS[preset]


def _check_batch(inputs: Sequence[SambaTensor], system: str, num_tiles: int | None) -> None:
    """Refuses batches of different sizes, and an odd one for an SN30, whose RDU works as two halves."""
    sizes = {
        tensor.sn_name: tensor.shape[tensor.batch_dim] for tensor in inputs if tensor.batch_dim is not None
    }
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name}: {size}" for name, size in sizes.items())
        raise SambaFlowError(
            f"the inputs have batches of different sizes ({listed}).", "Give all of them one size."
        )
    size = next(iter(sizes.values()), None)
    if size and size % 2 and system == "sn30" and (num_tiles is None or num_tiles > _HALF_OF_SN30):
        raise SambaFlowError(
            f"the batch size is {size}, and an SN30 wants an even one: two halves of the RDU share each batch.",
            f"Use {size + 1}, or compile with --num-tiles {_HALF_OF_SN30} or for another --arch.",
        )


STRICTNESS = ("refuse", "warn")
_STRICTNESS_VARIABLE = "PORTWRIGHT_RDU_UNLISTED_OPS"


class _Judged(nn.Module):
    """The model with its outputs summed, so that there is one number to differentiate."""

    def __init__(self, model: nn.Module, call: Callable[[dict[str, Tensor], list[Tensor]], Any]) -> None:
        super().__init__()
        self.model = model
        self.__dict__["step"] = call

    def forward(self, *inputs: Tensor) -> Tensor:
        weights = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        found = [
            v for v in tree_leaves(self.__dict__["step"](weights, list(inputs))) if isinstance(v, Tensor)
        ]
        floats = [value for value in found if value.is_floating_point()] or found[:1]
        total = floats[0].float().sum()
        for value in floats[1:]:
            total = total + value.float().sum()
        return total


def choose_strictness(config: Mapping[str, Any]) -> str:
    """Whether ops that no public document shows are refused, or told of: the flag --unlisted-ops, else the variable."""
    chosen = str(config.get("unlisted_ops") or os.environ.get(_STRICTNESS_VARIABLE) or "refuse")
    if chosen not in STRICTNESS:
        raise SambaFlowError(f"--unlisted-ops is '{chosen}'.", suggest(chosen, STRICTNESS))
    return chosen


def _check_ops(
    model: nn.Module,
    call: Callable[[dict[str, Tensor], list[Tensor]], Any],
    inputs: Sequence[Tensor],
    *,
    trains: bool,
    unlisted: str,
) -> None:
    """Refuses a model with an op that no public document shows on an RDU, by its name and the user's line.

    The table is conservative: with `unlisted` "warn" such ops are told of and let through. What no static graph can hold is
    refused all the same.
    """
    from portwright.graph.capturing.capture import capture
    from portwright.graph.match import match

    modes = {part: part.training for part in model.modules()}
    try:
        graph = capture(lambda: _Judged(model, call), tuple(inputs), trains=trains and model.training)
    finally:
        for part, mode in modes.items():
            part.training = mode
    report = match(graph, table_of("sambaflow"), target_of("sambaflow").name)
    impossible = {stop.message for stop in graph.stops}
    refused = [one for one in report.refused if unlisted == "refuse" or one.reason in impossible]
    if len(refused) < len(report.refused):
        names = sorted({one.op for one in report.refused if one.reason not in impossible})
        samba_logger.warning(
            f"no public document shows these ops on an RDU, as they are used here: {', '.join(names)}"
        )
    if not refused:
        return
    failures = {stop.message for stop in graph.stops if stop.kind == "failure"}
    first = next((one for one in refused if one.reason in failures), refused[0])
    place = f" at {first.file}:{first.line}" if first.file else ""
    module = first.module.removeprefix("model").lstrip(".")
    more = f" ({len(refused) - 1} more op(s) are refused)" if len(refused) > 1 else ""
    error = SambaFlowError(
        f"{first.op}{place}{f', module {module}' if module else ''}: {first.reason.rstrip('.')}{more}.",
        first.cure,
        details={"refused": [one.as_json() for one in refused], "table": report.label},
    )
    if first.reason in failures:  # of the model itself, wherever it runs
        error.status = ExitStatus.USAGE
    raise error


def list_optimizers(given: Any, model: nn.Module) -> list[SambaOptimizer]:
    """One optimizer, a list of them, or none; each of samba.optim and over this model's weights, no weight twice."""
    listed = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
    known = {id(parameter): name for name, parameter in model.named_parameters()}
    seen: set[int] = set()
    for optimizer in listed:
        if not isinstance(optimizer, SambaOptimizer):
            raise SambaFlowError(
                f"the optimizer is a {type(optimizer).__module__}.{type(optimizer).__name__}, which no RDU has.",
                "Use samba.optim.SGD or samba.optim.AdamW.",
            )
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            if id(parameter) not in known:
                raise SambaFlowError(
                    f"{type(optimizer).__name__} has a tensor of shape {list(parameter.shape)} that is no weight of this model.",
                    "Make it from model.parameters().",
                )
            if id(parameter) in seen:
                raise SambaFlowError(
                    f"two optimizers have the weight '{known[id(parameter)]}'.", "Give each weight to one."
                )
            seen.add(id(parameter))
    return listed


def build(
    model: nn.Module,
    inputs: Any,
    optimizers: Sequence[SambaOptimizer],
    *,
    name: str,
    system: str,
    num_tiles: int | None,
    precision: str,
    init_output_grads: bool,
    unlisted_ops: str | None = None,
    expected: Pef | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> tuple[Pef, TracedStep]:
    """Traces the model and says what it was traced as.

    `unlisted_ops` has its ops looked up first; `expected` is what it must turn out to be.
    """
    if not is_converted(model):
        raise SambaFlowError(
            f"the model is a {type(model).__name__} that was not converted.",
            "Call samba.from_torch_model_(model) first.",
        )
    tensors = list_inputs(inputs)
    _check_batch(tensors, system, num_tiles)
    for path, weight in [*model.named_parameters(), *model.named_buffers()]:
        if weight.device.type != "cpu":
            raise SambaFlowError(
                f"the weight '{path}' is on the device '{weight.device}'.",
                "Make the model on the CPU, with its values: the emulator computes with them.",
            )
        if weight.dtype in (torch.float64, torch.complex64, torch.complex128):
            raise SambaFlowError(
                f"the weight '{path}' is {weight.dtype}, which no public document shows on an RDU.",
                "Use model.float() or model.bfloat16().",
            )
    weights = dict(model.named_parameters()) | dict(model.named_buffers())
    trains = bool(optimizers)
    pef = Pef(
        name=name,
        system=system,
        num_tiles=num_tiles,
        precision=precision,
        inference=not trains,
        init_output_grads=init_output_grads,
        inputs=tuple(TensorEntry(str(t.sn_name), tuple(t.shape), str(t.dtype), t.batch_dim) for t in tensors),
        outputs=expected.outputs if expected is not None else (),
        weights=tuple(TensorEntry(path, tuple(t.shape), str(t.dtype)) for path, t in weights.items()),
        optimizers=tuple(_describe(optimizer, model) for optimizer in optimizers),
        ops=expected.ops if expected is not None else (),
        torch=torch.__version__.partition("+")[0],
        metadata=_as_json(metadata or {}),
    )
    _check(expected, pef)  # before tracing, which fails in torch's words where types do not fit
    call, values = make_call(model, inputs, precision), plain(tensors)
    if unlisted_ops is not None:
        _check_ops(model, call, values, trains=trains, unlisted=unlisted_ops)
    chosen = {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}
    step = TracedStep(
        call,
        weights,
        values,
        trained=[path for path, p in model.named_parameters() if id(p) in chosen and p.requires_grad],
        graded_inputs=[index for index, tensor in enumerate(tensors) if tensor.requires_grad],
        trains=trains,
    )
    outputs = tuple(
        TensorEntry(f"output__{index}", tuple(output.shape), str(output.dtype))
        for index, output in enumerate(step.outputs)
    )
    pef = replace(pef, outputs=outputs, ops=tuple(step.list_ops()))
    _check(expected, pef)
    return pef, step


def retrace(
    compiled: Pef, model: nn.Module, inputs: Any, optimizers: Sequence[SambaOptimizer], **options: Any
) -> TracedStep:
    """Traces a model for the system and in the precision that a PEF was compiled for."""
    kept = {key: getattr(compiled, key) for key in ("name", "system", "num_tiles", "precision")}
    return build(model, inputs, optimizers, **kept, **options)[1]


def _check(expected: Pef | None, current: Pef) -> None:
    if expected is not None and (problems := expected.differences(current)):
        raise SambaFlowError(
            f"the PEF '{expected.name}' is not of this model: {shorten(problems)}.",
            "Compile it again with the model, inputs and optimizer of this run.",
        )


def _describe(optimizer: SambaOptimizer, model: nn.Module) -> OptimizerEntry:
    names: dict[Tensor, str] = {parameter: path for path, parameter in model.named_parameters()}
    return OptimizerEntry(
        type(optimizer).__name__,
        tuple(names[p] for group in optimizer.param_groups for p in group["params"]),
        {key: getattr(optimizer, key) for key in optimizer.static},
        tuple(
            {key: float(group[key]) for key in optimizer.hyperparameters} for group in optimizer.param_groups
        ),
    )


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Whatever a script puts into a PEF: what JSON has no form for is kept as text."""
    try:
        text = json.dumps({str(key): value for key, value in values.items()}, default=str)
    except (TypeError, ValueError):  # a key within a value, or a value within itself
        text = json.dumps({str(key): str(value) for key, value in values.items()})
    kept: dict[str, Any] = json.loads(text)
    return kept
