"""The emulated RDU's session keeps the contract of every session, and in fp32 computes what torch's does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conformance import contract

from portwright.runtime.backend import TorchBackend
from portwright.target import JobSpec, Session
from portwright.targets.rdu.session import RduBackend

pytestmark = pytest.mark.filterwarnings("ignore:TF32 acceleration")  # of torch, when mkldnn is switched off


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # PEFs of jobs without a folder go here


def open_rdu(job: JobSpec) -> Session:
    job.params.values["rdu"] = {"precision": "fp32"}
    return RduBackend({"emulate": True}, print).open(job)


def open_torch(job: JobSpec) -> Session:
    return TorchBackend("cpu", {}, print).open(job)


@pytest.mark.parametrize("check", contract.ALL, ids=lambda check: check.__name__)
def test_contract(check: Callable[..., object]) -> None:
    check(open_rdu)


def test_losses_and_weights_are_the_cpus() -> None:
    ours, theirs = open_rdu(contract.make_job()), open_torch(contract.make_job())
    losses = contract._losses(ours.train(contract.stretch(0, 40)))
    expected = contract._losses(theirs.train(contract.stretch(0, 40)))
    assert losses == pytest.approx(expected, abs=1e-5)
    weights = contract.weights(theirs)
    for name, tensor in contract.weights(ours).items():
        torch.testing.assert_close(tensor, weights[name], atol=1e-5, rtol=1e-4)


def test_a_checkpoint_moves_between_cpu_and_rdu() -> None:
    first = open_torch(contract.make_job())
    contract._losses(first.train(contract.stretch(0, 16)))
    shards, counters = list(first.state()), first.counters()
    rest = contract._losses(first.train(contract.stretch(16, 32)))
    there = open_rdu(contract.make_job())
    there.load_state(shards, counters)
    assert contract._losses(there.train(contract.stretch(16, 32))) == pytest.approx(rest, abs=1e-5)
    back = open_torch(contract.make_job())
    back.load_state(list(there.state()), there.counters())
    assert contract._losses(back.train(contract.stretch(32, 40))) == pytest.approx(
        contract._losses(first.train(contract.stretch(32, 40))), abs=1e-5
    )
