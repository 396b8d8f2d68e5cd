"""Data sets that give whole batches of images and masks: from a folder, from HDF5 files, or generated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from portwright.data.columns import Arrays, Indices
from portwright.data.draws import Draws
from portwright.data.gather import ArrayDataset, GatherDataset, RecordDataset
from portwright.data.hdf5 import HDF5_ENDINGS, Hdf5Columns
from portwright.errors import UserError
from portwright.images.decoding import Array, MaskFormat, Pair, find_pairs, read_image, read_mask, resize

_SCALES = {np.dtype(np.uint8): 255.0, np.dtype(np.uint16): 65535.0}


@dataclass(frozen=True)
class ImageFormat:
    """The size and range of values of a batch's images, and how a run may change them."""

    shape: Sequence[int]  # height, width, channels
    fit: str = "resize"  # or "crop": at a random place in training, else in the middle
    normalize: str = "zero_centered"  # -1 to 1; zero_one: 0 to 1; standard_score: of mean 0 and variance 1
    flips: bool = False
    crops_anywhere: bool = False

    def finish(self, batch: Arrays, draws: Draws) -> Arrays:
        """A batch's last step: flips at random, normalises, puts channels first; `image` float32, `mask` int32 [batch, height, width]."""
        image, mask = normalize(batch["image"], self.normalize), batch["mask"].astype(np.int32)
        if self.flips:
            image, mask = flip(image, mask, draws)
        return {"image": np.ascontiguousarray(image.transpose(0, 3, 1, 2)), "mask": mask}


class Generated(ArrayDataset):
    """Images and masks in memory: `image` [n, height, width, channels], `mask` [n, height, width]."""

    def __init__(self, image: Array, mask: Array, images: ImageFormat) -> None:
        super().__init__({"image": image, "mask": mask}, transform=images.finish)


class ImageFolder(GatherDataset):
    """Image files and their masks, decoded in the process that makes a batch, which caches up to `cache_bytes`."""

    def __init__(
        self,
        folder: str | Path,
        images: ImageFormat,
        masks: MaskFormat,
        missing_masks: str = "error",
        cache_bytes: int = 0,
    ) -> None:
        self.pairs = find_pairs(Path(folder), missing_masks)
        self.images, self.masks = images, masks
        self.cache_bytes = cache_bytes
        self._kept: dict[int, tuple[Array, Array]] = {}
        self._num_kept_bytes = 0

    def __len__(self) -> int:
        return len(self.pairs)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": {}, "_num_kept_bytes": 0}  # the cache is not sent to workers

    def gather(self, indices: Indices, draws: Draws | None = None) -> Arrays:
        draws = Draws(self.seed, self.epoch, indices) if draws is None else draws
        places = draws.uniform("crop", 2)
        samples = [self._sample(int(index), place) for index, place in zip(indices, places, strict=True)]
        images = [image for image, _ in samples]
        if len({image.dtype for image in images}) > 1:  # files of different depths
            images = [to_unit(image) for image in images]
        batch = {"image": np.stack(images), "mask": np.stack([mask for _, mask in samples])}
        return self.images.finish(batch, draws)

    def _sample(self, index: int, place: Array) -> tuple[Array, Array]:
        image, mask = self._decoded(index)
        if self.images.fit == "resize":
            return image, mask
        height, width, _ = self.images.shape
        spare = (image.shape[0] - height, image.shape[1] - width)
        share = place if self.images.crops_anywhere else (0.5, 0.5)
        top, left = (int(share[axis] * (spare[axis] + 1)) for axis in (0, 1))
        window = np.s_[top : top + height, left : left + width]
        return image[window], mask[window]

    def _decoded(self, index: int) -> tuple[Array, Array]:
        if index in self._kept:
            return self._kept[index]
        pair = self.pairs[index]
        decoded = decode(pair, self.images, self.masks)
        size = decoded[0].nbytes + decoded[1].nbytes
        if self._num_kept_bytes + size <= self.cache_bytes:
            self._kept[index] = decoded
            self._num_kept_bytes += size
        return decoded


class ImageArchive(RecordDataset):
    """HDF5 files with the data sets `image` [n, height, width, channels] (or without channels) and `mask` [n, height, width]."""

    def __init__(self, paths: Sequence[Path], images: ImageFormat, masks: MaskFormat) -> None:
        self.images, self.masks = images, masks
        self.transform = images.finish
        self._files = [self._open(path) for path in paths]
        self._starts = np.cumsum([0, *map(len, self._files)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def records(self, indices: Indices) -> Arrays:
        file_of = np.searchsorted(self._starts, indices, side="right") - 1
        order = np.argsort(file_of, kind="stable")
        numbers = np.unique(file_of).tolist()
        parts = [self._read(number, indices[file_of == number] - self._starts[number]) for number in numbers]
        back = np.argsort(order)
        return {name: np.concatenate([part[name] for part in parts])[back] for name in ("image", "mask")}

    def _read(self, number: int, places: Indices) -> Arrays:
        found = self._files[number].gather(places)
        image, mask = found["image"], found["mask"]
        wrong = (mask < 0) | (mask >= self.masks.num_classes) & (mask != self.masks.ignore_index)
        if wrong.any():
            row = int(np.flatnonzero(wrong.any(axis=(1, 2)))[0])
            raise UserError(
                f"{self._files[number].where}: the mask of sample {places[row]} has values outside 0 to "
                f"{self.masks.num_classes - 1}.",
                "Set model.num_classes, or model.ignore_index for pixels of no class.",
            )
        return {"image": image[..., None] if image.ndim == 3 else image, "mask": mask}

    def _open(self, path: Path) -> Hdf5Columns:
        height, width, channels = self.images.shape
        columns = Hdf5Columns(path, ("image", "mask"), in_memory=False)
        image, mask = (field.shape for field in columns.fields)
        want = [(height, width, channels), *([(height, width)] if channels == 1 else [])]
        if image not in want or mask != (height, width):
            raise UserError(
                f"{path} has images {image} and masks {mask}.",
                f"Save `image` and `mask` of image_shape {list(self.images.shape)}, or set image_shape.",
            )
        return columns


def open_images(
    folder: str | Path, images: ImageFormat, masks: MaskFormat, missing_masks: str, cache_bytes: int
) -> GatherDataset:
    """Opens a folder's HDF5 files where it has any, else its image files."""
    where = Path(folder)
    files = (
        [where] if where.is_file() else sorted(path for end in HDF5_ENDINGS for path in where.glob(f"*{end}"))
    )
    if files:
        return ImageArchive(files, images, masks)
    return ImageFolder(where, images, masks, missing_masks, cache_bytes)


def decode(pair: Pair, images: ImageFormat, masks: MaskFormat) -> tuple[Array, Array]:
    """Reads an image and its mask, at the wanted size, or at least as large where they are cropped later."""
    height, width, channels = images.shape
    image = read_image(pair.image, channels)
    mask = np.zeros(image.shape[:2], np.uint8) if pair.mask is None else read_mask(pair.mask, masks)
    if mask.shape != image.shape[:2]:
        raise UserError(
            f"{pair.image} is {image.shape[0]} x {image.shape[1]} and its mask {pair.mask} {mask.shape[0]} x {mask.shape[1]}.",
            "Give an image and its mask one size.",
        )
    if images.fit == "resize":
        return resize(image, height, width, smooth=True), resize(mask, height, width, smooth=False)
    if image.shape[0] < height or image.shape[1] < width:
        raise UserError(
            f"{pair.image} is {image.shape[0]} x {image.shape[1]}, too small to cut {height} x {width} from.",
            "Set a smaller image_shape, or fit: resize.",
        )
    return image, mask


def flip(image: Array, mask: Array, draws: Draws) -> tuple[Array, Array]:
    """Flips each sample in either direction with probability one half; the draws depend only on the sample."""
    turned = draws.uniform("flip", 2) < 0.5
    for axis in (1, 2):
        chosen = turned[:, axis - 1]
        image = np.where(chosen[:, None, None, None], np.flip(image, axis), image)
        mask = np.where(chosen[:, None, None], np.flip(mask, axis), mask)
    return image, mask


def to_unit(image: Array) -> Array:
    """Pixels from 0 to 1 in float32; floating-point images are not scaled."""
    scale = _SCALES.get(image.dtype)
    return image.astype(np.float32) if scale is None else image.astype(np.float32) / np.float32(scale)


def normalize(image: Array, method: str) -> Array:
    """A batch [n, height, width, channels] in float32, normalised as the model zoo's `normalize_data_method`; "none" changes nothing."""
    if method == "none":
        return image.astype(np.float32)
    image = to_unit(image)
    if method == "zero_one":
        return image
    if method == "zero_centered":
        return image * 2 - 1
    mean = image.mean((1, 2, 3), keepdims=True)
    scored: Array = (image - mean) / np.maximum(image.std((1, 2, 3), keepdims=True), 1e-6)
    return scored
