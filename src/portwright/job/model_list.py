"""The reference models: what `portwright models` says of them, read from their files without importing them, and `portwright new`."""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from portwright.discover import FRAMEWORKS, find_all_models, find_models, models_folder
from portwright.errors import UserError, suggest
from portwright.job.atomic import atomic_directory

_DEFAULT = "params.yaml"
_PREFIX = "params_"
SIZES_FILE = (
    "sizes.json"  # parameters of every config, beside the model folders; tools/make_model_sizes.py makes it
)


def describe_models() -> list[dict[str, Any]]:
    """Name, framework, summary and configs of each model; the first config is the one that runs without --params."""
    sizes = _read_sizes()
    return [
        {
            "name": name,
            "framework": name.partition("/")[0] if "/" in name else FRAMEWORKS[0],
            "summary": summary_of(path),
            "parameters": sizes.get(name, {}).get(_DEFAULT),
            "configs": [
                {
                    "name": config_name(file),
                    "file": str(file),
                    "parameters": sizes.get(name, {}).get(file.name),
                }
                for file in config_files(path)
            ],
            "path": str(path),
        }
        for name, path in find_all_models().items()
    ]


def summary_of(folder: Path) -> str:
    """The first sentence of model.py."""
    try:
        text = ast.get_docstring(ast.parse((folder / "model.py").read_bytes())) or ""
    except (OSError, SyntaxError, ValueError):
        return ""
    return " ".join(text.partition("\n\n")[0].split()).rstrip(".")


def config_files(folder: Path) -> list[Path]:
    """The params files of a model folder, params.yaml first."""
    found = [*(folder / "configs").glob("*.yaml"), *(folder / "configs").glob("*.yml")]
    return sorted(found, key=lambda file: (file.name != _DEFAULT, file.name))


def config_name(file: Path) -> str:
    """The name of a params file for --params: `small` for params_small.yaml."""
    return file.stem if file.name == _DEFAULT else file.stem.removeprefix(_PREFIX)


def find_config(folder: Path, given: str) -> Path:
    """The params file that `given` names: an existing path, else a config of the model folder."""
    path = Path(given)
    if path.exists() or len(path.parts) != 1:
        return path
    for name in (f"{_PREFIX}{given}.yaml", f"{_PREFIX}{given}.yml", f"{given}.yaml", given):
        if (folder / "configs" / name).is_file():
            return folder / "configs" / name
    if path.suffix in (".yaml", ".yml"):
        return path  # a missing file; opening it gives the error
    names = [config_name(file) for file in config_files(folder)]
    raise UserError(
        f"'{given}' is neither a params file nor a config of '{folder.name}'.", suggest(given, names)
    )


def render_models(rows: Iterable[dict[str, Any]], width: int) -> list[str]:
    """A table for a person, as wide as the terminal."""
    rows = list(rows)
    longest = max((len(row["name"]) for row in rows), default=0) + 2
    lines = []
    for row in rows:
        first = f"{row['name']:<{longest}}{show_count(row['parameters']):>8}"
        lines += _wrap(row["summary"], width, " " * (longest + 10), first.ljust(longest + 10)) or [first]
        others = [
            config["name"] + (f" ({show_count(config['parameters'])})" if config["parameters"] else "")
            for config in row["configs"][1:]
        ]
        if others:
            lines += _wrap("--params " + ", ".join(others), width, " " * (longest + 10))
    return lines


def show_count(count: int | None) -> str:
    """29.5k, 124M, 175B."""
    if count is None:
        return ""
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.3g}{unit}" if count < 1000 * size else f"{count / size:.0f}{unit}"
    return str(count)


def complete_models(incomplete: str) -> list[str]:
    """Names of models that a shell may complete."""
    return [name for name in find_all_models() if name.startswith(incomplete)]


def _wrap(text: str, width: int, indent: str, first: str | None = None) -> list[str]:
    import textwrap

    return textwrap.wrap(
        text,
        max(width, len(indent) + 30),
        initial_indent=indent if first is None else first,
        subsequent_indent=indent + "  ",
    )


def _read_sizes() -> dict[str, dict[str, int]]:
    file = models_folder() / SIZES_FILE
    found: dict[str, dict[str, int]] = json.loads(file.read_text()) if file.is_file() else {}
    return found


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
