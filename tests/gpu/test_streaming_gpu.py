"""Weight streaming on a real GPU: the losses of a resident run, whatever the copies and threads do meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from conformance import contract

from portwright.errors import NonFiniteError
from portwright.runtime.backend import TorchBackend
from portwright.runtime.session import TorchSession
from portwright.runtime.streaming import device_update
from portwright.runtime.streaming.device_cap import DeviceMemoryError, cap_cuda
from portwright.runtime.streaming.gradients import Gradients
from portwright.runtime.streaming.session import StreamingSession
from portwright.target import JobSpec

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(torch.cuda.is_available())
    monkeypatch.setattr(Gradients, "alone_from", 200)
    monkeypatch.setattr(device_update, "CHUNK", 1000)


def open_streaming(job: JobSpec) -> StreamingSession:
    backend = TorchBackend("cuda", {}, print)
    return StreamingSession(job, backend.device, backend.world, print)


def open_resident(job: JobSpec) -> TorchSession:
    backend = TorchBackend("cuda", {}, print)
    return TorchSession(job, backend.device, backend.world, print)


def losses(session: TorchSession, last: int = 40) -> list[float]:
    return [loss for event in session.train(contract.stretch(0, last)) for loss in event.losses]


@pytest.mark.parametrize("check", contract.ALL, ids=lambda check: check.__name__)
def test_contract(check) -> None:
    check(open_streaming)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("optimizer.max_gradient_norm=0.5",),
        ("optimizer.max_gradient_norm=500",),
        ("optimizer.grad_accum_steps=2", "optimizer.max_gradient_norm=0.5"),
        ("runconfig.precision=bf16", "runconfig.streaming.update_on_device=0.0"),
        ("runconfig.precision=bf16", "runconfig.streaming.update_on_device=1.0"),
        ("runconfig.precision=bf16", "optimizer.max_gradient_norm=0.5"),
        ("runconfig.precision=bf16", "runconfig.streaming.offload_activations=true"),
        ("runconfig.precision=bf16", "runconfig.streaming.pinned_memory=64KiB"),
        ("runconfig.precision=bf16", "runconfig.streaming.slots=2"),
        ("runconfig.precision=fp16", "optimizer.loss_scaling_factor=dynamic"),
        ("optimizer.optimizer_type=Lion",),
    ],
    ids=lambda overrides: "-".join(overrides) or "plain",
)
def test_losses_are_those_of_a_resident_run(overrides: tuple[str, ...]) -> None:
    resident = losses(open_resident(contract.make_job("train", *overrides)))
    session = open_streaming(contract.make_job("train", *overrides))
    streamed = losses(session)
    session.close()
    assert streamed == pytest.approx(resident, rel=2e-3 if "precision" in str(overrides) else 2e-4)


def test_a_run_is_the_same_each_time() -> None:
    overrides = ("runconfig.precision=bf16", "runconfig.streaming.update_on_device=0.5")
    first, second = (losses(open_streaming(contract.make_job("train", *overrides))) for _ in range(2))
    assert first == second


def test_the_state_on_disk(tmp_path: Path) -> None:
    more = ("runconfig.precision=bf16",)
    in_memory = losses(
        open_streaming(contract.make_job("train", *more, "runconfig.streaming.update_on_device=0.0"))
    )
    on_disk = losses(
        open_streaming(contract.make_job("train", *more, f"runconfig.streaming.store={tmp_path}"))
    )
    assert on_disk == in_memory


def test_nan_holds_the_weights() -> None:
    session = open_streaming(
        contract.make_job("train", "train_input.shuffle=false", "runconfig.precision=bf16")
    )
    session._train_loader._source._loader.dataset.tensors[0][64 * 6 + 5] = float("nan")
    with pytest.raises(NonFiniteError, match="step 7"):
        list(session.train(contract.stretch(0, 64, log=16, boundary=0)))
    assert all(torch.isfinite(s.tensor).all() for s in session.state() if s.name.startswith("model/"))


def test_a_cap_that_is_exceeded_says_so() -> None:
    used = torch.cuda.memory_reserved()
    session = open_streaming(
        contract.make_job("train", f"runconfig.streaming.device_memory={used + (8 << 20)}")
    )
    try:
        with pytest.raises(DeviceMemoryError, match="device_memory"), session._watched_memory():
            torch.empty(64 << 20, device="cuda")
        assert losses(session, 4)
    finally:
        cap_cuda(session._device, None)
        session.close()
