"""From a converted model to a program: the checks of a compile, and the description that a PEF keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from portwright.emulate.sambaflow import _judge
from portwright.emulate.sambaflow._model import is_converted, list_inputs, make_call, plain
from portwright.emulate.sambaflow._pef import OptimizerEntry, Pef, TensorEntry, shorten
from portwright.emulate.sambaflow._refusal import SambaFlowError
from portwright.emulate.sambaflow._step import TracedStep
from portwright.emulate.sambaflow._systems import check_batch
from portwright.emulate.sambaflow.samba.optim.base import SambaOptimizer


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
    check_batch(tensors, system, num_tiles)
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
        _judge.check_ops(model, call, values, trains=trains, unlisted=unlisted_ops)
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
