"""TrainCheck's good programs: `verify` raises no false alarm on them (docs/verify.md has the table).

PORTWRIGHT_CORPUS=DIR names a folder that holds OrderLab/TrainCheck-Evaluation-Workloads unpacked as OWNER+NAME.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from corpus.runner import load, prepare
from corpus.traincheck import NUM_STEPS, RESULTS, REWRITES, judge, table

CORPUS = os.environ.get("PORTWRIGHT_CORPUS")
PROGRAMS = load("traincheck.toml")


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", REWRITES)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_good_program_gives_no_false_alarm(program, kind: str, tmp_path: Path) -> None:
    if CORPUS is None or not (Path(CORPUS) / program.folder).is_dir():
        pytest.skip(f"{program.repository} is not in PORTWRIGHT_CORPUS")
    verdict = judge(program, prepare(program, Path(CORPUS), tmp_path), kind, NUM_STEPS)
    known = json.loads(RESULTS.read_text())[f"{program.name} / {kind}"]
    assert verdict.verdict == known["verdict"], verdict.says


def test_the_results_are_of_all_programs_and_rewrites_and_have_no_false_alarm() -> None:
    known = json.loads(RESULTS.read_text())
    assert set(known) == {f"{program.name} / {kind}" for program in PROGRAMS for kind in REWRITES}
    assert {row["verdict"] for row in known.values()} <= {"equal", "cannot tell"}
    assert table(known) in (Path(__file__).parents[2] / "docs" / "verify.md").read_text()
