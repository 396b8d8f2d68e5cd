"""python run.py IPU --emulate: the CPU's numbers under PopTorch's rules, labelled, resumable, and moved between targets."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

from portwright.discover import models_folder

PARAMS = ("--params", "configs/params.yaml")
SMALL = {
    "fc_mnist": ("model.dropout=0.0", "train_input.drop_last=true"),
    "alphabet": (
        "train_input.num_samples=1280",
        "eval_input.num_samples=80",
        "model.embedding_size=16",
        "model.hidden_size=16",
        "model.num_hidden_layers=1",
    ),
    # Leaky rectifiers and Adam turn a last bit near zero into a step of full length: torch on two threads differs from torch
    # on one by 1e-3 at the usual rate. At this one a wrong update still shows: it moves the loss by 1e-3.
    "cosmictagger": (
        "train_input.num_samples=64",
        "eval_input.num_samples=8",
        "train_input.downsample=6",
        "eval_input.downsample=6",
        "model.depth=2",
        "model.n_initial_filters=4",
        "model.blocks_deepest_layer=1",
        "model.bottleneck_deepest=16",
        "optimizer.learning_rate=0.00001",
        "runconfig.eval_frequency=0",
    ),
}


def copy_model(name: str, to: Path) -> Path:
    shutil.copytree(
        models_folder() / name, to / name, ignore=shutil.ignore_patterns("__pycache__", "model_dir")
    )
    return to / name


def run_here(folder: Path, *arguments: str) -> int:
    """As `python run.py ARGUMENTS` in this process, which has torch already; gives the exit status."""
    saved_argv, saved_path, saved_folder = sys.argv, list(sys.path), Path.cwd()
    os.chdir(folder)
    sys.argv = ["run.py", *arguments]
    sys.path.insert(0, str(folder))
    # Other tests have imported a data.py and a model.py of their own.
    own = {path.stem for path in folder.glob("*.py")}
    others = {name: sys.modules.pop(name) for name in own if name in sys.modules}
    try:
        runpy.run_path("run.py", run_name="__main__")
    except SystemExit as stop:
        return int(stop.code or 0)
    finally:
        sys.argv, sys.path[:] = saved_argv, saved_path
        os.chdir(saved_folder)
        for name in own:
            sys.modules.pop(name, None)
        sys.modules.update(others)
    return 0


def train(
    folder: Path, target: str, steps: int, *overrides: str, model_dir: str, mode: str = "train"
) -> dict[str, Any]:
    settings = ("runconfig.log_steps=4", "runconfig.save_losses=true", *SMALL[folder.name], *overrides)
    words = [word for text in settings for word in ("-D", text)]
    emulate = ["--emulate"] if target == "IPU" else []
    status = run_here(
        folder, target, "--mode", mode, *PARAMS, "--max_steps", str(steps), "-o", model_dir, *words, *emulate
    )
    assert status == 0
    lines = [
        json.loads(line) for line in (folder / model_dir / "train" / "metrics.jsonl").read_text().splitlines()
    ]
    return {
        "losses": [loss for line in lines if line["kind"] == "train" for loss in line["losses"]],
        "eval": [line["values"] for line in lines if line["kind"] == "eval"],
        "emulated": {line.get("emulated") for line in lines},
    }


BUNDLES = {
    "plain": ((), ()),
    "accumulated": (("ipu.gradient_accumulation=2",), ("optimizer.grad_accum_steps=2",)),
    "bundled": (("ipu.device_iterations=2",), ()),
    "replicated": (("ipu.replication_factor=2",), ("optimizer.grad_accum_steps=2",)),
    "all": (
        ("ipu.gradient_accumulation=2", "ipu.device_iterations=2", "ipu.replication_factor=2"),
        ("optimizer.grad_accum_steps=4",),
    ),
}


@pytest.mark.parametrize("model", sorted(SMALL))
def test_losses_are_those_of_the_cpu(tmp_path: Path, model: str) -> None:
    """At the same effective batch, whichever way it is put together; a constant rate, since a call has one."""
    folder = copy_model(model, tmp_path)
    constant = ("optimizer.learning_rate=0.0003",) if model == "alphabet" else ()
    cpu: dict[tuple[str, ...], dict[str, Any]] = {}
    for name, (ipu, batches) in BUNDLES.items():
        if batches not in cpu:
            where = f"cpu{len(cpu)}"
            cpu[batches] = train(
                folder, "CPU", 8, *constant, *batches, model_dir=where, mode="train_and_eval"
            )
        if model == "cosmictagger" and name in ("replicated", "all"):
            ipu = (*ipu, "ipu.broadcast_buffers=false")  # its norms have running statistics
        got = train(folder, "IPU", 8, *constant, *ipu, model_dir=name, mode="train_and_eval")
        expected = cpu[batches]
        assert len(got["losses"]) == 8
        assert got["losses"] == pytest.approx(expected["losses"], rel=1e-5), name
        assert (got["emulated"], expected["emulated"]) == ({"PopTorch 3.4"}, {None})
        assert len(got["eval"]) == len(expected["eval"]) == 1
        if "ipu.broadcast_buffers=false" in ipu:
            continue  # each replica has running statistics of its own
        for key, value in expected["eval"][0].items():
            assert got["eval"][0][key] == pytest.approx(value, rel=1e-4, abs=2e-3), (name, key)


def test_a_schedule_reaches_the_device_at_every_step(tmp_path: Path) -> None:
    folder = copy_model("alphabet", tmp_path)
    rates = (
        "optimizer.learning_rate=[{scheduler: Linear, initial_learning_rate: 0.01, end_learning_rate: 0.0, steps: 8}]",
    )
    expected = train(folder, "CPU", 8, *rates, model_dir="cpu")["losses"]
    assert train(folder, "IPU", 8, *rates, model_dir="ipu")["losses"] == pytest.approx(expected, rel=1e-5)


def test_a_run_moves_from_cpu_to_ipu_and_back(tmp_path: Path) -> None:
    folder = copy_model("fc_mnist", tmp_path)
    expected = train(folder, "CPU", 12, model_dir="whole")["losses"]
    train(folder, "CPU", 4, model_dir="moved")
    train(folder, "IPU", 8, model_dir="moved")
    moved = train(folder, "CPU", 12, model_dir="moved")["losses"]
    assert moved == pytest.approx(expected, rel=1e-5)
    for name in ("model.safetensors", "optimizer.safetensors"):
        one = load_file(folder / "whole" / "checkpoint_12" / name)
        other = load_file(folder / "moved" / "checkpoint_12" / name)
        assert one.keys() == other.keys()
        assert all(one[key].sub(other[key]).abs().max() < 1e-5 for key in one), name


def test_killed_and_resumed_it_is_the_same_run(tmp_path: Path) -> None:
    """With dropout: what the device draws is part of the state."""
    folder = copy_model("fc_mnist", tmp_path)
    command = [
        sys.executable, "run.py", "IPU", "--emulate", "--mode", "train", *PARAMS, "-D", "runconfig.log_steps=5",
        "-D", "runconfig.checkpoint_steps=5", "-D", "runconfig.max_checkpoints=3", "-D", "model.dropout=0.5",
    ]  # fmt: skip
    killed = subprocess.Popen(
        [*command, "--max_steps", "100000", "-o", "killed"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        while killed.poll() is None and not (folder / "killed" / "checkpoint_10").exists():
            time.sleep(0.02)
        assert killed.poll() is None, killed.communicate()[1]
        killed.send_signal(signal.SIGKILL)
    finally:
        killed.kill()
        killed.communicate()
    reached = max(int(p.name.split("_")[1]) for p in (folder / "killed").glob("checkpoint_*"))
    steps = str(reached + 10)
    for where in ("killed", "whole"):
        done = subprocess.run(
            [*command, "--max_steps", steps, "-o", where, "--json"],
            cwd=folder,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["emulated"] == "PopTorch 3.4"
        assert "IPU (emulated) train step" in done.stderr
    for name in ("model.safetensors", "optimizer.safetensors", "rng.safetensors"):
        one, other = (load_file(folder / d / f"checkpoint_{steps}" / name) for d in ("killed", "whole"))
        assert one.keys() == other.keys()
        assert all(one[key].equal(other[key]) for key in one), name
    counters = json.loads((folder / "whole" / f"checkpoint_{steps}" / "state.json").read_text())["counters"]
    assert counters["emulated"] == "PopTorch 3.4"


def test_without_the_sdk_one_line_names_both_ways_out(tmp_path: Path, run_script) -> None:
    folder = copy_model("fc_mnist", tmp_path)
    refused = run_script(folder, "IPU", "--mode", "train", *PARAMS)
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1
    for word in ("PopTorch is not installed", "Poplar SDK 3.4", "--emulate"):
        assert word in refused.stderr


def test_an_installed_sdk_is_used_and_nothing_says_emulated(tmp_path: Path, run_script) -> None:
    """tests/fixtures/sdk stands for it: PopTorch's public names alone, on torch."""
    folder = copy_model("fc_mnist", tmp_path)
    params = yaml.safe_load((folder / "configs" / "params.yaml").read_text())
    params["optimizer"] = {"optimizer_type": "SGD", "learning_rate": 0.1}
    (folder / "configs" / "params.yaml").write_text(yaml.safe_dump(params))
    sdk = str(Path(__file__).parents[1] / "fixtures" / "sdk")
    more = [word for text in (*SMALL["fc_mnist"], "ipu.device_iterations=2") for word in ("-D", text)]
    done = run_script(
        folder,
        "IPU",
        "--mode",
        "train_and_eval",
        *PARAMS,
        "--max_steps",
        "8",
        "--json",
        *more,
        env={"PYTHONPATH": sdk},
    )
    assert done.returncode == 0, done.stderr
    assert "emulated" not in done.stderr + done.stdout
    expected = train(folder, "CPU", 8, model_dir="cpu", mode="train_and_eval")
    values = json.loads(done.stdout)["values"]
    assert values["train/loss"] == pytest.approx(expected["losses"][-1], rel=1e-5)
    assert values["eval/accuracy"] == pytest.approx(expected["eval"][0]["eval/accuracy"], abs=1e-6)


def test_validate_compile_eval_and_predict(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = copy_model("fc_mnist", tmp_path)

    def run(*arguments: str) -> Any:
        status = run_here(folder, "IPU", *PARAMS, "--emulate", "--max_steps", "4", "--json", *arguments)
        told = capfd.readouterr()
        assert status == 0, told.err
        return json.loads(told.out)

    validated = run("--mode", "train_and_eval", "--validate_only")
    assert validated["emulated"] == "PopTorch 3.4"
    assert [step["step"] for step in validated["validated"]["steps"]] == ["train", "eval"]
    assert not list(folder.rglob("*.safetensors"))
    compiled = run(
        "--mode", "train_and_eval", "--compile_only", "-c", "made", "-D", "ipu.device_iterations=2"
    )
    assert [step["batches_per_call"] for step in compiled["compiled"]["steps"]] == [2, 1]
    assert {p.name for p in (folder / "made").iterdir()} >= {"train.poptorch", "eval.poptorch"}
    trained = run("--mode", "train")
    evaluated = run("--mode", "eval")
    predicted = run("--mode", "predict")
    assert trained["step"] == evaluated["step"] == 4
    assert 0 < evaluated["values"]["eval/accuracy"] <= 1
    assert len(predicted["predictions"]) == 1


def test_what_poptorch_refuses_names_the_users_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = copy_model("fc_mnist", tmp_path)
    text = (folder / "model.py").read_text()
    line = next(i for i, row in enumerate(text.splitlines(), 1) if "loss: torch.Tensor = " in row)
    (folder / "model.py").write_text(
        text.replace("self.loss_fn(logits, labels)", "self.loss_fn(logits, labels) * logits.mean().item()")
    )
    status = run_here(folder, "IPU", "--mode", "train", *PARAMS, "--emulate", "--max_steps", "4")
    told = capfd.readouterr().err.splitlines()[-1]
    assert status == 1, told
    assert "item" in told
    assert f"model.py:{line}" in told


def test_a_target_without_an_emulator_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = copy_model("fc_mnist", tmp_path)
    assert run_here(folder, "CPU", "--mode", "train", *PARAMS, "--emulate") == 2
    assert "there is no emulator of CPU" in capfd.readouterr().err
