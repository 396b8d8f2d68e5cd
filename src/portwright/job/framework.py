"""Which framework a script is written for, told from its imports; nothing of it is run."""

from __future__ import annotations

import ast
from pathlib import Path

PYTORCH, TENSORFLOW = "pytorch", "tensorflow"

_USER_FILES = ("model.py", "data.py")


def framework_of(script: Path) -> str:
    """`tensorflow` where the script, or the model.py or data.py beside it, imports TensorFlow and not torch; else `pytorch`."""
    found = imports_of(script)
    for name in _USER_FILES:
        found |= imports_of(script.parent / name)
    if "portwright.tensorflow" in found:
        return TENSORFLOW
    return TENSORFLOW if "tensorflow" in found and "torch" not in found else PYTORCH


def imports_of(path: Path) -> set[str]:
    """Top-level names of the modules that a file imports, and of portwright the second level too."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):  # running the script will show it
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    parts = [name.split(".") for name in names]
    return {part[0] for part in parts} | {".".join(part[:2]) for part in parts if part[0] == "portwright"}
