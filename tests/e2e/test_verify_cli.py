"""The command `verify` as a user calls it: status, proof, page, and what is said when something is wrong."""

from __future__ import annotations

import json
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


def test_a_port_that_fails_is_not_equal_and_an_original_that_fails_is_an_error(folder: Path) -> None:
    ported = call(folder, "train.py", "broken.py", "--steps", "3")
    assert ported.returncode == 1
    assert "they part at step 1, the port fails" in ported.stdout
    assert "stepp" in ported.stdout
    original = call(folder, "broken.py", "train.py", "--steps", "3")
    assert original.returncode == 2
    assert original.stderr.splitlines()[-1].startswith("error: 'broken.py' failed")


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
        "off",
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
