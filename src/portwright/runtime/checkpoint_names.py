"""Brings the names in a checkpoint together with the names of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch

from portwright.errors import UserError
from portwright.runtime.zoo_names import from_zoo_names, has_zoo_names
from portwright.target import Shard

_NUM_LISTED = 5


class _Shaped(Protocol):
    """A tensor, or a TensorSpec."""

    @property
    def shape(self) -> Any: ...
    @property
    def dtype(self) -> torch.dtype: ...


def match_names(
    shards: Iterable[Shard],
    wanted: Mapping[str, _Shaped],
    on_note: Callable[[str], None] | None = None,
) -> Iterator[Shard]:
    """Checks that the weights are those of a model and gives the shards under the model's names, one at a time.

    `wanted` is the model's state_dict, or anything with shapes and dtypes. One prefix that all names of the
    checkpoint have and the model's lack is taken away (`module.`, `model.`), or the reverse added; optimizer
    shards follow. A weight of another precision passes, and `on_note` is told; the receiver converts it.
    """
    specs = getattr(shards, "specs", None)
    if specs is None:
        shards = list(shards)
        specs = {shard.name: shard.tensor for shard in shards}
    found = {name.removeprefix("model/"): spec for name, spec in specs.items() if name.startswith("model/")}
    if has_zoo_names(found, wanted):
        shards = from_zoo_names(shards)
        found = {shard.name.removeprefix("model/"): shard.tensor for shard in shards}
        if on_note is not None:
            on_note(
                "The checkpoint has the names of the model zoo's layers, which were translated; only its weights count."
            )
    prefix = _prefix_between(found.keys(), wanted.keys())
    rename = _renaming(prefix)
    _check({rename(name): spec for name, spec in found.items()}, wanted)
    if on_note is not None:
        _tell(found, wanted, rename, prefix, on_note)
    return _renamed(shards, rename)


def _renamed(shards: Iterable[Shard], rename: Callable[[str], str]) -> Iterator[Shard]:
    for shard in shards:
        kind, slash, rest = shard.name.partition("/")
        if slash and kind in ("model", "optimizer"):
            yield Shard(f"{kind}/{rename(rest)}", shard.tensor)
        else:
            yield shard


def _prefix_between(found: Iterable[str], wanted: Iterable[str]) -> str:
    """What all names of the checkpoint have before the model's (`-` in front: lack), when nothing else differs."""
    found, wanted = set(found), set(wanted)
    if not found or not wanted or found == wanted or len(found) != len(wanted):
        return ""
    for longer, shorter, sign in ((found, wanted, ""), (wanted, found, "-")):
        # Stripping the same prefix keeps the order, so the first of one belongs to the first of the other.
        one, other = min(longer), min(shorter)
        prefix = one.removesuffix(other)
        if prefix.endswith(".") and one == prefix + other and longer == {prefix + name for name in shorter}:
            return sign + prefix
    return ""


def _renaming(prefix: str) -> Callable[[str], str]:
    if prefix.startswith("-"):
        return lambda name: prefix[1:] + name
    return lambda name: name.removeprefix(prefix)


def _check(found: Mapping[str, _Shaped], wanted: Mapping[str, _Shaped]) -> None:
    missing = [name for name in wanted if name not in found]
    unexpected = [name for name in found if name not in wanted]
    wrong = [
        f"{name} is {_describe(found[name])}, not {_describe(spec)}"
        for name, spec in wanted.items()
        if name in found and not _fits(found[name], spec)
    ]
    parts = [
        f"{len(names)} {what}: {', '.join(names[:_NUM_LISTED])}{', ...' if len(names) > _NUM_LISTED else ''}"
        for what, names in (
            ("missing", missing),
            ("unexpected", unexpected),
            ("of another shape or kind", wrong),
        )
        if names
    ]
    if parts:
        raise UserError(
            f"This checkpoint is of another model: of the model's {len(wanted)} tensors, {'; '.join(parts)}.",
            "Give the params that it was trained with, another --checkpoint_path, or another --model_dir.",
        )


def _fits(found: _Shaped, wanted: _Shaped) -> bool:
    if tuple(found.shape) != tuple(wanted.shape):
        return False
    return found.dtype == wanted.dtype or (found.dtype.is_floating_point and wanted.dtype.is_floating_point)


def _describe(spec: _Shaped) -> str:
    shape = "x".join(str(size) for size in spec.shape) or "scalar"
    return f"{shape} {str(spec.dtype).removeprefix('torch.')}"


def _tell(
    found: Mapping[str, _Shaped],
    wanted: Mapping[str, _Shaped],
    rename: Callable[[str], str],
    prefix: str,
    on_note: Callable[[str], None],
) -> None:
    if prefix:
        change = f"adding '{prefix[1:]}' to" if prefix.startswith("-") else f"taking '{prefix}' off"
        on_note(f"The checkpoint's names fit the model after {change} each.")
    other = [name for name, spec in found.items() if spec.dtype != wanted[rename(name)].dtype]
    if other:
        mine, theirs = wanted[rename(other[0])].dtype, found[other[0]].dtype
        on_note(
            f"{len(other)} of the checkpoint's tensors have another precision than the model and are converted "
            f"(such as {other[0]}: {theirs} to {mine})."
        )
