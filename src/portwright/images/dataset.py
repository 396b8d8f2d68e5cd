"""Images and masks as a data set that gives whole batches: of a folder, of an HDF5 file, or generated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from portwright.data.draws import Draws
from portwright.data.gather import ArrayDataset, Arrays, GatherDataset, Indices
from portwright.errors import UserError
from portwright.images.decoding import Array, MaskFormat, read_image, read_mask, resize
from portwright.images.pairs import Pair, find_pairs

_SCALES = {np.dtype(np.uint8): 255.0, np.dtype(np.uint16): 65535.0}


@dataclass(frozen=True)
class ImageFormat:
    """What every image of a batch becomes, and what a run may do to it."""

    shape: Sequence[int]  # height, width, channels
    fit: str = "resize"  # or "crop": anywhere in training, in the middle else
    normalize: str = "zero_centered"  # -1 to 1; zero_one: 0 to 1; standard_score: of mean 0 and variance 1
    flips: bool = False
    crops_anywhere: bool = False


class Finish:
    """A batch's last step: turned over at random, normalised, channels first; `image` float32, `mask` int32 [batch, height, width]."""

    def __init__(self, images: ImageFormat) -> None:
        self.images = images

    def __call__(self, batch: Arrays, draws: Draws) -> Arrays:
        image, mask = normalize(batch["image"], self.images.normalize), batch["mask"].astype(np.int32)
        if self.images.flips:
            image, mask = flip(image, mask, draws)
        return {"image": np.ascontiguousarray(image.transpose(0, 3, 1, 2)), "mask": mask}


class Generated(ArrayDataset):
    """Images and masks in memory: `image` [n, height, width, channels], `mask` [n, height, width]."""

    def __init__(self, image: Array, mask: Array, images: ImageFormat) -> None:
        super().__init__({"image": image, "mask": mask}, transform=Finish(images))


class ImageFolder(GatherDataset):
    """Image files and their masks, decoded where a batch is made (a loader's workers) and kept up to `cache_bytes` a process."""

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
        self._finish = Finish(images)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": {}, "_num_kept_bytes": 0}  # a worker's memory is its own

    def gather(self, indices: Indices, draws: Draws | None = None) -> Arrays:
        draws = Draws(self.seed, self.epoch, indices) if draws is None else draws
        places = draws.uniform("crop", 2)
        samples = [self._sample(int(index), place) for index, place in zip(indices, places, strict=True)]
        images = [image for image, _ in samples]
        if len({image.dtype for image in images}) > 1:  # files of different depths
            images = [to_unit(image) for image in images]
        batch = {"image": np.stack(images), "mask": np.stack([mask for _, mask in samples])}
        return self._finish(batch, draws)

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


class ImageArchive(GatherDataset):
    """HDF5 files with the data sets `image` [n, height, width, channels] (or without channels) and `mask` [n, height, width]."""

    def __init__(self, paths: Sequence[Path], images: ImageFormat, masks: MaskFormat) -> None:
        self.paths, self.images, self.masks = list(paths), images, masks
        self.lengths = [self._check(path) for path in self.paths]
        self._starts = np.cumsum([0, *self.lengths])
        self._open: dict[int, Any] = {}
        self._finish = Finish(images)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}  # a file that is open in two processes at once is read wrongly

    def gather(self, indices: Indices, draws: Draws | None = None) -> Arrays:
        draws = Draws(self.seed, self.epoch, indices) if draws is None else draws
        rows = [self._row(int(index)) for index in indices]
        batch = {"image": np.stack([row[0] for row in rows]), "mask": np.stack([row[1] for row in rows])}
        return self._finish(batch, draws)

    def _row(self, index: int) -> tuple[Array, Array]:
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        place = index - int(self._starts[number])
        file = self._open.get(number)
        if file is None:
            file = self._open[number] = _open_hdf5(self.paths[number])
        try:
            image, mask = file["image"][place], file["mask"][place]
        except (OSError, KeyError, ValueError) as error:
            raise UserError(
                f"{self.paths[number]}: sample {place} cannot be read: {error}.", "Make the file again."
            ) from error
        wrong = (mask >= self.masks.num_classes) & (mask != self.masks.ignore_index)
        if wrong.any() or (mask.dtype.kind == "i" and (mask < 0).any()):
            raise UserError(
                f"{self.paths[number]}: the mask of sample {place} has values outside 0 to {self.masks.num_classes - 1}.",
                "Set model.num_classes, or model.ignore_index for pixels of no class.",
            )
        return (image[..., None] if image.ndim == 2 else image), mask

    def _check(self, path: Path) -> int:
        height, width, channels = self.images.shape
        with _open_hdf5(path) as file:
            for name in ("image", "mask"):
                if name not in file:
                    raise UserError(
                        f"{path} has no data set '{name}' (it has {', '.join(file) or 'none'}).",
                        "Save `image` [n, height, width, channels] and `mask` [n, height, width].",
                    )
            image, mask = file["image"], file["mask"]
            want = [(height, width, channels), *([(height, width)] if channels == 1 else [])]
            if (
                tuple(image.shape[1:]) not in want
                or tuple(mask.shape[1:]) != (height, width)
                or len(image) != len(mask)
            ):
                raise UserError(
                    f"{path} has images {tuple(image.shape)} and masks {tuple(mask.shape)}.",
                    f"Save so many of both, of image_shape {list(self.images.shape)}, or set image_shape.",
                )
            return len(image)


def open_images(
    folder: str | Path, images: ImageFormat, masks: MaskFormat, missing_masks: str, cache_bytes: int
) -> GatherDataset:
    """The HDF5 files of a folder where it has any, else its image files."""
    where = Path(folder)
    files = [where] if where.is_file() else sorted([*where.glob("*.h5"), *where.glob("*.hdf5")])
    if files:
        return ImageArchive(files, images, masks)
    return ImageFolder(where, images, masks, missing_masks, cache_bytes)


def decode(pair: Pair, images: ImageFormat, masks: MaskFormat) -> tuple[Array, Array]:
    """One image and its mask, at the wanted size or, where they are cut later, at least at that."""
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
    """Each sample upside down, and left to right, with probability one half: a draw of its own, whoever makes the batch."""
    turned = draws.uniform("flip", 2) < 0.5
    for axis in (1, 2):
        chosen = turned[:, axis - 1]
        image = np.where(chosen[:, None, None, None], np.flip(image, axis), image)
        mask = np.where(chosen[:, None, None], np.flip(mask, axis), mask)
    return image, mask


def to_unit(image: Array) -> Array:
    """Pixels from 0 to 1 in float32; floating-point images are taken as they are."""
    scale = _SCALES.get(image.dtype)
    return image.astype(np.float32) if scale is None else image.astype(np.float32) / np.float32(scale)


def normalize(image: Array, method: str) -> Array:
    """A batch [n, height, width, channels] in float32, as the model zoo's `normalize_data_method` has it; "none" takes it as it is."""
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


def _open_hdf5(path: Path) -> Any:
    import h5py

    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise UserError(f"{path} cannot be read as HDF5: {error}.", "Make the file again.") from error
