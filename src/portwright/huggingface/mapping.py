"""Maps the tensors of HuggingFace models to ours and back, bit for bit.

A family's file has the mapping as data: entries with the names on both sides. Everything else (old names, prefixes,
buffers, tied weights, missing or surplus tensors) is handled here, once for all families.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from portwright.errors import UserError
from portwright.huggingface.problems import Problems
from portwright.huggingface.their_names import find_names

Params = Mapping[str, Any]  # the section `model:` of params.yaml
Shape = tuple[int, ...]
_FEW_LAYERS = 200  # with fewer layers, each missing tensor is named


@dataclass(frozen=True)
class Entry:
    """One tensor of ours and the tensor or tensors of theirs that it is made of.

    `{i}` in the names counts from 0 to `count` - 1. Several of theirs are stacked along dim 0 (query, key, value ->
    in_proj_weight), in equal parts unless `rows` gives each part's. `transposed`: theirs is [in, out], as in GPT-2's Conv1D.
    Two entries may name the same tensor of theirs, where ours keeps a tied weight under two names.
    """

    ours: str
    theirs: str | tuple[str, ...]
    transposed: bool = False
    count: int | None = None
    rows: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Family:
    """One network of ours and its HuggingFace twin.

    A file defines `FAMILY`, or `FAMILIES` with one for each head. `architectures` maps our model folder to the HuggingFace
    classes whose checkpoints it reads; the first is written unless `config_of` gives `architectures` itself. The first
    folder is the default for a checkpoint.
    """

    name: str
    model_type: str
    architectures: Mapping[str, str | tuple[str, ...]]
    entries: Callable[[Params], Sequence[Entry]]
    params_of: Callable[[Mapping[str, Any]], dict[str, Any]]  # config.json -> `model:`
    config_of: Callable[[Params], dict[str, Any]]  # `model:` -> config.json
    ignored: tuple[str, ...] = ()  # buffers of theirs, as patterns: "*.attn.bias"
    tied: tuple[tuple[str, str], ...] = ()  # (name in the entries, other name that older files have too)
    # name that transformers requires and no network reads: the tensor that is written for it, if it exists
    copies: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""  # of the base model in a model with a head: "bert."; files may lack it
    network: Callable[[Params], nn.Module] | None = None  # our network, for the shapes of its tensors
    by_tensors: Callable[[dict[str, Any], Collection[str]], dict[str, Any]] | None = (
        None  # sets params that config.json leaves open by the names in the file
    )

    def classes(self, folder: str) -> tuple[str, ...]:
        """The HuggingFace classes that our folder reads; the first is the one to write."""
        given = self.architectures[folder]
        return (given,) if isinstance(given, str) else tuple(given)


@dataclass(frozen=True)
class Move:
    """One tensor of ours and its sources, with layers' numbers filled in."""

    ours: str
    theirs: tuple[str, ...]
    transposed: bool = False
    rows: tuple[int, ...] | None = None

    def gather(self, read: Callable[[str], torch.Tensor]) -> torch.Tensor:
        """Makes our tensor from theirs, without a copy where possible."""
        parts = [read(name) for name in self.theirs]
        if self.transposed:
            parts = [part.t() for part in parts]
        return torch.cat(parts) if len(parts) > 1 else parts[0].contiguous()

    def scatter(self, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
        """Makes their tensors from ours, without a copy where possible."""
        parts = torch.split(tensor, self._rows_of(tuple(tensor.shape))) if len(self.theirs) > 1 else [tensor]
        made = [part.t() if self.transposed else part for part in parts]
        return {name: part.contiguous() for name, part in zip(self.theirs, made, strict=True)}

    def our_shape(self, parts: Sequence[Shape]) -> Shape | None:
        """The shape of our tensor made from theirs; None where theirs do not fit together."""
        turned = [self._transposed_shape(part) for part in parts]
        if len(turned) == 1:
            return turned[0]
        if any(part is None or not part or part[1:] != (turned[0] or ())[1:] for part in turned):
            return None
        rows = [part[0] for part in turned if part]
        if rows != list(self.rows or rows[:1] * len(rows)):
            return None
        return (sum(rows), *(turned[0] or ())[1:])

    def their_shapes(self, shape: Shape) -> list[Shape] | None:
        """The shapes of their tensors made from ours; None where ours cannot be divided so."""
        if len(self.theirs) > 1:
            if not shape or sum(self._rows_of(shape)) != shape[0]:
                return None
            split: list[Shape] = [(rows, *shape[1:]) for rows in self._rows_of(shape)]
        else:
            split = [shape]
        turned = [self._transposed_shape(part) for part in split]
        return None if any(part is None for part in turned) else [part for part in turned if part is not None]

    def _rows_of(self, shape: Shape) -> list[int]:
        return list(self.rows) if self.rows else [shape[0] // len(self.theirs)] * len(self.theirs)

    def _transposed_shape(self, shape: Shape) -> Shape | None:
        if not self.transposed:
            return shape
        return (shape[1], shape[0]) if len(shape) == 2 else None


def moves_of(family: Family, params: Params) -> list[Move]:
    """The moves of all of a model's tensors; refuses a family's file that contradicts itself."""
    moves = [move for entry in family.entries(params) for move in _expand(family, entry)]
    seen: set[str] = set()
    for move in moves:
        if move.ours in seen:
            raise ValueError(f"family {family.name}: two entries make '{move.ours}'")
        seen.add(move.ours)
    return moves


def _expand(family: Family, entry: Entry) -> Iterable[Move]:
    theirs = (entry.theirs,) if isinstance(entry.theirs, str) else tuple(entry.theirs)
    numbered = [("{i}" in name) for name in (entry.ours, *theirs)]
    if not theirs or any(numbered) != all(numbered) or all(numbered) != (entry.count is not None):
        raise ValueError(f"family {family.name}: {entry} needs {{i}} in every name and a count, or neither")
    if entry.rows is not None and len(entry.rows) != len(theirs):
        raise ValueError(f"family {family.name}: {entry} needs as many rows as names")
    for i in range(entry.count) if entry.count is not None else (0,):
        names = tuple(name.replace("{i}", str(i)) for name in theirs)
        yield Move(entry.ours.replace("{i}", str(i)), names, entry.transposed, entry.rows)


def plan_ours(
    shapes: Mapping[str, Shape],
    family: Family,
    params: Params,
    *,
    partial: bool = False,
) -> tuple[list[Move], list[tuple[str, str]]]:
    """Plans, from shapes alone, how our tensors are made from those of their checkpoint.

    Also gives pairs of names whose tensors must be equal, since the model has one weight for both. `partial` allows missing
    and surplus tensors, as when a base model gets a new head.
    """
    _refuse_more_layers(family, params, len(shapes))
    moves = moves_of(family, params)
    wanted = [name for move in moves for name in move.theirs]
    found = find_names(shapes, wanted, family.prefix, family.ignored, family.tied)
    problems = Problems(f"The checkpoint is not of a {family.name} with these params", "checkpoint", "model")
    expected = our_shapes(family, params)
    if expected is not None:
        _check_entries(family, moves, expected)
    planned = []
    for move in moves:
        missing = [name for name in move.theirs if name not in found.names]
        if missing:
            problems.missing += missing
            continue
        actual = tuple(found.names[name] for name in move.theirs)
        parts = [tuple(shapes[name]) for name in actual]
        made = move.our_shape(parts)
        want = expected[move.ours] if expected is not None else None
        if made is None or (want is not None and made != want):
            problems.misshapen += _differing(move, actual, parts, want)
        planned.append(Move(move.ours, actual, move.transposed, move.rows))
    problems.surplus = list(found.surplus)
    if partial:
        problems.missing, problems.surplus = [], []
    problems.raise_if_any(params, candidates=wanted)
    return planned, found.equal


def plan_theirs(shapes: Mapping[str, Shape], family: Family, params: Params) -> list[Move]:
    """Plans, from shapes alone, how their tensors are made from ours."""
    _refuse_more_layers(family, params, len(shapes))
    moves = moves_of(family, params)
    problems = Problems(f"The weights are not of a {family.name} with these params", "weights", "model")
    expected = our_shapes(family, params)
    if expected is not None:
        _check_entries(family, moves, expected)
    known = {move.ours for move in moves}
    for move in moves:
        if move.ours not in shapes:
            problems.missing.append(move.ours)
            continue
        shape = tuple(shapes[move.ours])
        want = expected[move.ours] if expected is not None else None
        if (want is not None and shape != want) or move.their_shapes(shape) is None:
            problems.misshapen.append((move.ours, shape, want))
    problems.surplus = [name for name in shapes if name not in known]
    problems.raise_if_any(params, candidates=known)
    return moves


def _refuse_more_layers(family: Family, params: Params, num_tensors: int) -> None:
    """Refuses more layers than tensors early: moves for millions of layers, from a damaged config.json, take all memory."""
    most = max((entry.count or 0 for entry in family.entries(params)), default=0)
    if most > max(num_tensors, _FEW_LAYERS):
        raise UserError(
            f"The params say {most} layers, and the checkpoint has {num_tensors} tensors in all.",
            "Correct the number of layers, or give the checkpoint that belongs to it.",
        )


def our_shapes(family: Family, params: Params) -> dict[str, Shape] | None:
    """The shapes of our network's state, on the meta device; None where the family has no network."""
    if family.network is None:
        return None
    with torch.device("meta"):
        network = family.network(params)
    return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}


def _check_entries(family: Family, moves: Sequence[Move], expected: Mapping[str, Shape]) -> None:
    given = {move.ours for move in moves}
    lacking, unknown = sorted(expected.keys() - given), sorted(given - expected.keys())
    if lacking or unknown:
        raise ValueError(
            f"family {family.name}: its entries leave out {lacking} of the network, and name {unknown} which it has not"
        )


def _differing(
    move: Move, names: Sequence[str], parts: Sequence[Shape], want: Shape | None
) -> list[tuple[str, Shape, Shape | None]]:
    """Yields the parts whose shape is wrong."""
    wanted = move.their_shapes(want) if want is not None else None
    if wanted is None:
        return [(name, part, None) for name, part in zip(names, parts, strict=True)]
    return [(name, part, each) for name, part, each in zip(names, parts, wanted, strict=True) if part != each]


def check_equal(first: str, other: str, one: torch.Tensor, two: torch.Tensor) -> None:
    """Refuses two tensors for one weight, unless every bit is the same."""
    if not same_bits(one, two):
        raise UserError(
            f"'{first}' and '{other}' are one weight in this model, but their values differ.",
            "Set the params that untie them (share_embedding_weights: false, or tie_word_embeddings: false in config.json).",
        )


def same_bits(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether two tensors hold the same bits, NaN and the sign of zero included."""
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    if one.numel() == 0:
        return True
    left, right = (each.detach().contiguous().reshape(-1).view(torch.uint8) for each in (one, two))
    return torch.equal(left, right)


def to_ours(
    state: Mapping[str, torch.Tensor], family: Family, params: Params, *, partial: bool = False
) -> dict[str, torch.Tensor]:
    """Our state dict from a HuggingFace one; one UserError names every missing, surplus or misshapen tensor."""
    moves, equal = plan_ours(
        {name: tuple(t.shape) for name, t in state.items()}, family, params, partial=partial
    )
    for first, other in equal:
        check_equal(first, other, state[first], state[other])
    return {move.ours: move.gather(state.__getitem__) for move in moves}


def to_theirs(state: Mapping[str, torch.Tensor], family: Family, params: Params) -> dict[str, torch.Tensor]:
    """The HuggingFace state dict from one of ours, the exact inverse of `to_ours`."""
    made: dict[str, torch.Tensor] = {}
    for move in plan_theirs({name: tuple(t.shape) for name, t in state.items()}, family, params):
        for name, tensor in move.scatter(state[move.ours]).items():
            if name in made:
                check_equal(move.ours, name, made[name], tensor)
            made.setdefault(name, tensor)
    return made


def copies_of(family: Family, names: Collection[str]) -> dict[str, str]:
    """Names to write in addition to the entries', each with the name whose tensor it gets."""
    return {name: source for name, source in family.copies.items() if source in names and name not in names}
