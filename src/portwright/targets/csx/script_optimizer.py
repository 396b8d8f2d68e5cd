"""The SDK's optimizer for one that a script made, with the same options."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from portwright.verify.step_watch import WatchedStep

# Options that choose an implementation, and the keys that are no options.
_NOT_COPIED = frozenset({"foreach", "fused", "capturable", "differentiable", "params", "initial_lr"})
# The SDK's fixed behaviour where it has no option.
_FIXED_OPTIONS = {"maximize": False, "amsgrad": False, "centered": False, "decoupled_weight_decay": False}


@dataclass(frozen=True)
class Made:
    optimizer: Any
    name: str
    notes: tuple[str, ...]


def make_optimizer(cstorch: Any, watched: WatchedStep, now: Mapping[int, Tensor]) -> Made:
    """The SDK's optimizer of the same name, else its SGD; the notes say which."""
    given = watched.optimizer
    if given is None:
        parameters = [p for p in now.values() if p.requires_grad]
        return Made(
            cstorch.optim.SGD(parameters, lr=0.01),
            "SGD",
            ("the script updates its weights by hand: asked with SGD in its place",),
        )
    kind = _kind_of(cstorch, given)
    groups = [
        {**{k: v for k, v in group.items() if k != "params"}, "params": _mapped(group["params"], now)}
        for group in given.param_groups
    ]
    groups = [group for group in groups if group["params"]]
    name = type(given).__name__
    if kind is None:
        lr = _number(groups[0].get("lr", 0.01)) if groups else 0.01
        plain = [{"params": group["params"]} for group in groups]
        return Made(
            cstorch.optim.SGD(plain, lr=lr), "SGD", (f"the SDK has no {name}: asked with SGD in its place",)
        )
    accepted = set(inspect.signature(kind.__init__).parameters) - {"self", "params"}
    notes = []
    for key, value in groups[0].items() if groups else ():
        if (
            key not in accepted
            and key not in _NOT_COPIED
            and key in given.defaults
            and value not in (_FIXED_OPTIONS.get(key), None)
        ):
            notes.append(f"{name}'s {key}={value} has no counterpart in the SDK")
    common = {key: _number(value) for key, value in (groups[0] if groups else {}).items() if key in accepted}
    own = [
        {
            "params": group["params"],
            **{_group_key(name, k): _number(v) for k, v in group.items() if k in accepted},
        }
        for group in groups
    ]
    return Made(kind(own, **common), name, tuple(notes))


def _kind_of(cstorch: Any, given: Optimizer) -> Any:
    """The SDK's class for an optimizer of torch's or ours; none for a subclass, whose step may do anything."""
    kind = type(given)
    if not kind.__module__.startswith(("torch.optim", "portwright.")):
        return None
    found = getattr(cstorch.optim, kind.__name__, None)
    return found if inspect.isclass(found) and kind.__name__ != "Muon" else None


def _group_key(name: str, key: str) -> str:
    """The key of an option in a group; the SDK's Adam ignores weight decay under its own signature's name."""
    return "l2_regularization_rate" if name == "Adam" and key == "weight_decay" else key


def _mapped(parameters: Any, now: Mapping[int, Tensor]) -> list[Tensor]:
    return list({id(now[id(p)]): now[id(p)] for p in parameters if id(p) in now}.values())


def _number(value: Any) -> Any:
    """A number for the SDK; in torch a rate may be a tensor of one element."""
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
