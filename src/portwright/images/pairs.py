"""Which mask belongs to which image of a folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from portwright.errors import UserError

ENDINGS = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".npy")
_IMAGE_FOLDERS = ("images", "imgs", "image")
_MASK_FOLDERS = ("masks", "mask", "labels", "label")
_MASK_SUFFIXES = ("", "_mask", "_label")  # of a mask's name, beyond its image's


@dataclass(frozen=True)
class Pair:
    """An image and its mask; None: nothing but background."""

    image: Path
    mask: Path | None


def find_pairs(folder: Path, missing_masks: str = "error") -> list[Pair]:
    """The images of FOLDER/images with the masks of FOLDER/masks that have their names, whatever their endings.

    A mask may also be called NAME_mask or NAME_label, and images may lie in the folder itself beside `Label`, as in DAGM 2007.
    `missing_masks` says what becomes of an image without one: error, background or skip.
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
