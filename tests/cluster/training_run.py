"""Runs of fc_mnist that are submitted, disturbed and looked at."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from slurm_cluster import SlurmCluster

FC_MNIST = Path(__file__).parents[2] / "src" / "portwright" / "models" / "fc_mnist"
PORTWRIGHT = (sys.executable, "-m", "portwright")
MAX_STEPS = 400
# Patient: on a busy machine tasks alone take half a minute to begin. Nothing is timed.
WAIT_SECONDS = 400.0

# A data set on slow storage: how slow, params say, so that a run can be met in its middle. What it gives stays the same.
SLOW_DATA = """
class SlowDataset(TensorDataset):
    def __init__(self, seconds: float, *tensors: torch.Tensor) -> None:
        super().__init__(*tensors)
        self.seconds = seconds

    def __getitems__(self, places: list[int]) -> list[Any]:
        time.sleep(self.seconds)
        return [self[place] for place in places]
"""


def write_model(folder: Path) -> Path:
    """fc_mnist with a data set that waits `train_input.read_seconds` a batch."""
    shutil.copytree(FC_MNIST, folder, ignore=shutil.ignore_patterns("__pycache__", "model_dir"))
    _change(
        folder / "data.py",
        ("TensorDataset(images, labels)", 'SlowDataset(options["read_seconds"], images, labels)'),
        ("import gzip\n", "import gzip\nimport time\n"),
        ("\n\ndef get_train_dataloader", f"{SLOW_DATA}\n\ndef get_train_dataloader"),
    )
    _change(
        folder / "utils.py", ("    drop_last: bool", "    read_seconds: float = 0.0\n    drop_last: bool")
    )
    return folder


def write_data(folder: Path) -> Path:
    """scikit-learn's digits as MNIST's files: tasks begin sooner where they need not import it."""
    pixels, labels = load_digits(return_X_y=True)
    folder.mkdir(parents=True)
    for split, chosen in (("train", slice(None, 1437)), ("t10k", slice(1437, None))):
        images = pixels[chosen].astype(np.uint8).reshape(-1, 8, 8)
        for name, values in (
            (f"{split}-images-idx3-ubyte", images),
            (f"{split}-labels-idx1-ubyte", labels[chosen]),
        ):
            header = struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
            (folder / name).write_bytes(header + values.astype(np.uint8).tobytes())
    return folder


def _change(path: Path, *changes: tuple[str, str]) -> None:
    text = path.read_text()
    for old, new in changes:
        assert text.count(old) == 1, f"{path}: {old}"
        text = text.replace(old, new)
    path.write_text(text)


@dataclass(frozen=True)
class Place:
    """Where runs of a test go."""

    cluster: SlurmCluster
    site: Path  # its TOML file
    model: Path
    data: Path
    folder: Path
    apptainer: Path | None = None  # a folder for PATH
    # Runs begin one after the other: that of seven tasks is what costs this machine most.
    starting: threading.Lock = field(default_factory=threading.Lock)

    @property
    def environ(self) -> dict[str, str]:
        named = {"XDG_STATE_HOME": self.folder / "state", "XDG_CONFIG_HOME": self.folder / "config"}
        environ = {
            **self.cluster.environ,
            "OMP_NUM_THREADS": "1",
            **{name: str(at) for name, at in named.items()},
        }
        if self.apptainer is not None:
            environ["PATH"] = f"{self.apptainer}:{environ['PATH']}"
            environ["APPTAINER_NO_PRIVS"] = "1"
        return environ

    def start(self, name: str, *words: str, read_seconds: float = 0.0) -> TrainingRun:
        """Submits a run; returns when it trains."""
        with self.starting:
            run = self.submit(name, *words, read_seconds=read_seconds)
            run.wait_step(1)
        return run

    def submit(self, name: str, *words: str, read_seconds: float) -> TrainingRun:
        """`portwright submit`, as a user gives it."""
        model_dir = self.folder / name
        command = [
            *PORTWRIGHT, "submit", str(self.model), "--site", str(self.site), "--name", name,
            "--jobs-dir", str(self.folder / "jobs"), "--model_dir", str(model_dir), "--no-follow", "--json",
            "-D", f"train_input.data_dir={self.data}", "-D", f"eval_input.data_dir={self.data}",
            "-D", f"train_input.read_seconds={read_seconds}", "-D", f"runconfig.max_steps={MAX_STEPS}",
            "-D", "runconfig.checkpoint_steps=50", "-D", "runconfig.log_steps=10", *words,
        ]  # fmt: skip
        done = subprocess.run(
            command, env=self.environ, cwd=self.folder, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        told = json.loads(done.stdout)
        return TrainingRun(self.cluster, int(told["scheduler_id"]), Path(told["folder"]), model_dir)


@dataclass(frozen=True)
class TrainingRun:
    """A job, from submission to what it left."""

    cluster: SlurmCluster
    job: int
    folder: Path
    model_dir: Path

    # ---- waiting

    def wait_step(self, at_least: int) -> int:
        """Until a checkpoint in the middle of the training is there; its step."""
        self._wait(lambda: self.newest() >= at_least, f"no checkpoint_{at_least} or later")
        return self.newest()

    def wait_attempt(self, count: int) -> None:
        """Until the job was requeued so often."""
        self._wait(lambda: self.cluster.restarts(self.job) >= count, f"not requeued {count} times")

    def wait_done(self) -> None:
        self._wait(lambda: self.cluster.state(self.job) == "COMPLETED", "not completed")

    def _wait(self, reached: Callable[[], bool], told: str) -> None:
        ended = {"FAILED", "CANCELLED", "TIMEOUT"}

        def asked() -> bool:
            state = self.cluster.state(self.job)
            assert state not in ended, f"{told}: the job is {state}\n{self.log()}"
            if reached():
                return True
            assert state != "COMPLETED", f"{told}: the job is {state}\n{self.log()}"
            return False

        self.cluster.wait(asked, WAIT_SECONDS, lambda: f"{told}: {self.cluster.job(self.job)}\n{self.log()}")

    # ---- its processes

    def task_process(self, rank: int) -> int:
        """The process of one task of the training that runs Python; not the shell or container program around it."""
        found = [pid for pid in self._processes() if self._rank(pid) == rank]
        assert found, f"no process of rank {rank}\n{self.log()}"
        return found[0]

    def kill_task(self, rank: int) -> None:
        os.kill(self.task_process(rank), signal.SIGKILL)

    def train_step(self) -> str:
        """JOB.STEP of the training: the newest step that the scheduler has begun."""
        told = self.cluster.run("squeue", "--steps", "-h", "-j", str(self.job), "-o", "%i").stdout.split()
        numbered = [int(name.partition(".")[2]) for name in told if name.partition(".")[2].isdigit()]
        assert numbered, f"no step runs: {told}\n{self.log()}"
        return f"{self.job}.{max(numbered)}"

    def _processes(self) -> list[int]:
        found = []
        for path in Path("/proc").iterdir():
            if path.name.isdigit():
                words = _read(path / "cmdline").split(b"\0")
                is_python = Path(os.fsdecode(words[0])).name.startswith("python")
                if is_python and os.fsencode(self.model_dir) in words and b"train" in words:
                    found.append(int(path.name))
        return sorted(found)

    def _rank(self, pid: int) -> int | None:
        for word in _read(Path(f"/proc/{pid}/environ")).split(b"\0"):
            if word.startswith(b"RANK="):
                return int(word[5:])
        return None

    # ---- what it left

    def newest(self) -> int:
        steps = [
            int(path.name[11:]) for path in self.model_dir.glob("checkpoint_*") if path.name[11:].isdigit()
        ]
        return max(steps, default=0)

    def log(self) -> str:
        path = self.folder / "log.txt"
        return f"{path}:\n{path.read_text(errors='replace')[-6000:]}" if path.exists() else f"no {path}"

    def tensors(self) -> dict[str, torch.Tensor]:
        """All of the last checkpoint: weights, optimizer, random numbers."""
        at = self.model_dir / f"checkpoint_{MAX_STEPS}"
        named = {path.stem: load_file(path) for path in sorted(at.glob("*.safetensors"))}
        return {f"{stem}/{name}": value for stem, tensors in named.items() for name, value in tensors.items()}

    def losses(self) -> dict[int, float]:
        """Of every step, as its metrics have them; a step that was repeated must have come out the same."""
        found: dict[int, float] = {}
        for line in (self.model_dir / "train" / "metrics.jsonl").read_text().splitlines():
            row = json.loads(line)
            losses = row.get("losses", [])  # there are rows of other kinds
            for step, loss in enumerate(losses, start=row["step"] - len(losses) + 1):
                assert found.setdefault(step, loss) == loss, f"step {step} came out otherwise when repeated"
        return found

    def attempts(self) -> list[str]:
        """Why each attempt but the last ended, as job.sh noted it."""
        path = self.folder / "attempts"
        return [line.split()[1] for line in path.read_text().splitlines()] if path.exists() else []

    def stops(self) -> list[tuple[str, int, int]]:
        """Of each attempt that was asked to save: the signal, the step where it stopped, the step where the next went on."""
        log = (self.folder / "log.txt").read_text(errors="replace")
        found = re.findall(
            r"stopped by (SIG\w+) at step (\d+).*?resuming from \S+ at step (\d+)", log, flags=re.DOTALL
        )
        return [(name, int(stopped), int(resumed)) for name, stopped, resumed in found]

    def ended_by(self, attempt: int) -> str:
        """What ended this attempt, counted from 1; a lost script cannot say it, so that the next one does."""
        self._wait(
            lambda: len(self.attempts()) >= attempt, f"no reason noted for the end of attempt {attempt}"
        )
        return self.attempts()[attempt - 1]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it ended meanwhile
        return b""
