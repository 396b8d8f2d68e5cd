"""Keeping standard output for what a command prints itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

from portwright.errors import UserError


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Sends everything printed inside, also by child processes and C code, to stderr."""
    if sys.stdout is None:
        raise UserError("standard output is closed.", "Send it to a file, or to /dev/null.")
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def printing() -> Iterator[None]:
    """For printing a result: a reader that has ended is no failure, and a full disk is an error."""
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:  # head, or a pager that was left
        _drop_the_rest()
    except OSError as error:
        _drop_the_rest()
        raise UserError(
            f"standard output cannot be written: {(error.strerror or str(error)).lower()}.",
            "Send it to another place.",
        ) from error


def _drop_the_rest() -> None:
    """Discards what is still buffered, or Python would print an error when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
