"""Makes PopTorch's optimizers from a specification, and converts their state to torch's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from portwright.errors import UnsupportedError, suggest
from portwright.job import optimizer as job
from portwright.job.optimizer import OptimizerParams
from portwright.runtime.compiled_session import check_names, other_shape, other_state
from portwright.runtime.optimizer_state import UNTOUCHED
from portwright.runtime.param_groups import make_param_groups

OURS = {"Adam": "Adam", "AdamW": "AdamW", "Lamb": "LAMB", "RMSprop": "RMSprop", "SGD": "SGD"}
"""Optimizers of params.yaml that PopTorch has, and what it calls them."""

_CLIPS = ("Adam", "AdamW", "SGD")  # PopTorch's RMSprop and LAMB have no max_grad_norm

# PopART's state of a weight, by the name in torch's optimizer.
_SLOTS = {
    "Adam": {"exp_avg": "Accl1", "exp_avg_sq": "Accl2", "step": "Step"},
    "AdamW": {"exp_avg": "Accl1", "exp_avg_sq": "Accl2", "step": "Step"},
    "Lamb": {"exp_avg": "Accl1", "exp_avg_sq": "Accl2", "step": "Step"},
    "RMSprop": {"square_avg": "Accl1", "grad_avg": "Accl2", "momentum_buffer": "Accl3"},
    "SGD": {"momentum_buffer": "Accl1"},
}


def make_optimizer(
    poptorch: Any, net: nn.Module, spec: OptimizerParams, *, is_half: bool, note: Callable[[str], None]
) -> Any:
    """PopTorch's equal optimizer; settings that it lacks are refused by name."""
    name = spec.optimizer_type
    if name not in OURS:
        raise UnsupportedError(f"optimizer {name}: PopTorch has no such optimizer.", suggest(name, OURS))
    if spec.max_gradient_value is not None:
        raise UnsupportedError(
            f"optimizer.max_gradient_value is {spec.max_gradient_value}: PopTorch clips by norm alone.",
            "Use max_gradient_norm, or leave both out.",
        )
    options = _settings(spec)
    if spec.max_gradient_norm is not None:
        if name not in _CLIPS:
            raise UnsupportedError(
                f"optimizer.max_gradient_norm is {spec.max_gradient_norm}: PopTorch's {OURS[name]} does not clip.",
                f"Leave it out, or use {', '.join(_CLIPS)}.",
            )
        options["max_grad_norm"] = spec.max_gradient_norm
    options |= _loss_scaling(spec, is_half, note)
    if spec.log_summaries:
        note("optimizer.log_summaries has no effect on IPU: gradients never leave it.")
    groups = [
        {"params": group["params"], "weight_decay": group["weight_decay"]}
        for group in make_param_groups(net, spec)
    ]
    return getattr(poptorch.optim, OURS[name])(groups, lr=spec.schedule(0), **options)


def _settings(spec: OptimizerParams) -> dict[str, Any]:
    """PopTorch's settings; unused ones are left out, since each one given costs memory as a variable."""
    match spec:
        case job.SGDParams():
            _refuse(spec, "dampening", 0.0, "it counts from the first update there, unlike torch's")
            _refuse(spec, "maximize", False, "the IPU minimises a loss")
            given = {"momentum": spec.momentum, "nesterov": spec.use_nesterov}
            return {key: value for key, value in given.items() if value}
        case job.AdamParams() | job.AdamWParams():
            _refuse(spec, "amsgrad", False, "PopTorch has no AMSGrad")
            _refuse(spec, "correct_bias", True, "PopTorch 3.4 always corrects it")
            return {"betas": (spec.beta1, spec.beta2), "eps": spec.eps}
        case job.RMSpropParams():
            given = {"momentum": spec.momentum, "centered": spec.centered}
            return {"alpha": spec.alpha, "eps": spec.eps} | {k: v for k, v in given.items() if v}
        case job.LambParams():
            _refuse(spec, "adam", False, "use optimizer_type: AdamW for that")
            return {
                "betas": (spec.beta1, spec.beta2),
                "eps": spec.eps,
                "bias_correction": spec.correct_bias,
                "max_weight_norm": spec.clamp_value,
            }
    raise TypeError(f"{type(spec).__name__} has no realisation in PopTorch")


def _refuse(spec: OptimizerParams, key: str, wanted: object, why: str) -> None:
    if getattr(spec, key) != wanted:
        raise UnsupportedError(
            f"optimizer.{key} is {getattr(spec, key)!r}, and {spec.optimizer_type} on IPU takes {wanted!r} alone: {why}.",
            f"Leave {key} out.",
        )


def _loss_scaling(spec: OptimizerParams, is_half: bool, note: Callable[[str], None]) -> dict[str, Any]:
    if spec.loss_scaling_factor == "dynamic":
        if not is_half:
            note("optimizer.loss_scaling_factor: dynamic is left out: a loss in float32 needs no scaling.")
        return {}  # an option of PopTorch does it
    return {} if spec.loss_scaling_factor == 1.0 else {"loss_scaling": float(spec.loss_scaling_factor)}


def read_state(
    optimizer: Any, names: Mapping[str, Tensor], spec: OptimizerParams, prefix: str, num_updates: int
) -> Iterator[tuple[str, Tensor]]:
    """Yields `<parameter>/<state>` as torch's optimizer of that name has it; `names` are the trained parameters.

    `prefix` begins PopTorch's names of weights. Where PopART does not count steps, `num_updates` is the count.
    """
    slots: Mapping[str, Tensor] = optimizer.state_dict()["ipu_state"] or {}
    kept = _kept_by_torch(spec)
    for name, parameter in names.items():
        if not kept:
            continue
        if not any(label.endswith(f"___{prefix}{name}") for label in slots):
            yield f"{name}/{UNTOUCHED}", torch.tensor(True)
            continue
        for key in kept:
            slot = slots.get(f"{_SLOTS[spec.optimizer_type].get(key)}___{prefix}{name}")
            if key == "step":
                count = float(num_updates) if slot is None else slot.reshape(()).float()
                yield f"{name}/step", torch.as_tensor(count, dtype=torch.float32).clone()
            elif slot is not None:
                yield f"{name}/{key}", slot.detach().reshape(parameter.shape) / _velocity_scale(spec, key)


def load_state(
    optimizer: Any,
    names: Mapping[str, Tensor],
    spec: OptimizerParams,
    prefix: str,
    items: Mapping[str, Mapping[str, Tensor]],
) -> None:
    """Loads state of PopTorch's or of torch's optimizer of the same name: `items` by parameter, then by state."""
    slots: dict[str, Tensor] = {}
    counts_on_device = not isinstance(spec, job.LambParams) or spec.correct_bias
    kept = _kept_by_torch(spec)
    check_names(items, names)
    for name, parameter in names.items():
        given = items.get(name, {})
        if UNTOUCHED in given or not kept:
            continue
        if set(given) != set(kept):
            raise other_state(given, name, spec.optimizer_type, kept)
        for key, tensor in given.items():
            slot = _SLOTS[spec.optimizer_type].get(key)
            if slot is None or (slot == "Step" and not counts_on_device):
                continue
            shape = () if slot == "Step" else parameter.shape
            if tensor.numel() != parameter.numel() and shape:
                raise other_shape(f"{name}/{key}", tensor, shape)
            value = tensor.detach().to(torch.float32).reshape(shape) * _velocity_scale(spec, key)
            slots[f"{slot}___{prefix}{name}"] = value.contiguous().clone()
    if slots:
        current = torch.optim.Optimizer.state_dict(optimizer)
        optimizer.load_state_dict({**current, "ipu_state": slots, "ipu_param": {}})


def _kept_by_torch(spec: OptimizerParams) -> tuple[str, ...]:
    match spec:
        case job.SGDParams():
            return ("momentum_buffer",) if spec.momentum else ()
        case job.RMSpropParams():
            kept = ["step", "square_avg"]
            kept += ["momentum_buffer"] if spec.momentum else []
            return (*kept, "grad_avg") if spec.centered else tuple(kept)
    return ("step", "exp_avg", "exp_avg_sq")


def _velocity_scale(spec: OptimizerParams, key: str) -> float:
    """The factor of a state in PopTorch: it scales SGD's velocity like the loss."""
    scaled = (
        spec.optimizer_type == "SGD" and key == "momentum_buffer" and spec.loss_scaling_factor != "dynamic"
    )
    return float(spec.loss_scaling_factor) if scaled else 1.0
