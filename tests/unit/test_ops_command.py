"""`portwright ops`: what is listed, found, refused and suggested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from portwright.discover import find_targets, get_target
from portwright.errors import UserError
from portwright.graph.kernels import Row, Verdict
from portwright.graph.ops import Answer, find_ops, render
from portwright.graph.tables import TableFile
from portwright.target import Target

WITH_TABLE = [name for name, target in find_targets().items() if target.kernels is not None]


def portwright(*arguments: str, columns: int = 100) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "portwright.cli", "ops", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": str(columns)},
    )


def names(answer: Answer) -> list[str]:
    return [op.row.op for op in answer.ops]


def ipu(name: str = "") -> Answer:
    return find_ops(get_target("ipu"), name)


def make_target(rows: Iterable[str], tmp_path: Path) -> Target:
    file = tmp_path / "kernels.tsv"
    file.write_text("op\tapi\thow\tdtypes\tconstraints\tsource\n" + "\n".join(rows) + "\n")
    table = TableFile(file, {}, "a test")
    return Target("TOY", "a toy", make_backend=None, why_not=lambda: None, kernels=lambda: table)  # type: ignore[arg-type]


def test_torch_is_not_imported() -> None:
    code = (
        "import sys; from portwright.discover import find_targets; from portwright.graph.ops import find_ops, render\n"
        "for target in find_targets().values(): list(render(find_ops(target), 80))\n"
        "loaded = {'torch', 'numpy', 'rich'} & set(sys.modules); assert not loaded, loaded"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("name", ["CPU", "GPU"])
def test_a_target_without_a_table_runs_everything(name: str) -> None:
    answer = find_ops(get_target(name), "anything")
    assert answer.runs_everything
    assert "whatever torch runs" in "".join(render(answer, 80))
    assert not answer.is_refusal


@pytest.mark.parametrize("name", WITH_TABLE)
@pytest.mark.parametrize("width", [60, 100, 200])
def test_the_whole_table_fits_the_terminal(name: str, width: int) -> None:
    answer = find_ops(get_target(name))
    lines = list(render(answer, width))
    text = "\n".join(lines)
    for op in answer.ops:
        assert op.row.op in text
    too_long = [line for line in lines if len(line) > width and len(line.split()) > 3]
    assert not too_long


@pytest.mark.parametrize("name", WITH_TABLE)
def test_every_row_has_its_source_in_json(name: str) -> None:
    document = find_ops(get_target(name)).as_json()
    assert json.loads(json.dumps(document)) == document
    assert all(op["source"] and op["how"] for op in document["ops"])
    assert document["label"]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("torch.nn.LSTM", "aten.lstm"),
        ("torch.nn.lstm", "aten.lstm"),
        ("conv2d", "aten.convolution"),
        ("CONV2D", "aten.convolution"),
        ("torch.nn.functional.conv2d", "aten.convolution"),
        ("aten.flip", "aten.flip"),
        ("aten::flip", "aten.flip"),
        ("torch.ops.aten.flip.default", "aten.flip"),
        ("aten.relu_", "aten.relu"),
        (" torch.relu() ", "aten.relu"),
        ("aten.add_.Tensor", "aten.add"),
        ("aten.view_copy", "aten.view"),
    ],
)
def test_names_are_found_however_they_are_spelt(asked: str, found: str) -> None:
    answer = ipu(asked)
    assert found in names(answer)
    assert not answer.is_refusal


def test_an_exact_name_finds_itself_alone() -> None:
    assert names(ipu("aten.add")) == ["aten.add"]
    assert {"aten.add", "aten.addmm"} <= set(names(ipu("add")))


def test_an_overload_is_found_by_its_own_row_first(tmp_path: Path) -> None:
    target = make_target(
        ["aten.max.dim\t\tnative\t\t\tx", "aten.max.other\t\tnative\t\t\tx", "aten.max\t\tfree\t\t\tx"],
        tmp_path,
    )
    assert names(find_ops(target, "aten.max.dim")) == ["aten.max.dim"]
    assert names(find_ops(target, "aten.max.third")) == ["aten.max"]


def test_a_refused_op_has_its_reason_and_cure() -> None:
    run = portwright("--target", "ipu", "aten.tril")
    assert run.returncode == 1
    assert "refused" in run.stdout
    assert "buffer" in run.stdout
    document = json.loads(portwright("--target", "ipu", "torch.tril", "--json").stdout)
    assert document["ops"][0]["cure"]
    assert "aten.tril" in document["ops"][0]["reason"]


@pytest.mark.parametrize(
    ("asked", "is_refused", "said"),
    [
        ("conv1d", True, "1D backward"),
        ("torch.nn.Conv1d", True, "1D backward"),
        ("torch.nn.ConvTranspose1d", True, "1D backward"),
        ("torch.nn.SELU", True, "scale of 1.05"),
        ("torch.nn.Hardsigmoid", True, "trained  refused: "),
        ("torch.diagonal", True, "trained  refused: "),
        ("conv2d", False, "groups is 1"),
        ("torch.nn.ELU", False, "scale is 1"),
        ("torch.nn.functional.pad", False, "integers are padded"),
        ("aten.convolution", False, "groups is 1"),
    ],
)
def test_the_verdict_is_about_the_name_that_was_asked(asked: str, is_refused: bool, said: str) -> None:
    answer = find_ops(get_target("csx"), asked)
    assert answer.is_refusal is is_refused
    assert said in " ".join(line.strip() for line in render(answer, 300))


def test_a_table_without_gradients_says_nothing_of_them() -> None:
    assert not any(op.trained for op in ipu("diagonal").ops + ipu("hardsigmoid").ops)


def test_what_has_no_row_is_refused_and_near_names_are_told() -> None:
    answer = ipu("torch.nn.Covn2d")
    assert answer.is_refusal
    assert answer.near[0] == "torch.nn.Conv2d"
    assert "Near it: torch.nn.Conv2d" in "\n".join(render(answer, 100))
    assert ipu("aten.erfinv").ops[0].reason


@pytest.mark.parametrize(("asked", "near"), [("lstn", "lstm"), ("sotfmax", "softmax"), ("Conv2D_", "conv2d")])
def test_an_unknown_name_is_an_error_with_a_suggestion(asked: str, near: str) -> None:
    with pytest.raises(UserError, match=near):
        ipu(asked)


@pytest.mark.parametrize("asked", ["zzzzqqq", "ünïcødé", "a b", "*", "(", "x" * 500])
def test_nonsense_is_an_error_of_one_line(asked: str) -> None:
    with pytest.raises(UserError) as caught:
        ipu(asked)
    assert "\n" not in str(caught.value)
    assert "lists them all" in str(caught.value)


def test_the_command_needs_a_target_and_knows_which(tmp_path: Path) -> None:
    assert portwright().returncode == 2
    run = portwright("--target", "ipv", "conv")
    assert run.returncode == 2
    assert "Did you mean 'IPU'?" in run.stderr
    run = portwright("--target", "IPU", "conv2d")
    assert run.returncode == 0
    assert "torch.nn.Conv2d" in run.stdout


@pytest.mark.parametrize("asked", ["torch.nn.LSTM", "one_hot", "torch.nn.functional.one_hot"])
def test_what_the_target_refuses_has_its_legal_form(asked: str) -> None:
    answer = find_ops(get_target("csx"), asked)
    assert answer.forms
    assert all(asked.lower() in " ".join(form.replaces).lower() for form in answer.forms)
    text = "\n".join(render(answer, 80))
    assert f"portwright.layers.legal.{answer.forms[0].name}" in text
    assert answer.as_json()["legal_forms"][0]["why"]


def test_an_op_has_the_forms_that_do_away_with_it() -> None:
    assert "flip" in [form.name for form in find_ops(get_target("csx"), "aten.flip.default").forms]
    assert not ipu("aten.flip").forms  # they are for other targets


def test_a_table_that_cannot_explain_still_refuses(tmp_path: Path) -> None:
    class Bare:
        label = "bare"

        def rows(self) -> list[Row]:
            return [Row("aten.flip", ("torch.flip",), "refused", (), (), "somewhere")]

        def judge(self, graph: Any, node: Any) -> Verdict:
            raise AssertionError

        def casts(self) -> Any:
            raise AssertionError

    target = Target("TOY", "a toy", make_backend=None, why_not=lambda: None, kernels=Bare)  # type: ignore[arg-type]
    answer = find_ops(target, "torch.flip")
    assert answer.is_refusal
    assert answer.ops[0].reason
