"""A conversion's options, and the place where it may write."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from portwright.errors import UserError, suggest
from portwright.huggingface.mapping import Family, Move
from portwright.huggingface.weights import Weights
from portwright.job.atomic import clean_leftovers, explain_os_error

OnBytes = Callable[[int, int], None]  # bytes just done, bytes in all
DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}
_SHORT = {"fp32": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp64": "float64"}


@dataclass(frozen=True)
class Options:
    """A conversion's options."""

    source: Path
    out: Path | None
    model: str | None = None
    params: Path | None = None
    dtype: str | None = None
    shard_size: str = "5GB"
    weights_only: bool = False
    new_head: bool = False
    check: bool = False
    tolerance: float = 1e-4
    force: bool = False
    only_list: bool = False


def require_out(options: Options, *, is_file: bool, is_made: Callable[[Path], bool]) -> Path:
    """The place to write to; refuses one that is not empty, or the input itself.

    `force` replaces the result of an earlier conversion, by which `is_made` recognises a folder.
    """
    if options.out is None:
        raise UserError("no place to write to was given.", "Add OUT, or --list to see the tensors only.")
    _check_place(options.out, options, is_file, is_made)
    if options.out.parent.is_dir():
        clean_leftovers(options.out.parent)  # of a conversion that was killed
    return options.out


def _check_place(out: Path, options: Options, is_file: bool, is_made: Callable[[Path], bool]) -> None:
    if out.resolve() == options.source.resolve() or out.resolve() in options.source.resolve().parents:
        raise UserError(f"'{out}' holds what is to be converted.", "Write to another place.")
    if not os.path.lexists(out):
        return
    if is_file:
        if out.is_dir():
            raise UserError(f"'{out}' is a folder.", "Name a file: OUT.safetensors.")
        if not options.force:
            raise UserError(f"'{out}' exists already.", "Choose another name, or add --force to replace it.")
        return
    if not out.is_dir():
        raise UserError(f"'{out}' is a file, and a folder is to be written.", "Choose another name.")
    if not any(out.iterdir()):
        return
    if not options.force:
        raise UserError(f"'{out}' exists already.", "Choose another name, or add --force to replace it.")
    if not is_made(out):
        raise UserError(
            f"'{out}' was not made by a conversion, so --force does not replace it.",
            "Choose another name, or remove it yourself.",
        )


def parse_dtype(name: str | None) -> torch.dtype | None:
    """The dtype to convert floating-point weights to; None: they are not converted."""
    if name is None or name == "keep":
        return None
    full = _SHORT.get(name.lower(), name.lower()).removeprefix("torch.")
    if full not in DTYPES:
        raise UserError(f"--dtype is '{name}'.", suggest(full, ["keep", *DTYPES, *_SHORT]))
    return DTYPES[full]


@contextlib.contextmanager
def atomic_file(final: Path) -> Iterator[Path]:
    """Yields a path to write to, which is renamed to `final` after the block, or removed if it raises."""
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tmp-", dir=final.parent) as folder:
            temporary = Path(folder) / final.name
            yield temporary
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(final)
    except OSError as error:
        raise explain_os_error(error, final) from error


def account(
    direction: str,
    options: Options,
    folder: str,
    family: Family,
    ours: Weights,
    rows: list[dict[str, Any]],
    notes: list[str],
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "direction": direction,
        "model": folder,
        "family": family.name,
        "source": str(options.source),
        "out": None if options.out is None or options.only_list else str(options.out),
        "tensors": len(rows),
        "bytes": total_bytes(ours),
        "notes": notes,
    }
    return {**made, "table": rows} if options.only_list else made


def total_bytes(weights: Weights) -> int:
    return sum(spec.num_bytes for spec in weights.specs.values())


def list_moves(moves: Sequence[Move], ours: Weights) -> list[dict[str, object]]:
    """The table of tensors on both sides, for a person and for --json."""
    return [
        {
            "ours": move.ours,
            "shape": list(spec.shape),
            "dtype": str(spec.dtype).removeprefix("torch."),
            "theirs": list(move.theirs),
            "their_shapes": [list(move.their_shape(spec.shape)) for _ in move.theirs],
            "transposed": move.transposed,
        }
        for move in moves
        for spec in (ours.specs[move.ours],)
    ]
