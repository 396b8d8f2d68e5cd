"""Finds image files and their masks, reads and resizes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from portwright.errors import UserError

Array = npt.NDArray[Any]
ENDINGS = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".npy")
_IMAGE_FOLDERS = ("images", "imgs", "image")
_MASK_FOLDERS = ("masks", "mask", "labels", "label")
_MASK_SUFFIXES = ("", "_mask", "_label")  # what a mask's name adds to its image's
_NOT_A_CLASS = 255  # marks pixels whose colour is not in the palette


@dataclass(frozen=True)
class MaskFormat:
    """How a mask's pixels give their class: by number; with two classes as 0 and 255 or by a threshold; or by colour."""

    num_classes: int
    threshold: int | None = None
    palette: Sequence[Sequence[int]] | None = None  # the colour of each class
    ignore_index: int | None = None  # pixels of no class


def read_image(path: Path, num_channels: int) -> Array:
    """An image [height, width, channels] in the file's uint8, uint16 or float32, as grey or colour by `num_channels`."""
    if path.suffix.lower() == ".npy":
        pixels = _read_array(path)
        pixels = pixels[..., None] if pixels.ndim == 2 else pixels
        if pixels.ndim != 3 or pixels.shape[2] != num_channels:
            raise UserError(f"{path} has the shape {pixels.shape}.", f"Save [height, width, {num_channels}].")
        if pixels.dtype not in (np.uint8, np.uint16):
            pixels = pixels.astype(np.float32)
        return pixels
    if num_channels not in (1, 3, 4):
        raise UserError(
            f"{path} shall have {num_channels} channels.", "Save images of so many channels as .npy."
        )
    opened = _open(path)
    if num_channels == 1 and (opened.mode.startswith("I;16") or opened.mode in ("I", "F")):
        pixels = np.asarray(opened)
        kind = np.float32 if opened.mode == "F" else np.uint16
        return pixels.astype(kind)[..., None]
    if opened.mode.startswith("I;16"):  # Pillow would clip values at 255
        grey = (np.asarray(opened) >> 8).astype(np.uint8)
        return np.repeat(grey[..., None], num_channels, axis=2)
    pixels = np.asarray(opened.convert({1: "L", 3: "RGB", 4: "RGBA"}[num_channels]))
    return pixels[..., None] if pixels.ndim == 2 else pixels


def read_mask(path: Path, kind: MaskFormat) -> Array:
    """A mask [height, width] of class numbers in uint8."""
    if path.suffix.lower() == ".npy":
        values = _read_array(path)
    else:
        opened = _open(path)
        if kind.palette is not None:
            values = np.asarray(opened.convert("RGB"))
        elif opened.mode in ("P", "L", "1") or opened.mode.startswith("I"):
            values = np.asarray(opened)  # for a palette image these are the numbers of its colours
        else:
            values = np.asarray(opened.convert("RGB"))
            if (values != values[..., :1]).any():
                raise UserError(
                    f"mask {path} is in colours.",
                    "List the classes' colours in mask_palette, or save class numbers.",
                )
            values = values[..., 0]
    if kind.palette is not None:
        return _classes_of_colours(values, path, kind)
    if values.ndim == 3 and values.shape[2] == 1:
        values = values[..., 0]
    if values.ndim != 2:
        raise UserError(f"mask {path} has the shape {values.shape}.", "Save [height, width].")
    if kind.threshold is not None:
        return (values > kind.threshold).astype(np.uint8)
    if values.dtype == bool:
        values = values.astype(np.uint8)
    present = np.unique(values)
    if kind.num_classes == 2 and kind.ignore_index != 255 and set(present.tolist()) <= {0, 255}:
        return (values > 0).astype(np.uint8)
    counted = present if kind.ignore_index is None else present[present != kind.ignore_index]
    wrong = counted[(counted < 0) | (counted >= kind.num_classes) | (counted != np.floor(counted))]
    if wrong.size:
        raise UserError(
            f"mask {path} has the value {wrong[0]:g}, and classes are 0 to {kind.num_classes - 1}.",
            "Set model.num_classes, model.ignore_index for pixels of no class, or for two classes mask_threshold.",
        )
    return values.astype(np.uint8)


def _classes_of_colours(values: Array, path: Path, kind: MaskFormat) -> Array:
    assert kind.palette is not None
    if values.ndim != 3 or values.shape[2] != 3:
        raise UserError(f"mask {path} has the shape {values.shape}.", "Colours are [height, width, 3].")
    packed = values.astype(np.int64) @ np.array([1 << 16, 1 << 8, 1])
    result = np.full(packed.shape, _NOT_A_CLASS if kind.ignore_index is None else kind.ignore_index, np.uint8)
    known = np.zeros(packed.shape, bool)
    for number, (red, green, blue) in enumerate(kind.palette):
        is_it = packed == (red << 16 | green << 8 | blue)
        result[is_it] = number
        known |= is_it
    if kind.ignore_index is None and not known.all():
        stranger = values[~known][0].tolist()
        raise UserError(
            f"mask {path} has the colour {stranger}, which is none of mask_palette.",
            "List it, or set model.ignore_index so that such pixels do not count.",
        )
    return result


def resize(pixels: Array, height: int, width: int, smooth: bool) -> Array:
    """Resizes smoothly (images) or by the nearest pixel (masks); the same array where the size is right."""
    if pixels.shape[:2] == (height, width):
        return pixels
    from PIL import Image

    how = Image.Resampling.BILINEAR if smooth else Image.Resampling.NEAREST
    if pixels.dtype == np.uint8 and pixels.ndim == 2:
        return np.asarray(Image.fromarray(pixels).resize((width, height), how))
    planes = [
        np.asarray(Image.fromarray(plane.astype(np.float32)).resize((width, height), how))
        for plane in np.moveaxis(pixels, 2, 0)
    ]
    stacked = np.stack(planes, 2)
    return stacked if pixels.dtype == np.float32 else np.rint(stacked).astype(pixels.dtype)


def _open(path: Path) -> Any:
    from PIL import Image

    try:
        with path.open("rb") as stream:
            opened = Image.open(stream)
            opened.load()
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise UserError(
            f"{path} cannot be read as an image: {error}.", "Fetch it again, or leave it out."
        ) from error
    return opened


def _read_array(path: Path) -> Array:
    try:
        values = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(
            f"{path} cannot be read as a numpy array: {error}.", "Save it with numpy.save."
        ) from error
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "biuf":
        raise UserError(
            f"{path} holds {getattr(values, 'dtype', type(values).__name__)}.", "Save an array of numbers."
        )
    return values


@dataclass(frozen=True)
class Pair:
    """An image and its mask; a mask of None means background only."""

    image: Path
    mask: Path | None


def find_pairs(folder: Path, missing_masks: str = "error") -> list[Pair]:
    """The images of FOLDER/images with the masks of FOLDER/masks that have their names, whatever their endings.

    A mask may also be called NAME_mask or NAME_label, and images may lie in the folder itself beside `Label`, as in DAGM 2007.
    `missing_masks` says what to do with an image without a mask: error, background or skip.
    """
    if not folder.is_dir():
        raise UserError(
            f"data_dir '{folder}' is no folder.", "Name one that has the folders images and masks."
        )
    parts = {path.name.lower(): path for path in sorted(folder.iterdir()) if path.is_dir()}
    masks_in = next((parts[name] for name in _MASK_FOLDERS if name in parts), None)
    images_in = next((parts[name] for name in _IMAGE_FOLDERS if name in parts), folder)
    if masks_in is None:
        raise UserError(
            f"data_dir '{folder}' has no folder masks.",
            f"Put a mask for each image there, with the image's name ({', '.join(ENDINGS)}).",
        )
    images, masks = _by_stem(images_in), _by_stem(masks_in)
    if not images:
        raise UserError(f"'{images_in}' has no image.", f"Images end in {', '.join(ENDINGS)}.")
    found, lonely = [], []
    for stem, image in images.items():
        mask = next((masks.pop(stem + end) for end in _MASK_SUFFIXES if stem + end in masks), None)
        if mask is None:
            lonely.append(image)
        if mask is not None or missing_masks == "background":
            found.append(Pair(image, mask))
    if lonely and missing_masks == "error":
        raise UserError(
            f"{_some(lonely)} of '{images_in}' have no mask in '{masks_in}'.",
            "Add them, or set missing_masks to background or skip.",
        )
    if masks:
        raise UserError(
            f"{_some(masks.values())} of '{masks_in}' have no image in '{images_in}'.",
            "Give images and masks the same names.",
        )
    if not found:
        raise UserError(
            f"no image of '{images_in}' has a mask.", "Add masks, or set missing_masks to background."
        )
    return found


def _by_stem(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() not in ENDINGS or path.name.startswith(".") or not path.is_file():
            continue
        if path.stem in found:
            raise UserError(
                f"'{folder}' has {found[path.stem].name} and {path.name}.",
                "Keep one file of a name, so that it is clear which one is meant.",
            )
        found[path.stem] = path
    return found


def _some(paths: Iterable[Path]) -> str:
    names = [path.name for path in paths]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
