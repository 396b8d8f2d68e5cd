"""What a conversion was asked for, and the account that it gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portwright.errors import UserError
from portwright.huggingface.mapping import Family
from portwright.huggingface.place import require_place
from portwright.huggingface.weights import Weights
from portwright.job.atomic import clean_leftovers

OnBytes = Callable[[int, int], None]  # bytes just done, bytes in all


@dataclass(frozen=True)
class Options:
    """What a conversion was asked for."""

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
    if options.out is None:
        raise UserError("no place to write to was given.", "Add OUT, or --list to see the tensors only.")
    require_place(options.out, options.source, force=options.force, is_file=is_file, is_made=is_made)
    if options.out.parent.is_dir():
        clean_leftovers(options.out.parent)  # of a conversion that was killed
    return options.out


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
