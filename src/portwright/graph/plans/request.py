"""What `portwright plan` is asked to plan, and of which framework that is; nothing of it is run here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from portwright.discover import FRAMEWORKS, find_all_models
from portwright.errors import UserError, suggest


@dataclass(frozen=True)
class Request:
    """The part of the command line that says what to plan."""

    path: str
    params: Path | None = None
    overrides: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    batch_size: int | None = None
    optimizer: str | None = None
    compat: str | None = None


def find_script(path: str) -> Path | None:
    """The run.py that a path means; None where it means a callable in a file."""
    given = Path(path)
    if given.is_dir():
        if not (given / "run.py").is_file():
            raise UserError(f"'{path}' has no run.py.", "Give a model folder, a run.py or FILE.py:CALLABLE.")
        return (given / "run.py").resolve()
    if given.is_file():
        if given.suffix != ".py":
            raise UserError(
                f"'{path}' is not a Python file.", "Give a model folder, a run.py or FILE.py:CALLABLE."
            )
        return given.resolve()
    if ".py:" in path:
        return None
    models = find_all_models()
    if path in models:
        return models[path] / "run.py"
    raise UserError(
        f"'{path}' is neither a run.py, a folder with one, FILE.py:CALLABLE, nor a reference model.",
        suggest(path, models),
    )


def framework_of(request: Request) -> str:
    """pytorch or tensorflow, by what the script, or else the files beside it, import; pytorch where neither is."""
    script = find_script(request.path) or Path(request.path.rpartition(":")[0])
    if not script.is_file():
        return FRAMEWORKS[0]  # whose loader says what is wrong with it
    beside = [path for path in sorted(script.parent.glob("*.py")) if path != script]
    for file in (script, *beside):
        imported = set(_imports(file))
        if "portwright.tensorflow" in imported or any(
            name.split(".")[0] == "tensorflow" for name in imported
        ):
            return "tensorflow"
        if any(name.split(".")[0] == "torch" for name in imported):
            return "pytorch"
    return FRAMEWORKS[0]


def _imports(file: Path) -> Iterator[str]:
    """Full names that a file imports anywhere; none of one that is no Python."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
