"""Branches of a vendor's: the host's computation stays, and the branch computes the same where the vendor's rules are kept."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from portwright.errors import UserError
from portwright.port.api import check, port
from portwright.port.branches.api import port_branches

HERE = Path(__file__).parent
FIXTURES = HERE.parents[2] / "fixtures" / "branches"
CASES = {
    "globals": ("globals.py", ["ACCELERATOR={}"]),
    "arguments": ("arguments.py", ["--device", "{}"]),
    "loop": ("loop.py", ["--{}"]),
    "handed over": ("handed_over.py", ["ACCELERATOR={}"]),
    "trainer": ("trainer_project", ["--compute-mode", "{TARGET}"]),
}


def run_all(original: Path, ports: dict[str, tuple[Path, list[str]]], folder: Path) -> dict[str, Any]:
    """What the original and its ports print, on the host and under the emulators, and what those counted."""
    given = {target: [str(path), ask] for target, (path, ask) in ports.items()}
    done = subprocess.run(
        [sys.executable, str(HERE / "run_all.py"), str(original), str(folder), json.dumps(given)],
        capture_output=True, text=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads(done.stdout)
    return results


def without_dropout(fixture: Path, folder: Path) -> Path:
    """A copy that drops nothing: a device draws masks of its own, and its numbers are to be the host's."""
    copy = folder / fixture.name
    if fixture.is_dir():
        shutil.copytree(fixture, copy)
        return copy
    copy.write_text(re.sub(r"Dropout\(0\.\d+\)", "Dropout(0.0)", fixture.read_text()))
    return copy


@pytest.mark.parametrize("case", sorted(CASES))
def test_branch_computes_what_the_host_computes(case: str, tmp_path: Path) -> None:
    name, ask = CASES[case]
    source = without_dropout(FIXTURES / name, tmp_path)
    main = "main.py" if source.is_dir() else source.name
    ports = {}
    for target in ("rdu", "ipu"):
        port_branches([source], [target], out=tmp_path / target)
        words = [w.format(target, TARGET=target.upper()) for w in ask]
        ports[target] = (tmp_path / target / main, words)
        assert check([tmp_path / target], [target], ["PW6"], use_cache=False).findings == []
        assert port_branches([tmp_path / target], [target], select=["PW6"]).changed == []
    results = run_all(source / main if source.is_dir() else source, ports, tmp_path)
    assert len(results["original"].splitlines()) >= 6, results["original"]
    assert "run again with RDU_COMMAND" in results["rdu compiled"]
    for target in ports:
        assert results[f"{target} ported"] == results["original"]
        assert "not installed" in results[f"{target} absent"]
        assert results[f"{target} emulated"] == results["original"]
    ipu = results["ipu counts"]
    assert ipu["training"] >= 4
    assert ipu["copyWeightsToHost"] >= 1
    assert ipu["setOptimizer"] > 1
    if case != "loop":
        assert ipu["inference"] >= 4
    rdu = results["rdu counts"]
    assert rdu["run"] >= 4
    assert rdu["to_cpu"] >= 1


def write(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "train.py"
    path.write_text(f"import torch\nfrom torch import nn\nimport torch.nn.functional as F\n\n{body}")
    return path


PLAIN = """model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in data:
    out = model(x)
    loss = F.cross_entropy(out, y)
    loss.backward()
    optimizer.step()
"""

REFUSED = {
    "accumulation": (PLAIN.replace("    optimizer.step()", "    if x.sum() % 4 == 0:\n        optimizer.step()"), 12, "accumulated"),
    "clipping": (PLAIN.replace("    optimizer", "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1)\n    optimizer"), 11, "clipped"),
    "two optimizers": (PLAIN + "    second_opt.step()\n", 10, "several optimizers"),
    "expression": (PLAIN.replace("loss.backward()", "(loss / 2).backward()"), 10, "not on a loss with a name"),
    "unknown optimizer": (PLAIN.replace("SGD", "Adagrad"), 6, "has no Adagrad"),
    "carried state": (PLAIN.replace("out = model(x)", "out, state = model(x, state)"), 8, "carried from step to step"),
    "host read": (PLAIN.replace("F.cross_entropy(out, y)", "F.cross_entropy(out, y) * out.mean().item()"), 9, "reads a value"),
    "shared line": (PLAIN.replace("loss.backward()\n    ", "loss.backward(); "), 10, "shares its line"),
    "two networks": (PLAIN.replace("model.parameters()", "[*model.parameters(), *other.parameters()]"), 6, "several networks"),
    "no optimizer": (PLAIN.replace("    optimizer.step()\n", ""), 10, "no optimizer"),
    "in a loop": (PLAIN.replace("    out", "    model = nn.Linear(3, 2)\n    out"), 7, "assigned within the loop"),
    "conditional": (
        PLAIN.replace("    loss = ", "    if flag:\n        out = out * 2\n    loss = "), 10, "only under a condition"),
    "two steps": (PLAIN + PLAIN, 17, "more than one training step"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_not_understood_is_a_finding_with_its_line(name: str, tmp_path: Path) -> None:
    body, line, reason = REFUSED[name]
    done = port_branches([write(tmp_path, body)], ["ipu"], select=["PW6"])
    assert done.changed == []
    assert [(f.code, f.line) for f in done.left] == [("PW003", line)]
    assert reason in done.left[0].message
    assert done.left[0].cure


VARIANTS = {
    "one line for model and loss": PLAIN.replace("    out = model(x)\n    loss = F.cross_entropy(out, y)", "    loss = F.cross_entropy(model(x), y)"),
    "autocast in one branch": PLAIN.replace(
        "    out = model(x)\n",
        "    if amp:\n        with torch.autocast('cuda'):\n            out = model(x)\n    else:\n        out = model(x)\n",
    ),
    "a loss in each branch": PLAIN.replace(
        "    out = model(x)\n    loss = F.cross_entropy(out, y)\n",
        "    if amp:\n        out = model(x)\n        loss = F.cross_entropy(out, y)\n    else:\n        out = model(x)\n        loss = F.cross_entropy(out, y)\n",
    ),
    "lines and texts": PLAIN.replace("    optimizer.step()", '    optimizer.step(\n        )\n    print("""a\n  b""")'),
    "starred batch": PLAIN.replace("for x, y in data:\n    out = model(x)", "for batch in data:\n    x, y = batch\n    out = model(*batch[:1])"),
    "tabs": PLAIN.replace("    ", "\t"),
    "function with keywords": "def step(model, x, y, *, optimizer, **more):\n    optimizer.zero_grad()\n    loss = F.cross_entropy(model(x), y)\n    loss.backward()\n    optimizer.step()\n\n"
    "model = nn.Linear(3, 2)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\nfor x, y in data:\n    step(model, x, y, optimizer=opt)\n",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(VARIANTS))
@pytest.mark.parametrize("target", ["ipu", "rdu"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_ways_to_write_a_step(name: str, target: str, newline: str, tmp_path: Path) -> None:
    path = write(tmp_path, VARIANTS[name])
    path.write_bytes(path.read_bytes().replace(b"\n", newline.encode()))
    done = port_branches([path], [target], select=["PW6"], write=True)
    assert done.left == [], done.left
    text = path.read_bytes()
    tree = ast.parse(text)
    assert text.count(b"\r") == (text.count(b"\n") if newline == "\r\n" else 0)
    assert f"{target}_training(" in text.decode()
    assert "except ImportError" in text.decode()
    calls = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "backward"
    ]
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for call in calls:
        outer, tests = call, []
        while outer in parents:
            outer = parents[outer]
            tests += [ast.unparse(outer.test)] if isinstance(outer, ast.If) else []
        assert any(f"{target}_training" in test for test in tests)
    again = port_branches([path], [target], select=["PW6"], write=True)
    assert again.changed == []
    assert path.read_bytes() == text


def test_both_vendors_can_have_a_branch_in_one_file(tmp_path: Path) -> None:
    original = without_dropout(FIXTURES / "globals.py", tmp_path)
    path = tmp_path / "both.py"
    path.write_bytes(original.read_bytes())
    for target in ("ipu", "rdu"):
        assert port_branches([path], [target], select=["PW6"], write=True).left == []
    at_once = tmp_path / "at_once.py"
    at_once.write_bytes(original.read_bytes())
    done = port_branches([at_once], ["rdu", "ipu"], select=["PW6"], write=True)
    assert at_once.read_text() == path.read_text()
    assert {target for f in done.fixed for target in f.targets} == {"ipu", "rdu"}
    assert max(f.line for f in done.fixed) <= len(original.read_text().splitlines())
    assert all(port_branches([path], [target], select=["PW6"]).changed == [] for target in ("ipu", "rdu"))
    ports = {target: (path, [f"ACCELERATOR={target}"]) for target in ("rdu", "ipu")}
    results = run_all(original, ports, tmp_path)
    for target in ports:
        assert results[f"{target} ported"] == results[f"{target} emulated"] == results["original"]
        assert "not installed" in results[f"{target} absent"]


@pytest.mark.parametrize(
    ("members", "added"),
    [("CPU = 0\n    GPU = 7", "IPU = 8"), ("cpu = 'cpu'\n    cuda = 'cuda'", "ipu = 'ipu'"), ("CPU = auto()\n    GPU = auto()", "IPU = auto()")],
)  # fmt: skip
def test_member_of_an_enumeration(members: str, added: str, tmp_path: Path) -> None:
    plain = members.split()[0]
    head = f"from enum import Enum, auto\n\nclass Mode(Enum):\n    {members}\n\nmode = Mode.{plain}\non_host = mode == Mode.{plain}\n"
    path = write(tmp_path, head + PLAIN)
    done = port_branches([path], ["ipu"], select=["PW6"], write=True)
    assert done.left == []
    text = path.read_text()
    assert f"    {added}\n" in text
    assert f"if mode == Mode.{added.split()[0]}:" in text


def test_an_enumeration_in_a_file_that_was_not_named(tmp_path: Path) -> None:
    project = FIXTURES / "trainer_project"
    done = port_branches([project / "trainer.py"], ["ipu"], select=["PW6"])
    assert done.changed == []
    assert "modes.py, which was not named" in done.left[0].message


def test_a_notebook_is_left_with_the_reason(tmp_path: Path) -> None:
    lines = [
        line + "\n"
        for line in (
            "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n" + PLAIN
        ).splitlines()
    ]
    cell = {"cell_type": "code", "source": lines, "metadata": {}, "outputs": [], "execution_count": None}
    path = tmp_path / "train.ipynb"
    path.write_text(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    before = path.read_bytes()
    done = port_branches([path], ["ipu"], select=["PW6"], write=True)
    assert [f.code for f in done.left] == ["PW003"]
    assert "notebook" in done.left[0].message
    assert done.left[0].message.startswith("cell 1")
    assert path.read_bytes() == before


def test_what_works_only_on_the_host_is_said(tmp_path: Path) -> None:
    path = write(tmp_path, PLAIN + "    print(model.weight.grad.norm())\n")
    done = port_branches([path], ["ipu"], select=["PW6"])
    assert done.changed
    assert [(f.code, f.line) for f in done.left] == [("PW003", 12)]
    assert "gradients are read on the host" in done.left[0].message


def test_an_import_alone_is_no_branch(tmp_path: Path) -> None:
    path = write(tmp_path, "import poptorch\n" + PLAIN)
    assert port_branches([path], ["ipu"], select=["PW6"], write=True).changed
    text = path.read_text()
    assert "poptorch.trainingModel(" in text
    assert port_branches([path], ["ipu"], select=["PW6"]).changed == []


def test_it_is_a_style_of_port(tmp_path: Path) -> None:
    path = write(tmp_path, PLAIN)
    done = port([path], ["ipu"], ["PW6"], style="branches")
    assert done.changed
    assert done.diff.count("+    ipu_training = poptorch.trainingModel(") == 1
    assert {f.code for f in done.fixed} == {"PW004"}
    assert done == port_branches([path], ["ipu"], select=["PW6"])


def test_write_and_undo(tmp_path: Path) -> None:
    from portwright.port.undo import undo

    path = write(tmp_path, PLAIN)
    before = path.read_bytes()
    assert port_branches([path], ["ipu"], write=True).changed
    assert path.read_bytes() != before
    undo([path])
    assert path.read_bytes() == before


def test_bad_requests(tmp_path: Path) -> None:
    path = write(tmp_path, PLAIN)
    with pytest.raises(UserError, match="no branches for 'csx'"):
        port_branches([path], ["csx"])
    with pytest.raises(UserError, match="no branches for 'csx'"):
        port_branches([path], ["ipu", "csx"])
    with pytest.raises(UserError, match="both given"):
        port_branches([path], ["ipu"], write=True, out=tmp_path / "out")
    path.write_text("import torch\nprint(torch.ones(1))\n")
    with pytest.raises(UserError, match="no training step"):
        port_branches([path], ["ipu"])
    path.write_text("def broken(:\n")
    assert port_branches([path], ["ipu"]).left[0].code == "PW001"
