"""The SDK's optimizer for a specification, and its state under the names that torch's has."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from portwright.errors import UnsupportedError, UserError
from portwright.job.optimizer import OptimizerParams
from portwright.runtime.param_groups import make_param_groups

# Ours: theirs, where the words differ.
_PAIRS = {
    "betas": ("beta1", "beta2"),
    "etas": ("eta1", "eta2"),
    "step_sizes": ("step_size_min", "step_size_max"),
}
_WORDS = {"use_nesterov": "nesterov"}
# Kept by the SDK alone, as a product over steps; torch computes it from the count of steps.
_POWERS = {"beta1_power": 0, "beta2_power": 1}
UNTOUCHED = "untouched"  # a parameter that had no gradient yet, in torch's state


def make_sdk_optimizer(cstorch: Any, net: nn.Module, spec: OptimizerParams) -> Any:
    """The SDK's optimizer of the same name; a setting that it lacks and that is not left at its default is refused by name."""
    name = spec.optimizer_type
    kind = getattr(cstorch.optim, name, None)
    if kind is None or name == "Muon":
        reason = (
            "has no such optimizer"
            if kind is None
            else "takes matrices alone, and leaves nobody to train the rest"
        )
        raise UnsupportedError(
            f"optimizer {name}: the SDK ({getattr(cstorch, '__version__', '')}) {reason}.",
            f"Use AdamW, Adam or SGD on CSX, or train with {name} on CPU or GPU.",
        )
    settings = spec.model_dump()
    if name == "Adafactor":
        settings["eps"] = (settings.pop("eps1"), settings.pop("eps2"))
    for whole, parts in _PAIRS.items():
        if all(part in settings for part in parts):
            settings[whole] = tuple(settings.pop(part) for part in parts)
    for ours, theirs in _WORDS.items():
        if ours in settings:
            settings[theirs] = settings.pop(ours)
    accepted = set(inspect.signature(kind.__init__).parameters) - {"self", "params", "lr", "weight_decay"}
    _refuse_missing(spec, settings, accepted)
    options = {key: value for key, value in settings.items() if key in accepted}
    decay = _decay_key(name, inspect.signature(kind.__init__).parameters)
    groups = [
        {"params": group["params"]} | ({decay: group["weight_decay"]} if decay else {})
        for group in make_param_groups(net, spec)
    ]
    try:
        return kind(groups, lr=spec.schedule(0), **options)
    except (ValueError, TypeError) as error:
        raise UnsupportedError(
            f"the SDK's {name} refuses its settings: {' '.join(str(error).split())}",
            f"Change the section optimizer for CSX; {name} takes {', '.join(sorted(accepted))} there.",
        ) from error


def _decay_key(name: str, accepted: Mapping[str, Any]) -> str | None:
    """What a group calls its weight decay; the SDK's Adam loses it under the name of its own signature."""
    if name == "Adam":
        return "l2_regularization_rate"
    return "weight_decay" if "weight_decay" in accepted else None


def _refuse_missing(spec: OptimizerParams, settings: Mapping[str, Any], accepted: set[str]) -> None:
    common = set(OptimizerParams.model_fields)
    for key, field in type(spec).model_fields.items():
        theirs = _WORDS.get(key, key)
        known = theirs in accepted or any(
            key in parts and whole in accepted for whole, parts in _PAIRS.items()
        )
        known |= key in ("eps1", "eps2") and "eps" in accepted
        if key in common or known or field.exclude or key not in spec.model_dump():
            continue
        if getattr(spec, key) != _sdk_behaviour(spec, key, field.default):
            raise UnsupportedError(
                f"optimizer.{key}={getattr(spec, key)!r} has no counterpart in the SDK's {spec.optimizer_type}.",
                f"Leave {key} out, or set it to {_sdk_behaviour(spec, key, field.default)!r}.",
            )


def _sdk_behaviour(spec: OptimizerParams, key: str, default: Any) -> Any:
    """What the SDK does where it offers no choice."""
    return {"correct_bias": spec.optimizer_type != "Lamb"}.get(key, default)


def _counts_steps(spec: OptimizerParams) -> bool:
    """Whether torch's optimizer, or ours, keeps a count of steps with each parameter."""
    if spec.optimizer_type in ("Adam", "AdamW"):
        return bool(getattr(spec, "correct_bias", True))
    return spec.optimizer_type not in ("SGD", "Lion", "Muon")


def read_state(
    optimizer: Any, names: Mapping[Tensor, str], spec: OptimizerParams, num_updates: int
) -> Iterator[tuple[str, Tensor]]:
    """`optimizer/<parameter>/<state>` as torch would have it, and what only the SDK keeps under `csx/`."""
    counts = _counts_steps(spec)
    for parameter, state in optimizer.state.items():
        if not state:
            continue
        path = names[parameter]
        for key, value in state.items():
            if value is not None:
                yield f"{'csx' if key in _POWERS else 'optimizer'}/{path}/{key}", torch.as_tensor(value)
        if counts and "step" not in state:
            yield f"optimizer/{path}/step", torch.tensor(float(num_updates))


def load_state(
    optimizer: Any, parameters: Mapping[str, Tensor], items: Mapping[str, Mapping[str, Tensor]]
) -> None:
    """Takes state of this SDK or of torch's optimizer of the same name: `items` by parameter, then by state."""
    for path, given in items.items():
        if path not in parameters:
            raise UserError(
                f"the checkpoint has optimizer state of '{path}', which this model does not train.",
                "Resume with the model of that run, or take its weights alone with --is_pretrained_checkpoint.",
            )
        if UNTOUCHED in given:
            continue
        state = optimizer.state[parameters[path]]
        filled = _fill_in(given, state, _group_of(optimizer, parameters[path]))
        unknown = sorted(set(filled) - set(state) - {"step"})
        missing = sorted(set(state) - set(filled))
        if unknown or missing:
            raise UserError(
                f"the checkpoint has the optimizer state {', '.join(sorted(given))} of '{path}', and the SDK's "
                f"{type(optimizer).__name__} keeps {', '.join(state) or 'none'}.",
                "Resume with the optimizer of that run, or take its weights alone with --is_pretrained_checkpoint.",
            )
        with torch.no_grad():
            for key, tensor in filled.items():
                if key in state:
                    state[key].copy_(tensor.reshape(state[key].shape))


def _fill_in(
    given: Mapping[str, Tensor], state: Mapping[str, Any], group: Mapping[str, Any]
) -> dict[str, Tensor]:
    """With the powers of the betas, where the state is torch's."""
    filled = dict(given)
    for key, index in _POWERS.items():
        if key in state and key not in filled and "step" in given:
            power = math.pow(group["betas"][index], float(given["step"]) + 1)
            filled[key] = torch.tensor(power, dtype=state[key].dtype)
    return filled


def _group_of(optimizer: Any, parameter: Tensor) -> Mapping[str, Any]:
    return next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
