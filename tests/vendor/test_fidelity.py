"""Our `match` against the real Cerebras front end: kept verdicts for all cases, and new questions drawn by a seed.

The seed is printed; PORTWRIGHT_SEED gives one, PORTWRIGHT_DRAWN the number of drawn cases.
"""

from __future__ import annotations

import importlib.util
import os
import random
import re
from collections.abc import Sequence

import pytest
from vendor import verdicts
from vendor.cases import all_cases
from vendor.fidelity import REPORTS, Question, Score, ask_match, make_row, score
from vendor.refresh import PAGE, kept_draw
from vendor.refused_models import REFUSED, marked_line
from vendor.verdicts import Said

pytestmark = [
    pytest.mark.vendor,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("cerebras") is None, reason="the Cerebras SDK is not in this environment"
    ),
    pytest.mark.filterwarnings("default"),
]

SEED = int(os.environ.get("PORTWRIGHT_SEED") or random.SystemRandom().randrange(10**6))
NUM_DRAWN = int(
    os.environ.get("PORTWRIGHT_DRAWN") or 600
)  # with fewer, chance alone would miss the bars now and then
SHARE_ASKED_AGAIN = 0.2


def ask_front_end(cases: Sequence[Question]) -> dict[str, Said]:
    from vendor import front_end

    questions = [front_end.Question(case.make_model, case.batch, case.train) for case in cases]
    answers = front_end.ask_all(questions, at_once=os.cpu_count() or 1)
    return {
        case.name: Said(case.name, case.train, answer.accepted, answer.message)
        for case, answer in zip(cases, answers, strict=True)
    }


def check(name: str, result: Score) -> None:
    REPORTS.append(f"{name}: {result}")
    assert result.meets_the_bars, str(result)


def test_hand_picked_cases_agree_with_the_kept_verdicts() -> None:
    cases = all_cases()
    assert len(cases) >= 150
    result = score(cases, verdicts.read(verdicts.path_of("csx")))
    check("hand-picked", result)
    assert make_row("hand-picked", result) in PAGE.read_text(encoding="utf-8"), (
        "run tests/vendor/refresh.py --page"
    )


def test_one_case_of_every_operator_agrees_with_the_kept_verdicts() -> None:
    check("one of every operator", score(kept_draw(), verdicts.read(verdicts.path_of("opinfo"))))


def test_kept_verdicts_still_hold_for_a_random_fifth() -> None:
    kept = verdicts.read(verdicts.path_of("csx"))
    cases = all_cases()
    chosen = random.Random(SEED).sample(cases, round(len(cases) * SHARE_ASKED_AGAIN))
    REPORTS.append(
        f"PORTWRIGHT_SEED={SEED}: asked again about {len(chosen)} of {len(cases)} hand-picked cases"
    )
    now = ask_front_end(chosen)
    changed = [(said, kept[name]) for name, said in now.items() if said.accepted != kept[name].accepted]
    assert not changed, changed


def test_a_fresh_draw_agrees() -> None:
    from vendor.opinfo import draw, operator_names

    names = random.Random(SEED).sample(operator_names(), NUM_DRAWN)
    cases = list(draw(SEED, 1, names))
    check(f"drawn from OpInfo by PORTWRIGHT_SEED={SEED}", score(cases, ask_front_end(cases)))


@pytest.mark.parametrize("name", REFUSED)
def test_both_refuse_and_name_the_same_line(name: str) -> None:
    from vendor.front_end import ask

    case = REFUSED[name]
    said = ask(case.make_model, case.batch, case.train)
    assert not said.accepted
    # The SDK's own traceback ends in its frames and torch's; ours is the innermost that is the model's.
    lines = re.findall(r'refused_models\.py", line (\d+)', said.details)
    report = ask_match(case)
    assert {refusal.op.split(".")[1] for refusal in report.refused} >= {name}
    assert {refusal.line for refusal in report.refused} == {int(lines[-1])} == {marked_line(name)}
