"""The folder of a run: what lies where in it, and one writer at a time."""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import json
import logging
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from portwright.errors import UserError
from portwright.job.atomic import check_writable, clean_leftovers, explain_os_error

_LOG = logging.getLogger(__name__)
_CURE = "Choose another folder with --model_dir."
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}

_held_locks: set[int] = set()


def _drop_locks_in_child() -> None:
    # A data worker that outlives a killed run must not keep the run's lock: a lock lasts until the last copy of
    # its descriptor is closed, and a fork copies it.
    for descriptor in _held_locks:
        os.close(descriptor)
    _held_locks.clear()


os.register_at_fork(after_in_child=_drop_locks_in_child)


class RunDir:
    """A run's folder, which holds its checkpoints (`checkpoint_{step}`) and a folder for each mode.

    A read-only RunDir (to evaluate another user's run) needs only an existing folder.
    """

    def __init__(
        self,
        model_dir: Path | str,
        *,
        read_only: bool = False,
        on_note: Callable[[str], None] = _LOG.warning,
    ) -> None:
        self.path, self._on_note = Path(model_dir), on_note
        if read_only:
            self._check_readable()
        else:
            self._create()

    def params_file(self, mode: str) -> Path:
        """Where the resolved params of a mode are kept, such as `train/params_train.yaml`."""
        return self.path / mode / f"params_{mode}.yaml"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps other runs out of this folder until the block ends or the process dies, however it dies.

        Under the lock, what killed runs left behind is removed.
        """
        lock_file = self.path / ".lock"
        try:
            descriptor = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise UserError(explain_os_error(error, lock_file).message, _CURE) from error
        _held_locks.add(descriptor)
        try:
            self._take_lock(descriptor)
            self._clean()
            yield
        finally:
            # The file stays: removing it would let a run lock the old one while another locks a new one.
            if descriptor in _held_locks:
                _held_locks.discard(descriptor)
                os.close(descriptor)

    def _take_lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(
                f"Another run is using {self.path}: {_describe_holder(descriptor)}.",
                "Wait until it ends or stop it, or choose another folder with --model_dir.",
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise UserError(explain_os_error(error, self.path / ".lock").message, _CURE) from error
            self._on_note(
                f"The file system of {self.path} has no locks ({os.strerror(error.errno or 0).lower()}): make "
                "sure that no other run uses this folder at the same time."
            )
        started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "started": started}
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(holder).encode() + b"\n", 0)
        except OSError as error:
            raise explain_os_error(error, self.path / ".lock") from error

    def _clean(self) -> None:
        self._clean_folder(self.path)
        for path in self.path.iterdir():
            if path.is_dir():
                self._clean_folder(path)

    def _clean_folder(self, folder: Path) -> None:
        try:
            clean_leftovers(folder)
        except OSError as error:
            # The run goes on where old leftovers cannot be removed.
            self._on_note(f"Cannot remove what a killed run left in {folder}: {error}.")

    def _create(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            check_writable(self.path)
        except OSError as error:
            message = explain_os_error(error, self.path).message
            raise UserError(f"Cannot use model_dir. {message}", _CURE) from error

    def _check_readable(self) -> None:
        try:
            with os.scandir(self.path):
                pass
        except OSError as error:
            reason = os.strerror(error.errno).lower() if error.errno else str(error)
            raise UserError(
                f"Cannot read model_dir {self.path}: {reason}.",
                "Give the folder of a run that has been trained, with --model_dir.",
            ) from error


def _describe_holder(descriptor: int) -> str:
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {holder['pid']} on {holder['host']}, since {holder['started']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "a process that has just begun"
