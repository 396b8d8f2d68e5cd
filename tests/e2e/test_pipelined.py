"""A user's run.py in stages: torchrun, a kill in the middle, and the same weights as one process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file
from test_distributed import losses, run_ranks
from warm_python import WarmPython

TRAIN = (
    "CPU", "--mode", "train", "--params", "configs/params.yaml", "-D", "runconfig.log_steps=1",
    "-D", "optimizer.max_gradient_norm=1.0",
)  # fmt: skip
PIPELINED = ("-D", "runconfig.execution=pipelined", "-D", "runconfig.pipeline.micro_batches=4")


def test_stages_train_what_one_process_trains(
    model_folder: Path, run_script, warm_python: WarmPython
) -> None:
    """Over the end of an epoch, whose last batch has 29 samples, and with an evaluation that shares the metrics."""
    common = (
        *TRAIN, "--mode", "train_and_eval", "-D", "runconfig.precision=fp64", "-D", "model.dropout=0.0",
        "--max_steps", "26", "-D", "runconfig.eval_frequency=26",
    )  # fmt: skip
    one = run_script(model_folder, *common, "--model_dir", "one")
    assert one.returncode == 0, one.stderr
    run_ranks(warm_python, model_folder, 2, *common, *PIPELINED, "--model_dir", "two")
    a, b = (load_file(model_folder / name / "checkpoint_26" / "model.safetensors") for name in ("one", "two"))
    assert a.keys() == b.keys()
    assert max((a[name] - b[name]).abs().max().item() for name in a) <= 1e-12
    assert losses_of(model_folder / "two", "train") == pytest.approx(
        losses_of(model_folder / "one", "train"), abs=1e-12
    )
    assert losses_of(model_folder / "two", "eval") == pytest.approx(
        losses_of(model_folder / "one", "eval"), abs=1e-12
    )


def losses_of(model_dir: Path, kind: str) -> list[float]:
    lines = [json.loads(line) for line in (model_dir / "train" / "metrics.jsonl").read_text().splitlines()]
    found = [line["values"]["loss"] for line in lines if line["kind"] == kind]
    assert found
    return found


def test_killed_and_resumed_it_is_the_undisturbed_run(model_folder: Path, warm_python: WarmPython) -> None:
    """With dropout, through torchrun, to the bit."""
    common = (*TRAIN, *PIPELINED, "-D", "runconfig.checkpoint_steps=10", "-D", "runconfig.max_checkpoints=2")
    run_ranks(warm_python, model_folder, 2, *common, "--max_steps", "40", "--model_dir", "whole")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--rdzv-backend=c10d"]
    command += [
        "--rdzv-endpoint=localhost:0",
        "run.py",
        *common,
        "--max_steps",
        "100000",
        "--model_dir",
        "killed",
    ]
    process = subprocess.Popen(
        command,
        cwd=model_folder,
        env={**os.environ, "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        deadline = time.monotonic() + 240
        while not list((model_folder / "killed").glob("checkpoint_[1-9]*/manifest.json")):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        ranks = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for pid in (*map(int, ranks), process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()
    reached = max(
        int(path.name.split("_")[1]) for path in (model_folder / "killed").glob("checkpoint_*[0-9]")
    )
    last = max(40, reached + 10)
    if last > 40:
        run_ranks(warm_python, model_folder, 2, *common, "--max_steps", str(last), "--model_dir", "whole")
    run_ranks(warm_python, model_folder, 2, *common, "--max_steps", str(last), "--model_dir", "killed")
    whole, killed = (model_folder / name / f"checkpoint_{last}" for name in ("whole", "killed"))
    assert losses(model_folder / "killed") == losses(model_folder / "whole")
    for name in ("model.safetensors", "optimizer.safetensors"):
        a, b = load_file(whole / name), load_file(killed / name)
        assert a.keys() == b.keys()
        assert all(a[key].equal(b[key]) for key in a), name
