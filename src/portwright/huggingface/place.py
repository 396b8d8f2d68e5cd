"""Where a conversion writes: nothing of a user's is replaced unasked, and no half file is left."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from portwright.errors import UserError
from portwright.job.atomic import explain_os_error


def require_place(
    out: Path, source: Path, *, force: bool, is_file: bool, is_made: Callable[[Path], bool]
) -> None:
    """Refuses a place that holds something, or the input itself; `force` replaces what an earlier conversion made.

    `is_made` tells a folder that a conversion made.
    """
    if out.resolve() == source.resolve() or out.resolve() in source.resolve().parents:
        raise UserError(f"'{out}' holds what is to be converted.", "Write to another place.")
    if not os.path.lexists(out):
        return
    if is_file:
        if out.is_dir():
            raise UserError(f"'{out}' is a folder.", "Name a file: OUT.safetensors.")
        if not force:
            raise UserError(f"'{out}' exists already.", "Choose another name, or add --force to replace it.")
        return
    if not out.is_dir():
        raise UserError(f"'{out}' is a file, and a folder is to be written.", "Choose another name.")
    if not any(out.iterdir()):
        return
    if not force:
        raise UserError(f"'{out}' exists already.", "Choose another name, or add --force to replace it.")
    if not is_made(out):
        raise UserError(
            f"'{out}' was not made by a conversion, so --force does not replace it.",
            "Choose another name, or remove it yourself.",
        )


@contextlib.contextmanager
def atomic_file(final: Path) -> Iterator[Path]:
    """Yields a path to write to that becomes `final` when the block ends well, and vanishes when it does not."""
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tmp-", dir=final.parent) as folder:
            temporary = Path(folder) / final.name
            yield temporary
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(final)
    except OSError as error:
        raise explain_os_error(error, final) from error
