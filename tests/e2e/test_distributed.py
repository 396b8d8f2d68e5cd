"""Two processes compute what one does: DDP and FSDP2, fp32 and fp64, and a short last batch."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file
from warm_python import WarmPython

ARGUMENTS = (
    "CPU", "--mode", "train", "--params", "configs/params.yaml", "--max_steps", "20",
    "-D", "optimizer.optimizer_type=SGD", "-D", "optimizer.learning_rate=0.1", "-D", "model.dropout=0.0",
    "-D", "optimizer.weight_decay_rate=0.001", "-D", "optimizer.max_gradient_norm=1.0",
    "-D", "runconfig.checkpoint_steps=10", "-D", "runconfig.log_steps=1",
)  # fmt: skip
# 300 samples in batches of 64: the fifth batch has 44, and three processes split every batch unevenly.
SMALL_DATA = "\n_read_digits = read_digits\n\ndef read_digits(split):\n    return tuple(t[:300] for t in _read_digits(split))\n"


def torchrun(folder: Path, num_processes: int, *arguments: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nproc_per_node={num_processes}",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=localhost:0",
        "run.py",
    ]
    return subprocess.Popen(
        [*command, *arguments],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "400"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = process.communicate(timeout=300)
    return process.returncode, out + err


@pytest.fixture
def small_folder(model_folder: Path) -> Path:
    path = model_folder / "data.py"
    path.write_text(path.read_text().replace("\ndef read_mnist(", SMALL_DATA + "\n\ndef read_mnist(", 1))
    return model_folder


def losses(model_dir: Path) -> list[float]:
    lines = (model_dir / "train" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["values"]["loss"] for line in lines]


def run_ranks(
    warm: WarmPython, folder: Path, num_processes: int, *arguments: str
) -> list[subprocess.CompletedProcess[str]]:
    """What torchrun would start, without its own process and without importing torch in each."""
    with socket.create_server(("localhost", 0)) as listening:
        port = listening.getsockname()[1]
    envs = [
        {
            **os.environ,
            "NO_COLOR": "1",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(num_processes),
            "LOCAL_WORLD_SIZE": str(num_processes),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
        }
        for rank in range(num_processes)
    ]
    ended = warm.run_together(arguments, folder, envs, timeout=300)
    for done in ended:
        assert done.returncode == 0, done.stderr
    return ended


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-6), ("fp64", 1e-12)])
def test_processes_equal_one(
    small_folder: Path, run_script, warm_python: WarmPython, precision: str, tolerance: float
) -> None:
    common = (*ARGUMENTS, "-D", f"runconfig.precision={precision}")
    one = run_script(small_folder, *common, "--model_dir", "one")
    assert one.returncode == 0, one.stderr
    whole = load_file(small_folder / "one" / "checkpoint_20" / "model.safetensors")
    for name, num_processes, strategy in (("ddp", 2, "ddp"), ("fsdp", 2, "fsdp"), ("ddp3", 3, "ddp")):
        spread_over = ("-D", f"runconfig.distributed={strategy}", "--model_dir", name)
        run_ranks(warm_python, small_folder, num_processes, *common, *spread_over)
        spread = load_file(small_folder / name / "checkpoint_20" / "model.safetensors")
        assert whole.keys() == spread.keys()
        difference = max((whole[k] - spread[k]).abs().max().item() for k in whole)
        assert difference <= tolerance, f"{name}: {difference}"
        assert losses(small_folder / name) == pytest.approx(losses(small_folder / "one"), abs=tolerance * 10)


def test_resume_with_another_number_of_processes(
    small_folder: Path, run_script, warm_python: WarmPython
) -> None:
    one = run_script(small_folder, *ARGUMENTS, "--model_dir", "one")
    assert one.returncode == 0, one.stderr
    half = ("--max_steps", "10", "-D", "runconfig.distributed=fsdp", "--model_dir", "mixed")
    run_ranks(warm_python, small_folder, 2, *ARGUMENTS, *half)
    rest = run_script(small_folder, *ARGUMENTS, "--model_dir", "mixed")
    assert rest.returncode == 0, rest.stderr
    a, b = (load_file(small_folder / d / "checkpoint_20" / "model.safetensors") for d in ("one", "mixed"))
    assert max((a[k] - b[k]).abs().max().item() for k in a) <= 1e-6


def test_evaluation_over_processes_counts_every_sample_once(
    small_folder: Path, run_script, warm_python: WarmPython
) -> None:
    assert run_script(small_folder, *ARGUMENTS).returncode == 0
    evaluate = (
        "CPU",
        "--mode",
        "eval",
        "--params",
        "configs/params.yaml",
        "-D",
        "eval_input.batch_size=23",
        "--json",
    )
    one = json.loads(run_script(small_folder, *evaluate).stdout)["values"]
    ended = run_ranks(warm_python, small_folder, 2, *evaluate)
    output = "".join(done.stdout for done in ended)
    text = output[output.index("{") : output.rindex("}") + 1]
    two = json.loads(text)["values"]
    assert two["eval/accuracy"] == one["eval/accuracy"]
    assert two["eval/loss"] == pytest.approx(one["eval/loss"], abs=1e-6)


def test_a_signal_to_one_process_stops_all_at_one_step(small_folder: Path) -> None:
    process = torchrun(
        small_folder,
        2,
        *ARGUMENTS,
        "--max_steps",
        "1000000",
        "--model_dir",
        "long",
        "-D",
        "runconfig.log_steps=50",
    )
    log = small_folder / "long" / "train" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (log.exists() and log.read_text().count("\n") > 2):
        assert process.poll() is None, process.communicate()
        time.sleep(0.2)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGUSR1)
    _, output = finish(process)
    assert "saved checkpoint_" in output, output
    assert "exitcode  : 85" in output or "exitcode : 85" in output, output
