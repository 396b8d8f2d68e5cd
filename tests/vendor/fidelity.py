"""How far our `match` and the real front end agree, and the page that says so."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor
from vendor.verdicts import SDK_VERSION, Said

from portwright.graph.capturing.capture import capture
from portwright.graph.match import MatchReport, match
from portwright.targets.csx.kernels import table

LEAST_AGREEMENT, LEAST_RECALL = 0.99, 0.97

REPORTS: list[str] = []
"""What a run of the tests found, for its summary."""


FIRST_COMPARED = (  # 2026-11-16, SDK 2.10.0
    "| seed 3, one sample of every operator | 672 | 99.70% | 99.67% | 99.73% |",
    "| seed 7, two samples of every operator | 1298 | 99.85% | 100.00% | 99.72% |",
    "| seed 11, one sample of every operator, in half precision | 501 | 100.00% | 100.00% | 100.00% |",
    "| seed 5, two samples of every operator, in 64-bit integers | 846 | 96.57% | 99.33% | 93.45% |",
)
KNOWN = (
    "- An integer tensor plus a floating-point number stays an integer tensor in the SDK, and becomes one of floating point in torch: "
    "`pairwise_distance`, `triplet_margin_loss` and `cosine_embedding_loss` of integer tensors are refused by it and taken by `match`.",
    "- `cummax` and `cummin` of a tensor without dimensions are taken by the SDK and refused by `match`.",
)


class Question(Protocol):
    """A hand-picked or drawn case."""

    @property
    def name(self) -> str: ...
    @property
    def make_model(self) -> Any: ...
    @property
    def batch(self) -> tuple[Tensor, ...]: ...
    @property
    def train(self) -> bool: ...


def ask_match(case: Question) -> MatchReport:
    kernels = table()
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # what a case's own code warns of
        batch = case.batch if len(case.batch) > 1 else case.batch[0]
        graph = capture(case.make_model, batch, trains=case.train, casts=kernels.casts())
    return match(graph, kernels, "csx")


@dataclass(frozen=True)
class Pair:
    """Two verdicts on one case."""

    said: Said
    report: MatchReport

    @property
    def agrees(self) -> bool:
        return self.said.accepted == self.report.supported


@dataclass(frozen=True)
class Score:
    """Agreement over a set of cases."""

    pairs: tuple[Pair, ...]

    @property
    def agreement(self) -> float:
        return _share(pair.agrees for pair in self.pairs)

    @property
    def recall_of_acceptance(self) -> float:
        return _share(pair.agrees for pair in self.pairs if pair.said.accepted)

    @property
    def recall_of_refusal(self) -> float:
        return _share(pair.agrees for pair in self.pairs if not pair.said.accepted)

    @property
    def disagreements(self) -> list[Pair]:
        return [pair for pair in self.pairs if not pair.agrees]

    @property
    def meets_the_bars(self) -> bool:
        recalls = (self.recall_of_acceptance, self.recall_of_refusal)
        return self.agreement >= LEAST_AGREEMENT and min(recalls) >= LEAST_RECALL

    def __str__(self) -> str:
        accepted = sum(pair.said.accepted for pair in self.pairs)
        lines = [
            f"{len(self.pairs)} cases ({accepted} accepted by the front end): {self.agreement:.2%} agree, "
            f"recall of acceptance {self.recall_of_acceptance:.2%}, of refusal {self.recall_of_refusal:.2%}"
        ]
        lines += [f"  {explain(pair)}" for pair in self.disagreements]
        return "\n".join(lines)


def _share(truths: Iterable[bool]) -> float:
    found = list(truths)
    return sum(found) / len(found) if found else 1.0


def score(cases: Sequence[Question], said: Mapping[str, Said]) -> Score:
    return Score(tuple(Pair(said[case.name], ask_match(case)) for case in cases))


def explain(pair: Pair) -> str:
    if pair.said.accepted:
        refusal = pair.report.refused[0]
        return f"{pair.said.case}: accepted by the SDK; match refuses {refusal.op}: {refusal.reason}"
    return f"{pair.said.case}: match accepts; the SDK says: {pair.said.words}"


def make_row(name: str, result: Score) -> str:
    accepted = sum(pair.said.accepted for pair in result.pairs)
    return (
        f"| {name} | {len(result.pairs)} | {accepted} | {result.agreement:.2%} | {result.recall_of_acceptance:.2%} "
        f"| {result.recall_of_refusal:.2%} |"
    )


def make_page(sets: Mapping[str, Score]) -> str:
    """docs/fidelity.md."""
    lines = [
        "# How far `match` agrees with the real Cerebras front end",
        "",
        f"Made by `python tests/vendor/refresh.py --page` in the environment of SDK {SDK_VERSION}; tests/vendor/test_fidelity.py holds",
        "the bars: at least 99% of verdicts agree, and of what the front end accepts, as of what it refuses, at least 97% is told so.",
        "Accepted means lowered to the compiler's own form, whole step, without a cluster; it does not mean placed on a wafer.",
        "",
        "| cases | number | accepted by the SDK | agree | recall of acceptance | recall of refusal |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [make_row(name, result) for name, result in sets.items()]
    lines += [
        "",
        "Rules were learned from seed 1, with five samples of every operator. Draws by other seeds were compared before any rule was",
        "changed because of them (what they found was mended afterwards):",
        "",
        "| draw | number | agree | recall of acceptance | recall of refusal |",
        "| --- | ---: | ---: | ---: | ---: |",
        *FIRST_COMPARED,
    ]
    lines += ["", "## Where they disagree", ""]
    found = [f"- {explain(pair)}" for result in sets.values() for pair in result.disagreements]
    lines += found or ["Nowhere, in the cases that are kept."]
    return "\n".join([*lines, "", "Known from the integer draw, and left:", "", *KNOWN]) + "\n"
