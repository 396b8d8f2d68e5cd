"""The SDK's optimizer and learning-rate schedule from a specification, and the optimizer's state by torch's names."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from portwright.errors import UnsupportedError
from portwright.job import schedule_specs as specs
from portwright.job.optimizer import OptimizerParams
from portwright.job.schedules import ScheduleSpec, read_specs
from portwright.runtime.compiled_session import check_names, other_state
from portwright.runtime.optimizer_state import UNTOUCHED
from portwright.runtime.param_groups import make_param_groups

# Our name: theirs, where they differ.
_PAIRS = {
    "betas": ("beta1", "beta2"),
    "etas": ("eta1", "eta2"),
    "step_sizes": ("step_size_min", "step_size_max"),
}
_OPTION_NAMES = {"use_nesterov": "nesterov"}
# State that only the SDK keeps, a product over steps; torch computes it from the number of steps.
_POWERS = {"beta1_power": 0, "beta2_power": 1}


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
    for ours, theirs in _OPTION_NAMES.items():
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
    """A group's key of its weight decay; the SDK's Adam ignores the name that its own signature has."""
    if name == "Adam":
        return "l2_regularization_rate"
    return "weight_decay" if "weight_decay" in accepted else None


def _refuse_missing(spec: OptimizerParams, settings: Mapping[str, Any], accepted: set[str]) -> None:
    common = set(OptimizerParams.model_fields)
    for key, field in type(spec).model_fields.items():
        theirs = _OPTION_NAMES.get(key, key)
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
    """The SDK's fixed behaviour where it has no option."""
    return {"correct_bias": spec.optimizer_type != "Lamb"}.get(key, default)


def _counts_steps(spec: OptimizerParams) -> bool:
    """Whether torch's optimizer, or ours, counts steps for each parameter."""
    if spec.optimizer_type in ("Adam", "AdamW"):
        return bool(getattr(spec, "correct_bias", True))
    return spec.optimizer_type not in ("SGD", "Lion", "Muon")


def read_state(
    optimizer: Any, names: Mapping[Tensor, str], spec: OptimizerParams, num_updates: int
) -> Iterator[tuple[str, Tensor]]:
    """Yields `optimizer/<parameter>/<state>` as torch has it, and state that only the SDK has under `csx/`."""
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
    """Loads state of the SDK's or of torch's optimizer of the same name: `items` by parameter, then by state."""
    check_names(items, parameters)
    for path, given in items.items():
        if UNTOUCHED in given:
            continue
        state = optimizer.state[parameters[path]]
        filled = _fill_in(given, state, _group_of(optimizer, parameters[path]))
        unknown = sorted(set(filled) - set(state) - {"step"})
        missing = sorted(set(state) - set(filled))
        if unknown or missing:
            raise other_state(given, path, f"the SDK's {type(optimizer).__name__}", state)
        with torch.no_grad():
            for key, tensor in filled.items():
                if key in state:
                    state[key].copy_(tensor.reshape(state[key].shape))


def _fill_in(
    given: Mapping[str, Tensor], state: Mapping[str, Any], group: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Adds the powers of the betas to torch's state."""
    filled = dict(given)
    for key, index in _POWERS.items():
        if key in state and key not in filled and "step" in given:
            power = math.pow(group["betas"][index], float(given["step"]) + 1)
            filled[key] = torch.tensor(power, dtype=state[key].dtype)
    return filled


def _group_of(optimizer: Any, parameter: Tensor) -> Mapping[str, Any]:
    return next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))


_CURE = "Choose another schedule for CSX, or train with --on_cpu, CPU or GPU."


def make_sdk_scheduler(cstorch: Any, optimizer: Any, spec: OptimizerParams) -> Any | None:
    """The SDK's scheduler for the learning rate; None where it is constant; refuses schedules that the SDK computes differently."""
    if spec.schedule.is_constant:
        return None
    parts = read_specs(spec.learning_rate)
    module = cstorch.optim.lr_scheduler
    made = [_make(module, optimizer, part) for part in parts]
    lengths = [part.num_steps or 0 for part in parts[:-1]]
    if isinstance(parts[-1], specs.OneCycle):
        # The SDK's schedule continues below zero where ours stays.
        lengths.append(parts[-1].total_steps)
        made.append(module.ConstantLR(optimizer, learning_rate=parts[-1](parts[-1].total_steps)))
    if len(made) == 1:
        return made[0]
    if spec.disable_lr_steps_reset and len(parts) > 1:
        raise UnsupportedError(
            "optimizer.disable_lr_steps_reset has no counterpart in the SDK: its schedules in a list count from their own start.",
            "Leave it out, or write the list as one schedule.",
        )
    return module.SequentialLR(optimizer, made, list(accumulate(lengths)))


def _make(module: Any, optimizer: Any, part: ScheduleSpec) -> Any:
    name = type(part).__name__
    keys = part.model_dump(exclude={"scheduler"})
    match part:
        case specs.Lambda():
            raise UnsupportedError(
                "a Lambda schedule is a Python function, which the SDK cannot trace.", _CURE
            )
        case specs.CosineAnnealingWarmRestarts():
            raise UnsupportedError(
                "the SDK's CosineAnnealingWarmRestarts goes wrong after the first restart (2.10.0), and it takes no T_mult.",
                _CURE,
            )
        case specs.Linear() if part.cycle:  # Polynomial too
            raise UnsupportedError(f"the SDK accepts 'cycle' of {name}, and holds instead of cycling.", _CURE)
        case specs.Constant() | specs.PiecewiseConstant() | specs.Cyclic():
            keys.pop("initial_learning_rate", None)
            keys = {key: value for key, value in keys.items() if value is not None}
            if not isinstance(part, specs.Constant):
                keys.pop("total_iters", None)
        case specs.Exponential():
            keys["total_iters"] = part.total_iters or 1
    kind = getattr(module, f"{name}LR")
    accepted = inspect.signature(kind.__init__).parameters
    return kind(optimizer, **{key: value for key, value in keys.items() if key in accepted})


def go_to_step(scheduler: Any, step: int) -> None:
    """Sets a scheduler to its state after `step` updates."""
    from cerebras.pytorch.backend import current_backend_impl

    backend = current_backend_impl()
    # In a sequence the first counts every step, each other one those since its own start.
    parts = getattr(scheduler, "_schedulers", [])
    starts = [0, *getattr(scheduler, "_milestones", [])]
    for part, start in zip(parts, starts, strict=False):
        part.last_epoch = max(0, step - start)
        backend.setup_scheduler(part)
        scheduler.optimizer._schedulers_registry.pop(part, None)
    scheduler.last_epoch = step
    backend.setup_scheduler(scheduler)
    if not backend.is_csx:
        scheduler.update_last_value()  # on CSX the step itself does so, inside its trace
