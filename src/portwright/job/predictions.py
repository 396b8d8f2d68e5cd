"""What a model predicts, as .npz files; each one is written whole or not at all."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from portwright.errors import UserError
from portwright.job.atomic import atomic_write_bytes

_VALUES_PER_FILE = 2**26  # about 256 MB a file


def write_predictions(batches: Iterable[Mapping[str, np.ndarray[Any, Any]]], folder: Path) -> list[str]:
    """Writes arrays of batches, joined along the first axis; a new file starts where it grows too large, or shapes change."""
    written: list[str] = []
    kept: list[dict[str, np.ndarray[Any, Any]]] = []
    num_values = 0

    def flush() -> None:
        nonlocal num_values
        if not kept:
            return
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:  # np.savez would trip over an array named "file"
            for name in kept[0]:
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(
                        member, np.concatenate([part[name] for part in kept]), allow_pickle=False
                    )
        path = folder / f"predictions_{len(written):05d}.npz"
        atomic_write_bytes(path, buffer.getvalue())
        written.append(str(path))
        kept.clear()
        num_values = 0

    for batch in batches:
        arrays = {name: np.atleast_1d(array) for name, array in batch.items()}
        if kept and {n: a.shape[1:] for n, a in arrays.items()} != {
            n: a.shape[1:] for n, a in kept[0].items()
        }:
            flush()
        kept.append(arrays)
        num_values += sum(array.size for array in arrays.values())
        if num_values > _VALUES_PER_FILE:
            flush()
    flush()
    if not written:
        raise UserError("the prediction saw no sample.", "Look at eval_input and runconfig.eval_steps.")
    return written
