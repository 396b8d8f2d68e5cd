"""Real tasks of one launch: one trains and the others read for it, or all train together as a TF_CONFIG of their own says."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from warm_python import WarmPython

RUN = '''
import os, signal, time

import tensorflow as tf

import portwright.tensorflow as est
from portwright.tensorflow import position, stream_lanes

v1 = tf.compat.v1
RANK, HURT = os.environ.get("RANK", "0"), os.environ.get("HURT", "").split()  # rank, signal, when


def train_input_fn(params):
    """No seed but the graph's; every batch of the training is another."""
    data = tf.data.Dataset.range(36).shuffle(36)
    data = data.map(lambda x: tf.cast(x, tf.float32) / 36 + tf.random.uniform([], 0, 0.01))
    if os.environ.get("BAD_DATA"):
        data = data.map(lambda x: tf.debugging.check_numerics(tf.math.log(x - 0.3), "a bad sample"))
    data = data.map(lambda x: ({"x": [x, 1.0], "word": tf.strings.as_string(x)}, [x * x]))
    return data.repeat().batch(4, drop_remainder=True)


def eval_input_fn(params):
    return tf.data.Dataset.range(8).map(lambda x: ({"x": [0.1, 0.2], "word": ""}, [0.5])).batch(4)


def model_fn(features, labels, mode, params):
    hidden = tf.keras.layers.Dense(6, name="hidden", activation="tanh")(features["x"])
    if mode == "train":
        hidden = tf.nn.dropout(hidden, 0.2)
    output = tf.keras.layers.Dense(1, name="output")(hidden)
    loss = tf.reduce_mean((output - labels) ** 2)
    if mode == "eval":
        return est.EstimatorSpec(mode, loss=loss, eval_metric_ops={"mae": v1.metrics.mean(tf.abs(output - labels))})
    step = v1.train.AdamOptimizer(0.01).minimize(loss, v1.train.get_global_step())
    return est.EstimatorSpec(mode, loss=loss, train_op=step)


def count_down(owner, name, targets):
    given, count = getattr(owner, name), int(HURT[2])
    def counted(*args):
        nonlocal count
        count -= 1
        if not count:
            for pid in targets():
                os.kill(pid, int(HURT[1]))
        return given(*args)
    setattr(owner, name, counted)


if os.environ.get("LATE") == RANK != "0":
    time.sleep(4)
if HURT and HURT[0] == RANK:
    count_down(*((position.Position, "advance") if RANK == "0" else (stream_lanes.Lanes, "read")), lambda: [os.getpid()])
if HURT and HURT[0] == "all" and RANK == "0":
    count_down(position.Position, "advance", lambda: [int(line) for line in open("pids")])
if HURT and HURT[0] == "all":
    with open("pids", "a") as file:
        file.write(f"{os.getpid()}\\n")

est.run(model_fn, train_input_fn, eval_input_fn)
'''
PARAMS = """
train_input: {batch_size: 4}
eval_input: {batch_size: 4}
model: {}
optimizer: {learning_rate: 0.01}
runconfig: {max_steps: 24, checkpoint_steps: 5, log_steps: 4, eval_frequency: 8, seed: 3, max_checkpoints: 9}
"""


class Tasks:
    """Starts the tasks of one launch, and waits for them."""

    def __init__(self, warm: WarmPython, folder: Path) -> None:
        self._warm, self.folder = warm, folder
        (folder / "run.py").write_text(RUN)
        (folder / "params.yaml").write_text(PARAMS)

    def __call__(
        self, *words: str, num: int = 3, mode: str = "train", **environ: str
    ) -> list[subprocess.CompletedProcess[str]]:
        gone = ("TF_CONFIG", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_STEP_ID")
        base = {name: value for name, value in os.environ.items() if name not in gone}
        base |= {"NO_COLOR": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **environ}
        ranks = [{"RANK": str(rank), "WORLD_SIZE": str(num)} if num > 1 else {} for rank in range(num)]
        command = ("CPU", "--mode", mode, "--params", "params.yaml", "--json", *words)
        return self._warm.run_together(command, self.folder, [{**base, **rank} for rank in ranks], 120)

    def weights(self, model_dir: str) -> dict[str, Any]:
        newest = tf.train.latest_checkpoint(str(self.folder / model_dir))
        assert newest.endswith("-24")
        return {name: tf.train.load_variable(newest, name) for name, _ in tf.train.list_variables(newest)}

    def assert_same(self, one: str, other: str) -> None:
        weights, others = self.weights(one), self.weights(other)
        assert weights.keys() == others.keys()
        for name in weights:
            np.testing.assert_array_equal(weights[name], others[name], name)


def free_port() -> int:
    """With the next one, where the coordinator listens, free too."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            number = one.getsockname()[1]
            try:
                other.bind(("127.0.0.1", number + 1))
            except (OSError, OverflowError):
                continue
            return int(number)


def statuses(ended: list[subprocess.CompletedProcess[str]]) -> list[int]:
    return [each.returncode for each in ended]


@pytest.fixture(scope="module")
def tasks(warm_tensorflow: WarmPython, tmp_path_factory: pytest.TempPathFactory) -> Tasks:
    tasks = Tasks(warm_tensorflow, tmp_path_factory.mktemp("tasks"))
    (alone,) = tasks("--model_dir", "alone", num=1)
    assert alone.returncode == 0, alone.stderr
    return tasks


def test_tasks_that_read_give_the_weights_of_one_process(tasks: Tasks) -> None:
    ended = tasks("--model_dir", "streamed", "--stream_data", mode="train_and_eval")
    assert statuses(ended) == [0, 0, 0], ended
    tasks.assert_same("alone", "streamed")
    document = json.loads(ended[0].stdout)
    assert sorted(each["name"] for each in document["workers"]) == ["worker 1", "worker 2"]
    assert sum(each["samples"] for each in document["workers"]) >= 24 * 4
    assert all(each["batches"] >= 12 and each["alive"] for each in document["workers"])
    assert "evaluations read theirs in the coordinator itself" in ended[0].stderr
    assert [each.stdout for each in ended[1:]] == ["", ""]
    lines = (tasks.folder / "streamed/train/metrics.jsonl").read_text().splitlines()
    kinds = [json.loads(line) for line in lines]
    assert [each["step"] for each in kinds if each["kind"] == "eval"] == [8, 16, 24]
    told = [each["values"] for each in kinds if each["kind"] == "stream"]
    assert told[-1]["num_workers"] == 2
    assert told[-1]["worker_1/samples_per_second"] > 0


def test_workers_of_a_training_that_is_done_end_well(tasks: Tasks) -> None:
    """Also one that comes when the coordinator has nothing left to do."""
    for number in ("0", "1"):
        ended = tasks("--model_dir", "alone", "--stream_data", LATE=number)
        assert statuses(ended) == [0, 0, 0], ended
        assert "nothing to train" in ended[0].stderr


def test_a_worker_that_is_killed_is_replaced(tasks: Tasks) -> None:
    ended = tasks("--model_dir", "killed", "--stream_data", HURT=f"2 {int(signal.SIGKILL)} 4")
    assert statuses(ended) == [0, 0, -signal.SIGKILL], ended
    tasks.assert_same("alone", "killed")
    lost = {each["name"]: each["alive"] for each in json.loads(ended[0].stdout)["workers"]}
    assert lost == {"worker 1": True, "worker 2": False}


def test_a_coordinator_that_is_killed_ends_the_workers_and_resumes(tasks: Tasks) -> None:
    ended = tasks("--model_dir", "lost", "--stream_data", HURT=f"0 {int(signal.SIGKILL)} 13")
    assert statuses(ended) == [-signal.SIGKILL, 85, 85], ended
    assert "the coordinator at 127.0.0.1:" in ended[1].stderr
    ended = tasks("--model_dir", "lost", "--stream_data")
    assert statuses(ended) == [0, 0, 0], ended
    assert "resuming from" in ended[0].stderr
    tasks.assert_same("alone", "lost")


def test_sigterm_to_all_saves_and_one_process_can_go_on(tasks: Tasks) -> None:
    (tasks.folder / "pids").unlink(missing_ok=True)
    ended = tasks("--model_dir", "stopped", "--stream_data", HURT=f"all {int(signal.SIGTERM)} 7")
    assert statuses(ended) == [85, 0, 0], ended
    assert json.loads(ended[0].stdout)["step"] in (7, 8)
    (alone,) = tasks("--model_dir", "stopped", num=1)
    assert alone.returncode == 0, alone.stderr
    tasks.assert_same("alone", "stopped")


def test_what_is_wrong_with_the_data_is_told_by_the_coordinator(tasks: Tasks) -> None:
    ended = tasks("--model_dir", "bad", "--stream_data", BAD_DATA="1", num=2)
    assert statuses(ended) == [2, 0], ended
    errors = [line for line in ended[0].stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert errors[0].startswith("error: Worker 1: the input pipeline failed: InvalidArgumentError")
    assert "a bad sample" in errors[0]
    assert "Traceback" not in ended[0].stderr


def test_tasks_without_a_stream_train_together(tasks: Tasks) -> None:
    """As chief and worker of a TF_CONFIG that is made of their numbers, or of the user's own."""
    ended = tasks("--model_dir", "together", num=2)
    assert statuses(ended) == [0, 0], ended
    assert "2 tasks train together" in ended[0].stderr
    assert ended[1].stdout == ""
    port = free_port()
    ended = tasks("--model_dir", "moved", num=2, PORTWRIGHT_TF_PORT=str(port))
    assert statuses(ended) == [0, 0], ended
    assert f"at 127.0.0.1:{port}, and the workers are at 127.0.0.1:{port + 1}." in ended[0].stderr
    tasks.assert_same("together", "moved")


@pytest.mark.parametrize(
    ("words", "num", "said"),
    [
        (("--stream_data", "--validate_only"), 2, "--stream_data is for training"),
        (("--stream_data",), 1, "this process is alone"),
    ],
)
def test_a_stream_that_cannot_be_is_refused(
    tasks: Tasks, words: tuple[str, ...], num: int, said: str
) -> None:
    ended = tasks(*words, "--model_dir", "none", num=num)
    assert statuses(ended) == [2] * num
    assert all(said in each.stderr for each in ended)
