"""Handwritten digits: scikit-learn's 8 x 8 set, and MNIST's IDX files. Images are [count, height, width], from 0 to 1."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np

from portwright.errors import UserError

Arrays = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]

IDX_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def read_digits(split: str) -> Arrays:
    """scikit-learn's digits, which come with the package; every fifth one is kept for evaluation."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    held_out = np.arange(len(labels)) % 5 == 0
    chosen = held_out if split == "test" else ~held_out
    return (pixels[chosen] / 16).astype(np.float32).reshape(-1, 8, 8), labels[chosen].astype(np.int64)


def read_mnist(folder: Path, split: str) -> Arrays:
    """Reads the images and labels of a split from a folder with MNIST's files, gzipped or not."""
    images, labels = (read_idx(_find_file(folder, name)) for name in IDX_FILES[split])
    if len(images) != len(labels):
        raise UserError(
            f"{folder}: {len(images)} images but {len(labels)} labels.", "Take both files from one data set."
        )
    return (images / np.float32(255)).astype(np.float32), labels.astype(np.int64)


def _find_file(folder: Path, name: str) -> Path:
    for base in (folder, folder / "MNIST" / "raw"):
        for candidate in (base / name, base / f"{name}.gz", base / name.replace("-idx", ".idx")):
            if candidate.is_file():
                return candidate
    raise UserError(
        f"data_dir '{folder}' has no {name}[.gz].",
        "Put the four MNIST IDX files there, or leave data_dir out to use scikit-learn's digits.",
    )


def read_idx(path: Path) -> np.ndarray[Any, Any]:
    """An IDX file of unsigned bytes: two zero bytes, a type, the number of dimensions, their sizes, the values."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise UserError(f"{path} cannot be read: {error}.", "Fetch the file again.") from error
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise UserError(
            f"{path} is not an IDX file of bytes (it starts with {raw[:4]!r}).", "Fetch the file again."
        )
    num_dims = raw[3]
    if len(raw) < 4 + 4 * num_dims:
        raise UserError(f"{path} ends within its header.", "Fetch the file again.")
    shape = struct.unpack(f">{num_dims}I", raw[4 : 4 + 4 * num_dims])
    values = np.frombuffer(raw, np.uint8, offset=4 + 4 * num_dims)
    if values.size != int(np.prod(shape)):
        raise UserError(
            f"{path} has {values.size} values where its header says {shape}.", "Fetch the file again."
        )
    return values.reshape(shape).copy()
