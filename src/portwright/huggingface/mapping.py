"""Maps the tensors of HuggingFace models to ours and back, bit for bit.

A family's file has the mapping as data: entries with the names on both sides. Everything else (old names, prefixes,
buffers, tied weights, missing or surplus tensors) is handled here, once for all families.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from portwright.errors import UserError
from portwright.huggingface.problems import Misshapen, refuse_differences
from portwright.huggingface.weights import Weights
from portwright.runtime.checkpoint_files import TensorSpec

Params = Mapping[str, Any]  # the section `model:` of params.yaml
Shape = tuple[int, ...]
_FEW_LAYERS = 200  # with fewer layers, each missing tensor is named
_WRAPPERS = ("module.", "_orig_mod.", "model.")  # DistributedDataParallel's, torch.compile's, Lightning's
_OLD_ENDINGS = (
    (".weight", ".gamma"),
    (".bias", ".beta"),
)  # LayerNorm's names in checkpoints that TensorFlow trained
_NUM_KEPT = 2  # of our tensors in memory: files alternate weights and biases of queries, keys and values


@dataclass(frozen=True)
class Entry:
    """One tensor of ours and the tensor or tensors of theirs that it is made of.

    `{i}` in the names counts from 0 to `count` - 1. Several of theirs are stacked along dim 0 in equal parts (query, key,
    value -> in_proj_weight). `transposed`: theirs is [in, out], as in GPT-2's Conv1D. Two entries may name the same tensor
    of theirs, where ours keeps a tied weight under two names.
    """

    ours: str
    theirs: str | tuple[str, ...]
    transposed: bool = False
    count: int | None = None


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
    network: Callable[[Params], nn.Module]  # our network
    ignored: tuple[str, ...] = ()  # buffers of theirs, as patterns: "*.attn.bias"
    tied: tuple[tuple[str, str], ...] = ()  # (name in the entries, other name that older files have too)
    # name that transformers requires and no network reads: the tensor that is written for it, if it exists
    copies: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""  # of the base model in a model with a head: "bert."; files may lack it
    # sets params that config.json leaves open by the names in the file
    by_tensors: Callable[[dict[str, Any], Collection[str]], dict[str, Any]] | None = None

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

    def gather(self, read: Callable[[str], torch.Tensor]) -> torch.Tensor:
        """Makes our tensor from theirs, without a copy where possible."""
        parts = [read(name) for name in self.theirs]
        if self.transposed:
            parts = [part.t() for part in parts]
        return torch.cat(parts) if len(parts) > 1 else parts[0].contiguous()

    def scatter(self, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
        """Makes their tensors from ours, without a copy where possible."""
        parts = tensor.chunk(len(self.theirs)) if len(self.theirs) > 1 else (tensor,)
        made = [part.t() if self.transposed else part for part in parts]
        return {name: part.contiguous() for name, part in zip(self.theirs, made, strict=True)}

    def their_shape(self, shape: Shape) -> Shape:
        """The shape of each of their tensors, for one of ours of our network's shape."""
        part = (shape[0] // len(self.theirs), *shape[1:]) if len(self.theirs) > 1 else shape
        return part[::-1] if self.transposed else part


def moves_of(family: Family, params: Params) -> list[Move]:
    """The moves of all of a model's tensors."""
    moves = []
    for entry in family.entries(params):
        theirs = (entry.theirs,) if isinstance(entry.theirs, str) else entry.theirs
        for i in map(str, range(1 if entry.count is None else entry.count)):
            names = tuple(name.replace("{i}", i) for name in theirs)
            moves.append(Move(entry.ours.replace("{i}", i), names, entry.transposed))
    return moves


def find_names(
    available: Collection[str],
    wanted: Sequence[str],
    prefix: str,
    ignored: Sequence[str],
    tied: Sequence[tuple[str, str]],
) -> tuple[dict[str, str], list[str], list[tuple[str, str]]]:
    """The wanted names' names in the checkpoint, its surplus names, and pairs of names that must have equal tensors.

    `available` are the checkpoint's names, which may be old, prefixed or doubled, `wanted` those of the family's entries.
    """
    there = set(available)
    used: set[str] = set()
    names: dict[str, str] = {}
    equal: list[tuple[str, str]] = []
    aliases = [pair for pair in tied if pair[1] not in set(wanted)]  # an untied head is a separate weight
    for name in dict.fromkeys(wanted):
        candidates = [name, *(other for kept, other in aliases if kept == name)]
        places = [place for each in candidates for place in _spellings(each, prefix) if place in there]
        if places:
            names[name] = places[0]
            used.update(places)
            equal += [(places[0], place) for place in places[1:]]
    rest = [name for name in available if name not in used]
    return names, [name for name in rest if not is_ignored(name, prefix, ignored)], equal


def _spellings(name: str, prefix: str) -> Iterator[str]:
    """Yields the names that a checkpoint may have for a tensor, the usual one first."""
    bare = name.removeprefix(prefix) if prefix else name
    for base in dict.fromkeys((name, bare, f"{prefix}{name}")):
        for wrapper in ("", *_WRAPPERS):
            yield wrapper + base
            for new, old in _OLD_ENDINGS:
                if base.endswith(new):
                    yield wrapper + base.removesuffix(new) + old


def is_ignored(name: str, prefix: str, ignored: Sequence[str]) -> bool:
    """Whether a name matches one of the patterns, with or without the base model's prefix."""
    spellings = (name, f"{prefix}{name}", name.removeprefix(prefix) if prefix else name)
    return any(fnmatchcase(each, pattern) for each in spellings for pattern in ignored)


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
    moves, expected = _moves_and_shapes(family, params, len(shapes))
    wanted = [name for move in moves for name in move.theirs]
    names, surplus, equal = find_names(shapes, wanted, family.prefix, family.ignored, family.tied)
    planned: list[Move] = []
    misshapen: list[Misshapen] = []
    for move in moves:
        if all(name in names for name in move.theirs):
            actual = tuple(names[name] for name in move.theirs)
            want = move.their_shape(expected[move.ours])
            misshapen += [(name, shapes[name], want) for name in actual if shapes[name] != want]
            planned.append(Move(move.ours, actual, move.transposed))
    refuse_differences(
        f"The checkpoint is not of a {family.name} with these params",
        "checkpoint",
        params,
        [] if partial else [name for name in wanted if name not in names],
        [] if partial else surplus,
        misshapen,
        candidates=wanted,
    )
    return planned, equal


def plan_theirs(shapes: Mapping[str, Shape], family: Family, params: Params) -> list[Move]:
    """Plans, from shapes alone, how their tensors are made from ours."""
    moves, expected = _moves_and_shapes(family, params, len(shapes))
    refuse_differences(
        f"The weights are not of a {family.name} with these params",
        "weights",
        params,
        [name for name in expected if name not in shapes],
        [name for name in shapes if name not in expected],
        [(name, shapes[name], want) for name, want in expected.items() if shapes.get(name, want) != want],
        candidates=expected,
    )
    return moves


def _moves_and_shapes(
    family: Family, params: Params, num_tensors: int
) -> tuple[list[Move], dict[str, Shape]]:
    """The moves of a model's tensors, and the shapes of our network's state, which they must cover."""
    # Moves for millions of layers, from a damaged config.json, would take all memory.
    most = max((entry.count or 0 for entry in family.entries(params)), default=0)
    if most > max(num_tensors, _FEW_LAYERS):
        raise UserError(
            f"The params say {most} layers, and the checkpoint has {num_tensors} tensors in all.",
            "Correct the number of layers, or give the checkpoint that belongs to it.",
        )
    moves = moves_of(family, params)
    with torch.device("meta"):
        expected = {name: tuple(tensor.shape) for name, tensor in family.network(params).state_dict().items()}
    given = {move.ours for move in moves}
    lacking, unknown = sorted(expected.keys() - given), sorted(given - expected.keys())
    if lacking or unknown:
        raise ValueError(
            f"family {family.name}: its entries leave out {lacking} of the network, and name {unknown} which it has not"
        )
    return moves, expected


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


def as_ours(
    theirs: Weights, family: Family, params: Params, dtype: torch.dtype | None, partial: bool
) -> tuple[Weights, list[Move]]:
    """A HuggingFace checkpoint under our names; tied weights that are saved twice must be equal."""
    moves, equal = plan_ours(theirs.shapes, family, params, partial=partial)
    for first, other in equal:
        check_equal(first, other, theirs.read(first), theirs.read(other))
    by_name = {move.ours: move for move in moves}
    specs = {}
    for move in moves:
        parts = [theirs.specs[name] for name in move.theirs]
        if len({part.dtype for part in parts}) > 1 and dtype is None:
            kinds = ", ".join(f"{name} {theirs.specs[name].dtype}" for name in move.theirs)
            raise UserError(
                f"'{move.ours}' is made of tensors of several types: {kinds}.", "Choose one: --dtype float32."
            )
        made = move.gather(lambda name: torch.empty(theirs.specs[name].shape, device="meta"))
        specs[move.ours] = TensorSpec(tuple(made.shape), _target(parts[0].dtype, dtype))

    def read(name: str) -> torch.Tensor:
        return by_name[name].gather(lambda each: _cast(each, theirs.read(each), dtype))

    return Weights(specs, read), moves


def as_theirs(
    ours: Weights, family: Family, params: Params, dtype: torch.dtype | None
) -> tuple[Weights, list[Move]]:
    """Our weights under HuggingFace's names; a tensor that makes several of theirs is read once."""
    moves = plan_theirs(ours.shapes, family, params)
    specs: dict[str, TensorSpec] = {}
    source: dict[str, Move] = {}
    for move in moves:
        spec = ours.specs[move.ours]
        for name in move.theirs:
            if name in source:
                check_equal(source[name].ours, move.ours, ours.read(source[name].ours), ours.read(move.ours))
                continue
            specs[name] = TensorSpec(move.their_shape(spec.shape), _target(spec.dtype, dtype))
            source[name] = move
    copies = copies_of(family, specs)
    specs.update({name: specs[original] for name, original in copies.items()})
    kept: dict[str, dict[str, torch.Tensor]] = {}  # by our name

    def read(name: str) -> torch.Tensor:
        name = copies.get(name, name)
        move = source[name]
        if move.ours not in kept:
            if len(kept) == _NUM_KEPT:
                kept.pop(next(iter(kept)))
            kept[move.ours] = move.scatter(_cast(move.ours, ours.read(move.ours), dtype))
        return kept[move.ours][name]

    return Weights(specs, read), moves


def _target(given: torch.dtype, wanted: torch.dtype | None) -> torch.dtype:
    return wanted if wanted is not None and given.is_floating_point else given


def _cast(name: str, tensor: torch.Tensor, wanted: torch.dtype | None) -> torch.Tensor:
    cast = tensor.to(_target(tensor.dtype, wanted))
    if cast.dtype != tensor.dtype and cast.isinf().sum() != tensor.isinf().sum():
        raise UserError(
            f"'{name}' has values up to {float(tensor.abs().max()):.3g}, which {cast.dtype} cannot hold.",
            "Choose a wider type: --dtype bfloat16, or --dtype keep.",
        )
    return cast


def to_ours(
    state: Mapping[str, torch.Tensor], family: Family, params: Params, *, partial: bool = False
) -> dict[str, torch.Tensor]:
    """Our state dict from a HuggingFace one; one UserError names every missing, surplus or misshapen tensor."""
    made, _ = as_ours(Weights.of(state), family, params, None, partial)
    return {name: made.read(name) for name in made.specs}


def to_theirs(state: Mapping[str, torch.Tensor], family: Family, params: Params) -> dict[str, torch.Tensor]:
    """The HuggingFace state dict from one of ours, the exact inverse of `to_ours`."""
    made, moves = as_theirs(Weights.of(state), family, params, None)
    return {name: made.read(name) for move in moves for name in move.theirs}


def copies_of(family: Family, names: Collection[str]) -> dict[str, str]:
    """Names to write in addition to the entries', each with the name whose tensor it gets."""
    return {name: source for name, source in family.copies.items() if source in names and name not in names}
