"""Handwritten digits: scikit-learn's 8 x 8 set, or MNIST when data_dir has its IDX files."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from portwright import UserError

IDX_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
TEST_SAMPLES = 360  # every fifth of scikit-learn's 1,797 digits


def get_train_dataloader(params: dict[str, Any]) -> DataLoader[Any]:
    return make_dataloader(params["train_input"], "train")


def get_eval_dataloader(params: dict[str, Any]) -> DataLoader[Any]:
    return make_dataloader(params["eval_input"], "test")


def make_dataloader(options: dict[str, Any], split: str) -> DataLoader[Any]:
    data_dir = options.get("data_dir")
    images, labels = read_digits(split) if data_dir is None else read_mnist(Path(data_dir), split)
    return DataLoader(
        TensorDataset(images, labels),
        batch_size=options["batch_size"],
        shuffle=options["shuffle"],
        drop_last=options["drop_last"],
        num_workers=options["num_workers"],
    )


def read_digits(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """scikit-learn's digits, which come with the package; every fifth one is kept for evaluation."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    held_out = np.arange(len(labels)) % 5 == 0
    chosen = held_out if split == "test" else ~held_out
    images = torch.from_numpy(pixels[chosen]).float().div(16).reshape(-1, 1, 8, 8)
    return images, torch.from_numpy(labels[chosen]).long()


def read_mnist(folder: Path, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    images_name, labels_name = IDX_FILES[split]
    images = read_idx(find_file(folder, images_name))
    labels = read_idx(find_file(folder, labels_name))
    if len(images) != len(labels):
        raise UserError(
            f"{folder}: {len(images)} images but {len(labels)} labels.", "Take both files from one data set."
        )
    return torch.from_numpy(images).float().div(255).unsqueeze(1), torch.from_numpy(labels).long()


def find_file(folder: Path, name: str) -> Path:
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
