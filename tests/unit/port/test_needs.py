"""Needs: what rules look after and targets answer, and a target in one file that only an entry point knows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from portwright.discover import _add_rule, find_rules, find_targets, targets_that_answer
from portwright.errors import UserError
from portwright.needs import NEEDS, Answer, check_needs
from portwright.port.explain import explain_word, needs_page
from portwright.port.rule import Rule

TOY = Path(__file__).parents[2] / "fixtures" / "one_file_target" / "toy.py"
SCRIPT = """import torch
from torch import nn
from torch.utils.data import DataLoader


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return torch.tanh(self.layer(x)).sum()


def main(samples):
    net = Net().double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x in DataLoader(samples, batch_size=4):
        loss = net(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())


if __name__ == "__main__":
    main(torch.zeros(10, 8).double())
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A script, and an installed package whose one module is the target."""
    folder = tmp_path_factory.mktemp("toy")
    (folder / "train.py").write_text(SCRIPT)
    site = folder / "site"
    info = site / "toysoft-1.0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(TOY, site)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toysoft\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[portwright.targets]\ntoy = toy:TARGET\n")
    return folder


def run(project: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(project / "site"), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(project / "cache"), "COLUMNS": "200"}
    return subprocess.run([sys.executable, *command], cwd=project, capture_output=True, text=True, env=env)


def told(project: Path, *words: str) -> Any:
    done = run(project, "-m", "portwright", *words)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_a_target_in_one_file_has_findings_and_a_verdict(project: Path) -> None:
    result = told(project, "check", "train.py", "--target", "toybox", "--format", "json")
    found = {f["code"]: f for f in result["findings"]}
    assert set(found) == {"PW101", "PW339"}
    assert all(f["targets"] == ["toy"] for f in found.values())
    assert found["PW339"]["cure"] == "Ask toysoft for toy.float()."
    assert (
        found["PW101"]["cure"] == "Pad the last batch and give the padding weight 0 in the metric."
    )  # the rule's words
    verdict = result["entries"][0]["verdicts"][0]
    assert (verdict["target"], verdict["verdict"]) == ("toy", "needs a person")
    assert any("PW339" in reason for reason in verdict["reasons"])
    assert any(
        "rules for toy say nothing of device and distribution" in reason for reason in verdict["reasons"]
    )


def test_its_findings_are_among_those_for_all_targets_and_from_the_cache(project: Path) -> None:
    alone = told(project, "check", "train.py", "--format", "json", "--select", "PW339")
    assert [f["targets"] for f in alone["findings"]] == [["csx", "ipu", "toy"]]
    text = (project / "site" / "toy.py").read_text()
    (project / "site" / "toy.py").write_text(text.replace("toy.float()", "toy.half()"))
    again = told(project, "check", "train.py", "--format", "json", "--select", "PW339")
    (project / "site" / "toy.py").write_text(text)
    assert "toy: Ask toysoft for toy.half()." in again["findings"][0]["cure"]


def test_its_answers_are_in_the_docs(project: Path) -> None:
    assert "TOY" in [row["name"] for row in told(project, "targets", "--json")["targets"]]
    line = "  - toy: refused: a toy counts in 32 bits (Toy's guide, page 7)."
    for word in ("no_float64", "no-float64", "toy", "PW339"):
        assert line in run(project, "-m", "portwright", "explain", word).stdout.splitlines()
    answers = told(project, "explain", "toy", "--json")["needs"]
    assert {need["name"]: need["answers"]["toy"]["verdict"] for need in answers} == {
        "static_shapes": "slow",
        "no_float64": "refused",
    }
    code = "from portwright.port.explain import *; print(needs_page(), *map(page, list_rules()))"
    pages = run(project, "-c", code).stdout
    assert pages.count(line) == 2  # the page of needs, and that of the rule
    assert "Targets: csx, ipu, toy. Safety: manual." in pages


def test_it_has_a_plan_by_its_own_table(project: Path) -> None:
    words = ("plan", "train.py:Net", "--target", "toy", "--input", "x:float32[4,8]", "--json")
    plan = told(project, *words)
    assert plan["target"] == "TOY"
    assert plan["kernels"]["label"] == "Toy's guide"
    assert [(r["op"].partition(".default")[0], r["reason"], r["cure"]) for r in plan["refused"]] == [
        ("aten.tanh", "a toy has no tanh", "Use relu.")
    ]


def test_every_need_is_somebodys() -> None:
    asked = {need for rule in find_rules().values() for need in rule.needs}
    answered = {need for target in find_targets().values() for need in target.needs}
    assert asked <= answered == set(NEEDS)
    assert {need for need in NEEDS if need not in asked} == {
        "no_float16_training",
        "no_float64_training",
        "no_wide_sums",
    }
    assert all(meaning.endswith(".") for meaning in NEEDS.values())
    assert not {rule.name.replace("-", "_") for rule in find_rules().values()} & set(NEEDS)


def test_every_answer_is_whole() -> None:
    for target in find_targets().values():
        for need, answer in target.needs.items():
            assert not answer.reason.endswith("."), (target.name, need)
            assert answer.cure == "" or answer.cure.endswith((".", ")")), (target.name, need)


def test_a_page_of_a_target_has_its_needs_alone() -> None:
    document, page = explain_word("hpu")
    assert [row["name"] for row in document["needs"]] == [
        "no_float16_training",
        "no_float64_training",
        "no_wide_sums",
    ]
    assert page.count("- `no_") == 3
    assert explain_word("Gaudi") == (document, page)
    assert explain_word("PW201")[0]["code"] == "PW201"
    assert "looked after by: a run itself, no rule." in needs_page(["no_wide_sums"])
    assert targets_that_answer(("sorted_topk", "no_sorting")) == ("ipu", "rdu")


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ({"static_shape": Answer("refused", "why", "where")}, "the need 'static_shape'"),
        ({"static_shapes": Answer("never", "why", "where")}, "answers the need 'static_shapes'"),  # type: ignore[arg-type]
        ({"static_shapes": Answer("slow", "", "where")}, "answers the need 'static_shapes'"),
        ({"static_shapes": Answer("slow", "why", "")}, "answers the need 'static_shapes'"),
    ],
)
def test_a_wrong_answer_is_an_error(answers: dict[str, Answer], says: str) -> None:
    with pytest.raises(UserError, match=says):
        check_needs(answers, "the target TOY")


def test_a_rule_names_needs_that_there_are() -> None:
    class Strange(Rule):
        code, name, safety, words, cure = "PW199", "strange", "manual", ("x",), "Mend it."
        needs = ("static_shape",)

        def find(self, file: Any) -> Any:
            return iter(())

    with pytest.raises(UserError, match="static_shape") as caught:
        _add_rule({}, Strange(), "here")
    assert "static_shapes" in caught.value.cure
    Strange.needs, Strange.cure = ("static_shapes",), {"csx": "Mend it."}  # type: ignore[assignment]
    with pytest.raises(UserError, match="a cure for each target"):
        _add_rule({}, Strange(), "here")


def test_a_target_without_a_table_refuses_in_a_plan_what_it_says(tmp_path: Path) -> None:
    from portwright.graph.graph import Graph, Node, Stop, Value
    from portwright.graph.match import match_needs

    values = (Value(0, (2,), "float32", "input"), Value(1, (2,), "float64", "activation"))
    graph = Graph(
        (Node(0, "aten._to_copy.default", "forward", (), {}, (0,), (1,)),), values, (),
        (Stop("host_read", "aten.item", "", None, "a value is read"), Stop("dynamic_shape", "aten.nonzero", "", None, "a shape")),
        2, False,
    )  # fmt: skip
    assert match_needs(graph, {}, "X").supported
    needs = {
        "no_float64": Answer("refused", "no doubles", "x", "Ask X for halves."),
        "no_host_reads": Answer("refused", "no reads", "x"),
        "static_shapes": Answer("slow", "compiled anew", "x"),
    }
    report = match_needs(graph, needs, "X")
    assert [r.reason for r in report.refused] == ["a value is read: no reads", "no doubles"]
    assert [r.cure.partition(":")[0] for r in report.refused] == [
        "Keep the value a tensor",
        "Ask X for halves.",
    ]
    assert "no_float64" in report.label
    assert report.counts == {"refused": 1}
