"""Files and folders that params name: whether they are there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from portwright.errors import UserError
from portwright.job.params import Params

_PATH_KEYS = ("_dir", "_path", "_file", "_dirs", "_paths", "_files")


def check_paths(params: Params) -> None:
    """Refuses a path in an input section that does not exist; URLs are left to whoever reads them."""
    for section in ("train_input", "eval_input"):
        values = params.values.get(section) or {}
        for key, value in values.items() if isinstance(values, Mapping) else ():
            if not key.endswith(_PATH_KEYS) or value in (None, ""):
                continue
            for path in value if isinstance(value, list) else [value]:
                if isinstance(path, str) and "://" not in path and not Path(path).expanduser().exists():
                    raise UserError(
                        f"{params.locate(f'{section}.{key}')}: {section}.{key}: '{path}' does not exist.",
                        "Correct the path; relative ones start at the current folder.",
                    )
