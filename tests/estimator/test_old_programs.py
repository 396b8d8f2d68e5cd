"""Every safe rewrite of TensorFlow 1, on programs drawn at random: the original under TensorFlow 1, its port under today's TensorFlow.

PORTWRIGHT_TF_1 names a Python with TensorFlow 1.15, and PORTWRIGHT_TF_2_3 one with 2.3, for what was gone before 2.15. Without the first the tf.compat.v1 of PORTWRIGHT_TF_ESTIMATOR's 2.15 stands in its place, which has
no contrib, so that programs with it do not run. PORTWRIGHT_AUDIT_PROGRAMS=1000 draws that many for each rule, and other ones with
PORTWRIGHT_AUDIT_SEED.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import unified_diff
from pathlib import Path
from typing import Any

import pytest
from beside import environment
from old_programs import PATTERNS, program

from portwright.discover import find_rules
from portwright.port.check import Selection
from portwright.port.patch import Patch, make_patch
from portwright.port.project import Project
from portwright.port.source import Source

OLD = os.environ.get("PORTWRIGHT_TF_1") or os.environ.get("PORTWRIGHT_TF_ESTIMATOR")
HAS_CONTRIB = "PORTWRIGHT_TF_1" in os.environ
EARLY_2 = os.environ.get("PORTWRIGHT_TF_2_3")
ORIGINALS = {
    code: (EARLY_2, "plain") if code == "PW631" else (OLD, "old") for code in PATTERNS
}  # a Python, and how it runs them
NUM_PROGRAMS = int(os.environ.get("PORTWRIGHT_AUDIT_PROGRAMS", "6"))
SEED = os.environ.get("PORTWRIGHT_AUDIT_SEED", "0")
RULES = tuple(rule for rule in find_rules().values() if rule.framework == "tensorflow")


@dataclass
class Count:
    drawn: int = 0
    rewritten: int = 0
    ran: int = 0  # of the rewritten ones, those whose original ran and of which nothing is left to a person
    faults: list[str] = field(default_factory=list)


def ported(text: str) -> Patch:
    here = Path("/nowhere")
    selection = Selection(RULES, frozenset(["cpu"]))
    return make_patch(Source(here / "x.py", text.encode()), Project(here), selection, ("safe",))


def outcomes(which: str, programs: Sequence[str], folder: Path, python: str = sys.executable) -> list[Any]:
    file = folder / f"{which}.json"
    file.write_text(json.dumps(programs))
    words = [python, "-W", "ignore", str(Path(__file__).parent / "run_programs.py"), which, str(file)]
    more = {"TF_USE_LEGACY_KERAS": "1"} if which == "ours" else {}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment(**more))
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[Any] = json.loads(file.read_text())
    return found


def differ(one: Any, other: Any) -> str:
    """The first thing in which two values differ; numbers may be rounded otherwise."""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return next(
            (f"[{i}]{w}" for i, (a, b) in enumerate(zip(one, other, strict=True)) if (w := differ(a, b))), ""
        )
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return next((f"[{key}]{w}" for key in one if (w := differ(one[key], other[key]))), "")
    if isinstance(one, float) and isinstance(other, float):
        return (
            "" if one == pytest.approx(other, rel=2e-4, abs=2e-5, nan_ok=True) else f" is {one}, then {other}"
        )
    return "" if one == other else f" is {str(one)[:300]}, then {str(other)[:300]}"


def audit(code: str, folder: Path) -> Count:
    count, chosen = Count(), []
    for number in range(NUM_PROGRAMS):
        text = program(code, f"{SEED} {number}")
        patch = ported(text)
        count.drawn += 1
        if any(f.code == code for f in patch.fixed):
            count.rewritten += 1
            chosen.append((number, text, patch))
    python, way = ORIGINALS[code]
    assert python is not None
    before = outcomes(way, [text for _, text, _ in chosen], folder, python)
    whole = [row for row in zip(chosen, before, strict=True) if row[1]["raised"] is None]
    after: dict[int, Any] = {}
    for which in (
        "ours",
        "plain",
    ):  # a program that does not import ours has the Keras that TensorFlow comes with
        part = [
            (n, p.after.text)
            for (n, _, p), _ in whole
            if ("import portwright" in p.after.text) == (which == "ours")
        ]
        found = outcomes(which, [text for _, text in part], folder)
        after |= {number: outcome for (number, _), outcome in zip(part, found, strict=True)}
    for (number, text, patch), seen in whole:
        then = after[number]
        if then["raised"] and patch.left:
            continue  # what is left was said
        count.ran += 1
        wrong = then["words"] or differ(seen["told"], then["told"])
        if wrong:
            changed = "\n".join(
                unified_diff(text.split("\n"), patch.after.text.split("\n"), n=0, lineterm="")
            )
            count.faults.append(f"==== {code}, program {number}: {wrong}\n{text}{changed}\n")
    return count


@pytest.mark.parametrize("code", sorted(PATTERNS))
def test_a_safe_rewrite_changes_nothing(code: str, tmp_path: Path) -> None:
    if ORIGINALS[code][0] is None:
        pytest.skip("PORTWRIGHT_TF_ESTIMATOR or PORTWRIGHT_TF_2_3 names no Python with an older TensorFlow")
    count = audit(code, tmp_path)
    print(
        f"{code}: {count.drawn} drawn, {count.rewritten} rewritten, {count.ran} ran, {len(count.faults)} differ"
    )
    assert not count.faults, "\n".join(count.faults[:3])
    assert count.rewritten >= count.drawn / 4, "the pattern's programs are hardly ever rewritten"
    assert count.ran >= count.rewritten / 3 or (code in ("PW612", "PW613", "PW614") and not HAS_CONTRIB)


def test_every_safe_rule_of_tensorflow_has_a_pattern() -> None:
    assert sorted(PATTERNS) == sorted(rule.code for rule in RULES if rule.safety == "safe")
