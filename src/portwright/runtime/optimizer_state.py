"""An optimizer's state by the names of its parameters, and back, exactly."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from portwright.errors import UserError
from portwright.runtime.shards import DTensor, distribute_tensor, whole

# Marks a parameter that has had no gradient yet, to tell it from one whose state was lost.
UNTOUCHED = "untouched"
_CURE = "Resume with the model and optimizer of that run, or take its weights alone with --is_pretrained_checkpoint."

State = dict[str, Any]


def optimizer_state(
    optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]
) -> Iterator[tuple[str, Tensor]]:
    """Gives `<parameter name>/<state name>` and the whole tensor, in the order of the parameters.

    The tensors are the optimizer's own: copy them before the next step. Numbers come as 0-d tensors. Where
    parameters are sharded, all processes must iterate.
    """
    expected = _Expected(optimizer)
    for name, group, parameter in _named(optimizer, names):
        state = {key: value for key, value in optimizer.state.get(parameter, {}).items() if value is not None}
        for key, value in state.items():
            yield f"{name}/{key}", _as_tensor(value, f"{name}/{key}")
        if not state and expected.of(group, parameter):
            yield f"{name}/{UNTOUCHED}", torch.tensor(True)


def optimizer_state_bytes(optimizer: torch.optim.Optimizer, parameters: Collection[Tensor]) -> int:
    """Bytes of state that the optimizer keeps, or will keep, for these parameters; 0 for what cannot be known."""
    expected, wanted, total = _Expected(optimizer), set(parameters), 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter in wanted:
                for kind in (expected.of(group, parameter) or {}).values():
                    total += 0 if kind.dtype is None else math.prod(kind.shape) * kind.dtype.itemsize
    return total


def load_optimizer_state(
    optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str], items: Iterable[tuple[str, Tensor]]
) -> None:
    """Puts back what `optimizer_state` gave; a state that does not fit leaves the optimizer as it was.

    Each tensor gets the device, type, layout and sharding that the optimizer would have given it.
    """
    received: dict[str, dict[str, Tensor]] = {}
    for label, tensor in items:
        name, _, key = label.rpartition("/")
        received.setdefault(name, {})[key] = tensor
    expected = _Expected(optimizer)
    restored: dict[Tensor, State] = {}
    problems: list[str] = []
    for name, group, parameter in _named(optimizer, names):
        given = received.pop(name, {})
        template = expected.of(group, parameter)
        if set(given) == {UNTOUCHED}:
            restored[parameter] = {}
            continue
        if template is not None:
            problems += [f"{name}/{key} is missing" for key in template if key not in given]
            problems += [f"{name}/{key} is not of this optimizer" for key in given if key not in template]
        restored[parameter] = {}
        for key, tensor in given.items():
            if template is None or key in template:
                kind = None if template is None else template[key]
                restored[parameter][key] = _fit(tensor, kind, parameter, f"{name}/{key}", problems)
    problems += [
        f"{name}/{key} is of no parameter that is trained"
        for name, states in received.items()
        for key in states
    ]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise UserError(f"the optimizer state does not fit: {', '.join(problems[:3])}{more}.", _CURE)
    if expected.is_known:
        for parameter, state in restored.items():
            if state:
                optimizer.state[parameter] = state
            else:
                optimizer.state.pop(parameter, None)
    else:
        _load_unknown(optimizer, restored)


def _named(
    optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]
) -> Iterator[tuple[str, dict[str, Any], Tensor]]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter not in names:
                raise UserError(
                    f"the optimizer trains a tensor of shape {tuple(parameter.shape)} that is no parameter of the model.",
                    "Give the optimizer parameters of self.model only.",
                )
            yield names[parameter], group, parameter


def _as_tensor(value: object, label: str) -> Tensor:
    if isinstance(value, Tensor):
        return whole(value.detach())
    if isinstance(value, (bool, int, float)):
        return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
    raise UserError(
        f"the optimizer keeps '{label}' as {type(value).__name__}, which a checkpoint cannot hold.",
        "Use an optimizer whose state is tensors and numbers.",
    )


@dataclass(frozen=True)
class _Kind:
    """What a value of the state is: a tensor of this shape, or (`number`) a Python number."""

    shape: tuple[int, ...] = ()
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    number: type | None = None


class _Expected:
    """The state that an optimizer keeps for a parameter: found in it, or after one step on a small stand-in."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._found: dict[tuple[int, int, torch.dtype, torch.device], State] = {}
        # A user's own class may do anything in a step.
        home = type(optimizer).__module__
        self.is_known = home.startswith(("torch.optim.", "portwright.")) and not isinstance(
            optimizer, torch.optim.SparseAdam
        )

    def of(self, group: dict[str, Any], parameter: Tensor) -> dict[str, _Kind] | None:
        """The state of a parameter; None where it cannot be known."""
        own = self._optimizer.state.get(parameter)
        if own:
            return {
                key: _kind(value, getattr(value, "shape", ()))
                for key, value in own.items()
                if value is not None
            }
        if not self.is_known:
            return None
        place = (id(group), parameter.ndim, parameter.dtype, parameter.device)
        if place not in self._found:
            self._found[place] = _step_on_stand_in(self._optimizer, group, parameter)
        # No two axes of the stand-in are of one size, so a size tells which axis it stands for.
        sizes = _stand_in_shape(parameter.ndim)
        return {
            key: _kind(value, [parameter.shape[sizes.index(size)] for size in getattr(value, "shape", ())])
            for key, value in self._found[place].items()
            if value is not None
        }


def _kind(value: Any, shape: Iterable[int]) -> _Kind:
    if isinstance(value, Tensor):
        return _Kind(tuple(shape), value.dtype, value.device)
    return _Kind(number=type(value))


def _stand_in_shape(num_axes: int) -> tuple[int, ...]:
    return tuple(range(2, 2 + num_axes))


def _step_on_stand_in(optimizer: torch.optim.Optimizer, group: dict[str, Any], parameter: Tensor) -> State:
    shape = _stand_in_shape(parameter.ndim)
    stand_in = torch.ones(shape, dtype=parameter.dtype, device=parameter.device, requires_grad=True)
    stand_in.grad = torch.ones_like(stand_in)
    # A copy of an optimizer has its class and settings, and none of its hooks.
    twin = copy.copy(optimizer)
    twin.state = defaultdict(dict)
    twin.param_groups = [{**group, "params": [stand_in]}]
    type(twin).step(twin)
    return dict(twin.state[stand_in])


def _fit(tensor: Tensor, kind: _Kind | None, parameter: Tensor, label: str, problems: list[str]) -> Any:
    """The tensor as the optimizer keeps it; what is wrong with it goes to `problems`."""
    if kind is None:
        kind = _guess(tensor, parameter)
    if tuple(tensor.shape) != kind.shape:
        problems.append(f"{label} has shape {list(tensor.shape)}, expected {list(kind.shape)}")
        return None
    if kind.number is not None:
        return kind.number(tensor.item())
    if kind.dtype is not None and torch.promote_types(tensor.dtype, kind.dtype) != kind.dtype:
        problems.append(f"{label} is {tensor.dtype}, which {kind.dtype} cannot hold")
        return None
    if kind.shape != tuple(parameter.shape) or not kind.shape:
        return tensor.detach().to(device=kind.device, dtype=kind.dtype, copy=True)
    if isinstance(parameter, DTensor):
        moved = tensor.detach().to(device=kind.device, dtype=kind.dtype)
        return distribute_tensor(moved, parameter.device_mesh, parameter.placements)
    # Fused kernels walk weights and state side by side, so both must lie in memory in the same order.
    return torch.empty_like(parameter, dtype=kind.dtype, device=kind.device, requires_grad=False).copy_(
        tensor
    )


def _guess(tensor: Tensor, parameter: Tensor) -> _Kind:
    """For optimizers that we do not know: Python numbers were saved as int64 and float64."""
    shape = tuple(tensor.shape)
    if not shape and tensor.dtype in (torch.int64, torch.float64) and parameter.dtype != tensor.dtype:
        return _Kind(number=int if tensor.dtype == torch.int64 else float)
    return _Kind(shape, tensor.dtype, parameter.device if shape else tensor.device)


def _load_unknown(optimizer: torch.optim.Optimizer, restored: dict[Tensor, State]) -> None:
    """Loads through the optimizer's own load_state_dict, which may do more than store the values."""
    described = optimizer.state_dict()
    indices = (index for group in described["param_groups"] for index in group["params"])
    described["state"] = dict(zip(indices, restored.values(), strict=True))
    optimizer.load_state_dict(described)
