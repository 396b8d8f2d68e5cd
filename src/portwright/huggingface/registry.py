"""Finds the families by their files, and matches our folders with HuggingFace's classes."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import Any

from portwright.errors import UnsupportedError, UserError, suggest
from portwright.huggingface.mapping import Family, Params


@cache
def find_families() -> dict[str, Family]:
    """Every family by its name; each file here that defines FAMILY or FAMILIES adds its own."""
    import portwright.huggingface

    found: dict[str, Family] = {}
    for module in pkgutil.iter_modules(portwright.huggingface.__path__):
        loaded = importlib.import_module(f"portwright.huggingface.{module.name}")
        own = (loaded.FAMILY,) if hasattr(loaded, "FAMILY") else ()
        for family in getattr(loaded, "FAMILIES", own):
            found[family.name] = family
    return dict(sorted(found.items()))


def names_to_choose() -> list[str]:
    """What `--model` may be: a folder of ours that converts, or a family."""
    families = find_families()
    return sorted({*families, *(folder for family in families.values() for folder in family.architectures)})


def families_of(name: str) -> list[tuple[str, Family]]:
    """The families of a folder (bert_classifier has BERT's and RoBERTa's), or the family of that name.

    Each comes with our folder for it.
    """
    families = find_families()
    found = [(name, family) for family in families.values() if name in family.architectures]
    if not found and name in families:
        found = [(next(iter(families[name].architectures)), families[name])]
    if not found:
        raise UserError(
            f"no HuggingFace conversion is known for the model '{name}'.", suggest(name, names_to_choose())
        )
    return found


def family_to_read(name: str, config: Mapping[str, Any]) -> tuple[str, Family]:
    """Our folder and the family for a config.json, for the model `name`."""
    choices = families_of(name)
    given = config.get("model_type")
    for folder, family in choices:
        if given is None or given == family.model_type:
            return folder, family
    types = " or ".join(repr(family.model_type) for _, family in choices)
    raise UserError(
        f"config.json says model_type {given!r}, and the model '{name}' reads {types}.",
        "Leave --model out, or give another folder.",
    )


def family_to_write(name: str, params: Params) -> tuple[str, Family]:
    """Our folder and the family that can write a model section."""
    refused: UserError | UnsupportedError | None = None
    for folder, family in families_of(name):
        try:
            family.config_of(params)
        except (UserError, UnsupportedError) as error:
            refused = refused or error
        except KeyError as error:  # params of another kind of model
            refused = refused or UserError(
                f"the params have no model.{error.args[0]}, which a {family.name} needs.",
                "Name the model that they are of with --model.",
            )
        else:
            return folder, family
    assert refused is not None
    raise refused


def folder_of_config(config: Mapping[str, Any]) -> str:
    """Our folder for a config.json, by its class, else by its model_type."""
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
        alike = sorted(
            folder
            for family in families.values()
            if family.model_type == config.get("model_type")
            for folder in family.architectures
        )
        raise UserError(
            f"config.json says architectures {classes}, which no model of ours reads.",
            f"Name one of its kind with --model and --new-head: {', '.join(alike)}."
            if alike
            else suggest(str(classes[0]), by_class),
        )
    by_type: dict[str, str] = {}
    for family in families.values():
        by_type.setdefault(family.model_type, next(iter(family.architectures)))
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in by_type:
        return by_type[kind]
    raise UserError(
        f"config.json says model_type {kind!r}, which no model of ours reads.",
        suggest(str(kind), by_type),
    )
