from __future__ import annotations

import errno
import gc
import mmap
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from streaming_fakes import FakeCudart

from portwright.errors import UserError
from portwright.job.execution import StreamingSection
from portwright.runtime.streaming import disk_array, host_memory, host_store
from portwright.runtime.streaming.disk_array import StoreFolderError
from portwright.runtime.streaming.host_memory import HostMemory, HostMemoryError
from portwright.runtime.streaming.host_store import HostStore, Used

PAGE = mmap.PAGESIZE
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@dataclass(frozen=True)
class Options:
    store: str | None = None
    pinned_memory: int | None = None


@pytest.fixture
def notes() -> list[str]:
    return []


def make_pinned(budget: int, cudart: FakeCudart, notes: list[str]) -> HostStore:
    store = HostStore(Options(pinned_memory=budget), CUDA, notes.append, cudart=cudart)
    store.staging_bytes = 0
    return store


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of one MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small disk takes root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("kind", ["weights", "gradients", "state", "undo", "activations"])
@pytest.mark.parametrize("num_bytes", [1, 4095, 4096, 4097, 2 * 2**20 - 1, 2 * 2**20 + 1, 5_000_001])
@pytest.mark.parametrize("on_disk", [False, True])
def test_arrays_are_flat_zeroed_and_aligned(tmp_path: Path, kind: Any, num_bytes: int, on_disk: bool) -> None:
    store = HostStore(Options(store=str(tmp_path) if on_disk else None), CPU, print)
    array = store.array("blocks.0", num_bytes, kind)
    assert array.dtype is torch.uint8
    assert array.shape == (num_bytes,)
    assert array.data_ptr() % 4096 == 0
    assert int(array.count_nonzero()) == 0
    array.fill_(7)
    assert int(array[-1]) == 7
    assert list(tmp_path.iterdir()) == []  # files have no name
    is_file = on_disk and kind in ("state", "undo")
    assert store.used == {kind: Used(0, 0, num_bytes) if is_file else Used(num_bytes, 0, 0)}
    assert not store.is_pinned(array)
    store.close()
    assert int(array[-1]) == 7  # outlives the store


def test_the_sections_options_fit(tmp_path: Path, notes: list[str]) -> None:
    section = StreamingSection(store=str(tmp_path), pinned_memory="1GiB")
    store = HostStore(section, CUDA, notes.append, cudart=FakeCudart())
    assert store.pinned_budget == 2**30
    store.close()


def test_nothing_and_after_the_end() -> None:
    store = HostStore(Options(), CPU, print)
    assert store.array("none", 0, "state").numel() == 0
    store.close()
    store.close()
    with pytest.raises(RuntimeError, match="the store is closed"):
        store.array("x", 1, "state")


def test_large_arrays_begin_at_a_huge_page() -> None:
    store = HostStore(Options(), CPU, print)
    arrays = [store.array("x", 2 * 2**20 + i, "state") for i in range(4)]
    assert {array.data_ptr() % (2 * 2**20) for array in arrays} == {0}


# Pinning


def test_pinned_while_the_budget_lasts(notes: list[str]) -> None:
    cudart = FakeCudart()
    store = make_pinned(10 * PAGE, cudart, notes)
    first = store.array("a", 6 * PAGE - 5, "weights")
    second = store.array("b", 5 * PAGE, "weights")
    third = store.array("c", 4 * PAGE, "gradients")
    assert [store.is_pinned(each) for each in (first, second, third)] == [True, False, True]
    assert store.is_pinned(first[PAGE : 2 * PAGE].view(torch.float32))
    assert not store.is_pinned(torch.empty(8))
    assert cudart.registered == {first.data_ptr(): 6 * PAGE, third.data_ptr(): 4 * PAGE}
    assert store.used["weights"] == Used(11 * PAGE - 5, 6 * PAGE - 5, 0)
    assert "weights 45.1 kB in memory, 24.6 kB pinned" in store.describe()
    assert notes == []
    store.close()
    assert cudart.registered == {}
    assert not store.is_pinned(first)


def test_what_is_planned_is_pinned_in_order_of_use(notes: list[str]) -> None:
    cudart = FakeCudart()
    store = make_pinned(10 * PAGE, cudart, notes)
    store.plan({"weights": 4 * PAGE, "state": 12 * PAGE, "gradients": 2 * PAGE})
    pinned = []
    for unit in range(2):  # a layer after the other, its state first
        for kind, pages in (("state", 6), ("weights", 2), ("gradients", 1)):
            pinned.append(store.is_pinned(store.array(f"{unit}", pages * PAGE, kind)))  # type: ignore[arg-type]
    assert pinned == [False, True, True, False, True, True]
    more = make_pinned(12 * PAGE, FakeCudart(), notes)
    more.plan({"weights": 4 * PAGE, "state": 12 * PAGE, "gradients": 2 * PAGE})
    assert more.is_pinned(more.array("s", 6 * PAGE, "state"))  # there is room for it beside the others
    assert not more.is_pinned(more.array("s", 6 * PAGE, "state"))


def test_a_refusal_is_said_once_and_not_asked_for_again(notes: list[str]) -> None:
    cudart = FakeCudart(refuse_after=2)
    store = make_pinned(100 * PAGE, cudart, notes)
    arrays = [store.array(f"{i}", PAGE, "weights") for i in range(6)]
    assert [store.is_pinned(array) for array in arrays] == [True, True, False, False, False, False]
    assert cudart.num_asked == 3
    assert len(notes) == 1
    assert "pinned memory refused: 4.10 kB more after 8.19 kB: out of memory (CUDA error 2)" in notes[0]
    assert "runconfig.streaming.pinned_memory" in notes[0]
    for array in arrays:
        array.fill_(1)
    store.close()
    assert cudart.registered == {}


def test_a_refusal_names_the_limit_of_locked_memory(
    notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (8 * 2**20, 8 * 2**20))
    make_pinned(100 * PAGE, FakeCudart(refuse_after=0), notes).array("a", PAGE, "weights")
    assert "may lock 8.39 MB (raise it with `ulimit -l unlimited`" in notes[0]
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY,) * 2)
    make_pinned(100 * PAGE, FakeCudart(refuse_after=0), notes).array("a", PAGE, "weights")
    assert "ulimit" not in notes[1]


def test_a_forgotten_store_takes_its_pinning_back(notes: list[str]) -> None:
    cudart = FakeCudart()
    store = make_pinned(100 * PAGE, cudart, notes)
    array = store.array("a", PAGE, "weights")
    assert len(cudart.registered) == 1
    del store
    gc.collect()
    assert cudart.registered == {}
    array.fill_(3)  # the memory is still there


def test_memory_stays_as_long_as_it_is_registered(notes: list[str]) -> None:
    """CUDA must not be left with addresses that the system has given to somebody else."""
    cudart = FakeCudart()
    store = make_pinned(2**30, cudart, notes)
    address = store.array("a", PAGE, "weights").data_ptr()
    gc.collect()
    others = [store.array("b", PAGE, "weights").data_ptr() for _ in range(50)]
    assert address not in others
    assert len(cudart.registered) == 51


def test_the_share_that_is_pinned_by_itself(monkeypatch: pytest.MonkeyPatch, notes: list[str]) -> None:
    monkeypatch.setattr(host_store, "read_host_memory", lambda: HostMemory(1000, 2000, "this machine"))
    store = HostStore(Options(), CUDA, notes.append, cudart=FakeCudart())
    assert store.pinned_budget == 600
    assert HostStore(Options(), CPU, notes.append).pinned_budget == 0


# Host memory exhausted


def test_memory_is_asked_for_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = HostMemory(host_memory.SPARE_BYTES + 10 * PAGE, 64 * 2**30, "the container's limit")
    monkeypatch.setattr(host_memory, "read_host_memory", lambda: memory)
    monkeypatch.setattr(mmap, "mmap", lambda *_, **__: pytest.fail("asked too late"))
    store = HostStore(Options(), CPU, print)
    with pytest.raises(HostMemoryError) as caught:
        store.array("blocks.3 moments", 11 * PAGE, "state")
    assert "not enough host memory for the array 'blocks.3 moments': 45.1 kB needed" in caught.value.message
    assert "the container's limit" in caught.value.message
    assert "runconfig.streaming.store" in caught.value.cure
    assert "state_dtype: bf16" in caught.value.cure


def test_a_plan_that_does_not_fit_is_refused_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    memory = HostMemory(host_memory.SPARE_BYTES + 10 * PAGE, 64 * 2**30, "this machine")
    monkeypatch.setattr(host_memory, "read_host_memory", lambda: memory)
    needed: Any = {"weights": 4 * PAGE, "state": 8 * PAGE}
    with pytest.raises(HostMemoryError, match=r"weights 16.4 kB, state 32.8 kB\): 49.2 kB needed"):
        HostStore(Options(), CPU, print).plan(needed)
    HostStore(Options(store=str(tmp_path)), CPU, print).plan(needed)  # the state goes to the disk
    monkeypatch.setattr(disk_array, "free_bytes", lambda folder: 7 * PAGE)
    with pytest.raises(StoreFolderError, match=r"32.8 kB needed, 28.7 kB free"):
        HostStore(Options(store=str(tmp_path)), CPU, print).plan(needed)


def test_processes_of_one_machine_ask_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, notes: list[str]
) -> None:
    """Each of them alone would see all of the memory free."""
    memory = HostMemory(host_memory.SPARE_BYTES + 10 * PAGE, 64 * 2**30, "this machine")
    monkeypatch.setattr(host_memory, "read_host_memory", lambda: memory)
    monkeypatch.setattr(disk_array, "free_bytes", lambda folder: 10 * PAGE)
    for options in (Options(), Options(store=str(tmp_path))):
        HostStore(options, CPU, print).plan({"state": 4 * PAGE})
        HostStore(options, CPU, print, num_sharers=2).plan({"state": 5 * PAGE})
        with pytest.raises(UserError, match=r"2 times \(one a process\): 49.2 kB needed"):
            HostStore(options, CPU, print, num_sharers=2).plan({"state": 6 * PAGE})
    monkeypatch.setattr(host_store, "read_host_memory", lambda: HostMemory(1000, 2000, "this machine"))
    store = HostStore(Options(), CUDA, notes.append, cudart=FakeCudart(), num_sharers=4)
    assert store.pinned_budget == 150


def test_a_folder_that_is_memory_itself_saves_none(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, notes: list[str]
) -> None:
    store = HostStore(Options(store=str(small_disk)), CPU, notes.append)
    assert "is memory (tmpfs) and no disk" in notes[0]
    memory = HostMemory(host_memory.SPARE_BYTES + 10 * PAGE, 64 * 2**30, "this machine")
    monkeypatch.setattr(host_memory, "read_host_memory", lambda: memory)
    store.array("a", 10 * PAGE, "state")
    with pytest.raises(HostMemoryError, match="the array 'b'"):
        store.array("b", 11 * PAGE, "state")
    with pytest.raises(HostMemoryError, match="not enough host memory"):
        store.plan({"state": 11 * PAGE})


def test_a_disk_is_told_from_memory(tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts = tmp_path / "mountinfo"
    for kind, expected in (("tmpfs", True), ("ramfs", True), ("ext4", False), ("xfs", False)):
        mounts.write_text(
            f"22 1 99:98 / /other rw shared:1 - tmpfs tmpfs rw\n23 1 {number} / / rw,relatime shared:1 - {kind} /dev/x rw\n"
        )
        assert disk_array.lies_in_memory(tmp_path, mounts) == expected
    assert not disk_array.lies_in_memory(tmp_path, tmp_path / "none")


def test_an_allocation_that_the_system_refuses() -> None:
    """A real one: the limit of this process's addresses."""
    store = HostStore(Options(), CPU, print)
    kept = store.array("a", PAGE, "state")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * PAGE + 2**26, hard))
    try:
        with pytest.raises(HostMemoryError, match="the system refused 134 MB of host memory") as caught:
            store.array("b", 2**27, "state")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert "ulimit -v" in caught.value.cure
    kept.fill_(1)
    assert store.used["state"].ram_bytes == PAGE
    store.array("b", 2**27, "state")


def test_a_size_beyond_all_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HostMemoryError, match=r"9223372 TB|9.22 EB"):
        HostStore(Options(), CPU, print).array("a", 2**63, "state")
    monkeypatch.setattr(host_store, "ask_for", lambda *_: None)
    with pytest.raises(HostMemoryError, match="the system refused"):
        HostStore(Options(), CPU, print).array("a", 2**63, "state")


# The disk


def test_a_full_disk_is_an_error_at_the_start(small_disk: Path) -> None:
    store = HostStore(Options(store=str(small_disk)), CPU, print)
    kept = store.array("a", 600_000, "state")
    kept.fill_(5)
    with pytest.raises(StoreFolderError) as caught:
        store.array("b", 600_000, "state")
    assert "for the array 'b': 600 kB needed" in caught.value.message
    assert str(small_disk) in caught.value.message
    assert " free" in caught.value.message
    assert "another disk" in caught.value.cure
    assert int(kept.sum()) == 5 * 600_000
    store.close()
    del kept
    assert disk_array.free_bytes(small_disk) == 2**20  # nothing is left behind


def test_a_disk_that_fills_between_the_question_and_the_reservation(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = HostStore(Options(store=str(small_disk)), CPU, print)
    monkeypatch.setattr(disk_array, "free_bytes", lambda folder: 10**12)
    num_open = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(StoreFolderError, match=r"for the array 'b': 2\.10 MB needed"):
            store.array("b", 2 * 2**20, "state")
    monkeypatch.undo()
    assert disk_array.free_bytes(small_disk) == 2**20
    assert len(list(Path("/proc/self/fd").iterdir())) == num_open
    assert store.used == {}


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "4.10 kB needed"),
        (errno.EDQUOT, "beyond your quota"),
        (errno.EFBIG, "more than a file may have"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_a_reservation_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    store = HostStore(Options(store=str(tmp_path)), CPU, print)
    with pytest.raises(StoreFolderError, match=words):
        store.array("b", PAGE, "state")
    assert list(tmp_path.iterdir()) == []


def test_a_limit_of_file_sizes(tmp_path: Path) -> None:
    store = HostStore(Options(store=str(tmp_path)), CPU, print)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        with pytest.raises(StoreFolderError, match="more than a file may have here") as caught:
            store.array("b", 2**21, "state")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "ulimit -f" in caught.value.cure


def test_a_folder_that_is_missing_a_file_or_unreachable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, words in (
        (tmp_path / "nöwhere", "there is no folder"),
        (tmp_path / "file", "is a file"),
        (tmp_path / "file" / "below", "there is no folder"),
        (tmp_path / ("x" * 300), "cannot be looked at|there is no folder"),
    ):
        with pytest.raises(UserError, match=words) as caught:
            HostStore(Options(store=str(path)), CPU, print)
        assert str(path) in caught.value.message
        assert "leave runconfig.streaming.store out" in caught.value.cure


def test_a_folder_that_cannot_be_written_to(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StoreFolderError, match=r"no file can be made in .* Read-only file system"):
        HostStore(Options(store=str(small_disk)), CPU, print)


def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreFolderError, match="Permission denied"):
        HostStore(Options(store=str(tmp_path)), CPU, print)


@pytest.mark.parametrize("has_nameless_files", [True, False])
def test_nothing_is_left_after_kill_9(tmp_path: Path, has_nameless_files: bool) -> None:
    script = f"""
import os, sys, time
from pathlib import Path
if not {has_nameless_files}:
    os.O_TMPFILE = os.O_DIRECTORY | os.O_RDWR  # what a file system that cannot answers: EISDIR
from portwright.runtime.streaming.disk_array import DiskArray
array = DiskArray(Path(sys.argv[1]), 1 << 20, "x")
array.mapping[:4] = b"data"
print(len(os.listdir(sys.argv[1])), flush=True)
time.sleep(60)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "0\n"
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


def test_several_stores_share_a_folder(tmp_path: Path) -> None:
    stores = [HostStore(Options(store=str(tmp_path)), CPU, print) for _ in range(3)]
    arrays = [store.array("same name", 10 * PAGE, "state") for store in stores]
    for number, array in enumerate(arrays, 1):
        array.fill_(number)
    stores[0].close()
    assert [int(array[5]) for array in arrays] == [1, 2, 3]


def test_reading_ahead_and_writing_back_keep_the_bytes(tmp_path: Path) -> None:
    store = HostStore(Options(store=str(tmp_path)), CPU, print)
    array = store.array("a", 3 * 2**20 + 17, "state")
    pattern = torch.arange(array.numel(), dtype=torch.int32).to(torch.uint8)
    array.copy_(pattern)
    for part in (array, array[5:], array[2**20 :], array[-1:], array[:0]):
        store.written(part)
        store.prefetch(part)
    memory = store.array("b", PAGE, "weights")
    store.prefetch(memory)
    store.written(memory)
    store.prefetch(torch.empty(4))
    store.close()
    store.prefetch(array)
    assert torch.equal(array, pattern)


def resident_pages(array: torch.Tensor) -> list[bool]:
    """Which pages of it the process has mapped, by /proc/self/pagemap."""
    with Path("/proc/self/pagemap").open("rb") as file:
        file.seek(array.data_ptr() // PAGE * 8)
        entries = file.read(8 * -(-array.numel() // PAGE))
    return [entries[i + 7] & 0x80 != 0 for i in range(0, len(entries), 8)]


def test_reading_ahead_brings_the_pages_in(tmp_path: Path) -> None:
    store = HostStore(Options(store=str(tmp_path)), CPU, print)
    array = store.array("a", 64 * PAGE, "state")
    if tuple(map(int, os.uname().release.split(".")[:2])) < (5, 14):
        pytest.skip("this kernel only reads, and maps when a page is touched")
    assert not any(resident_pages(array))
    disk = store._regions.find(array).disk  # type: ignore[union-attr]
    disk.read_ahead(3 * PAGE + 5, 2 * PAGE)  # type: ignore[union-attr]
    pages = resident_pages(array)
    assert all(pages[3:6])
    assert not pages[63]


def test_a_failing_hint_is_not_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_array, "_LIBC", object())
    store = HostStore(Options(store=str(tmp_path)), CPU, print)
    array = store.array("a", PAGE, "state")
    store.prefetch(array)
    store.written(array)
    store.close()
    array.fill_(1)


def test_a_home_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    HostStore(Options(store="~"), CPU, print).array("a", PAGE, "state").fill_(1)
