"""kill -9 at random moments, then resume: the weights are those of the run that was never killed. SIGTERM saves first."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tf_folders import copy_folder

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

# Each attempt is a fork of one process that has imported TensorFlow and never used it: importing takes seconds. The child
# ends itself some time after a given step has begun: in a step, while a checkpoint or the input's position is written.
DEADLY = """
import os, runpy, signal, sys, threading, time

import portwright.tensorflow
portwright.tensorflow.prepare()
# Imported, not used: TensorFlow's threads start with the first session.
import sklearn.datasets, tensorflow, tf_keras
import portwright.tensorflow.optimizers, portwright.tensorflow.run_modes


def attempt(model_dir, number, after_steps, delay):
    sys.argv = ["run.py", "CPU", "--mode", MODE, "--params", "configs/params.yaml", "--max_steps", "160",
                "-D", "runconfig.checkpoint_steps=20", "-D", "runconfig.log_steps=7", "-D", "runconfig.eval_frequency=80",
                "--model_dir", model_dir]
    if number:
        from portwright.tensorflow import train_loop
        run_steps = train_loop.Position.advance
        count = 0
        def advance(self, *given):
            nonlocal count
            count += 1
            if count == after_steps:
                def kill():
                    time.sleep(delay)
                    os.kill(os.getpid(), number)
                threading.Thread(target=kill, daemon=True).start()
            return run_steps(self, *given)
        train_loop.Position.advance = advance
    runpy.run_path("run.py", run_name="__main__")


for line in sys.stdin:
    MODE, model_dir, number, after_steps, delay = line.split()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            attempt(model_dir, int(number), int(after_steps), float(delay))
            status = 0
        except SystemExit as stop:
            status = int(stop.code or 0)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    _, code = os.waitpid(child, 0)
    print(-os.WTERMSIG(code) if os.WIFSIGNALED(code) else os.WEXITSTATUS(code), flush=True)
"""


class Runs:
    """Runs of one folder, each a child of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "deadly.py").write_text(DEADLY)
        self.log = folder / "stderr.txt"
        self._stderr = self.log.open("w")
        self._process = subprocess.Popen(
            [sys.executable, "deadly.py"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._stderr, text=True, env={**os.environ, "NO_COLOR": "1"},
        )  # fmt: skip

    def run(
        self, model_dir: str, number: int = 0, after_steps: int = 0, delay: float = 0.0, mode: str = "train"
    ) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{mode} {model_dir} {int(number)} {after_steps} {delay}\n")
        self._process.stdin.flush()
        words = ""
        while not words.strip().lstrip("-").isdigit():  # what run() itself prints stands before it
            words = self._process.stdout.readline()
            assert words, self.log.read_text()
        return int(words)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._stderr.close()

    def weights(self, model_dir: str) -> dict[str, np.ndarray]:
        import tensorflow as tf

        checkpoint = str(self.folder / model_dir / "model.ckpt-160")
        return {
            name: tf.train.load_variable(checkpoint, name) for name, _ in tf.train.list_variables(checkpoint)
        }

    def same_weights(self, one: str, other: str) -> bool:
        a, b = self.weights(one), self.weights(other)
        assert len(a) > 10
        return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory):
    runs = Runs(copy_folder(tmp_path_factory.mktemp("kill") / "mymodel"))
    assert runs.run("whole") == 0, runs.log.read_text()
    yield runs
    runs.close()


def test_six_kills_change_nothing(runs: Runs) -> None:
    rng = random.Random(int(os.environ.get("PORTWRIGHT_SEED", "20261116")))
    statuses = [runs.run("killed", signal.SIGKILL, rng.randint(1, 38), rng.random() * 0.03) for _ in range(6)]
    assert statuses.count(-signal.SIGKILL) == 6, (statuses, runs.log.read_text())
    assert runs.run("killed") == 0, runs.log.read_text()
    assert runs.same_weights("whole", "killed")
    logs = [
        (runs.folder / d / "train" / "metrics.jsonl").read_text().splitlines() for d in ("whole", "killed")
    ]
    steps = [[line.split('"step": ')[1].split(",")[0] for line in log] for log in logs]
    assert steps[0] == steps[1], "the log of the killed run repeats or lacks steps"


def test_evaluating_in_between_and_kills_change_nothing(runs: Runs) -> None:
    assert runs.run("both", signal.SIGKILL, 30, 0.01, mode="train_and_eval") == -signal.SIGKILL
    assert runs.run("both", mode="train_and_eval") == 0, runs.log.read_text()
    assert runs.same_weights("whole", "both")


def test_sigterm_saves_and_says_so(runs: Runs) -> None:
    assert runs.run("stopped", signal.SIGTERM, 33) == 85, runs.log.read_text()
    assert "stopped by SIGTERM at step" in runs.log.read_text()
    newest = max(
        int(path.stem.rpartition("-")[2]) for path in (runs.folder / "stopped").glob("model.ckpt-*.index")
    )
    assert 33 <= newest < 160
    assert runs.run("stopped") == 0, runs.log.read_text()
    assert runs.same_weights("whole", "stopped")
