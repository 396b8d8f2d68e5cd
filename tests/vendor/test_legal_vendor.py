"""The real front end refuses each of these models as it is, and takes it once it is legalised."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from unit.layers.legal.composite_models import COMPOSITES
from unit.layers.legal.legal_cases import CASES, Case

from portwright.layers import legal

if TYPE_CHECKING:
    from front_end import Question, Verdict

sys.path.insert(0, str(Path(__file__).parent))
pytestmark = [
    pytest.mark.vendor,
    pytest.mark.skipif(
        importlib.util.find_spec("cerebras") is None, reason="the Cerebras SDK is not in this environment"
    ),
    pytest.mark.filterwarnings("default"),
]


GROUP = 12
"""So many legalised models are asked about in one step; a group that is refused is taken apart."""


def _is_float(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()


class Together(nn.Module):
    """Several models in one step, each with its own inputs; the loss depends on everything that comes out."""

    def __init__(self, cases: Sequence[Case]) -> None:
        super().__init__()
        self.models = nn.ModuleList(case.make() for case in cases)
        self.counts = [len(case.batch()) for case in cases]

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        losses = []
        for model, count in zip(self.models, self.counts, strict=True):
            own, inputs = inputs[:count], inputs[count:]
            leaves = torch.utils._pytree.tree_leaves(model(*own))
            losses += [(leaf * leaf).float().mean() for leaf in leaves if _is_float(leaf)]
        return torch.stack(losses).sum()


@pytest.fixture(scope="module")
def verdicts(request: pytest.FixtureRequest) -> dict[str, tuple[Verdict, Verdict]]:
    """For each chosen case what the front end says of it as it is, and once legalised: all asked at once, two at a time."""
    from front_end import Question, ask_all

    chosen = [
        item.callspec.params["case"]
        for item in request.session.items
        if item.path == request.path and "case" in getattr(item, "callspec", _NONE).params
    ]
    groups = [chosen[at : at + GROUP] for at in range(0, len(chosen), GROUP)]
    asked = [Question(case.make, case.batch()) for case in chosen]
    answers = ask_all([*asked, *[_question(group) for group in groups]], at_once=2)
    legalised: dict[str, Verdict] = {}
    for group, answer in zip(groups, answers[len(chosen) :], strict=True):
        alone = [answer] * len(group)
        if not answer.accepted:
            alone = ask_all([_question([case]) for case in group], at_once=2)
        legalised |= {case.name: verdict for case, verdict in zip(group, alone, strict=True)}
    return {case.name: (answer, legalised[case.name]) for case, answer in zip(chosen, answers, strict=False)}


class _NONE:
    params: dict[str, Case] = {}  # noqa: RUF012


def _question(cases: Sequence[Case]) -> Question:
    from front_end import Question

    inputs = tuple(tensor for case in cases for tensor in case.batch())
    return Question(lambda: legal.legalise(Together(cases), "csx").model, inputs, limit_seconds=300)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_refused_as_it_is_and_taken_once_legal(
    case: Case, verdicts: dict[str, tuple[Verdict, Verdict]]
) -> None:
    original, legalised = verdicts[case.name]
    assert not original.accepted, "the front end takes it as it is: it needs no legal form"
    assert original.message
    assert legalised.accepted, legalised.message
    assert sum(legalised.ops.values()) > 3


@pytest.mark.parametrize(("make", "batch"), COMPOSITES, ids=lambda value: getattr(value, "__name__", ""))
def test_whole_models_are_taken_once_legal(
    make: Callable[[], nn.Module], batch: tuple[torch.Tensor, ...]
) -> None:
    from front_end import Question, ask_all

    single = tuple(tensor.float() if tensor.is_floating_point() else tensor for tensor in batch)
    original, legalised = ask_all(
        [Question(make, single), Question(lambda: legal.legalise(make()).model, single)], at_once=2
    )
    assert not original.accepted
    assert legalised.accepted, legalised.message


def test_a_child_that_hangs_or_dies_is_a_refusal() -> None:
    from front_end import ask_function

    x = torch.randn(4, 8)
    assert "no answer" in ask_function(lambda x: time.sleep(600), x, limit_seconds=3.0).message
    assert "died" in ask_function(lambda x: os._exit(3), x).message


BY_HAND = {
    "power_spectrum": lambda x: legal.power_spectrum(x),
    "irfft_parts": lambda x: legal.irfft_parts(x, x * 2),
    "fft_parts": lambda x: legal.fft_parts(x, x * 2),
    "stft_parts": lambda x: legal.stft_parts(x, 4),
    "magnitude": lambda x: legal.magnitude(x, x + 1),
    "einsum": lambda x: legal.einsum("bij,bkj->bik", x[None], x[None] * 2),
    "masked_mean": lambda x: legal.masked_mean(x, x > 0),
    "masked_sum": lambda x: legal.masked_sum(x, x > 0, 1),
    "index_put": lambda x: legal.index_put(x, (torch.arange(4, device=x.device),), x * 2),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_forms_that_are_called_by_hand_are_taken(name: str) -> None:
    from front_end import ask_function

    verdict = ask_function(BY_HAND[name], torch.randn(4, 8))
    assert verdict.accepted, verdict.message


@pytest.mark.parametrize("kind", ["nonzero", "svd"])
def test_what_has_no_legal_form_stays_refused(kind: str) -> None:
    class Refused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.linear(x)
            return x.sum() + (
                x.nonzero().float().sum() if kind == "nonzero" else torch.linalg.svd(x.float())[1].sum()
            )

    from front_end import ask

    verdict = ask(lambda: legal.legalise(Refused()).model, (torch.randn(4, 8),))
    assert not verdict.accepted
    assert kind in verdict.message
