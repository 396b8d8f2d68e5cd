"""Reads larcv3's HDF5 files of sparse 2D images by h5py alone.

Of one producer, `Data/sparse2d_<producer>_group` has four tables: `extents` says of each event which rows of `voxel_extents`
and `image_meta` are its planes, `voxel_extents` says of each plane which rows of `voxels` are its pixels, and `voxels` holds
(id, value). An id counts pixels with the second axis fastest: `image_meta.number_of_voxels` is (wires, ticks), and a plane's
image has ticks as rows and wires as columns.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from portwright.data.hdf5 import open_hdf5, reading
from portwright.errors import UserError, suggest

Array = np.ndarray[Any, Any]
NUM_PLANES = 3
NUM_CLASSES = 3
_TABLES = {
    "extents": ("first", "N"),
    "voxel_extents": ("first", "N", "ID"),
    "image_meta": ("number_of_voxels",),
    "voxels": ("id", "value"),
}


class LarcvPlanes(Dataset[dict[str, Tensor]]):
    """Images and labels of a file's events, made dense; `downsample` halves the resolution that many times.

    Charge is averaged over the pixels that become one, and a label is the greatest among them, as larcv does.
    """

    def __init__(
        self,
        path: Path | str,
        downsample: int = 0,
        image_producer: str = "sbndwire",
        label_producer: str = "sbnd_cosmicseg",
        num_samples: int | None = None,
    ) -> None:
        self.path, self.downsample = Path(path), downsample
        self.image_producer, self.label_producer = image_producer, label_producer
        self._file: Any = None
        self._owner = 0
        images, labels = (len(self._table(p, "extents")) for p in (image_producer, label_producer))
        if images != labels:
            raise UserError(
                f"{path}: {images} events of '{image_producer}' but {labels} of '{label_producer}'.",
                "Take a file whose images are all labelled.",
            )
        if images == 0:
            raise UserError(f"{path} has no events.", "Take a file that has some.")
        self.num_samples = images if num_samples is None else min(images, num_samples)
        self.image_size = tuple(side >> downsample for side in self._full_size(0))

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not 0 <= index < self.num_samples:
            raise IndexError(f"event {index} of {self.num_samples}")
        images = shrink(self._dense(self.image_producer, index), self.downsample, by="mean")
        labels = shrink(self._dense(self.label_producer, index), self.downsample, by="max").astype(np.int32)
        if labels.min() < 0 or labels.max() >= NUM_CLASSES:
            raise UserError(
                f"{self.path}: event {index} has labels from {labels.min()} to {labels.max()}.",
                "Labels are 0 (background), 1 (cosmic) and 2 (neutrino).",
            )
        return {"image": torch.from_numpy(images), "label": torch.from_numpy(labels)}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None}  # a worker opens the file for itself

    def _full_size(self, event: int) -> tuple[int, int]:
        first = int(self._table(self.image_producer, "extents")[event]["first"])
        meta = self._rows(self.image_producer, "image_meta", first, 1)
        wires, ticks = (int(side) for side in meta[0]["number_of_voxels"])
        if wires >> self.downsample == 0 or ticks >> self.downsample == 0:
            raise UserError(
                f"images of {ticks} x {wires} cannot be halved {self.downsample} times.",
                "Take a smaller downsample.",
            )
        return ticks, wires

    def _dense(self, producer: str, event: int) -> Array:
        extent = self._table(producer, "extents")[event]
        first, num_planes = int(extent["first"]), int(extent["N"])
        if num_planes != NUM_PLANES:
            raise UserError(
                f"{self.path}: event {event} of '{producer}' has {num_planes} planes.",
                "Events need three planes.",
            )
        metas = self._rows(producer, "image_meta", first, num_planes)
        extents = self._rows(producer, "voxel_extents", first, num_planes)
        wires, ticks = (int(side) for side in metas[0]["number_of_voxels"])
        dense = np.zeros((num_planes, ticks, wires), np.float32)
        for plane, (meta, pixels) in enumerate(zip(metas, extents, strict=True)):
            if tuple(meta["number_of_voxels"]) != (wires, ticks):
                raise UserError(
                    f"{self.path}: planes of event {event} of '{producer}' differ in size.",
                    "They must be equal.",
                )
            voxels = self._rows(producer, "voxels", int(pixels["first"]), int(pixels["N"]))
            ids = voxels["id"]
            if len(ids) and int(ids.max()) >= wires * ticks:
                raise UserError(
                    f"{self.path}: event {event} of '{producer}' has a pixel {int(ids.max())} in {wires} x {ticks}.",
                    "The file is damaged: fetch it again.",
                )
            dense[plane, ids % ticks, ids // ticks] = voxels["value"]
        return dense

    def _rows(self, producer: str, name: str, first: int, count: int) -> Array:
        table = self._table(producer, name)
        if first + count > len(table):
            raise UserError(
                f"{self.path}: rows {first} to {first + count} of {table.name} are asked for, and it has {len(table)}.",
                "The file ends too early: fetch it again.",
            )
        with reading(self.path, table.name):
            rows: Array = table[first : first + count]
        return rows

    def _table(self, producer: str, name: str) -> Any:
        file = self._open()
        data = file.get("Data", {})
        group = f"sparse2d_{producer}_group"
        if group not in data:
            known = [key[len("sparse2d_") : -len("_group")] for key in data if key.startswith("sparse2d_")]
            raise UserError(f"{self.path} has no sparse2d images of '{producer}'.", suggest(producer, known))
        table = data[group].get(name)
        fields = getattr(getattr(table, "dtype", None), "names", None) or ()
        missing = [field for field in _TABLES[name] if field not in fields]
        if table is None or missing:
            what = f"no field {missing[0]}" if table is not None else "no such table"
            raise UserError(f"{self.path}: Data/{group}/{name}: {what}.", "Take a file that larcv3 wrote.")
        return table

    def _open(self) -> Any:
        """This process's file handle: one from before a fork would share its position with other processes."""
        if self._file is None or self._owner != os.getpid():
            self._file = open_hdf5(self.path)
            self._owner = os.getpid()
        return self._file


def shrink(images: Array, times: int, by: str) -> Array:
    """Makes one pixel of each window of 2 ** times pixels a side; incomplete windows are left out."""
    side = 1 << times
    if side == 1:
        return images
    planes, height, width = (images.shape[0], images.shape[1] // side, images.shape[2] // side)
    windows = images[:, : height * side, : width * side].reshape(planes, height, side, width, side)
    return windows.mean((2, 4), dtype=np.float32) if by == "mean" else windows.max((2, 4))
