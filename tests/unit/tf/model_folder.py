"""Imports the files of a model folder as run.py would, though several folders have files of one name."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import portwright.tensorflow

MODELS = Path(portwright.tensorflow.__file__).parent / "models"
NAMES = ("bert", "gpt2", "gpt3", "gptj", "linformer", "roberta", "t5", "transformer", "unet")


def load(model: str, file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{model}_{file}", MODELS / model / f"{file}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where pydantic looks up the names in annotations
    spec.loader.exec_module(module)
    return module


def params_of(name: str, config: str = "params", **changes: dict[str, Any]) -> dict[str, Any]:
    params: dict[str, Any] = load(name, "utils").get_params(MODELS / name / "configs" / f"{config}.yaml")
    for section, values in changes.items():
        params[section] |= values
    return params
