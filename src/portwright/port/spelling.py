"""What a file calls the libraries that it has imported."""

from __future__ import annotations

from portwright.port.rule import File


def torch_name(file: File) -> str | None:
    """The name that stands for torch at the top of a file, and for nothing else."""
    for name, bindings in file.tree.scope.bindings.items():
        if bindings and all(b.kind == "import" and b.dotted == "torch" for b in bindings):
            return name
    return None
