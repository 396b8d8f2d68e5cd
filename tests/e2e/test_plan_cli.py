"""`portwright plan`, as a user calls it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from portwright.cli import main
from portwright.discover import find_models

NETS = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 16)
        self.b = nn.Linear(16, 2)

    def forward(self, x, scale):
        return self.b(torch.relu(self.a(x))) * scale


class Reads(Net):
    def forward(self, x, scale):
        y = super().forward(x, scale)
        if y.sum().item() > 0:  # reads
            y = -y
        return y.mean()


class Batch(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 1)

    def forward(self, batch):
        return self.a(batch["x"]).mean() + batch["scale"].mean()


class Fixed(nn.Module):
    def forward(self, x):
        return torch.relu(x).sum()


class Needs(nn.Module):
    def __init__(self, width):
        super().__init__()


class Wrong(Net):
    def forward(self, x, scale):
        return self.a(x.view(3, 5, 7)).mean()  # fails


def make():
    return Net()


def fail():
    raise ValueError("no luck")


made = Net()
number = 3
"""
LINES = {
    mark: 1 + next(i for i, line in enumerate(NETS.lstrip().splitlines()) if line.endswith(mark))
    for mark in ("# reads", "# fails")
}
X, SCALE = ("--input", "x:float32[4,8]"), ("--input", "scale:float32[4,2]")


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def plan(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command in this process, which saves importing torch each time."""

    def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", ["portwright", "plan", *arguments])
        monkeypatch.setattr(sys, "path", list(sys.path))
        with pytest.raises(SystemExit) as stop:
            main()
        for name in ("model", "data", "utils", "nets"):
            sys.modules.pop(name, None)
        written = capfd.readouterr()
        return subprocess.CompletedProcess(arguments, int(stop.value.code or 0), written.out, written.err)

    return run


@pytest.fixture
def plan_json(plan: Run) -> Callable[..., dict[str, Any]]:
    def run(*arguments: str, cwd: Path, status: int = 0) -> dict[str, Any]:
        done = plan(*arguments, "--json", cwd=cwd)
        assert done.returncode == status, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    return run


Json = Callable[..., dict[str, Any]]


@pytest.fixture
def nets(tmp_path: Path) -> Path:
    (tmp_path / "nets.py").write_text(NETS.lstrip())
    return tmp_path


def test_a_model_folder_on_every_target(model_folder: Path, tmp_path: Path, plan_json: Json) -> None:
    out = tmp_path / "out"
    before = {p for p in model_folder.rglob("*") if "__pycache__" not in p.parts}
    documents = plan_json(
        str(model_folder), "--target", "all", "--memory", "24GB", "--out", str(out), cwd=tmp_path
    )["targets"]
    assert {"csx", "ipu", "rdu", "cpu", "gpu"} <= set(documents)
    for name, document in documents.items():
        assert document["supported"], document["refused"]
        assert document["fits"]
        assert document["refused"] == []
        assert document["parameters"] == 64 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10
        assert document["optimizer"] == "AdamW"
        assert document["batch_size"] == 64
        assert document["memory_bytes"]["optimizer"] == 2 * document["memory_bytes"]["weights"]
        assert json.loads((out / name / "plan.json").read_text())["target"] == name.upper()
    assert (out / "plan.html").read_text().startswith("<!")
    metrics = json.loads((out / "csx" / "key_metrics.json").read_text())["answers"]
    assert metrics["num_samples"]["value"] == 1437
    assert metrics["sample_bytes"]["value"] == 64 * 4 + 8
    assert metrics["dataset_files"]["value"] is None
    assert metrics["dataset_files"]["reason"]
    # The commands of Neocortex's page find their numbers.
    for file, key in (("plan.json", "total_utilization"), ("deltat_estimate.json", "estimated_deltat")):
        text = (out / "csx" / file).read_text()
        assert re.search(rf'"{key}":[0-9.]+', text), text[:400]
        assert '"estimated":true' in text
    assert {p for p in model_folder.rglob("*") if "__pycache__" not in p.parts} == before


def test_a_readable_page_for_people(model_folder: Path, plan: Run) -> None:
    done = plan(".", "--target", "csx", "-D", "model.hidden_sizes=[32,32,32]", cwd=model_folder)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "CSX: supported on CS-2 (WSE-2), fits, mode layer_pipelined"
    assert any(line.startswith("layers.0 ") and "Linear" in line for line in lines)
    assert "Traceback" not in done.stderr


def test_options_in_force_that_no_figure_counts_are_told(model_folder: Path, plan: Run) -> None:
    words = ("--target", "GPU", "-D", "optimizer.max_gradient_norm=1.0", "-D", "optimizer.grad_accum_steps=4")
    told = "not counted, though params ask for it: optimizer.grad_accum_steps, optimizer.max_gradient_norm."
    assert told in plan(str(model_folder), *words, cwd=model_folder).stdout
    assert "not counted" not in plan(str(model_folder), *words[:2], cwd=model_folder).stdout


def test_data_that_is_there_is_measured(model_folder: Path, tmp_path: Path, plan_json: Json) -> None:
    folder = tmp_path / "mnist"
    folder.mkdir()
    header = b"\x00\x00\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (20, 28, 28))
    (folder / "train-images-idx3-ubyte").write_bytes(header + bytes(20 * 28 * 28))
    (folder / "train-labels-idx1-ubyte").write_bytes(
        b"\x00\x00\x08\x01" + (20).to_bytes(4, "big") + bytes(20)
    )
    document = plan_json(
        str(model_folder), "--target", "cpu", "-D", f"train_input.data_dir={folder}", "-D", "model.input_size=784",
        "--batch-size", "7", cwd=tmp_path,
    )  # fmt: skip
    assert document["batch_size"] == 7
    assert document["key_metrics"]["dataset_files"]["value"] == 2
    assert document["key_metrics"]["dataset_bytes"]["value"] == sum(
        p.stat().st_size for p in folder.iterdir()
    )
    assert document["key_metrics"]["num_samples"]["value"] == 20


@pytest.mark.parametrize("name", find_models())
def test_reference_models_by_name(name: str, tmp_path: Path, plan_json: Json) -> None:
    document = plan_json(name, "--target", "cpu", cwd=tmp_path)
    assert document["supported"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["Net", "make", "made"])
def test_callables_with_described_inputs(nets: Path, name: str, plan_json: Json) -> None:
    by_name = plan_json(f"nets.py:{name}", "--target", "cpu", *SCALE, *X, cwd=nets)
    assert by_name["parameters"] == 8 * 16 + 16 + 16 * 2 + 2
    assert [entry["shape"] for entry in by_name["inputs"]] == [[4, 2], [4, 8]]
    assert by_name["optimizer"] == "Adam"


def test_inputs_in_order_by_key_and_of_another_batch_size(nets: Path, plan_json: Json) -> None:
    unnamed = ("--input", "float32[4,8]", "--input", "float32[4,2]")
    in_order = plan_json(
        "nets.py:Net", "--target", "gpu", "--memory", "1GB", *unnamed, "--optimizer", "sgd", cwd=nets
    )
    assert in_order["memory_bytes"]["optimizer"] == 0
    by_key = plan_json("nets.py:Batch", "--target", "cpu", *X, *SCALE, "--batch-size", "32", cwd=nets)
    assert [entry["shape"] for entry in by_key["inputs"]] == [[32, 8], [32, 2]]
    forward = plan_json("nets.py:Fixed", "--target", "cpu", *X, cwd=nets)
    assert not forward["trains"]


def test_a_refusal_names_the_line_and_ends_with_status_1(nets: Path, plan: Run, plan_json: Json) -> None:
    done = plan("nets.py:Reads", "--target", "csx", *X, *SCALE, cwd=nets)
    assert done.returncode == 1
    assert done.stdout.startswith("CSX: not supported")
    assert f"nets.py:{LINES['# reads']}: " in done.stdout
    document = plan_json("nets.py:Reads", "--target", "csx", *X, *SCALE, cwd=nets, status=1)
    refusal = document["refused"][0]
    assert (Path(refusal["file"]).name, refusal["line"]) == ("nets.py", LINES["# reads"])
    assert refusal["reason"]
    assert refusal["cure"]
    # torch itself reads values on the host.
    assert plan_json("nets.py:Reads", "--target", "cpu", *X, *SCALE, cwd=nets)["supported"]


def test_a_step_that_fails_is_told_with_its_line(nets: Path, plan: Run) -> None:
    done = plan("nets.py:Wrong", "--target", "cpu", *X, *SCALE, cwd=nets)
    assert done.returncode == 1
    assert f"nets.py:{LINES['# fails']}: " in done.stdout
    assert "Traceback" not in done.stderr


def test_what_does_not_fit_ends_with_status_1(model_folder: Path, plan: Run) -> None:
    done = plan(".", "--target", "gpu", "--memory", "300kB", cwd=model_folder)
    assert done.returncode == 1
    assert "does not fit" in done.stdout
    assert "Use a batch of at most" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("fc_minst", "--target", "cpu"), "Did you mean 'fc_mnist'?"),
        (("nowhere.py:Net", "--target", "cpu", *X), "no file 'nowhere.py'"),
        (("nets.py:Nett", "--target", "cpu", *X), "Did you mean 'Net'?"),
        (("nets.py:number", "--target", "cpu", *X), "int"),
        (("nets.py:Net", "--target", "cpu"), "--input"),
        (("nets.py:Net", "--target", "cpu", "--input", "x:float32[a]"), "float32[a]"),
        (("nets.py:Needs", "--target", "cpu", *X), "width"),
        (("nets.py:fail", "--target", "cpu", *X), "no luck"),
        (("nets.py", "--target", "cpu"), "params"),
        ((".", "--target", "cpu"), "run.py"),
        (("fc_mnist", "--target", "tpu"), "Did you mean"),
        (("fc_mnist", "--target", ","), "target"),
        (("fc_mnist", "--target", "csx", "--mode", "resident"), "layer_pipelined"),
        (("fc_mnist", "--target", "csx", "--mode", "pipelne"), "layer_pipelined"),
        (("fc_mnist", "--target", "gpu", "--memory", "lots"), "24GB"),
        (("fc_mnist", "--target", "cpu", "--batch-size", "0"), "--batch-size"),
        (("fc_mnist", "--target", "cpu", "--optimizer", "Adamm"), "Adam"),
        (("fc_mnist", "--target", "cpu", "--params", "nowhere.yaml"), "nowhere.yaml"),
        (("fc_mnist", "--target", "cpu", "-D", "model.hiden=3"), "hiden"),
        (("fc_mnist", "--target", "cpu", "-D", "train_input.data_dir=nowhere"), "nowhere"),
        (("fc_mnist",), "--target"),
        (("fc_mnist", "--target", "cpu", "--out", "nets.py"), "nets.py"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    nets: Path, plan: Run, arguments: tuple[str, ...], text: str
) -> None:
    done = plan(*arguments, cwd=nets)
    assert done.returncode == 2, done.stdout + done.stderr
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("error:")]) == 1


def test_a_script_that_never_calls_run(nets: Path, plan: Run) -> None:
    (nets / "run.py").write_text("print('nothing')\n")
    (nets / "params.yaml").write_text("optimizer: {learning_rate: 0.1}\n")
    done = plan("run.py", "--target", "cpu", "--params", "params.yaml", cwd=nets)
    assert done.returncode == 2
    assert "never calls portwright.run()" in done.stderr


def test_what_the_users_code_prints_does_not_disturb_json(model_folder: Path) -> None:
    """In a process of its own, as a user starts it."""
    script = model_folder / "run.py"
    script.write_text("print('hello')\n" + script.read_text())
    done = subprocess.run(
        [sys.executable, "-m", "portwright.cli", "plan", ".", "--target", "cpu", "--json"],
        cwd=model_folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["supported"]
    assert done.stderr == "hello\n"
