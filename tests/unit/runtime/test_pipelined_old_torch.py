"""Layer pipelining where torch has no schedules for it: several stages are refused, one process trains."""

from __future__ import annotations

import pytest
from conformance import contract

from portwright.errors import UnsupportedError
from portwright.runtime.backend import TorchBackend
from portwright.runtime.pipelined import schedules
from portwright.runtime.pipelined.session import MicroBatchSession


def test_several_stages_are_refused_with_a_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "has_schedules", False)
    with pytest.raises(UnsupportedError, match="one process"):
        schedules.require_schedules()


def test_one_process_needs_none() -> None:
    backend = TorchBackend("cpu", {}, print)
    job = contract.make_job("train", "runconfig.pipeline.micro_batches=2")
    session = MicroBatchSession(job, backend.device, backend.world, print)
    losses = [loss for event in session.train(contract.stretch(0, 8)) for loss in event.losses]
    assert len(losses) == 8
    assert losses[-1] < losses[0]
    session.close()
