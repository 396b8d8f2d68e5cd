"""Making a model folder to start from."""

from __future__ import annotations

import shutil
from pathlib import Path

from portwright.discover import FRAMEWORKS, find_models
from portwright.errors import UserError, suggest
from portwright.job.atomic import atomic_directory

_FIRST_MODEL = "fc_mnist"


def make_model_folder(folder: Path, framework: str, model: str | None) -> Path:
    """Copies a reference model; the folder appears whole or not at all, and nothing there is overwritten."""
    if framework not in FRAMEWORKS:
        raise UserError(f"unknown framework '{framework}'.", suggest(framework, FRAMEWORKS))
    models = find_models(framework)
    name = model or _FIRST_MODEL
    if name not in models:
        raise UserError(f"unknown model '{name}' of {framework}.", suggest(name, models))
    if folder == Path():
        raise UserError("the new folder has no name.", "Say one: portwright new mymodel.")
    if folder.exists():
        raise UserError(f"'{folder}' exists already.", "Choose another name, or remove it.")
    with atomic_directory(folder) as temporary:
        shutil.copytree(
            models[name],
            temporary,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("__pycache__", "model_dir"),
        )
    return folder
