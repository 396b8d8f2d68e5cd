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
    """Images and labels in memory, and batches of them; as float32 the pixels lie between 0 and 1."""

    def __init__(
        self,
        images: Any,
        labels: Any,
        fake_data: bool = False,
        one_hot: bool = False,
        dtype: Any = np.float32,
        reshape: bool = True,
        seed: int | None = None,
    ) -> None:
        kind = np.dtype(getattr(dtype, "as_numpy_dtype", dtype))
        if kind not in (np.uint8, np.float32):
            raise TypeError(f"Invalid image dtype {kind}, expected uint8 or float32")
        self._is_fake, self._one_hot = fake_data, one_hot
        if not fake_data:
            images = images.reshape(len(images), -1) if reshape else images
            images = images.astype(np.float32) / 255.0 if kind == np.float32 else images
        self.images, self.labels = images, labels
        self.num_examples, self.epochs_completed = 10000 if fake_data else len(images), 0
        self._place = 0
        self._draw = np.random.RandomState(seed)
        self._order = np.arange(len(images))

    def next_batch(self, batch_size: int, fake_data: bool = False, shuffle: bool = True) -> tuple[Any, Any]:
        """The next `batch_size` samples, across the end of an epoch; with fake_data, images of ones and the class 0."""
        if fake_data:
            label = [1, *[0] * 9] if self._one_hot else 0
            return [[1] * 784] * batch_size, [label] * batch_size
        if self._is_fake:
            raise UserError("this data set was made with fake_data.", "Say next_batch(..., fake_data=True).")
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
    """Reads the four files, gzipped or not, from a folder; source_url only appears in the error for a missing one."""
    options = {"one_hot": one_hot, "dtype": dtype, "reshape": reshape, "seed": seed}
    if fake_data:
        return Datasets(*(DataSet([], [], fake_data=True, **options) for _ in range(3)))
    parts = {}
    for part, names in _FILES.items():
        pixels, classes = (_read(Path(train_dir), name, source_url) for name in names)
        parts[part] = pixels[..., None], np.eye(10)[classes] if one_hot else classes
    pixels, classes = parts["train"]
    if not 0 <= validation_size <= len(pixels):
        raise UserError(f"validation_size is {validation_size}, of {len(pixels)} images.", "Give fewer.")
    return Datasets(
        DataSet(pixels[validation_size:], classes[validation_size:], **options),
        DataSet(pixels[:validation_size], classes[:validation_size], **options),
        DataSet(*parts["test"], **options),
    )


def _read(folder: Path, name: str, source_url: str) -> Any:
    for path, opened in ((folder / f"{name}.gz", gzip.open), (folder / name, open)):
        if path.is_file():
            with opened(path, "rb") as file:
                data: bytes = file.read()
            _, _, _, rank = struct.unpack_from(">BBBB", data)
            shape = struct.unpack_from(f">{rank}I", data, 4)
            return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(shape)
    raise UserError(
        f"there is no {name} or {name}.gz in {folder}, and nothing is downloaded.",
        f"Put the four files of MNIST there{f' from {source_url}' if source_url else ''}.",
    )
