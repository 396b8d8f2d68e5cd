"""The command `verify` as a user calls it: status, proof, page, and what is said when something is wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """import sys

import torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 30):
    x = torch.randn(16, 4)
    loss = net(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "renamed.py").write_text(SCRIPT.replace("net", "network").replace("x = ", "x= "))
    (tmp_path / "faster.py").write_text(SCRIPT.replace("lr=0.1", "lr=0.101"))
    (tmp_path / "broken.py").write_text(SCRIPT.replace("    optimizer.step()", "    optimizer.stepp()"))
    return tmp_path


def call(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "portwright", "verify", *words], cwd=folder, capture_output=True, text=True
    )


def test_equal_scripts_leave_a_proof_and_a_page(folder: Path) -> None:
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    done = call(folder, "train.py 25", "python renamed.py", "--steps", "5", "--html", "proof.html")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("equal over 5 steps")
    assert "proof: proof.json, page: proof.html" in done.stdout
    assert "running the original" in done.stderr
    proof = json.loads((folder / "proof.json").read_text())
    assert (proof["equal"], proof["steps"], proof["first_difference"]) == (True, 5, None)
    assert proof["commands"] == {"original": "train.py 25", "ported": "python renamed.py"}
    assert (folder / "proof.html").read_text().startswith("<!DOCTYPE html>")
    after = {p.name: p.read_bytes() for p in folder.iterdir() if p.name in before}
    assert after == before
    assert {p.name for p in folder.iterdir()} - set(before) == {"proof.json", "proof.html"}, (
        "nothing else is left"
    )


def test_a_difference_is_status_1_and_one_json_document(folder: Path) -> None:
    done = call(folder, "train.py", "faster.py", "--steps", "3", "--json", "--out", "other.json")
    assert done.returncode == 1
    proof = json.loads(done.stdout)
    found = proof["first_difference"]
    assert proof["equal"] is False
    assert (found["step"], found["parameter"], found["option"]) == (1, "0.weight", "lr")
    assert (found["original"], found["ported"]) == (0.1, 0.101)
    assert json.loads((folder / "other.json").read_text()) == proof
    assert not (folder / "proof.json").exists()


def test_a_program_that_fails_is_named_with_its_line_and_blames_no_rule(folder: Path) -> None:
    ported = call(folder, "train.py", "broken.py", "--steps", "3")
    assert ported.returncode == 1
    assert re.match(r"different: the port fails before its first step, at \S+broken\.py:13\n", ported.stdout)
    assert "has no attribute 'stepp'" in ported.stdout
    assert "rule" not in ported.stdout
    original = call(folder, "broken.py", "train.py", "--steps", "3", "--json")
    assert original.returncode == 1
    told = json.loads(original.stdout)
    assert (told["verdict"], told["equal"], told["first_difference"]) == ("cannot tell", False, None)
    assert re.search(
        r"the original fails. 'broken.py' failed before its first step at \S+broken\.py:13",
        told["why_unsure"],
    )
    assert "has no attribute 'stepp'" in told["notes"][0]


def test_a_rewrite_is_to_blame_for_a_failure_only_where_it_edited_that_line(tmp_path: Path) -> None:
    script = f"from pathlib import Path\n{SCRIPT}".replace(
        "net = ", "text = (Path(__file__).parent / 'data.txt').read_text()\nnet = "
    ).replace("Linear(8, 1))", "Linear(8, 1)).to('cuda')")
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "data.txt").write_text("some")
    words = ["port", "train.py", "--target", "csx", "--out", "ported"]
    subprocess.run(
        [sys.executable, "-m", "portwright", *words], cwd=tmp_path, capture_output=True, check=False
    )
    copy = tmp_path / "ported" / "train.py"
    assert ".to('cuda')" not in copy.read_text()
    (tmp_path / "train.py").write_text(script.replace(".to('cuda')", ""))  # which this machine need not have
    (tmp_path / "ported" / "data.txt").unlink(missing_ok=True)
    failed = json.loads(call(tmp_path, "train.py", "ported/train.py", "--steps", "2", "--json").stdout)
    found = failed["first_difference"]
    assert (found["quantity"], found["rule"]) == ("crash", None)
    assert found["line"].endswith("train.py:7")


def test_a_script_against_itself_ports_nothing_and_says_so(folder: Path) -> None:
    (folder / "same").mkdir()
    (folder / "same" / "other.py").write_text(SCRIPT)
    for port in ("train.py", "same/other.py"):
        done = call(folder, "train.py", port, "--steps", "2", "--html", "proof.html")
        assert done.returncode == 0
        said = "equal over 2 steps, bit for bit as far as it was recorded, and nothing was ported: both programs ran the same files"
        assert done.stdout.splitlines()[0] == said
        assert f"<h1>{said.capitalize()}" in (folder / "proof.html").read_text()
        assert json.loads((folder / "proof.json").read_text())["nothing_ported"] is True
    assert "nothing was ported" not in call(folder, "train.py", "renamed.py", "--steps", "2").stdout


@pytest.mark.parametrize(
    ("module", "said"),
    [("tensorflow", "it imports TensorFlow and updated no weight of PyTorch; TensorFlow is not recorded"),
     ("jax", "it imports JAX and"), ("json", "ended without a single step of training by PyTorch")],
)  # fmt: skip
def test_a_script_of_another_framework_is_named_as_such(folder: Path, module: str, said: str) -> None:
    if module != "json":
        (folder / f"{module}.py").write_text("")  # what it does there is not looked at
    (folder / "other.py").write_text(f"import {module}\nprint('loss 0.1')\n")
    done = call(folder, "other.py", "train.py")
    assert done.returncode == 1
    assert done.stdout.startswith("cannot tell: the original")
    assert said in done.stdout


def test_an_original_that_ends_early_is_compared_as_far_as_it_goes(folder: Path) -> None:
    done = call(folder, "train.py 3", "renamed.py 9", "--steps", "5")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("equal over 3 steps")
    assert "ended after 3 of the 5 steps" in done.stdout
    shorter = call(folder, "train.py 9", "renamed.py 3", "--steps", "5")
    assert shorter.returncode == 1
    assert "they part at step 4, the number of steps" in shorter.stdout


def test_a_layout_that_run_trains_is_proven_against_the_script(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "examples" / "transformer" / "train.py"
    (tmp_path / "train.py").write_text(script.read_text())
    words = ["port", "train.py", "--target", "csx", "--style", "layout", "--out", "ported"]
    subprocess.run([sys.executable, "-m", "portwright", *words], cwd=tmp_path, capture_output=True)
    port = "ported/run.py CPU --mode train --params ported/configs/params.yaml"
    done = call(tmp_path, "train.py", port, "--steps", "4")
    assert done.returncode == 0, done.stdout + done.stderr
    proof = json.loads((tmp_path / "proof.json").read_text())
    assert (proof["equal"], proof["target"], proof["on_target"], proof["dropout"]) == (
        True,
        "CPU",
        True,
        "drawn",
    )
    assert {p.name for p in tmp_path.iterdir()} == {"train.py", "ported", "proof.json"}, (
        "no run directory is left"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere.py", "train.py"), "There is no script nowhere.py"),
        (("train.py", "train.py", "--steps", "0"), "--steps is 0"),
        (("train.py", "train.py", "--dropout", "no"), "--dropout is 'no'"),
        (("train.py 'x", "train.py"), "quotes"),
        (("", "train.py"), "The command is empty"),
        (("train.py", "train.py", "--out", "."), ". is a folder"),
    ],
)
def test_bad_input_is_one_line_and_status_2(folder: Path, words: tuple[str, ...], said: str) -> None:
    done = call(folder, *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (folder / "proof.json").exists()


def test_a_module_is_no_option(folder: Path) -> None:
    package = folder / "tools"  # the letter o is an option of verify, too
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(SCRIPT)
    done = call(folder, "-m tools.train 25", "SEED=1 python -m tools.train", "--steps", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("equal over 3 steps")
