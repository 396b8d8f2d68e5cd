"""Files and folders appear whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from portwright.errors import UserError
from portwright.job import atomic
from portwright.job.atomic import (
    atomic_directory,
    atomic_write_bytes,
    atomic_write_text,
    clean_leftovers,
    remove_directory,
)

as_root = os.geteuid() == 0


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_writes_text_and_creates_parents(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "ünï.txt"
    atomic_write_text(target, "grüße\r\n")
    assert target.read_bytes() == "grüße\r\n".encode()
    assert names(target.parent) == ["ünï.txt"]


def test_replaces_and_follows_the_umask(tmp_path: Path) -> None:
    target = tmp_path / "x"
    target.write_bytes(b"a long old content")
    before = os.umask(0o027)
    try:
        atomic_write_bytes(target, b"new")
    finally:
        os.umask(before)
    assert target.read_bytes() == b"new"
    assert target.stat().st_mode & 0o777 == 0o640


def test_longest_file_name(tmp_path: Path) -> None:
    target = tmp_path / ("n" * 255)
    atomic_write_bytes(target, b"x")
    assert target.read_bytes() == b"x"


def test_link_stays_a_link(tmp_path: Path) -> None:
    real = tmp_path / "elsewhere" / "real"
    link = tmp_path / "link"
    link.symlink_to(real)  # dangling at first
    for text in ("one", "two"):
        atomic_write_text(link, text)
        assert link.is_symlink()
        assert real.read_text() == text


def test_device_is_written_to_and_stays_a_device() -> None:
    atomic_write_bytes(Path("/dev/null"), b"x")
    assert Path("/dev/null").is_char_device()


def test_pipe_is_written_to(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen(["cat", str(fifo)], stdout=subprocess.PIPE) as reader:
        atomic_write_bytes(fifo, b"through")
        assert reader.communicate()[0] == b"through"
    assert fifo.is_fifo()


@pytest.mark.parametrize(
    ("make", "message", "cure"),
    [
        (
            lambda path: (path / "file").write_text(""),
            "not a directory|file exists",
            "is a file, not a folder",
        ),
        (
            lambda path: (path / "file" / "x.txt").mkdir(parents=True),
            "is a directory",
            "choose another file name",
        ),
    ],
)
def test_wrong_kind_of_path(tmp_path: Path, make, message: str, cure: str) -> None:  # type: ignore[no-untyped-def]
    make(tmp_path)
    with pytest.raises(UserError, match=message) as caught:
        atomic_write_text(tmp_path / "file" / "x.txt", "")
    assert cure in caught.value.cure


def test_name_too_long_and_circle_of_links(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="file name too long"):
        atomic_write_text(tmp_path / ("n" * 300), "")
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(UserError, match="symbolic links"):
        atomic_write_text(tmp_path / "a" / "x", "")


def test_place_where_nothing_can_be_written() -> None:
    with pytest.raises(UserError, match="Cannot write /proc/nobody/x"):
        atomic_write_text(Path("/proc/nobody/x"), "")


@pytest.mark.skipif(as_root, reason="root may write anywhere, whatever the permission bits say")
def test_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(UserError, match="permission denied") as caught:
            atomic_write_text(tmp_path / "x", "")
    finally:
        tmp_path.chmod(0o700)
    assert "write permission" in caught.value.cure


def test_full_disk_keeps_the_old_file(tmp_path: Path) -> None:
    """A limit on file sizes makes the kernel refuse the write in the middle, as a full disk does."""
    target = tmp_path / "x"
    target.write_text("old")
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from portwright.job.atomic import atomic_write_bytes\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "atomic_write_bytes(Path(sys.argv[1]), bytes(5000))\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(target)], capture_output=True, text=True)
    assert "UserError: Cannot write" in done.stderr
    assert "file too large" in done.stderr
    assert target.read_text() == "old"
    assert names(tmp_path) == ["x"]


def test_no_space_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(UserError, match="no space left on device") as caught:
        atomic_write_text(tmp_path / "sub" / "x", "")
    assert f"Free space on the disk or quota that holds {tmp_path / 'sub'}" in caught.value.cure
    assert names(tmp_path / "sub") == []


def test_interrupt_removes_the_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        atomic_write_text(tmp_path / "x", "")
    assert names(tmp_path) == []


def test_directory_appears_at_the_end(tmp_path: Path) -> None:
    final = tmp_path / "new" / "final"
    with atomic_directory(final) as temp:
        assert temp.name.startswith(".tmp-")
        (temp / "sub").mkdir()
        (temp / "sub" / "x").write_text("x")
        assert not final.exists()
    assert names(final.parent) == ["final"]
    assert (final / "sub" / "x").read_text() == "x"


@pytest.mark.parametrize("can_exchange", [True, False])
def test_directory_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool) -> None:
    if not can_exchange:
        monkeypatch.setattr(atomic, "_exchange", lambda one, other: False)
    final = tmp_path / "final"
    for content in ("old", "new"):
        with atomic_directory(final) as temp:
            (temp / content).write_text(content)
    assert names(tmp_path) == ["final"]
    assert names(final) == ["new"]


@pytest.mark.parametrize("can_exchange", [True, False])
def test_failure_keeps_the_old_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    if not can_exchange:
        monkeypatch.setattr(atomic, "_exchange", lambda one, other: False)
    final = tmp_path / "final"
    (final / "old").mkdir(parents=True)
    with pytest.raises(UnicodeDecodeError), atomic_directory(final) as temp:
        (temp / "new").write_text(b"\xff".decode())
    assert names(tmp_path) == ["final"]
    assert names(final) == ["old"]


def test_failed_second_rename_puts_the_old_directory_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic, "_exchange", lambda one, other: False)
    final = tmp_path / "final"
    (final / "old").mkdir(parents=True)
    rename = Path.rename

    def fail_to_become_final(self: Path, target: Path) -> Path:
        if target == final and self.parent == tmp_path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_to_become_final)
    with pytest.raises(UserError, match="Cannot write"), atomic_directory(final):
        pass
    assert names(tmp_path) == ["final"]
    assert names(final) == ["old"]


def test_directory_in_place_of_a_file_or_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("keep")
    with pytest.raises(UserError, match="not a directory"), atomic_directory(tmp_path / "file"):
        pass
    assert (tmp_path / "file").read_text() == "keep"
    (tmp_path / "real" / "sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with atomic_directory(tmp_path / "link") as temp:
        (temp / "new").write_text("")
    assert names(tmp_path / "link") == ["new"]
    assert names(tmp_path / "real") == ["sub"]  # what the link pointed to is not ours to delete
    assert names(tmp_path) == ["file", "link", "real"]


def test_error_of_the_block_about_another_file_is_its_own(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic_directory(tmp_path / "here" / "final"):
        (tmp_path / "source").read_text()
    with (
        pytest.raises(UserError, match=r"Cannot write .*final: no space"),
        atomic_directory(tmp_path / "here" / "final"),
    ):
        raise OSError(errno.ENOSPC, "no space")


def test_remove_directory_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    remove_directory(tmp_path / "a")
    assert names(tmp_path) == []


def leftover(folder: Path, host: str, pid: int, suffix: str = "") -> Path:
    path = folder / f".tmp-{host}~{pid}~00ff{suffix}"
    path.mkdir()
    return path


def test_leftovers_of_dead_processes_are_cleaned(tmp_path: Path) -> None:
    here, gone = atomic._host(), dead_pid()
    (leftover(tmp_path, here, gone) / "x").write_text("")
    (tmp_path / f".tmp-{here}~{gone}~0a").write_text("a file")
    mine = leftover(tmp_path, here, os.getpid())
    init = leftover(tmp_path, here, 1)
    fresh_elsewhere = leftover(tmp_path, "elsewhere.1", gone)
    old_elsewhere = leftover(tmp_path, "elsewhere.2", gone)
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(old_elsewhere, (two_days_ago, two_days_ago))
    users_own = tmp_path / ".tmp-mine"
    users_own.write_text("")
    (tmp_path / f".tmp-{here}~{gone}~0b").symlink_to(users_own)
    cleaned = clean_leftovers(tmp_path)
    assert len(cleaned) == 4
    assert set(tmp_path.iterdir()) == {mine, init, fresh_elsewhere, users_own}


def test_directory_set_aside_by_a_killed_process_is_put_back(tmp_path: Path) -> None:
    here, gone = atomic._host(), dead_pid()
    (leftover(tmp_path, here, gone, "~old") / "final").mkdir()
    clean_leftovers(tmp_path)
    assert names(tmp_path) == ["final"]
    # and when the new one did get its place, the old one goes
    (leftover(tmp_path, here, gone, "~old") / "final" / "old").mkdir(parents=True)
    clean_leftovers(tmp_path)
    assert names(tmp_path) == ["final"]
    assert names(tmp_path / "final") == []


@pytest.mark.parametrize("can_exchange", [True, False])
def test_kill_while_replacing_never_loses_both(tmp_path: Path, can_exchange: bool) -> None:
    script = (
        "import itertools, sys\n"
        "from pathlib import Path\n"
        "from portwright.job import atomic\n"
        f"if not {can_exchange}: atomic._exchange = lambda one, other: False\n"
        "for n in itertools.count():\n"
        "    with atomic.atomic_directory(Path(sys.argv[1])) as temp:\n"
        "        (temp / 'a').write_text(str(n)); (temp / 'b').write_text(str(n))\n"
        "    print(n, flush=True)\n"
    )
    final = tmp_path / "final"
    for kill_after in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", script, str(final)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for _ in range(kill_after + 1):
                reported = int(process.stdout.readline())
            time.sleep(kill_after * 0.0007)
            process.send_signal(signal.SIGKILL)
            reported = max([reported, *map(int, process.stdout.read().split())])
        clean_leftovers(tmp_path)
        assert names(tmp_path) == ["final"]
        assert (final / "a").read_text() == (final / "b").read_text()
        assert int((final / "a").read_text()) >= reported
