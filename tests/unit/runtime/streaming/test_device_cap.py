from __future__ import annotations

import gc
import threading

import pytest
import torch
from streaming_fakes import PeakCap
from torch import nn
from torch.utils.checkpoint import checkpoint

from portwright.errors import ExitStatus, UserError
from portwright.runtime.streaming.device_cap import (
    STEP,
    DeviceCap,
    DeviceMemoryError,
    cap_cuda,
    explain_out_of_memory,
)

KIB = 1024
# torch 2.4's checkpoint calls a name of torch's own that is on its way out.
pytestmark = pytest.mark.filterwarnings(r"ignore:.torch.cpu.amp.autocast\(args:FutureWarning")


def floats(num_bytes: int) -> torch.Tensor:
    return torch.ones(num_bytes // 4)


def test_counts_what_an_operation_makes_until_it_dies() -> None:
    cap = PeakCap(None)
    given = floats(4 * KIB)
    with cap:
        a = given + 1
        b = given * 2
        assert cap.held == 8 * KIB
        c = a + b
        del a, b
        assert cap.held == 4 * KIB
        del c
    assert cap.held == 0
    assert cap.peak == 12 * KIB


def test_views_and_operations_in_place_make_nothing() -> None:
    cap = PeakCap(None)
    given = floats(4 * KIB)
    with cap:
        view = given.view(32, 32).t()[3:]
        view.add_(1)
        given.mul_(2).clamp_(0, 1)
        torch.add(given, given, out=given)
        assert cap.held == 0
        made = given.clone()
        again = made.view(-1, 2).detach()[1:]
        made.zero_()
        assert cap.held == 4 * KIB
        del made
        assert cap.held == 4 * KIB  # a view holds it
        del again
    assert cap.held == 0
    assert cap.peak == 4 * KIB


def test_several_results_each_count_once() -> None:
    cap = DeviceCap(None)
    given = floats(8 * KIB).view(64, 32)
    with cap:
        values, indices = given.max(dim=1)
        assert cap.held == 64 * 4 + 64 * 8
        parts = given.split(16)  # views
        assert cap.held == 64 * 12
        copies = [part.clone() for part in parts]
        assert cap.held == 64 * 12 + 8 * KIB
        del values, indices, copies
        assert cap.held == 0


def test_what_grows_is_measured_again() -> None:
    cap = DeviceCap(None)
    with cap:
        made = torch.empty(0)
        made.resize_(256)
        assert cap.held == KIB
        torch.add(torch.ones(512), 1, out=made.resize_(0))
        assert cap.held == 2 * KIB


def test_tensors_from_lists_and_sparse_ones_count() -> None:
    cap = DeviceCap(None)
    with cap:
        listed = torch.tensor([1.0] * 256)
        assert cap.held == KIB
        del listed
        sparse = torch.eye(16).to_sparse()
        assert cap.held == 16 * 2 * 8 + 16 * 4
        del sparse
    assert cap.held == 0


def test_backward_counts_in_the_same_way() -> None:
    """A chain of exp keeps one result a layer; backward frees them one by one and leaves the gradient."""
    weight = nn.Parameter(floats(4 * KIB))
    cap = PeakCap(None)
    with cap:
        x = weight
        for _ in range(5):
            x = (x * 0.5).exp()
        assert cap.held == 5 * 4 * KIB  # what mul made died at once
        cap.peak = cap.held
        x.sum().backward()
        del x
        assert weight.grad is not None
        assert cap.held == 4 * KIB  # the gradient
    assert 6 * 4 * KIB <= cap.peak <= 8 * 4 * KIB + 8
    weight.grad = None
    assert cap.held == 0


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = (x * self.weight).exp()
        return x


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointed_layers_keep_only_their_inputs(use_reentrant: bool) -> None:
    size = 64 * KIB
    blocks = nn.ModuleList(Block() for _ in range(6))
    x = floats(size).mul(0.01).requires_grad_()

    def peak_of(recompute: bool) -> tuple[int, int]:
        cap = PeakCap(None)
        with cap:
            y = x
            for block in blocks:
                y = checkpoint(block, y, use_reentrant=use_reentrant) if recompute else block(y)
            after_forward = cap.held
            y.sum().backward()
        x.grad = None
        return after_forward, cap.peak

    kept, peak = peak_of(recompute=True)
    kept_all, peak_of_all = peak_of(recompute=False)
    slack = 2 * KIB  # scalars, and the state of random generators
    assert 6 * size <= kept <= 6 * size + slack
    assert kept_all >= 6 * 4 * size
    assert peak < peak_of_all - 8 * size
    # the inputs of five blocks, what the sixth makes anew, and a few gradients
    assert peak <= (6 + 8 + 4) * size + slack


def test_raises_at_the_allocation_that_goes_beyond() -> None:
    cap = DeviceCap(10 * KIB)
    cap.take("weight slots", 4 * KIB)
    given = floats(4 * KIB)
    reached = []

    def step() -> None:
        kept = given + 1
        reached.append("first")
        with cap.within("blocks.2"):
            kept = kept.exp() + kept
        reached.append("second")

    with cap, pytest.raises(DeviceMemoryError) as caught:
        step()
    assert reached == ["first"]
    error = caught.value
    assert isinstance(error, UserError)
    assert error.status == ExitStatus.USAGE
    assert "in layer 'blocks.2'" in error.message
    assert "4.10 kB for aten.exp beside 8.19 kB, of 10.2 kB" in error.message
    assert "weight slots 4.10 kB" in error.message
    assert error.message.endswith((f"{STEP} 4.10 kB.", "weight slots 4.10 kB."))
    assert error.details["held_bytes"] == {"weight slots": 4 * KIB, STEP: 4 * KIB}
    assert "offload_activations" in error.cure
    assert "\n" not in str(error)
    assert error.details["limit_bytes"] == 10 * KIB


def test_exactly_the_limit_is_allowed() -> None:
    cap = DeviceCap(8 * KIB)
    given = floats(4 * KIB)
    with cap:
        kept = [given + 1, given + 2]
        with pytest.raises(DeviceMemoryError):
            kept.append(torch.ones(1) + 1)


def test_raises_out_of_backward_and_of_recomputation() -> None:
    x = floats(64 * KIB).mul(0.01).requires_grad_()
    cap = DeviceCap(None)
    with cap:
        y = checkpoint(Block(), x, use_reentrant=False)
        cap.limit_bytes = cap.held + 100 * KIB
        with pytest.raises(DeviceMemoryError, match="out of device memory"):
            y.sum().backward()
    del y
    gc.collect()
    cap.limit_bytes = None
    x.grad = None


def test_after_an_error_memory_is_counted_down_and_work_goes_on() -> None:
    cap = DeviceCap(10 * KIB)
    given = floats(4 * KIB)

    def attempt() -> None:
        with cap, pytest.raises(DeviceMemoryError):
            _ = [given + i for i in range(5)]

    attempt()
    gc.collect()
    assert cap.held == 0
    attempt()
    gc.collect()
    assert cap.held == 0


def test_take_raises_before_it_counts_and_names_itself() -> None:
    cap = DeviceCap(10 * KIB)
    cap.take("weight slots", 6 * KIB)
    cap.take("weight slots", 1 * KIB)
    with pytest.raises(DeviceMemoryError, match=r"4.10 kB for gradient slots beside 7.17 kB"):
        cap.take("gradient slots", 4 * KIB)
    assert cap.held_by_label == {"weight slots": 7 * KIB}


def test_many_holders_are_summed_up() -> None:
    cap = DeviceCap(20 * KIB)
    for i in range(20):
        cap.take(f"holder {i}", KIB)
    with pytest.raises(DeviceMemoryError, match=r"15 others 15\.4 kB"):
        cap.take("one more", 1)


def test_other_threads_do_not_count() -> None:
    cap = DeviceCap(1 * KIB)
    kept: list[torch.Tensor] = []
    with cap:
        thread = threading.Thread(target=lambda: kept.append(floats(4 * KIB) + 1))
        thread.start()
        thread.join()
        kept[0].add_(1)
        assert cap.held == 0
    assert len(kept) == 1


def test_entered_again_for_every_step() -> None:
    cap = DeviceCap(None)
    weight = nn.Parameter(floats(4 * KIB))
    optimizer = torch.optim.Adam([weight], lr=0.1, foreach=False)
    held = []
    for _ in range(3):
        with cap:
            (weight * weight).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        held.append(cap.held_by_label[STEP])
    assert held[0] == held[2]
    assert 8 * KIB <= held[0] <= 8 * KIB + 64  # Adam's two moments and its step count
    floats(4 * KIB)
    assert cap.held_by_label[STEP] == held[0]


def test_a_storage_resized_unseen_is_measured_before_an_error() -> None:
    cap = DeviceCap(10 * KIB)
    given = floats(8 * KIB)
    with cap:
        made = given + 1
        made.untyped_storage().resize_(0)
        other = given + 1
        assert cap.held == 8 * KIB
        assert other.sum() == 4 * KIB


def test_counting_changes_no_bit_of_a_step() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(11, 16),
        nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True),
        nn.Conv1d(6, 6, 3),
        nn.Linear(14, 11),
    )
    tokens = torch.randint(0, 11, (4, 6))

    def step() -> list[torch.Tensor]:
        torch.manual_seed(1)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        got = [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]
        model.zero_grad(set_to_none=True)
        return got

    expected = step()
    with DeviceCap(2**20):
        counted = step()
    assert len(expected) == len(list(model.parameters())) + 1
    assert all(torch.equal(a, b) for a, b in zip(expected, counted, strict=True))


def test_out_of_memory_of_cuda_becomes_a_user_error() -> None:
    kind = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
    with (
        pytest.raises(DeviceMemoryError, match="tried to allocate 20 GiB") as caught,
        explain_out_of_memory(torch.device("cpu"), 10),
    ):
        raise kind("CUDA out of memory: tried to allocate 20 GiB\nmore lines")
    assert "smaller batch" in caught.value.cure
    assert isinstance(caught.value.__cause__, kind)
    with pytest.raises(ValueError), explain_out_of_memory(torch.device("cpu")):
        raise ValueError("another")


def test_cap_cuda_sets_the_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []

    class Properties:
        total_memory = 1000

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties())
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda fraction, device: calls.append(fraction)
    )
    assert cap_cuda(torch.device("cuda"), 250) == 250
    assert cap_cuda(torch.device("cuda"), 5000) == 1000
    assert cap_cuda(torch.device("cuda"), None) == 1000
    assert calls == [0.25, 1.0, 1.0]
