"""One file read and brought to a size: an image, or a mask whose pixels are class numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from portwright.errors import UserError

Array = npt.NDArray[Any]
_NOT_A_CLASS = 255  # of a palette's colours, none


@dataclass(frozen=True)
class MaskFormat:
    """How a mask's pixels say their class: as its number; or, of two classes, as 0 and 255, or above a threshold; or by colours."""

    num_classes: int
    threshold: int | None = None
    palette: Sequence[Sequence[int]] | None = None  # the colour of each class
    ignore_index: int | None = None  # pixels of no class


def read_image(path: Path, num_channels: int) -> Array:
    """[height, width, channels], in uint8, uint16 or float32 as the file has it; grey and colour are turned into each other."""
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
    if opened.mode.startswith("I;16"):  # Pillow would cut off what is above 255
        grey = (np.asarray(opened) >> 8).astype(np.uint8)
        return np.repeat(grey[..., None], num_channels, axis=2)
    pixels = np.asarray(opened.convert({1: "L", 3: "RGB", 4: "RGBA"}[num_channels]))
    return pixels[..., None] if pixels.ndim == 2 else pixels


def read_mask(path: Path, kind: MaskFormat) -> Array:
    """[height, width] of class numbers in uint8."""
    if path.suffix.lower() == ".npy":
        values = _read_array(path)
    else:
        opened = _open(path)
        if kind.palette is not None:
            values = np.asarray(opened.convert("RGB"))
        elif opened.mode in ("P", "L", "1") or opened.mode.startswith("I"):
            values = np.asarray(opened)  # of a palette image, the numbers of its colours
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
    """To a size: smoothly for images, by the nearest pixel for masks; the same array where it fits."""
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
