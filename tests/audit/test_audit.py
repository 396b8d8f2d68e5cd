"""Every rewrite that is called safe, on programs drawn at random: nothing that can be seen changes.

PORTWRIGHT_AUDIT_PROGRAMS=1000 draws that many for each rule, and other ones with PORTWRIGHT_AUDIT_SEED.
"""

from __future__ import annotations

import json
import os

import pytest
from audit.harness import RESULTS, Count, all_patterns, audit, difference, run

from portwright.discover import find_rules

NUM_PROGRAMS = int(os.environ.get("PORTWRIGHT_AUDIT_PROGRAMS", "12"))
PATTERNS = all_patterns()
# Safe rules that are tried elsewhere, and where.
DEVICES = "tests/audit/test_devices.py draws training scripts with an accelerator, and runs them with CUDA, without, and on a target"
WITHOUT_PATTERN = {
    **dict.fromkeys(
        ("PW102", "PW304", "PW501", "PW502", "PW503", "PW504", "PW506", "PW507", "PW508"), DEVICES
    ),
    "PW340": "tests/unit/port/test_transformer_programs.py draws programs around torch's layers, and compares gradients too",
}
SEED = int(os.environ.get("PORTWRIGHT_AUDIT_SEED", "0"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("code", sorted(PATTERNS))
def test_a_safe_rewrite_changes_nothing(code: str) -> None:
    count: Count = audit(code, PATTERNS[code], NUM_PROGRAMS, SEED)
    print(f"{code}: {count.drawn} drawn, {count.rewritten} rewritten, {count.ran} ran")
    assert not count.faults, "\n".join(count.faults[:3])
    assert count.rewritten >= count.drawn / 5, "the pattern's programs are hardly ever rewritten"
    assert count.ran >= count.rewritten / 3, "hardly any of the rewritten programs runs"


def safe_rules() -> list[str]:
    """TensorFlow's have their own tests: its originals do not run here."""
    return sorted(r.code for r in find_rules().values() if r.safety == "safe" and r.framework == "torch")


def test_every_safe_rule_has_a_pattern_or_a_reason() -> None:
    assert sorted(PATTERNS.keys() | WITHOUT_PATTERN.keys()) == safe_rules()
    assert not PATTERNS.keys() & WITHOUT_PATTERN.keys()


@pytest.mark.parametrize("code", safe_rules())
def test_the_page_of_the_audit_has_counts_of_a_wide_run(code: str) -> None:
    row = next(row for row in json.loads(RESULTS.read_text()) if row["rule"] == code)
    assert row["differ"] == 0
    assert row["drawn"] >= row["rewritten"] >= row["ran"] >= 25


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = 1", "x = 2"),
        ("x = 1", "x = 1; y = 2"),
        ("print(1)", "print(2)"),
        ("1 / 0", "[][0]"),
        ("import torch", "import torch; torch.rand(1)"),
        ("import torch; x = torch.ones(2)", "import torch; x = torch.ones(2, dtype=torch.float64)"),
        (
            "import torch; x = torch.ones(2, requires_grad=True); (x * 2).sum().backward()",
            "import torch; x = torch.ones(2, requires_grad=True); (x * 3).sum().backward()",
        ),
        ("from torch import nn; x = nn.ReLU()", "from torch import nn; x = nn.PReLU()"),
        (  # keys of state_dict alone
            "import torch; x = torch.nn.Module(); x.a = torch.nn.Parameter(torch.ones(1))",
            "import torch; x = torch.nn.Module(); x.b = torch.nn.Parameter(torch.ones(1))",
        ),
    ],
)  # fmt: skip
def test_a_difference_is_seen(before: str, after: str) -> None:
    assert difference(run(before), run(before), 0.0) == ""
    assert difference(run(before), run(after), 0.0) != ""
