"""Weights of a pretrained checkpoint for a model that shares a part of them, such as one with a new head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from portwright.errors import UserError
from portwright.target import Shard

_NUM_LISTED = 5


def take_over(given: Iterable[Shard], own: Iterable[Shard], note: Callable[[str], None]) -> Iterator[Shard]:
    """Gives the model's weights: from the checkpoint those of the same name and shape, its own for the rest.

    What stays as it was, and what of the checkpoint is not used, is told; nothing in common is an error.
    """
    own = [shard for shard in own if shard.name.startswith("model/")]
    found = _without_prefix(
        {s.name: s.tensor for s in given if s.name.startswith("model/")}, {s.name for s in own}
    )
    kept: list[str] = []
    reshaped: list[str] = []
    taken: set[str] = set()
    for shard in own:
        tensor = found.get(shard.name)
        if tensor is not None and tensor.shape == shard.tensor.shape:
            taken.add(shard.name)
            yield Shard(shard.name, tensor)
            continue
        kept.append(shard.name)
        if tensor is not None:
            reshaped.append(f"{shard.name} ({_shape(tensor)} there, {_shape(shard.tensor)} here)")
        yield shard
    if not taken:
        raise UserError(
            f"The checkpoint has no weight of this model: none of {len(found)} has both name and shape of one of its {len(kept)}.",
            "Give another --checkpoint_path.",
        )
    own_names = {shard.name for shard in own}
    unused = [name for name in found if name not in own_names]
    missing = [name for name in kept if name not in found]
    if missing:
        note(f"not in the checkpoint, and left as initialised: {_listed(missing)}")
    if reshaped:
        note(f"of another shape in the checkpoint, and left as initialised: {_listed(reshaped)}")
    if unused:
        note(f"in the checkpoint, and not in the model: {_listed(unused)}")


def _without_prefix(found: dict[str, torch.Tensor], wanted: set[str]) -> dict[str, torch.Tensor]:
    """Takes `module.` or `model.` off, as wrappers put them on, if no name fits otherwise."""
    for prefix in ("", "module.", "model."):
        renamed = {name.replace(f"model/{prefix}", "model/", 1): tensor for name, tensor in found.items()}
        if renamed.keys() & wanted:
            return renamed
    return found


def _shape(tensor: torch.Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"


def _listed(names: list[str]) -> str:
    shown = ", ".join(name.removeprefix("model/") for name in names[:_NUM_LISTED])
    return f"{shown}, and {len(names) - _NUM_LISTED} more" if len(names) > _NUM_LISTED else shown
