"""Models whose Python does not do the same in every step: each is refused, since a stage plays the first step back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from portwright.base_model import LossModule
from portwright.errors import UserError
from portwright.runtime.pipelined.pipeline import Pipeline
from portwright.runtime.pipelined.schedules import Layout

CPU = torch.device("cpu")
COUNT = [0]
DRAW = np.random.default_rng(0)


class Net(nn.Module):
    def __init__(self, act: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.state, self.memo, self.plain = {"n": 0}, [0], torch.ones(())
        self.register_buffer("seen", torch.zeros(()))
        self.act = act

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = self.second(self.first(x))
        return F.cross_entropy(self.last(hidden * self.act(self, hidden)), y)


def count_in_dict(net: Net, hidden: torch.Tensor) -> int:
    net.state["n"] += 1
    return net.state["n"]


def count_in_list(net: Net, hidden: torch.Tensor) -> int:
    net.memo.append(1)
    return len(net.memo)


def count_outside(net: Net, hidden: torch.Tensor) -> int:
    COUNT[0] += 1
    return COUNT[0]


def write_plain(net: Net, hidden: torch.Tensor) -> float:
    return net.plain.add_(1).item()


def write_unknown(net: Net, hidden: torch.Tensor) -> torch.Tensor:
    return net.plain.mul_(0.9).add_(hidden.detach().mean())


def write_weight(net: Net, hidden: torch.Tensor) -> int:
    net.last.weight.data.clamp_(-0.1, 0.1)
    return 1


def watch_gradient(net: Net, hidden: torch.Tensor) -> int:
    hidden.register_hook(lambda gradient: gradient * 3)
    return 1


def infer(net: Net, hidden: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return net.first(hidden)


def prepare(net: Net) -> list[str]:
    notes: list[str] = []
    pipeline = Pipeline(LossModule(net), Layout(2, 1, 1, "1f1b", 0), None, CPU, None, notes.append)  # type: ignore[arg-type]
    batch = {"x": torch.randn(2, 4), "y": torch.tensor([0, 2])}
    pipeline.places = pipeline.choose(batch, ["second"], training=True)
    pipeline.hold({True: batch})
    return notes


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (count_in_dict, "self.state of Net changes in a step"),
        (count_in_list, "self.memo of Net changes in a step"),
        (count_outside, "computes with another value each time"),
        (lambda net, hidden: DRAW.random(), "computes with another value each time"),
        (lambda net, hidden: torch.tensor(DRAW.random()), "computes with another value each time"),
        (lambda net, hidden: torch._standard_gamma(torch.ones(())).item(), "item needs the value"),
        (lambda net, hidden: float(hidden.detach().numpy().sum()), "numpy needs the value"),
        (lambda net, hidden: float(np.asarray(hidden.detach()).sum()), "__array__ needs the value"),
        (write_plain, "changes a tensor that is neither a parameter nor a buffer"),
        (write_unknown, "changes a tensor that is neither a parameter nor a buffer"),
        (write_weight, "changes parameter 'last.weight' in the forward pass"),
        (watch_gradient, "sets a hook on a gradient"),
        (infer, "runs in torch.inference_mode"),
        (lambda net, hidden: torch.vmap(torch.sin)(hidden), "a transform of torch.func"),
    ],
)
def test_what_would_be_right_in_the_first_step_alone_is_refused(act: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        prepare(Net(act))
    assert message in str(caught.value)


def test_a_trace_leaves_no_mark_on_the_model() -> None:
    net = Net(write_plain)
    with pytest.raises(UserError):
        prepare(net)
    assert net.plain == 1

    def fill_and_empty(net: Net, hidden: torch.Tensor) -> torch.Tensor:
        net.memo += [hidden.tanh()]
        return net.memo.pop()

    net = Net(fill_and_empty)
    assert len(prepare(net)) == 1
    assert net.memo == [0]


def test_a_buffer_that_counts_micro_batches_is_told_of() -> None:
    def count(net: Net, hidden: torch.Tensor) -> int:
        net.seen += 1
        return 1

    notes = prepare(Net(count))
    assert any("'seen' changes in a step, and does so once for each micro-batch" in note for note in notes)
