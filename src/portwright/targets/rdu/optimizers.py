"""Makes samba.optim's optimizers from a specification, and converts their state to torch's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from portwright.errors import UnsupportedError, suggest
from portwright.job import optimizer as job
from portwright.job.optimizer import OptimizerParams
from portwright.runtime.compiled_session import check_names, other_shape, other_state
from portwright.runtime.optimizer_state import UNTOUCHED
from portwright.runtime.param_groups import make_param_groups

TAKEN = ("Adam", "AdamW", "SGD")


def make_optimizers(
    samba: Any, net: nn.Module, spec: OptimizerParams, note: Callable[[str], None]
) -> list[Any]:
    """One optimizer for each weight decay, as in SambaNova's examples."""
    if spec.optimizer_type not in TAKEN:
        raise UnsupportedError(
            f"optimizer {spec.optimizer_type}: SambaFlow has SGD and AdamW.",
            suggest(spec.optimizer_type, TAKEN),
        )
    if spec.grad_accum_steps > 1:
        raise UnsupportedError(
            f"optimizer.grad_accum_steps is {spec.grad_accum_steps}: no public document shows gradients gathered on an RDU.",
            "Leave it out, and use a larger batch.",
        )
    if spec.max_gradient_value is not None:
        raise UnsupportedError(
            f"optimizer.max_gradient_value is {spec.max_gradient_value}: SambaFlow clips by norm alone.",
            "Use max_gradient_norm with AdamW, or leave both out.",
        )
    if spec.loss_scaling_factor != 1.0:
        note("optimizer.loss_scaling_factor has no effect on RDU: bf16 and fp32 need no scaling.")
    if spec.log_summaries:
        note("optimizer.log_summaries has no effect on RDU: gradients stay there.")
    kind, options = _class_and_settings(samba, spec)
    rate = spec.schedule(0)
    return [
        kind(group["params"], lr=rate, weight_decay=group["weight_decay"], **options)
        for group in make_param_groups(net, spec)
    ]


def _class_and_settings(samba: Any, spec: OptimizerParams) -> tuple[Any, dict[str, Any]]:
    match spec:
        case job.SGDParams():
            for key, wanted in (("dampening", 0.0), ("use_nesterov", False), ("maximize", False)):
                _refuse(spec, key, wanted)
            _refuse(spec, "max_gradient_norm", None)
            return samba.optim.SGD, {"momentum": spec.momentum}
        case job.AdamParams() | job.AdamWParams():
            _refuse(spec, "correct_bias", True)
            if (
                isinstance(spec, job.AdamParams)
                and not isinstance(spec, job.AdamWParams)
                and spec.weight_decay_rate
            ):
                raise UnsupportedError(
                    f"optimizer Adam with weight_decay_rate {spec.weight_decay_rate}: SambaFlow has AdamW, whose decay is another.",
                    "Use optimizer_type: AdamW, or no decay, with which both are the same.",
                )
            options: dict[str, Any] = {
                "betas": (spec.beta1, spec.beta2),
                "eps": spec.eps,
                "amsgrad": spec.amsgrad,
            }
            if spec.max_gradient_norm is not None:
                options["max_grad_norm"] = spec.max_gradient_norm
            return samba.optim.AdamW, options
    raise TypeError(f"{type(spec).__name__} has no realisation in SambaFlow")


def _refuse(spec: OptimizerParams, key: str, wanted: object) -> None:
    if getattr(spec, key) != wanted:
        raise UnsupportedError(
            f"optimizer.{key} is {getattr(spec, key)!r}, and no public document shows it with SambaFlow's {spec.optimizer_type}.",
            f"Leave {key} out.",
        )


def _states(optimizers: Sequence[Any], names: Mapping[Tensor, str]) -> Iterator[tuple[Any, int, str]]:
    """Yields each optimizer with the number and the name of each of its weights, numbered as in state_dict()."""
    for optimizer in optimizers:
        index = 0
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                yield optimizer, index, names[parameter]
                index += 1


def read_state(
    optimizers: Sequence[Any], names: Mapping[Tensor, str], spec: OptimizerParams
) -> Iterator[tuple[str, Tensor]]:
    """Yields `<parameter>/<state>` as the device last gave it to the host."""
    described = {id(optimizer): optimizer.state_dict()["state"] for optimizer in optimizers}
    for optimizer, index, name in _states(optimizers, names):
        state = {k: v for k, v in described[id(optimizer)].get(index, {}).items() if v is not None}
        for key, value in state.items():
            yield f"{name}/{key}", torch.as_tensor(value).detach().clone()
        if not state and _keys(spec):
            yield f"{name}/{UNTOUCHED}", torch.tensor(True)


def load_state(
    optimizers: Sequence[Any],
    names: Mapping[Tensor, str],
    spec: OptimizerParams,
    items: Mapping[str, Mapping[str, Tensor]],
) -> None:
    """Loads state of SambaFlow's or of torch's optimizer of the same name: `items` by parameter, then by state."""
    wanted = _keys(spec)
    check_names(items, set(names.values()))
    states: dict[int, dict[int, dict[str, Any]]] = {}
    shapes = {name: tuple(parameter.shape) for parameter, name in names.items()}
    for optimizer, index, name in _states(optimizers, names):
        given = dict(items.get(name, {}))
        if UNTOUCHED in given or (not given and not wanted):
            continue
        if set(given) != set(wanted):
            raise other_state(given, name, spec.optimizer_type, wanted)
        for key, tensor in given.items():
            if key != "step" and tuple(tensor.shape) != shapes[name]:
                raise other_shape(f"{name}/{key}", tensor, shapes[name])
        states.setdefault(id(optimizer), {})[index] = {k: v.detach().clone() for k, v in given.items()}
    for optimizer in optimizers:
        described = optimizer.state_dict()
        optimizer.load_state_dict({**described, "state": states.get(id(optimizer), {})})


def _keys(spec: OptimizerParams) -> tuple[str, ...]:
    if isinstance(spec, job.SGDParams):
        return ("momentum_buffer",) if spec.momentum else ()
    maximum = ("max_exp_avg_sq",) if getattr(spec, "amsgrad", False) else ()
    return ("step", "exp_avg", "exp_avg_sq", *maximum)
