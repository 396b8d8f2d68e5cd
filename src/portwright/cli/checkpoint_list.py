"""What `portwright checkpoints` says of a run's folder, whichever framework wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from portwright.errors import UserError


def describe_checkpoints(model_dir: Path) -> list[dict[str, Any]]:
    """One row a checkpoint, the oldest first, with what is wrong with it; the framework is imported that wrote them."""
    if not model_dir.is_dir():
        raise UserError(f"'{model_dir}' is not a folder.", "Give the model_dir of a run.")
    if any(model_dir.glob("model.ckpt-*.index")):
        return _of_tensorflow(model_dir)
    from portwright.runtime.checkpoint import list_checkpoints, verify_checkpoint

    return [
        {"step": c.step, "path": str(c.path), "problems": verify_checkpoint(c.path)}
        for c in list_checkpoints(model_dir)
    ]


def _of_tensorflow(model_dir: Path) -> list[dict[str, Any]]:
    from portwright.tensorflow import load

    load()
    from portwright.tensorflow.checkpoints import find_damage, step_in_name
    from portwright.tensorflow.run_checkpoints import list_checkpoints

    return [
        {
            "step": step_in_name(path),
            "path": path,
            "problems": [damage] if (damage := find_damage(path)) else [],
        }
        for path in list_checkpoints(model_dir)
    ]
