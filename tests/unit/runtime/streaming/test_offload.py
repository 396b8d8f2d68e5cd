from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from streaming_fakes import FakeCudart, LateBus, LateLanes, PeakCap
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from portwright.errors import UserError
from portwright.runtime.streaming import staging as staging_module
from portwright.runtime.streaming.device_cap import DeviceCap
from portwright.runtime.streaming.host_store import HostStore
from portwright.runtime.streaming.lanes import Lanes
from portwright.runtime.streaming.offload import OffloadedActivations
from portwright.runtime.streaming.staging import Copy, Staging

CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings(r"ignore:.torch.cpu.amp.autocast\(args:FutureWarning")


@dataclass(frozen=True)
class Options:
    store: str | None = None
    pinned_memory: int | None = None


@pytest.fixture
def make() -> Iterator[Callable[..., OffloadedActivations]]:
    store = HostStore(Options(), CPU, print)
    staging = Staging(CPU, store)
    yield lambda min_bytes=1, **more: OffloadedActivations(Lanes(CPU), staging, min_bytes, **more)
    staging.close()
    store.close()


class Block(nn.Module):
    def __init__(self, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(dropout))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y: Tensor = x + self.net(x)
        return y if mask is None else y * mask


def run(
    blocks: nn.ModuleList, x: Tensor, offload: OffloadedActivations | None, *more: Tensor
) -> tuple[Tensor, list[Tensor]]:
    torch.manual_seed(3)
    y = x
    for block in blocks:
        if offload is None:
            y = checkpoint(block, y, *more, use_reentrant=False)
        else:
            with offload:
                y = checkpoint(block, y, *more, use_reentrant=False)
    loss = y.square().mean()
    loss.backward()
    gradients = [p.grad for p in blocks.parameters() if p.grad is not None]
    blocks.zero_grad(set_to_none=True)
    return loss.detach(), gradients


def make_blocks(num: int = 8, width: int = 32, dropout: float = 0.0) -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(Block(width, dropout) for _ in range(num))


def same(a: tuple[Tensor, list[Tensor]], b: tuple[Tensor, list[Tensor]]) -> bool:
    return torch.equal(a[0], b[0]) and len(a[1]) == len(b[1]) and all(map(torch.equal, a[1], b[1]))


@pytest.mark.parametrize("num_ahead", [0, 1, 3])
@pytest.mark.parametrize("num_blocks", [1, 2, 3, 4, 9])
def test_to_the_bit(make: Any, num_blocks: int, num_ahead: int) -> None:
    blocks = make_blocks(num_blocks, dropout=0.3)
    x = torch.randn(16, 32)
    expected = run(blocks, x, None)
    assert len(expected[1]) == 2 * num_blocks
    offload = make(num_ahead=num_ahead)
    for _ in range(3):
        assert same(run(blocks, x, offload), expected)


def test_buffers_are_used_again_from_step_to_step(make: Any) -> None:
    blocks, offload = make_blocks(8), make()
    gc.disable()  # they come back with the graph, not with the collector
    try:
        sizes = []
        for _ in range(4):
            run(blocks, torch.randn(16, 32), offload)
            sizes.append(offload.host_bytes)
    finally:
        gc.enable()
    assert len(set(sizes)) == 1
    assert sizes[0] == 6 * 4096  # of eight inputs the last two stay


def test_other_shapes_take_other_buffers_and_fit_into_close_ones(make: Any) -> None:
    blocks, offload = make_blocks(8), make()
    for num_samples in (64, 40, 33, 64, 50):
        x = torch.randn(num_samples, 32)
        assert same(run(blocks, x, offload), run(blocks, x, None))
    assert offload.host_bytes == 6 * 8192
    run(blocks, torch.randn(128, 32), offload)
    assert offload.host_bytes == 6 * 8192 + 6 * 16384


def test_the_device_holds_few_inputs_whatever_the_depth(make: Any) -> None:
    size = 64 * 32 * 4

    def held_by(num_blocks: int, offload: OffloadedActivations | None) -> int:
        blocks, cap = make_blocks(num_blocks), DeviceCap(None)
        x = torch.randn(64, 32)
        with cap:
            y = x
            for block in blocks:
                if offload is None:
                    y = checkpoint(block, y, use_reentrant=False)
                else:
                    with offload:
                        y = checkpoint(block, y, use_reentrant=False)
            held = cap.held
            y.sum().backward()
        return held

    slack = 64 * 1024  # states of random generators, one a layer
    assert held_by(24, None) >= 24 * size
    assert held_by(24, make()) <= held_by(6, make()) + slack
    assert held_by(24, make()) <= 5 * size + slack


def test_in_backward_only_what_comes_next_is_brought_back(make: Any) -> None:
    blocks, offload = make_blocks(12), make()
    size = 64 * 32 * 4
    cap = PeakCap(None)
    with cap:
        y = torch.randn(64, 32)
        for block in blocks:
            with offload:
                y = checkpoint(block, y, use_reentrant=False, preserve_rng_state=False)
        loss = y.sum()
        del y
        cap.peak = cap.held
        loss.backward()
    weights = sum(p.nbytes for p in blocks.parameters())
    # three inputs that stayed, two that are on their way or in use, and what one layer makes in its backward
    assert cap.peak <= weights + (3 + 2 + 8) * size


class Watched(Staging):
    """Writes down what is copied up."""

    def __init__(self) -> None:
        super().__init__(CPU, HostStore(Options(), CPU, print))
        self.ups: list[int] = []

    def up(self, target: Tensor, source: Tensor, stream: Any = None) -> Copy:
        self.ups.append(source.numel())
        return super().up(target, source, stream)


def test_an_input_is_on_its_way_before_its_layer_is_computed_again() -> None:
    staging = Watched()
    offload = OffloadedActivations(Lanes(CPU), staging, 1)
    ups_at_recompute: list[int] = []
    blocks = make_blocks(8)
    for block in blocks:
        block.register_forward_pre_hook(lambda *_: ups_at_recompute.append(len(staging.ups)))
    run(blocks, torch.randn(16, 32), offload)
    # three stay; with the last of these the next one is fetched, and so on to the first
    assert ups_at_recompute[8:] == [0, 0, 1, 2, 3, 4, 5, 5]


def test_what_every_layer_gets_is_not_copied_again_and_again() -> None:
    staging = Watched()
    offload = OffloadedActivations(Lanes(CPU), staging, 1)
    mask = torch.ones(16, 32, dtype=torch.float64)  # twice the size of an input
    blocks = make_blocks(8).double()
    inputs = torch.randn(8, 32, dtype=torch.float64)
    for _ in range(2):
        run(blocks, inputs, offload, mask[:8])
        staging.ups.clear()
        run(blocks, inputs, offload, mask[:8])
        assert len(staging.ups) <= 6  # inputs only


@pytest.mark.parametrize("is_pinned", [True, False])
@pytest.mark.parametrize("num_ahead", [0, 1, 2])
def test_with_copies_that_run_as_late_as_they_may(
    monkeypatch: pytest.MonkeyPatch, is_pinned: bool, num_ahead: int
) -> None:
    """Whatever is used, overwritten or given away before its copy is done would show in the gradients."""
    bus = LateBus()
    offload = make_late(monkeypatch, bus, is_pinned)
    offload._num_ahead = num_ahead
    store = offload._staging.store
    blocks = make_blocks(9, dropout=0.2)
    for seed in range(3):
        x = torch.randn(64, 32, generator=torch.Generator().manual_seed(seed))
        assert same(run(blocks, x, offload), run(blocks, x, None))
    assert store.used["activations"].ram_bytes == 7 * 8192
    assert store.used["activations"].pinned_bytes == (7 * 8192 if is_pinned else 0)


def make_late(monkeypatch: pytest.MonkeyPatch, bus: LateBus, is_pinned: bool) -> OffloadedActivations:
    monkeypatch.setattr(staging_module, "MIN_CHUNK_BYTES", 1)
    budget = 2**30 if is_pinned else 2**18
    store = HostStore(Options(pinned_memory=budget), torch.device("cuda"), print, cudart=FakeCudart())
    if not is_pinned:
        store.pinned_budget = store.staging_bytes  # nothing but the rings
    staging = Staging(torch.device("cuda"), store, bus)
    return OffloadedActivations(LateLanes(bus), staging, 1)


def forward(blocks: nn.ModuleList, x: Tensor, offload: OffloadedActivations) -> Tensor:
    for block in blocks:
        with offload:
            x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
    return x


def test_memory_goes_back_to_the_computation_only_after_its_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    bus = LateBus()
    offload = make_late(monkeypatch, bus, is_pinned=True)
    y = forward(make_blocks(9), torch.randn(64, 32), offload)
    assert (bus.num_copies, bus.num_done) == (
        7,
        6,
    )  # two stay; of those sent, all but the last were waited for
    y.sum().backward()
    assert bus.num_done == 7 + 6


def test_what_was_fetched_for_nothing_keeps_its_memory_until_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    bus = LateBus()
    offload = make_late(monkeypatch, bus, is_pinned=True)
    blocks = make_blocks(9)

    def fail(*_: Any) -> None:
        raise RuntimeError("in the middle of backward")

    y = forward(blocks, torch.randn(64, 32), offload)
    handle = blocks[4].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        y.sum().backward()
    handle.remove()
    del y
    blocks.zero_grad(set_to_none=True)
    before = bus.num_done
    x = torch.randn(64, 32)
    assert bus.num_done < bus.num_copies
    with offload:
        checkpoint(blocks[0], x, use_reentrant=False)
    assert bus.num_done > before  # the copy that nobody wanted any more
    offload.forget()
    assert same(run(blocks, x, offload), run(blocks, x, None))


def test_the_host_waits_for_a_thread_that_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    bus, gate, run_now = LateBus(), threading.Event(), LateBus.run

    def hold_back(self: LateBus, stream: Any, count: int) -> None:
        if threading.current_thread().name == "portwright-staging":
            gate.wait()
        run_now(self, stream, count)

    monkeypatch.setattr(LateBus, "run", hold_back)
    offload = make_late(monkeypatch, bus, is_pinned=False)
    blocks, x = make_blocks(5), torch.randn(64, 32)
    expected = run(blocks, x, None)
    timer = threading.Timer(0.3, gate.set)
    timer.start()
    assert same(run(blocks, x, offload), expected)
    timer.join()


def test_a_mask_that_every_layer_gets_stays(make: Any) -> None:
    blocks, offload = make_blocks(6), make()
    x, mask = torch.randn(16, 32), (torch.rand(16, 32) > 0.5).float()
    expected = run(blocks, x, None, mask)
    for _ in range(2):
        assert same(run(blocks, x, offload, mask), expected)
    assert offload.host_bytes <= 6 * 4096


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.t().contiguous().t(),
        lambda x: x[:, ::2].repeat_interleave(2, dim=1)[:, :32],
        lambda x: x[:1].expand(16, 32),
        lambda x: torch.cat([x, x], 1)[:, 16:48],
        lambda x: x.as_strided((16, 32), (32, 1)),
        lambda x: x[0],
        lambda x: x.to(torch.bfloat16).float().requires_grad_(),
    ],
)
def test_any_layout_comes_back_as_it_was(make: Any, change: Callable[[Tensor], Tensor]) -> None:
    seen: list[tuple[Any, ...]] = []

    class Look(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(32))

        def forward(self, x: Tensor) -> Tensor:
            seen.append((x.shape, x.stride(), x.dtype, x.detach().clone()))
            return x * self.weight

    layers, offload = [Look() for _ in range(6)], make()
    x = torch.randn(16, 32)
    total = torch.zeros(())
    for layer in layers:
        with offload:
            total = total + checkpoint(layer, change(x), use_reentrant=False).sum()
    total.backward()
    assert len(seen) == 12
    for forward, again in zip(seen[:6], reversed(seen[6:]), strict=True):
        assert forward[:3] == again[:3]
        assert torch.equal(forward[3], again[3])


def test_nan_and_negative_zero_are_bits_like_others(make: Any) -> None:
    offload = make()
    bits = torch.tensor([0x7FC01234, -0x80000000, 0x7F800000, 1], dtype=torch.int32)
    kept: list[Tensor] = []

    class Keep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            kept.append(ctx.saved_tensors[0])
            return grad

    with offload:
        y = bits.view(torch.float32).clone().requires_grad_()
        for _ in range(6):
            y = Keep.apply(y)
    y.sum().backward()
    assert all(torch.equal(x.view(torch.int32), bits) for x in kept)
    assert len(kept) == 6


def test_backward_twice_over_one_graph(make: Any) -> None:
    blocks, offload = make_blocks(6), make()
    y = torch.randn(16, 32)
    for block in blocks:
        with offload:
            y = checkpoint(block, y, use_reentrant=False)
    loss = y.square().mean()
    loss.backward(retain_graph=True)
    first = [p.grad.clone() for p in blocks.parameters() if p.grad is not None]
    blocks.zero_grad(set_to_none=True)
    loss.backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(first, blocks.parameters(), strict=True))


def test_a_pass_without_backward_leaves_nothing_behind(make: Any) -> None:
    blocks, offload = make_blocks(8), make()
    x = torch.randn(16, 32)
    expected = run(blocks, x, None)
    cap = DeviceCap(None)
    for _ in range(3):
        with cap:
            y = x
            for block in blocks:
                with offload:
                    y = checkpoint(block, y, use_reentrant=False, preserve_rng_state=False)
        del y
        offload.forget()
        assert cap.held == 0
        assert same(run(blocks, x, offload), expected)
    assert offload.host_bytes == 6 * 4096


@pytest.mark.parametrize("when", [0, 3, 6])
def test_an_input_changed_in_place_is_an_error_and_not_a_wrong_gradient(make: Any, when: int) -> None:
    blocks, offload = make_blocks(7), make()
    y = torch.randn(16, 32) * 1
    for index, block in enumerate(blocks):
        x = y
        with offload:
            y = checkpoint(block, x, use_reentrant=False)
        if index == when:
            with torch.no_grad():
                x.add_(1)
    with pytest.raises(UserError, match="changed in place after the layer was called"):
        y.sum().backward()


def test_small_tensors_stay(make: Any) -> None:
    blocks = make_blocks(6)
    offload = make(min_bytes=16 * 32 * 4 + 1)
    x = torch.randn(16, 32)
    assert same(run(blocks, x, offload), run(blocks, x, None))
    assert offload.host_bytes == 0


def test_accumulation_interleaved_with_other_lengths(make: Any) -> None:
    blocks, offload = make_blocks(5), make()
    for num_samples in (16, 8, 1, 16):
        x = torch.randn(num_samples, 32)
        assert same(run(blocks, x, offload), run(blocks, x, None))
