from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest
import torch
from streaming_fakes import FakeCudart, LateBus
from torch import Tensor

from portwright.runtime.streaming import staging as staging_module
from portwright.runtime.streaming.host_store import HostStore
from portwright.runtime.streaming.staging import NUM_CHUNKS, Staging

CHUNK = 4096
CUDA = torch.device("cuda")


@dataclass(frozen=True)
class Options:
    store: str | None = None
    pinned_memory: int | None = 4 * 2 * NUM_CHUNKS * CHUNK  # a quarter of it is the rings'


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging_module, "MIN_CHUNK_BYTES", 1)


def make(bus: LateBus, cudart: FakeCudart | None = None) -> tuple[Staging, HostStore]:
    store = HostStore(Options(), CUDA, print, cudart=cudart or FakeCudart())
    return Staging(CUDA, store, bus), store


def pattern(num_bytes: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, generator=generator)


SIZES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, NUM_CHUNKS * CHUNK - 1, NUM_CHUNKS * CHUNK, NUM_CHUNKS * CHUNK + 1,
         3 * NUM_CHUNKS * CHUNK + 7]  # fmt: skip


@pytest.mark.parametrize("num_bytes", SIZES)
def test_up_through_the_ring(num_bytes: int) -> None:
    bus = LateBus()
    staging, _ = make(bus)
    source, target = pattern(num_bytes), torch.zeros(num_bytes, dtype=torch.uint8)
    expected = source.clone()
    copy = staging.up(target, source, "stream")
    source.zero_()  # what `up` has returned from it has read
    assert copy.query() == (num_bytes == 0)
    copy.synchronize()
    assert copy.query()
    assert torch.equal(target, expected)
    assert bus.num_copies == -(-num_bytes // CHUNK)
    staging.close()


@pytest.mark.parametrize("num_bytes", SIZES)
def test_down_through_the_ring(num_bytes: int) -> None:
    staging, _ = make(LateBus())
    source, target = pattern(num_bytes), torch.zeros(num_bytes, dtype=torch.uint8)
    copy = staging.down(target, source, "stream")
    copy.synchronize()
    assert torch.equal(target, source)
    assert copy.query()
    staging.close()


def test_all_work_is_in_the_stream_when_a_call_returns() -> None:
    """Work that is put into the stream later may overwrite the device's side."""
    bus = LateBus()
    staging, _ = make(bus)
    for call, num_bytes in ((staging.down, 5 * NUM_CHUNKS * CHUNK), (staging.up, 5 * NUM_CHUNKS * CHUNK)):
        before = bus.num_copies
        copy = call(torch.zeros(num_bytes, dtype=torch.uint8), pattern(num_bytes), "stream")
        assert bus.num_copies - before == 5 * NUM_CHUNKS
        copy.synchronize()
    staging.close()


def test_pinned_memory_goes_straight() -> None:
    bus = LateBus()
    staging, store = make(bus)
    pinned = store.array("a", 20 * CHUNK, "weights")
    assert store.is_pinned(pinned)
    pinned.copy_(pattern(20 * CHUNK))
    device = torch.zeros(10 * CHUNK, dtype=torch.uint8)
    up = staging.up(device, pinned[10 * CHUNK :], "s")
    assert bus.num_copies == 1
    assert int(device.sum()) == 0
    up.synchronize()
    assert torch.equal(device, pinned[10 * CHUNK :])
    staging.down(pinned[: 10 * CHUNK], device, "s").synchronize()
    assert bus.num_copies == 2
    assert torch.equal(device, pinned[: 10 * CHUNK])


def test_any_dtype_and_shape_by_their_bytes() -> None:
    staging, _ = make(LateBus())
    source = torch.randn(33, 65).to(torch.bfloat16)
    source[0, 0] = float("nan")
    device = torch.zeros(33 * 65, dtype=torch.float16)
    staging.up(device, source).synchronize()
    back = torch.nn.Parameter(torch.zeros(65, 33, dtype=torch.bfloat16))
    staging.down(back, device).synchronize()
    assert torch.equal(back.detach().view(torch.int16).flatten(), source.view(torch.int16).flatten())
    scalar = torch.zeros(())
    staging.up(scalar, torch.tensor(2.5)).synchronize()
    assert scalar == 2.5
    staging.close()


def test_what_cannot_be_copied() -> None:
    staging, _ = make(LateBus())
    with pytest.raises(ValueError, match="a copy of 8 bytes into 4"):
        staging.up(torch.zeros(1), torch.zeros(2))
    with pytest.raises(ValueError, match=r"strides \(1, 4\)"):
        staging.down(torch.zeros(4, 4).t(), torch.zeros(4, 4))
    staging.close()


def test_from_many_threads_at_once() -> None:
    staging, _ = make(LateBus())
    failures: list[str] = []

    def work(number: int) -> None:
        for turn in range(12):
            num_bytes = (turn * 7919 + number * 104729) % (3 * NUM_CHUNKS * CHUNK)
            source, target = pattern(num_bytes, turn), torch.zeros(num_bytes, dtype=torch.uint8)
            call = staging.up if (turn + number) % 2 else staging.down
            call(target, source, number).synchronize()
            if not torch.equal(source, target):
                failures.append(f"{number} {turn}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []
    staging.close()


def test_waiters_come_late_and_in_any_order() -> None:
    staging, _ = make(LateBus())
    sources = [pattern(2 * CHUNK + i, i) for i in range(20)]
    targets = [torch.zeros_like(source) for source in sources]
    copies = [
        staging.down(target, source, "s") for target, source in zip(targets, sources, strict=True)
    ]  # 60 chunks through 8
    for copy in reversed(copies):
        copy.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(sources, targets, strict=True))
    staging.close()


@pytest.mark.parametrize("fail_at", [1, 5, NUM_CHUNKS + 3])
def test_a_copy_that_fails_loses_no_chunk(fail_at: int) -> None:
    bus = LateBus(fail_at)
    staging, _ = make(bus)
    num_bytes = 3 * NUM_CHUNKS * CHUNK
    for call in (staging.up, staging.down):
        bus.num_copies, bus.fail_at = 0, fail_at
        with pytest.raises(RuntimeError, match="the bus is gone"):
            call(torch.zeros(num_bytes, dtype=torch.uint8), pattern(num_bytes), "s")
        bus.fail_at = None
        source, target = pattern(num_bytes), torch.zeros(num_bytes, dtype=torch.uint8)
        call(target, source, "s").synchronize()
        assert torch.equal(source, target)
    staging.close()


def test_a_failure_on_the_way_is_raised_where_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    bus = LateBus()
    staging, _ = make(bus)
    run = bus.run

    def fail(stream: object, count: int) -> None:
        raise RuntimeError("device-side assert")

    monkeypatch.setattr(bus, "run", fail)
    copy = staging.down(torch.zeros(100, dtype=torch.uint8), pattern(100), "s")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="device-side assert"):
            copy.synchronize()
    assert not copy.query()
    monkeypatch.setattr(bus, "run", run)
    target, source = torch.zeros(100, dtype=torch.uint8), pattern(100)
    staging.down(target, source, "other").synchronize()
    assert torch.equal(target, source)
    staging.close()


def test_closing_waits_for_what_is_under_way() -> None:
    staging, _ = make(LateBus())
    source = pattern(6 * CHUNK)
    target = torch.zeros_like(source)
    staging.down(target, source, "s")
    staging.close()
    staging.close()
    assert torch.equal(target, source)


@pytest.mark.parametrize("refuse_after", [0, 3, NUM_CHUNKS + 2])
def test_without_pinned_memory_copies_are_plain(refuse_after: int) -> None:
    """As much of the rings as is not refused is no use: a ring is whole or is not."""
    notes: list[str] = []
    bus = LateBus()
    store = HostStore(Options(), CUDA, notes.append, cudart=FakeCudart(refuse_after))
    staging = Staging(CUDA, store, bus)
    source = pattern(10 * CHUNK)
    for call in (staging.up, staging.down):
        target = torch.zeros_like(source)
        call(target, source, "s").synchronize()
        assert torch.equal(target, source)
    assert len(notes) == 2
    assert "pinned memory refused" in notes[0]
    assert "no pinned memory for copies" in notes[1]
    staging.close()


def test_rings_are_there_when_arrays_are_refused() -> None:
    notes: list[str] = []
    bus = LateBus()
    store = HostStore(Options(), CUDA, notes.append, cudart=FakeCudart(2 * NUM_CHUNKS))
    staging = Staging(CUDA, store, bus)
    array = store.array("a", 4 * CHUNK, "weights")
    assert not store.is_pinned(array)
    array.copy_(pattern(4 * CHUNK))
    target = torch.zeros_like(array)
    staging.up(target, array, "s").synchronize()
    assert bus.num_copies == 4
    assert torch.equal(target, array)
    staging.close()


def test_on_a_cpu_copies_are_done_when_they_return() -> None:
    store = HostStore(Options(), torch.device("cpu"), print)
    staging = Staging(torch.device("cpu"), store)
    host, device = store.array("a", 1000, "weights"), torch.zeros(1000, dtype=torch.uint8)
    host.copy_(pattern(1000))
    copy = staging.up(device, host)
    assert copy.query()
    assert torch.equal(host, device)
    device.add_(1)
    staging.down(host, device)
    assert torch.equal(host, device)
    assert store.used.get("staging") is None
    staging.close()
