"""Presents weights of one side under the other's names; each tensor is made when it is read."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from portwright.errors import UserError, suggest
from portwright.huggingface.mapping import (
    Family,
    Move,
    Params,
    check_equal,
    copies_of,
    plan_ours,
    plan_theirs,
)
from portwright.huggingface.problems import show_shape
from portwright.huggingface.weights import Weights
from portwright.runtime.checkpoint_files import TensorSpec

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}
_SHORT = {"fp32": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp64": "float64"}
_NUM_KEPT = 2  # of our tensors in memory: files alternate weights and biases of queries, keys and values


def parse_dtype(name: str | None) -> torch.dtype | None:
    """The dtype to convert floating-point weights to; None: they are not converted."""
    if name is None or name == "keep":
        return None
    full = _SHORT.get(name.lower(), name.lower()).removeprefix("torch.")
    if full not in DTYPES:
        raise UserError(f"--dtype is '{name}'.", suggest(full, ["keep", *DTYPES, *_SHORT]))
    return DTYPES[full]


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
        shape = move.our_shape([part.shape for part in parts])
        assert shape is not None  # the plan has checked it
        specs[move.ours] = TensorSpec(shape, _target(parts[0].dtype, dtype))

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
        shapes = move.their_shapes(spec.shape)
        assert shapes is not None  # the plan has checked it
        for name, shape in zip(move.theirs, shapes, strict=True):
            if name in source:
                check_equal(source[name].ours, move.ours, ours.read(source[name].ours), ours.read(move.ours))
                continue
            specs[name] = TensorSpec(shape, _target(spec.dtype, dtype))
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


def list_moves(moves: Sequence[Move], ours: Weights) -> list[dict[str, object]]:
    """The table of tensors on both sides, for a person and for --json."""
    rows = []
    for move in moves:
        spec = ours.specs[move.ours]
        rows.append(
            {
                "ours": move.ours,
                "shape": list(spec.shape),
                "dtype": str(spec.dtype).removeprefix("torch."),
                "theirs": list(move.theirs),
                "their_shapes": [list(shape) for shape in move.their_shapes(spec.shape) or ()],
                "transposed": move.transposed,
            }
        )
    return rows


def render_moves(rows: Sequence[dict[str, object]]) -> str:
    """The same table as text."""
    lines = []
    for row in rows:
        theirs: list[str] = row["theirs"]  # type: ignore[assignment]
        shapes: list[list[int]] = row["their_shapes"]  # type: ignore[assignment]
        left = f"{row['ours']} {show_shape(row['shape'])}"  # type: ignore[arg-type]
        right = " + ".join(f"{name} {show_shape(shape)}" for name, shape in zip(theirs, shapes, strict=True))
        lines.append(f"{left:<64} <-> {right}{' transposed' if row['transposed'] else ''}")
    return "\n".join(lines)


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
