"""Every family that has a file here, found by itself: which folder of ours and which class of theirs belong together."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import Any

from portwright.errors import UserError, suggest
from portwright.huggingface.mapping import Family


@cache
def find_families() -> dict[str, Family]:
    """Every family by its name; each file here that defines FAMILY or FAMILIES adds its own."""
    import portwright.huggingface

    found: dict[str, Family] = {}
    for module in pkgutil.iter_modules(portwright.huggingface.__path__):
        loaded = importlib.import_module(f"portwright.huggingface.{module.name}")
        own = (loaded.FAMILY,) if hasattr(loaded, "FAMILY") else ()
        for family in getattr(loaded, "FAMILIES", own):
            if family.name in found:
                raise UserError(
                    f"two families are named {family.name} ({module.name}.py has the second).", "Rename one."
                )
            found[family.name] = family
    return dict(sorted(found.items()))


def convertible_folders() -> dict[str, Family]:
    """Our model folders that convert, each with its family."""
    return {folder: family for family in find_families().values() for folder in family.architectures}


def family_of_folder(folder: str) -> Family:
    folders = convertible_folders()
    if folder not in folders:
        raise UserError(
            f"no HuggingFace conversion is known for the model '{folder}'.", suggest(folder, folders)
        )
    return folders[folder]


def folder_of_config(config: Mapping[str, Any]) -> str:
    """The folder of ours for a config.json: by its class, else by its model_type."""
    families = find_families()
    classes = config.get("architectures") or []
    by_class = {
        name: folder
        for family in reversed(families.values())
        for folder in reversed(list(family.architectures))
        for name in family.classes(folder)
    }
    for name in classes if isinstance(classes, list) else []:
        if name in by_class:
            return by_class[name]
    if classes:
        raise UserError(
            f"config.json says architectures {classes}, which no model of ours reads.",
            f"{suggest(str(classes[0]), by_class)} Or name the model with --model.",
        )
    by_type: dict[str, str] = {}
    for family in families.values():
        by_type.setdefault(family.model_type, next(iter(family.architectures)))
    kind = config.get("model_type")
    if kind in by_type:
        return by_type[str(kind)]
    raise UserError(
        f"config.json says model_type {kind!r}, which no model of ours reads.",
        f"{suggest(str(kind), by_type)} Or name the model with --model.",
    )
