"""What every session must do, whoever owns the step; each kind of session is put through all of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from portwright.job.params import load_params
from portwright.target import Event, JobSpec, Session, Stretch

FC_MNIST = Path(__file__).parents[2] / "src" / "portwright" / "models" / "fc_mnist"
OpenSession = Callable[[JobSpec], Session]


def make_job(mode: str = "train_and_eval", *overrides: str) -> JobSpec:
    """fc_mnist without dropout, in small batches that do not divide its data."""
    sys.path.insert(0, str(FC_MNIST))
    try:
        import data
        import model
        import utils
    finally:
        sys.path.remove(str(FC_MNIST))
    params = load_params(
        FC_MNIST / "configs" / "params.yaml",
        overrides=(
            "model.dropout=0.0",
            "train_input.drop_last=true",
            "eval_input.batch_size=120",
            *overrides,
        ),
        default_params_fn=utils.set_defaults,
        user_schemas=utils.PARAMS_SCHEMA,
    )
    return JobSpec(params, model.MNISTModel, data.get_train_dataloader, data.get_eval_dataloader, mode)  # type: ignore[arg-type]


def stretch(
    first: int, last: int, log: int = 4, boundary: int = 8, stop: Callable[[], bool] = lambda: False
) -> Stretch:
    return Stretch(first, last, log_steps=log, boundary_steps=boundary, should_stop=stop)


def weights(session: Session) -> dict[str, torch.Tensor]:
    return {s.name: s.tensor.clone() for s in session.state() if s.name.startswith("model/")}


def check_events(open_session: OpenSession) -> None:
    session = open_session(make_job())
    events = list(session.train(stretch(0, 20)))
    assert [e.step for e in events if e.kind == "log"] == [4, 8, 12, 16, 20]
    assert [e.step for e in events if e.kind == "boundary"] == [8, 16, 20]
    assert [e.step for e in events] == sorted(e.step for e in events)
    assert sum(len(e.losses) for e in events) == 20
    losses = [loss for e in events for loss in e.losses]
    assert losses[-1] < losses[0]
    session.close()


def check_stretches_are_one_run(open_session: OpenSession) -> list[float]:
    whole = open_session(make_job())
    losses = _losses(whole.train(stretch(0, 64)))
    pieces = open_session(make_job())
    assert _losses(pieces.train(stretch(0, 24))) + _losses(pieces.train(stretch(24, 64))) == losses, (
        "data must go on"
    )
    _assert_equal(weights(whole), weights(pieces))
    return losses


def check_resume(open_session: OpenSession) -> None:
    """State taken at a boundary and put into a new session gives the rest of the run, over an epoch's end."""
    whole = open_session(make_job())
    first = _losses(whole.train(stretch(0, 16)))
    shards, counters = list(whole.state()), whole.counters()
    rest = _losses(whole.train(stretch(16, 64)))
    resumed = open_session(make_job())
    resumed.load_state(shards, counters)
    assert _losses(resumed.train(stretch(16, 64))) == rest
    _assert_equal(weights(whole), weights(resumed))
    assert len(first) == 16


def check_state_is_private(open_session: OpenSession) -> None:
    session = open_session(make_job())
    for event in session.train(stretch(0, 16)):
        if event.kind == "boundary" and event.step == 8:
            shards = list(session.state())
            before = {s.name: s.tensor.clone() for s in shards}
    assert all(s.tensor.equal(before[s.name]) for s in shards), "later steps changed a shard"


def check_evaluation_leaves_no_trace(open_session: OpenSession) -> None:
    plain, evaluated = open_session(make_job()), open_session(make_job())
    _losses(plain.train(stretch(0, 32)))
    _losses(evaluated.train(stretch(0, 16)))
    values = evaluated.evaluate(None)
    assert 0.0 < values["eval/accuracy"] <= 1.0
    assert values == evaluated.evaluate(None)
    _losses(evaluated.train(stretch(16, 32)))
    _assert_equal(weights(plain), weights(evaluated))


def check_stop(open_session: OpenSession) -> None:
    session = open_session(make_job())
    asked: list[int] = []

    def stop() -> bool:
        asked.append(0)
        return len(asked) * session.steps_per_call >= 12

    events = list(session.train(stretch(0, 64, stop=stop)))
    assert events[-1].kind == "boundary"
    assert events[-1].step == 12


ALL = (
    check_events,
    check_stretches_are_one_run,
    check_resume,
    check_state_is_private,
    check_evaluation_leaves_no_trace,
    check_stop,
)


def _losses(events: Any) -> list[float]:
    return [loss for event in events for loss in _of(event)]


def _of(event: Event) -> tuple[float, ...]:
    return event.losses


def _assert_equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].equal(b[name]), name
