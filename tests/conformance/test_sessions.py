"""Torch's own session, resident and streaming, one that takes four batches a call and the emulated IPU keep one contract; Cerebras's is in tests/vendor."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conformance import contract
from conformance.bundled import open_bundled

from portwright.errors import UserError
from portwright.job.logs import Console
from portwright.job.outcome import Outcome
from portwright.job.signals import StopSignals
from portwright.runtime.backend import TorchBackend
from portwright.runtime.checkpoint import list_checkpoints
from portwright.runtime.streaming.session import StreamingSession
from portwright.runtime.trainer import Trainer
from portwright.target import JobSpec, Session
from portwright.targets.ipu.section import IpuSection
from portwright.targets.ipu.session import IpuBackend


def open_torch(job: JobSpec) -> Session:
    return TorchBackend("cpu", {}, print).open(job)


def open_streaming(job: JobSpec) -> Session:
    config = job.params.runconfig.model_copy(update={"execution": "streaming"})
    return TorchBackend("cpu", {}, print).open(
        dataclasses.replace(job, params=dataclasses.replace(job.params, runconfig=config))
    )


def open_ipu(job: JobSpec, **section: Any) -> Session:
    """PopTorch's rules on a CPU."""
    sections = {"ipu": IpuSection.model_validate(section)}
    params = dataclasses.replace(job.params, sections={**job.params.sections, **sections})
    return IpuBackend({"emulate": True}, print).open(dataclasses.replace(job, params=params))


def open_ipu_bundled(job: JobSpec) -> Session:
    return open_ipu(job, device_iterations=4)


@pytest.mark.parametrize("check", contract.ALL, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    "open_session", [open_torch, open_streaming, open_bundled, open_ipu, open_ipu_bundled]
)
def test_contract(check: Callable[..., object], open_session: contract.OpenSession) -> None:
    check(open_session)


def test_both_compute_the_same() -> None:
    assert contract.check_stretches_are_one_run(open_torch) == contract.check_stretches_are_one_run(
        open_bundled
    )


def test_streaming_computes_what_a_resident_session_computes() -> None:
    assert isinstance(open_streaming(contract.make_job()), StreamingSession)
    assert contract.check_stretches_are_one_run(open_streaming) == contract.check_stretches_are_one_run(
        open_torch
    )


@pytest.mark.parametrize("open_session", [open_ipu, open_ipu_bundled])
def test_the_emulated_ipu_computes_what_torch_computes(open_session: contract.OpenSession) -> None:
    losses = contract.check_stretches_are_one_run(open_session)
    assert losses == pytest.approx(contract.check_stretches_are_one_run(open_torch), rel=1e-5)


def test_the_trainer_drives_a_bundled_session(tmp_path: Path) -> None:
    job = contract.make_job(
        "train_and_eval", "runconfig.max_steps=40", "runconfig.checkpoint_steps=20", "runconfig.log_steps=8"
    )
    session = open_bundled(job)
    world = TorchBackend("cpu", {}, print).world
    outcome = Outcome("train_and_eval", "bundled", str(tmp_path))
    with StopSignals() as signals:
        trainer = Trainer(session, job.params.runconfig, tmp_path, world, signals, Console(), outcome)
        trainer.train(evaluates=True)
    assert [c.step for c in list_checkpoints(tmp_path)] == [20, 40]
    assert outcome.values["eval/accuracy"] > 0.5


def test_steps_between_calls_are_refused(tmp_path: Path) -> None:
    job = contract.make_job("train", "runconfig.max_steps=42")
    outcome = Outcome("train", "bundled", str(tmp_path))
    world = TorchBackend("cpu", {}, print).world
    with StopSignals() as signals, pytest.raises(UserError, match="takes 4 steps a call"):
        Trainer(open_bundled(job), job.params.runconfig, tmp_path, world, signals, Console(), outcome).train(
            evaluates=False
        )
