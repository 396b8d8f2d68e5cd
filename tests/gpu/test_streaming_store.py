"""Weight streaming's host arrays, copies and memory limits on a real GPU; run by `make test-gpu` where one is."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from portwright.runtime.streaming.device_cap import DeviceMemoryError, cap_cuda, explain_out_of_memory
from portwright.runtime.streaming.host_store import CudaPinner, HostStore
from portwright.runtime.streaming.lanes import Lanes
from portwright.runtime.streaming.offload import OffloadedActivations
from portwright.runtime.streaming.staging import NUM_CHUNKS, Staging

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")
GPU = torch.device("cuda", 0)
MIB = 2**20


@dataclass(frozen=True)
class Options:
    store: str | None = None
    pinned_memory: int | None = 2**30


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def store(notes: list[str]) -> Iterator[HostStore]:
    made = HostStore(Options(), GPU, notes.append)
    yield made
    made.close()


def pattern(num_bytes: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, generator=generator)


def test_arrays_are_pinned_as_cuda_sees_it(store: HostStore, notes: list[str]) -> None:
    arrays = [store.array("a", size, "weights") for size in (1, 4097, 3 * MIB + 5)]
    for array in arrays:
        assert store.is_pinned(array)
        assert array.is_pinned()
        assert store.is_pinned(array[array.numel() // 2 :])
    store.close()
    assert not any(array.is_pinned() for array in arrays)
    arrays[2].fill_(3)  # the memory is still there
    assert notes == []
    assert float(torch.ones(8, device=GPU).sum()) == 8.0


def test_a_forgotten_store_unregisters(notes: list[str]) -> None:
    store = HostStore(Options(), GPU, notes.append)
    array = store.array("a", MIB, "weights")
    assert array.is_pinned()
    del store
    gc.collect()
    assert not array.is_pinned()


def test_the_budget_is_held(notes: list[str]) -> None:
    store = HostStore(Options(pinned_memory=8 * MIB), GPU, notes.append)
    pinned = [store.array("a", MIB, "weights").is_pinned() for _ in range(10)]
    assert pinned == [True] * 6 + [False] * 4  # a quarter is kept for the ring
    store.close()


def test_cudas_own_refusal_is_noticed_and_does_not_hurt_later_work(
    store: HostStore, notes: list[str]
) -> None:
    """Memory that is registered twice is refused by the real runtime, which then remembers the error."""
    array = store.array("a", MIB, "weights")
    pinner = CudaPinner(GPU)
    reason = pinner.pin(array.data_ptr(), MIB)
    assert reason is not None
    assert "CUDA error" in reason
    x = torch.arange(1000, device=GPU, dtype=torch.float32)
    assert float((x * 2).sum()) == 999 * 1000  # torch would raise the old error here
    torch.cuda.synchronize(GPU)
    assert pinner.unpin(12345 * 4096) is not None
    assert float((x * 2).sum()) == 999 * 1000


def test_a_refusal_by_a_store_is_said_once(
    store: HostStore, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = store.array("a", MIB, "weights")
    real = CudaPinner.pin
    monkeypatch.setattr(CudaPinner, "pin", lambda self, address, size: real(self, first.data_ptr(), size))
    others = [store.array("b", MIB, "weights") for _ in range(3)]
    assert [store.is_pinned(other) for other in others] == [False] * 3
    assert len(notes) == 1
    assert "pinned memory refused" in notes[0]
    monkeypatch.undo()
    staging = Staging(GPU, store)  # there is no ring then either, and copies are right all the same
    source = pattern(5 * MIB)
    on_device = torch.zeros(5 * MIB, dtype=torch.uint8, device=GPU)
    staging.up(on_device, source).synchronize()
    back = torch.zeros_like(source)
    staging.down(back, on_device).synchronize()
    assert torch.equal(back, source)
    staging.close()


SIZES = [1, MIB - 1, 16 * MIB - 1, 16 * MIB, 16 * MIB + 1, NUM_CHUNKS * 16 * MIB + 3, 200 * MIB + 7]


@pytest.mark.parametrize("num_bytes", SIZES)
@pytest.mark.parametrize("is_pinned", [True, False])
def test_up_and_down(store: HostStore, num_bytes: int, is_pinned: bool) -> None:
    staging = Staging(GPU, store)
    up_stream, down_stream = torch.cuda.Stream(GPU), torch.cuda.Stream(GPU)
    content = pattern(num_bytes)
    source = store.array("source", num_bytes, "weights") if is_pinned else torch.empty_like(content)
    target = store.array("target", num_bytes, "gradients") if is_pinned else torch.zeros_like(content)
    source.copy_(content)
    assert store.is_pinned(source) == is_pinned
    on_device = torch.zeros(num_bytes, dtype=torch.uint8, device=GPU)
    up_stream.wait_stream(torch.cuda.current_stream(GPU))
    arrived = staging.up(on_device, source, up_stream)
    if not is_pinned:
        source.zero_()  # it has been read
    torch.cuda.current_stream(GPU).wait_stream(up_stream)
    on_device.add_(1)
    down_stream.wait_stream(torch.cuda.current_stream(GPU))
    copy = staging.down(target, on_device, down_stream)
    torch.cuda.current_stream(GPU).wait_stream(down_stream)
    on_device.zero_()  # after the copy, as the streams were told
    copy.synchronize()
    assert copy.query()
    assert arrived.query()
    assert torch.equal(target, content + 1)
    staging.close()


def test_a_direct_copy_does_not_wait_for_the_device(store: HostStore) -> None:
    """The copy is asked for while a long computation is before it in its stream."""
    staging = Staging(GPU, store)
    host = store.array("a", 64 * MIB, "weights")
    host.copy_(pattern(64 * MIB))
    on_device = torch.zeros(64 * MIB, dtype=torch.uint8, device=GPU)
    stream = torch.cuda.Stream(GPU)
    stream.wait_stream(torch.cuda.current_stream(GPU))
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1_000_000_000)  # half a second or more
    copy = staging.up(on_device, host, stream)
    assert not copy.query()
    copy.synchronize()
    assert torch.equal(on_device.cpu(), host)
    staging.close()


def test_a_staged_copy_within_the_ring_does_not_wait_for_the_device(store: HostStore) -> None:
    staging = Staging(GPU, store)
    num_bytes = (NUM_CHUNKS - 1) * 16 * MIB
    on_device = pattern(num_bytes).to(GPU)
    target = torch.zeros(num_bytes, dtype=torch.uint8)
    stream = torch.cuda.Stream(GPU)
    stream.wait_stream(torch.cuda.current_stream(GPU))
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1_000_000_000)
    copy = staging.down(target, on_device, stream)
    assert not copy.query()
    copy.synchronize()
    assert torch.equal(target, on_device.cpu())
    staging.close()


def test_threads_share_a_staging(store: HostStore) -> None:
    staging = Staging(GPU, store)
    failures: list[str] = []

    def work(number: int) -> None:
        torch.cuda.set_device(GPU)
        stream = torch.cuda.Stream(GPU)
        for turn in range(4):
            content = pattern(40 * MIB + 1000 * number + turn, number)
            with torch.cuda.stream(stream):
                on_device = torch.empty(content.numel(), dtype=torch.uint8, device=GPU)
                staging.up(on_device, content, stream)
                back = torch.zeros_like(content)
                staging.down(back, on_device, stream).synchronize()
            if not torch.equal(back, content):
                failures.append(f"{number} {turn}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []
    staging.close()


def test_files_are_copied_through_the_ring(tmp_path: Path, notes: list[str]) -> None:
    store = HostStore(Options(store=str(tmp_path)), GPU, notes.append)
    staging = Staging(GPU, store)
    array = store.array("moments", 50 * MIB + 3, "state")
    content = pattern(array.numel())
    array.copy_(content)
    store.written(array)
    store.prefetch(array)
    assert not store.is_pinned(array)
    on_device = torch.empty(array.numel(), dtype=torch.uint8, device=GPU)
    staging.up(on_device, array).synchronize()
    array.zero_()
    staging.down(array, on_device).synchronize()
    assert torch.equal(array, content)
    assert list(tmp_path.iterdir()) == []
    staging.close()
    store.close()


def test_a_cap_makes_the_allocator_raise_and_the_error_says_what_to_do() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(GPU)
    limit = before + 256 * MIB
    try:
        assert cap_cuda(GPU, limit) == limit
        kept = torch.empty(64 * MIB, dtype=torch.uint8, device=GPU)
        with (
            pytest.raises(DeviceMemoryError, match=r"in layer 'blocks.3'") as caught,
            explain_out_of_memory(GPU, limit, lambda: "blocks.3"),
        ):
            torch.empty(512 * MIB, dtype=torch.uint8, device=GPU)
        assert "device_memory" in str(caught.value)
        assert "smaller batch" in caught.value.cure
        del kept
    finally:
        cap_cuda(GPU, None)
    assert torch.empty(512 * MIB, dtype=torch.uint8, device=GPU).numel() == 512 * MIB


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.dropout(self.down(torch.nn.functional.gelu(self.up(x))))
        return y


def train(blocks: nn.ModuleList, x: Tensor, offload: OffloadedActivations | None) -> list[Tensor]:
    torch.manual_seed(5)
    y = x
    for block in blocks:
        if offload is None:
            y = checkpoint(block, y, use_reentrant=False)
        else:
            with offload:
                y = checkpoint(block, y, use_reentrant=False)
    loss = y.float().square().mean()
    loss.backward()
    gradients: list[Any] = [p.grad for p in blocks.parameters()]
    blocks.zero_grad(set_to_none=True)
    return [loss.detach(), *gradients]


@pytest.mark.parametrize("is_pinned", [True, False])
def test_offloaded_inputs_to_the_bit(is_pinned: bool, notes: list[str]) -> None:
    torch.manual_seed(0)
    blocks = nn.ModuleList(Block(1024) for _ in range(16)).to(GPU, torch.bfloat16)
    x = torch.randn(16384, 1024, device=GPU, dtype=torch.bfloat16)  # 32 MiB
    store = HostStore(Options(pinned_memory=2**30), GPU, notes.append)
    if not is_pinned:
        store.pinned_budget = store.staging_bytes  # nothing but the rings
    staging = Staging(GPU, store)
    offload = OffloadedActivations(Lanes(GPU), staging)

    expected = train(blocks, x, None)
    for _ in range(3):
        got = train(blocks, x, offload)
        assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    del expected, got
    assert store.used["activations"].ram_bytes == 14 * 32 * MIB  # sixteen inputs, and the last two stay
    assert store.used["activations"].pinned_bytes == (14 * 32 * MIB if is_pinned else 0)
    staging.close()
    store.close()
    assert notes == []
