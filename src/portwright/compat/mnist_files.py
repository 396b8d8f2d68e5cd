"""tensorflow.examples.tutorials.mnist.input_data: the MNIST files that tutorials of TensorFlow 1 read. It downloads nothing."""

from __future__ import annotations

import gzip
import struct
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np

from portwright.errors import UserError

Datasets = namedtuple("Datasets", "train validation test")
_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


class DataSet:
    """Images and labels in memory, and batches of them."""

    def __init__(self, images: Any, labels: Any, seed: int | None = None) -> None:
        self.images, self.labels = images, labels
        self.num_examples, self.epochs_completed = len(images), 0
        self._place = 0
        self._draw = np.random.RandomState(seed)
        self._order = np.arange(len(images))

    def next_batch(self, batch_size: int, fake_data: bool = False, shuffle: bool = True) -> tuple[Any, Any]:
        """The next so many, of the next epoch too where this one ends."""
        taken: list[Any] = []
        while len(taken) < batch_size:
            if self._place == 0 and shuffle:
                self._draw.shuffle(self._order)
            some = self._order[self._place : self._place + batch_size - len(taken)]
            taken.extend(some)
            self._place += len(some)
            if self._place >= self.num_examples:
                self._place = 0
                self.epochs_completed += 1
        return self.images[taken], self.labels[taken]


def read_data_sets(
    train_dir: str,
    fake_data: bool = False,
    one_hot: bool = False,
    dtype: Any = np.float32,
    reshape: bool = True,
    validation_size: int = 5000,
    seed: int | None = None,
    source_url: str = "",
) -> Datasets:
    """Reads the four files, gzipped or not, from a folder."""
    parts = {}
    for part, (images, labels) in _FILES.items():
        pixels = _read(Path(train_dir), images).astype(np.float32) / 255.0
        pixels = pixels.reshape(len(pixels), -1) if reshape else pixels[..., None]
        classes = _read(Path(train_dir), labels)
        parts[part] = pixels, np.eye(10)[classes] if one_hot else classes
    pixels, classes = parts["train"]
    if not 0 <= validation_size <= len(pixels):
        raise UserError(f"validation_size is {validation_size}, of {len(pixels)} images.", "Give fewer.")
    return Datasets(
        DataSet(pixels[validation_size:], classes[validation_size:], seed),
        DataSet(pixels[:validation_size], classes[:validation_size], seed),
        DataSet(*parts["test"], seed),
    )


def _read(folder: Path, name: str) -> Any:
    for path, opened in ((folder / f"{name}.gz", gzip.open), (folder / name, open)):
        if path.is_file():
            with opened(path, "rb") as file:
                data: bytes = file.read()
            _, _, _, rank = struct.unpack_from(">BBBB", data)
            shape = struct.unpack_from(f">{rank}I", data, 4)
            return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(shape)
    raise UserError(f"there is no {name} or {name}.gz in {folder}.", "Put the four files of MNIST there.")
