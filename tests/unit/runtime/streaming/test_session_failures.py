"""A streaming session under want: each failure is told with its cure before anything is lost, and the session's folder is as it was."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from conformance import contract

from portwright.errors import UserError
from portwright.runtime.backend import TorchBackend
from portwright.runtime.checkpoint import CheckpointWriter, read_checkpoint
from portwright.runtime.session import TorchSession
from portwright.runtime.streaming import disk_array, host_memory, host_store
from portwright.runtime.streaming import session as streaming_session
from portwright.runtime.streaming.device_cap import DeviceMemoryError
from portwright.runtime.streaming.host_memory import HostMemory, HostMemoryError
from portwright.runtime.streaming.session import StreamingSession

BF16 = "runconfig.precision=bf16"
pytestmark = pytest.mark.filterwarnings(
    r"ignore:.torch.cpu.amp.autocast\(args:FutureWarning"
)  # torch 2.4's own


def open_streaming(*overrides: str, notes: list[str] | None = None) -> StreamingSession:
    backend = TorchBackend("cpu", {}, print)
    note: Any = print if notes is None else notes.append
    return StreamingSession(contract.make_job("train", *overrides), backend.device, backend.world, note)


def losses(session: TorchSession, last: int = 16) -> list[float]:
    return [loss for event in session.train(contract.stretch(0, last)) for loss in event.losses]


def have(monkeypatch: pytest.MonkeyPatch, available: int) -> None:
    memory = HostMemory(limit_bytes=64 << 30, available_bytes=available, limited_by="this machine")
    monkeypatch.setattr(host_memory, "SPARE_BYTES", 0)
    for module in (host_memory, host_store, streaming_session):
        monkeypatch.setattr(module, "read_host_memory", lambda *_: memory)


def test_host_memory_that_is_not_there_is_an_error_before_the_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    have(monkeypatch, 100_000)
    with pytest.raises(HostMemoryError, match=r"needed.*free.*runconfig\.streaming\.store"):
        open_streaming(BF16)


def test_without_memory_for_an_undo_the_optimizer_waits_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    clipped = ("optimizer.max_gradient_norm=0.5", BF16)
    expected = losses(open_streaming(*clipped))
    have(monkeypatch, 300_000)
    notes: list[str] = []
    session = open_streaming(*clipped, notes=notes)
    assert any("no host memory for an undo" in note for note in notes)
    assert losses(session) == expected
    assert session._engine._updates.num_rolled_back == 0
    session.close()


def test_a_full_disk_is_an_error_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(disk_array.StoreFolderError, match="free"):
        open_streaming(BF16, f"runconfig.streaming.store={tmp_path}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["missing", "file"])
def test_a_store_that_is_no_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"runconfig\.streaming\.store"):
        open_streaming(BF16, f"runconfig.streaming.store={tmp_path / name}")


def test_a_cap_below_a_step_names_who_holds_what_and_leaves_the_weights() -> None:
    session = open_streaming("runconfig.streaming.device_memory=200KiB")
    before = contract.weights(session)
    with pytest.raises(DeviceMemoryError, match=r"layers\.|held") as caught:
        losses(session)
    assert "offload_activations" in caught.value.cure
    after = contract.weights(session)
    assert all(torch.equal(before[name], after[name]) for name in before)
    session.close()


def test_the_data_of_an_evaluation_are_not_the_devices() -> None:
    backend = TorchBackend("cpu", {}, print)
    job = contract.make_job(
        "train_and_eval",
        "runconfig.streaming.device_memory=250KiB",
        "train_input.batch_size=8",
        "eval_input.batch_size=8",
    )
    session = StreamingSession(job, backend.device, backend.world, print)
    losses(session, 4)
    assert session.evaluate(None)["loss"] > 0
    session.close()


def test_a_state_too_large_for_a_copy_is_written_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_streaming(BF16)
    losses(session, 8)
    expected = {shard.name: shard.tensor.clone() for shard in session.state()}
    assert not session.state_is_live
    session.close()
    other = open_streaming(BF16)
    losses(other, 8)
    have(monkeypatch, 1000)
    with CheckpointWriter(tmp_path, None, print) as writer:
        writer.save(8, other.state(), other.counters())
        assert other.state_is_live
    monkeypatch.undo()
    found = {shard.name: shard.tensor for shard in read_checkpoint(tmp_path / "checkpoint_8").shards}
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    other.close()


def test_updates_on_the_device_go_on_after_good_weights_were_loaded() -> None:
    overrides = (BF16, "runconfig.streaming.update_on_device=1.0")
    session = open_streaming(*overrides)
    good, counters = list(session.state()), session.counters()
    assert session._engine._device_update is not None
    session._engine._device_update.hold_if_not_finite(torch.tensor(float("nan")))
    session.load_state(good, counters)
    assert losses(session) == losses(open_streaming(*overrides))
    session.close()
