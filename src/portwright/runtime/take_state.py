"""A checkpoint's shards taken into a session whose optimizer a vendor owns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from portwright.runtime.checkpoint import match_names
from portwright.target import Shard


class Taken(NamedTuple):
    """What is left when the weights are in their place."""

    optimizer: dict[str, dict[str, Tensor]]  # by parameter, then by state
    generators: dict[str, Tensor]


def take_weights(
    shards: Iterable[Shard],
    own: Mapping[str, Tensor],
    note: Callable[[str], None],
    *,
    rank: int = 0,
    optimizer_kinds: Collection[str] = ("optimizer",),
) -> Taken:
    """Copies weights into `own`, a model's state_dict, and sorts the rest; generators are those of the process `rank`."""
    taken = Taken({}, {})
    for shard in match_names(shards, own, note):
        kind, _, name = shard.name.partition("/")
        if kind == "model":
            with torch.no_grad():
                own[name].copy_(shard.tensor)
        elif kind in optimizer_kinds:
            path, _, key = name.rpartition("/")
            taken.optimizer.setdefault(path, {})[key] = shard.tensor
        elif kind == "rng" and name.startswith(f"{rank}/"):
            taken.generators[name.partition("/")[2]] = shard.tensor
    return taken


def count_updates(states: Mapping[str, Mapping[str, Tensor]]) -> int:
    """How often a torch session has updated, which its own state says."""
    return max((int(of_one["step"]) for of_one in states.values() if "step" in of_one), default=0)
