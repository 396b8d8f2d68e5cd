"""The folder of a run: files and folders that appear whole or not at all, and one writer at a time."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import socket
import stat
from functools import cache
from pathlib import Path

from portwright.errors import UserError

_TEMP_PREFIX = ".tmp-"

_FULL = {errno.ENOSPC, errno.EDQUOT}
_FORBIDDEN = {errno.EACCES, errno.EPERM}


def explain_os_error(error: OSError, path: Path) -> UserError:
    """Says in a person's words why `path` could not be written, and what to do about it."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    message = f"Cannot write {path}: {reason.lower()}."
    if error.errno in _FULL:
        cure = (
            f"Free space on the disk or quota that holds {_existing_parent(path)}, or choose another place."
        )
    elif error.errno == errno.EFBIG:
        cure = "Raise the limit on file sizes (ulimit -f), or choose a file system that takes larger files."
    elif error.errno == errno.EROFS:
        cure = "This file system is read-only: choose another place."
    elif error.errno in _FORBIDDEN:
        cure = f"Ask for write permission on {_existing_parent(path)}, or choose a folder of your own."
    elif error.errno == errno.EISDIR:
        cure = "A folder has this name already: choose another file name, or remove the folder."
    elif error.errno in {errno.ENOTDIR, errno.EEXIST}:
        cure = (
            f"{_existing_parent(path)} is a file, not a folder: choose another place, or move that file away."
        )
    elif error.errno == errno.ENAMETOOLONG:
        cure = "Choose a shorter name."
    elif error.errno == errno.ELOOP:
        cure = "Its symbolic links form a circle: remove one of them, or choose another place."
    else:
        cure = "Check that the path is right and the file system healthy, or choose another place."
    return UserError(message, cure)


def _existing_parent(path: Path) -> Path:
    for candidate in (path, *path.parents):
        with contextlib.suppress(OSError):
            candidate.stat()
            return candidate
    return path


def atomic_write_text(path: Path, text: str) -> None:
    """Writes `text` as UTF-8, so that a reader sees the old file or the new one and never a part."""
    atomic_write_bytes(path, text.encode("utf-8"))


def atomic_write_bytes(path: Path, data: bytes) -> None:
    """Writes `data`, so that a reader sees the old file or the new one and never a part.

    It is on the disk when this returns. A symbolic link stays one: what it points to is replaced. A device or a
    pipe (`/dev/null`, `/dev/stdout`) cannot be replaced and is written to.
    """
    path = Path(path)
    try:
        if _is_stream(path):
            with path.open("wb") as stream:
                stream.write(data)
            return
        final = Path(os.path.realpath(path))
        if final.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        final.parent.mkdir(parents=True, exist_ok=True)
        _replace_file(final, data)
    except OSError as error:
        raise explain_os_error(error, path) from error


def _replace_file(final: Path, data: bytes) -> None:
    temp = final.parent / _temp_name()
    try:
        # Not tempfile: its files are private to their owner, while other files of the run follow the umask.
        with temp.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temp.replace(final)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise
    _sync_folder(final.parent)


def _is_stream(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a folder; their renames are on the server already.
        if error.errno not in {errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF}:
            raise
    finally:
        os.close(descriptor)


@cache
def _host() -> str:
    """Names where a process number means something: the host, and the process namespace (a container's) on it."""
    try:
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        namespace = 0
    return re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())[:64] + f".{namespace}"


def _temp_name(suffix: str = "") -> str:
    return f"{_TEMP_PREFIX}{_host()}~{os.getpid()}~{secrets.token_hex(4)}{suffix}"
