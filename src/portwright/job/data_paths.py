"""Checks that files and folders in params exist, after the input functions, which may make them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from portwright.job.params import Params

_PATH_KEYS = ("_dir", "_path", "_file", "_dirs", "_paths", "_files")


@contextmanager
def telling_missing_paths(params: Params, tell: Callable[[str], None], *, always: bool) -> Iterator[None]:
    """Tells of each missing path in an input section when the block fails, or `always`.

    URLs are not checked.
    """
    is_good = False
    try:
        yield
        is_good = True
    finally:
        if always or not is_good:
            sections = {name: params.values.get(name) for name in ("train_input", "eval_input")}
            for key, path in named_paths(sections):
                if "://" not in path and not Path(path).expanduser().exists():
                    tell(
                        f"{params.locate(key)}: {key}: '{path}' does not exist, and no input function has made it. "
                        "Relative paths start at the current folder."
                    )


def named_paths(values: Any, key: str = "", named: bool = False) -> Iterator[tuple[str, str]]:
    """Texts under keys that name paths, such as data_dir, at any depth; each with its dotted key."""
    if isinstance(values, Mapping):
        for name, value in values.items():
            below = f"{key}.{name}" if key else str(name)
            yield from named_paths(value, below, str(name).endswith(_PATH_KEYS))
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from named_paths(value, key, named)
    elif named and isinstance(values, str) and values:
        yield key, values
