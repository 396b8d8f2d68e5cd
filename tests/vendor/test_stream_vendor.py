"""Data streamed to a training that goes through the SDK, on its CPU backend."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return int(listener.getsockname()[1])


def start(model_dir: Path, rank: int, size: int, port: int) -> subprocess.Popen[str]:
    environ = {
        **os.environ,
        "RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port),
    }  # fmt: skip
    words = [sys.executable, "-m", "portwright.cli", "run", "fc_mnist", "CSX", "--on_cpu", "--mode", "train"]
    words += ["-o", str(model_dir), "--max_steps", "40"] + ["--stream_data"] * (size > 1)
    return subprocess.Popen(words, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_the_sdks_training_is_the_same_whoever_reads_the_data(tmp_path: Path) -> None:
    for size in (1, 2):
        port = free_port()
        tasks = [start(tmp_path / str(size), rank, size, port) for rank in range(size)]
        said = [task.communicate(timeout=300)[0] for task in tasks]
        assert [task.returncode for task in tasks] == [0] * size, said
    alone, streamed = (load_file(tmp_path / name / "checkpoint_40" / "model.safetensors") for name in "12")
    assert alone.keys() == streamed.keys()
    assert all(torch.equal(alone[name], streamed[name]) for name in alone)
    assert "worker 1: " in said[0]
