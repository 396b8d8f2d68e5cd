"""Files and folders that appear whole or not at all, even if the process is killed."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from portwright.errors import UserError

_TEMP_PREFIX = ".tmp-"
_ASIDE_SUFFIX = "~old"
_TEMP_NAME = re.compile(
    rf"{re.escape(_TEMP_PREFIX)}(?P<host>[^~]+)~(?P<pid>[0-9]+)~[0-9a-f]+(?P<aside>{_ASIDE_SUFFIX})?"
)
# Whether a writer on another host lives cannot be checked; one that wrote nothing for a day counts as dead.
_FOREIGN_AGE_SECONDS = 24 * 3600


def explain_os_error(error: OSError, path: Path) -> UserError:
    """Says in a person's words why `path` could not be written, and what to do about it."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    place = _existing_parent(path)
    full = f"Free space on the disk or quota that holds {place}, or choose another place."
    forbidden = f"Ask for write permission on {place}, or choose a folder of your own."
    cures = {
        errno.ENOSPC: full,
        errno.EDQUOT: full,
        errno.EFBIG: "Raise the limit on file sizes (ulimit -f), or choose a file system that takes larger files.",
        errno.EROFS: "This file system is read-only: choose another place.",
        errno.EACCES: forbidden,
        errno.EPERM: forbidden,
        errno.EISDIR: "A folder has this name already: choose another file name, or remove the folder.",
        errno.ENAMETOOLONG: "Choose a shorter name.",
        errno.ELOOP: "Its symbolic links form a circle: remove one of them, or choose another place.",
    }
    if place.is_file():
        blocked = f"{place} is a file, not a folder: choose another place, or move that file away."
        cures |= {errno.ENOTDIR: blocked, errno.EEXIST: blocked}
    otherwise = "Check that the path is right and the file system healthy, or choose another place."
    return UserError(f"Cannot write {path}: {reason.lower()}.", cures.get(error.errno or 0, otherwise))


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
    except (FileNotFoundError, NotADirectoryError):
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


@contextlib.contextmanager
def atomic_directory(final: Path) -> Iterator[Path]:
    """Yields an empty folder that becomes `final` when the block ends well, and vanishes when it does not.

    All of it is on the disk before it gets its name. Where `final` exists, the two change places in one step. A
    file system without that step sees two renames: a process killed between them leaves the old folder whole
    beside its place, and `clean_leftovers` puts it back.
    """
    final = Path(final)
    temp = final.parent / _temp_name()
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        temp.mkdir()
        try:
            yield temp
            _sync_tree(temp)
            _put_in_place(temp, final)
        finally:
            # Here `temp` is the failed folder, or the replaced one, or is gone. If it cannot be removed now, it is
            # left to `clean_leftovers`, and must not hide how the block ended.
            with contextlib.suppress(OSError):
                _remove(temp)
        _sync_folder(final.parent)
    except OSError as error:
        # An error about a file elsewhere belongs to the block; a failed write names no file.
        if error.filename is None or Path(os.fsdecode(error.filename)).is_relative_to(final.parent):
            raise explain_os_error(error, final) from error
        raise


def check_writable(folder: Path) -> None:
    """Raises an OSError unless files can be created and written in `folder`.

    It writes a file to find out: permission bits say nothing about a read-only or a full disk, or about root.
    """
    probe = folder / _temp_name()
    try:
        probe.write_bytes(b"?")
    finally:
        probe.unlink(missing_ok=True)


def remove_directory(path: Path) -> None:
    """Removes a folder; it is renamed first, so that no reader takes a part of it for the whole."""
    temp = path.parent / _temp_name()
    path.rename(temp)
    _remove(temp)


def clean_leftovers(folder: Path) -> list[Path]:
    """Removes what killed writers left in `folder`, puts back what they were replacing, and says which paths.

    What belongs to a living process stays. A process of another host cannot be asked, so what it left stays
    until it is a day old.
    """
    cleaned = []
    for path in sorted(folder.iterdir()):
        match = _TEMP_NAME.fullmatch(path.name)
        if match is None or _may_be_alive(match["host"], int(match["pid"]), path):
            continue
        if match["aside"]:
            _put_back(path)
        _remove(path)
        cleaned.append(path)
    return cleaned


def _put_in_place(temp: Path, final: Path) -> None:
    if not os.path.lexists(final):
        temp.rename(final)
    elif not final.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(final))
    elif not _exchange(temp, final):
        aside = final.parent / _temp_name(_ASIDE_SUFFIX)
        aside.mkdir()
        try:
            final.rename(aside / final.name)
            temp.rename(final)
        finally:
            _put_back(aside)
            _remove(aside)


def _put_back(aside: Path) -> None:
    for old in aside.iterdir():
        if not os.path.lexists(aside.parent / old.name):
            old.rename(aside.parent / old.name)


def _exchange(one: Path, other: Path) -> bool:
    """Exchanges two paths in one step; False where the system or the file system cannot."""
    import ctypes  # slow to import, and seldom needed

    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    at_cwd, rename_exchange = -100, 2  # linux/fcntl.h, linux/fs.h
    if renameat2(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), rename_exchange) == 0:
        return True
    number = ctypes.get_errno()
    if number in {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}:
        return False
    raise OSError(number, os.strerror(number), str(other))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync_tree(folder: Path) -> None:
    for parent, _, files in os.walk(folder, topdown=False):
        for name in files:
            descriptor = os.open(Path(parent) / name, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        _sync_folder(Path(parent))


def _may_be_alive(host: str, pid: int, path: Path) -> bool:
    if host != _host():
        last_change = max(entry.lstat().st_mtime for entry in (path, *path.rglob("*")))
        return time.time() - last_change < _FOREIGN_AGE_SECONDS
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError, PermissionError) as error:
        return isinstance(error, PermissionError)  # another user's, but alive
    return True


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
