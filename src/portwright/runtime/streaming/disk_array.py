"""Arrays larger than host memory: files without a name, mapped, whose space is reserved before anything is written."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import tempfile
from pathlib import Path

from portwright.errors import UnsupportedError, UserError
from portwright.job.sizes import show_bytes

_KEY = "runconfig.streaming.store"
_CHOOSE = f"Give a folder on a fast disk that you may write to, or leave {_KEY} out to use host memory."
_SYNC_FILE_RANGE_WRITE = 2
_MADV_POPULATE_READ = 22  # Linux 5.14


class StoreFolderError(UserError):
    """The folder of runconfig.streaming.store cannot be used, or has not the room."""


def check_folder(folder: Path) -> None:
    """Raises StoreFolderError unless files can be made there."""
    if not hasattr(os, "posix_fallocate"):
        raise UnsupportedError(
            f"{_KEY} reserves files as Linux does, and this system cannot.", f"Leave {_KEY} out."
        )
    try:
        is_folder, exists = folder.is_dir(), folder.exists()
    except OSError as error:
        raise StoreFolderError(
            f"{_KEY}: '{folder}' cannot be looked at: {error.strerror}.", _CHOOSE
        ) from None
    if not exists:
        raise StoreFolderError(
            f"{_KEY}: there is no folder '{folder}'.",
            f"Make it (on a fast disk), name another, or leave {_KEY} out to use host memory.",
        )
    if not is_folder:
        raise StoreFolderError(f"{_KEY}: '{folder}' is a file.", _CHOOSE)
    os.close(_open_nameless(folder))


def free_bytes(folder: Path) -> int:
    """Bytes that a user other than root can still write there."""
    stats = os.statvfs(folder)
    return stats.f_bavail * stats.f_frsize


def lies_in_memory(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    """Whether the folder's file system is memory itself, as /dev/shm and on some systems /tmp are."""
    try:
        device = folder.stat().st_dev
        lines = mounts.read_text().splitlines()
    except OSError:  # not Linux
        return False
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        fields, _, rest = line.partition(" - ")
        if fields.split(" ")[2:3] == [wanted]:
            return rest.split(" ")[0] in ("tmpfs", "ramfs")
    return False


def ask_disk_for(num_bytes: int, folder: Path, what: str) -> None:
    """Raises StoreFolderError when the disk has not so much room."""
    free = free_bytes(folder)
    if num_bytes > free:
        raise _full(num_bytes, free, folder, what)


class DiskArray:
    """A shared mapping of a file without a name: the kernel removes it when the process ends, in any way."""

    def __init__(self, folder: Path, num_bytes: int, what: str) -> None:
        ask_disk_for(num_bytes, folder, what)
        self.fd = _open_nameless(folder)
        self.num_bytes = num_bytes
        try:
            # Reserves every block now: a write to a mapped page for which the disk has no block is a SIGBUS.
            os.posix_fallocate(self.fd, 0, num_bytes)
            self.mapping = mmap.mmap(self.fd, num_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            self._address = ctypes.addressof(ctypes.c_char.from_buffer(self.mapping))
        except OSError as error:
            os.close(self.fd)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                beyond = " beyond your quota" if error.errno == errno.EDQUOT else ""
                raise _full(num_bytes, free_bytes(folder), folder, what + beyond) from None
            if error.errno == errno.EFBIG:
                raise StoreFolderError(
                    f"{_KEY}: no file of {show_bytes(num_bytes)} for {what} in '{folder}': more than a file may have here.",
                    "Raise `ulimit -f`, or use another file system.",
                ) from None
            raise StoreFolderError(
                f"{_KEY}: a file of {show_bytes(num_bytes)} in '{folder}' cannot be made: {error.strerror}.",
                _CHOOSE,
            ) from None

    def read_ahead(self, start: int, num_bytes: int) -> None:
        """Waits for the bytes to come into memory; for a thread of its own."""
        if self.fd >= 0:
            os.posix_fadvise(self.fd, start, num_bytes, os.POSIX_FADV_WILLNEED)
            page = start // mmap.PAGESIZE * mmap.PAGESIZE  # madvise takes whole ones
            _call("madvise", self._address + page, num_bytes + start - page, _MADV_POPULATE_READ)

    def write_back(self, start: int, num_bytes: int) -> None:
        """Begins to write what was changed, so that its pages can be given up when memory is wanted."""
        if self.fd >= 0:
            _call("sync_file_range", self.fd, start, num_bytes, _SYNC_FILE_RANGE_WRITE)

    def close(self) -> None:
        """The file lives on as long as the mapping does."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def _full(num_bytes: int, free: int, folder: Path, what: str) -> StoreFolderError:
    return StoreFolderError(
        f"{_KEY}: no room in '{folder}' for {what}: {show_bytes(num_bytes)} needed, {show_bytes(free)} free.",
        "Free some, name a folder on another disk, or halve the optimizer's state with runconfig.streaming.state_dtype: bf16.",
        {"needed_bytes": num_bytes, "free_bytes": free},
    )


def _open_nameless(folder: Path) -> int:
    try:
        with contextlib.suppress(OSError):  # not every file system can; other errors come below
            return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fd, name = tempfile.mkstemp(prefix="portwright-", dir=folder)
        Path(name).unlink()
        return fd
    except OSError as error:
        raise StoreFolderError(
            f"{_KEY}: no file can be made in '{folder}': {error.strerror}.", _CHOOSE
        ) from None


def _call(function: str, *arguments: int) -> None:
    """A hint to the kernel through libc, without the interpreter's lock; a kernel that does not know it ignores it."""
    call = getattr(_LIBC, function, None)
    if call is not None:
        call(*(ctypes.c_long(argument) for argument in arguments))


_LIBC = ctypes.CDLL(None, use_errno=True)
