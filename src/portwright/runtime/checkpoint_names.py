"""Brings the weights in a checkpoint together with those of a model, by name: all of them, or those that fit.

Checkpoints of the model zoo's releases have its names: there queries, keys and values are three matrices and the feed-forward
network is a list; here they are torch.nn's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch

from portwright.errors import UserError
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
    on_note: Callable[[str], None],
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
        on_note(
            "The checkpoint has the names of the model zoo's layers, which were translated; only its weights count."
        )
    off, on = _prefix_between(set(found), set(wanted)), _prefix_between(set(wanted), set(found))

    def rename(name: str) -> str:
        return on + name.removeprefix(off)

    _check({rename(name): spec for name, spec in found.items()}, wanted)
    if off or on:
        change = f"taking '{off}' off" if off else f"adding '{on}' to"
        on_note(f"The checkpoint's names fit the model after {change} each.")
    other = [name for name, spec in found.items() if spec.dtype != wanted[rename(name)].dtype]
    if other:
        mine, theirs = wanted[rename(other[0])].dtype, found[other[0]].dtype
        on_note(
            f"{len(other)} of the checkpoint's tensors have another precision than the model and are converted "
            f"(such as {other[0]}: {theirs} to {mine})."
        )
    return _renamed(shards, rename)


def _renamed(shards: Iterable[Shard], rename: Callable[[str], str]) -> Iterator[Shard]:
    for shard in shards:
        kind, slash, rest = shard.name.partition("/")
        if slash and kind in ("model", "optimizer"):
            yield Shard(f"{kind}/{rename(rest)}", shard.tensor)
        else:
            yield shard


def _prefix_between(longer: set[str], shorter: set[str]) -> str:
    """What stands before each of the shorter names to make the longer ones; nothing where they differ otherwise."""
    # Stripping the same prefix keeps the order, so the first of one belongs to the first of the other.
    prefix = min(longer, default="").removesuffix(min(shorter, default=""))
    return prefix if prefix.endswith(".") and longer == {prefix + name for name in shorter} else ""


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
    same_kind = found.dtype.is_floating_point and wanted.dtype.is_floating_point
    return tuple(found.shape) == tuple(wanted.shape) and (same_kind or found.dtype == wanted.dtype)


def _describe(spec: _Shaped) -> str:
    return f"{_show_shape(spec)} {str(spec.dtype).removeprefix('torch.')}"


def _show_shape(spec: _Shaped) -> str:
    return "x".join(map(str, spec.shape)) or "scalar"


def take_over(given: Iterable[Shard], own: Iterable[Shard], note: Callable[[str], None]) -> list[Shard]:
    """Gives the model's weights: from the checkpoint those of the same name and shape, its own for the rest.

    What stays as it was, and what of the checkpoint is not used, is told; nothing in common is an error.
    """
    mine = _weights_of(own)
    found = _without_prefix(_weights_of(given), mine.keys())
    fits = {name for name, tensor in mine.items() if name in found and found[name].shape == tensor.shape}
    if not fits:
        raise UserError(
            f"The checkpoint has no weight of this model: none of {len(found)} has both name and shape of one of its {len(mine)}.",
            "Give another --checkpoint_path.",
        )
    reshaped = [
        f"{name} ({_show_shape(found[name])} there, {_show_shape(tensor)} here)"
        for name, tensor in mine.items()
        if name in found and name not in fits
    ]
    for what, names in (
        ("not in the checkpoint, and left as initialised", [name for name in mine if name not in found]),
        ("of another shape in the checkpoint, and left as initialised", reshaped),
        ("in the checkpoint, and not in the model", [name for name in found if name not in mine]),
    ):
        if names:
            more = f", and {len(names) - _NUM_LISTED} more" if len(names) > _NUM_LISTED else ""
            note(f"{what}: {', '.join(names[:_NUM_LISTED])}{more}")
    return [Shard(f"model/{name}", (found if name in fits else mine)[name]) for name in mine]


def _weights_of(shards: Iterable[Shard]) -> dict[str, torch.Tensor]:
    return {s.name.removeprefix("model/"): s.tensor for s in shards if s.name.startswith("model/")}


def _without_prefix(found: dict[str, torch.Tensor], wanted: Collection[str]) -> dict[str, torch.Tensor]:
    """Takes `module.` or `model.` off, as wrappers put them on, if no name fits otherwise."""
    for prefix in ("", "module.", "model."):
        renamed = {name.removeprefix(prefix): tensor for name, tensor in found.items()}
        if any(name in wanted for name in renamed):
            return renamed
    return found


_PROJECTION = re.compile(r"(.*)proj_([qkv])_dense_layer\.(weight|bias)")
_RENAMED = (
    (re.compile(r"(.*)proj_output_dense_layer\.(weight|bias)"), r"\1out_proj.\2"),
    (re.compile(r"(.*)ffn\.ffn\.0\.linear_layer\.(weight|bias)"), r"\1linear1.\2"),
    (re.compile(r"(.*)ffn\.ffn\.1\.linear_layer\.(weight|bias)"), r"\1linear2.\2"),
)


def has_zoo_names(found: Collection[str], wanted: Collection[str]) -> bool:
    """Whether a checkpoint has separate projections where the model has one joint matrix."""
    return any(_PROJECTION.fullmatch(name) and name not in wanted for name in found)


def from_zoo_names(shards: Iterable[Shard]) -> list[Shard]:
    """Gives weights under torch.nn's names, projections joined; optimizer state under the old names is left out."""
    made: dict[str, torch.Tensor] = {}
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for shard in shards:
        kind, _, name = shard.name.partition("/")
        if kind != "model":
            continue
        projection = _PROJECTION.fullmatch(name)
        if projection is not None:
            start, which, what = projection.groups()
            parts.setdefault(f"{start}in_proj_{what}", {})[which] = shard.tensor
            continue
        for pattern, replacement in _RENAMED:
            name = pattern.sub(replacement, name)
        made[name] = shard.tensor
    for name, three in parts.items():
        if len(three) == 3:
            made[name] = torch.cat([three[which] for which in "qkv"])
    return [Shard(f"model/{name}", tensor) for name, tensor in made.items()]
