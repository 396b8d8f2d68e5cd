"""Imports the files of a model folder as run.py would, though several folders have files of one name."""

from __future__ import annotations

import importlib.util
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
    spec.loader.exec_module(module)
    return module


def params_of(model: str, config: str = "params", **changes: dict[str, Any]) -> dict[str, Any]:
    params: dict[str, Any] = load(model, "utils").get_params(MODELS / model / "configs" / f"{config}.yaml")
    for section, values in changes.items():
        params[section] |= values
    return params
