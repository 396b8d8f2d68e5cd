"""Two real processes that train together, as TF_CONFIG tells them: the numbers of one, and ends that all of them come to."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tf_folders import copy_folder

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

# Forks of one process that has imported TensorFlow and never used it are the processes of a training: importing takes
# seconds. A line on stdin is a list of tasks; each says what to do, and where the output goes.
ZYGOTE = """
import atexit, json, os, sys

import portwright.tensorflow
portwright.tensorflow.prepare()
import sklearn.datasets, tensorflow, tf_keras
import portwright.tensorflow.optimizers, portwright.tensorflow.run_modes
sys.path.insert(0, os.getcwd())


def work(task):
    os.environ.update(task["environ"])
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{task['log']}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    try:
        if "argv" in task:
            import runpy
            os.chdir(task["folder"])
            sys.path[0] = task["folder"]
            sys.argv = ["run.py", *task["argv"]]
            runpy.run_path("run.py", run_name="__main__")
        else:
            import scenes
            print(json.dumps(getattr(scenes, task["scene"])(**task["given"])))
        return 0
    except SystemExit as stop:
        return int(stop.code or 0)
    except portwright.errors.PortwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.status)


for line in sys.stdin:
    children = []
    for task in json.loads(line):
        child = os.fork()
        if child == 0:
            status = 70
            try:
                status = work(task)
            except BaseException:
                import traceback
                traceback.print_exc()
            finally:
                atexit._run_exitfuncs()
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        children.append(child)
    codes = [os.waitpid(child, 0)[1] for child in children]
    print(json.dumps([-os.WTERMSIG(c) if os.WIFSIGNALED(c) else os.WEXITSTATUS(c) for c in codes]), flush=True)
"""

SCENES = '''
import os

import numpy as np
import tensorflow as tf

import portwright.tensorflow as est
from portwright.tensorflow.optimizers import make_train_op

v1 = tf.compat.v1
SEEDED = tf.keras.initializers.GlorotUniform


def samples(num=96):
    draw = np.random.RandomState(0)
    return draw.rand(num, 5).astype(np.float32), draw.rand(num, 1).astype(np.float32)


def input_fn(batch, repeats=True, num=96):
    def make():
        data = tf.data.Dataset.from_tensor_slices(samples(num)).shuffle(num, seed=5, reshuffle_each_iteration=True)
        return (data.repeat() if repeats else data).batch(batch, drop_remainder=True)
    return make


def sharding_input_fn(batch):
    """Shards by itself, so that the batches of both together are those of one process with twice the batch."""
    def make(input_context=None):
        data = tf.data.Dataset.from_tensor_slices(samples()).batch(batch, drop_remainder=True)
        if input_context is not None:
            data = data.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
        return data.repeat()
    return make


def model_fn(features, labels, mode, params):
    hidden = tf.keras.layers.Dense(8, activation="tanh", name="hidden", kernel_initializer=SEEDED(seed=7))(features)
    if params["optimizer"] == "norm":
        hidden = tf.keras.layers.BatchNormalization(name="norm", momentum=0.5)(hidden, training=mode == "train")
    output = tf.keras.layers.Dense(1, name="output", kernel_initializer=SEEDED(seed=8))(hidden)
    loss = tf.reduce_mean((output - labels) ** 2)
    if mode == "eval":
        return est.EstimatorSpec(mode, loss=loss)
    if params["optimizer"] == "ours":
        step = make_train_op(loss, {
            "optimizer_type": "SGD", "momentum": 0.9, "learning_rate": 0.1, "max_gradient_norm": 0.5,
            "grad_accum_steps": 2, "loss_scaling_factor": "dynamic", "initial_loss_scale": 8.0, "steps_per_increase": 2,
        })
        return est.EstimatorSpec(mode, loss=loss, train_op=step)
    if params["optimizer"] == "adam":
        optimizer = v1.train.AdamOptimizer(0.01)
    else:
        optimizer = v1.train.MomentumOptimizer(0.1, 0.9)
    pairs = optimizer.compute_gradients(loss)
    clipped, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], 0.5)
    step = optimizer.apply_gradients(zip(clipped, [v for _, v in pairs]), global_step=v1.train.get_global_step())
    return est.EstimatorSpec(mode, loss=loss, train_op=step)


class Watch(v1.train.SessionRunHook):
    def __init__(self, at=0, number=0, stop_at=0):
        self.losses, self.at, self.number, self.stop_at = [], at, number, stop_at

    def before_run(self, context):
        return v1.train.SessionRunArgs(v1.get_collection(v1.GraphKeys.LOSSES)[-1])

    def after_run(self, context, values):
        self.losses.append(float(values.results))
        if len(self.losses) == self.at:
            os.kill(os.getpid(), self.number)
        if len(self.losses) == self.stop_at:
            context.request_stop()


def make_estimator(folder, optimizer, **config):
    config = {"tf_random_seed": 3, "save_checkpoints_steps": 5, "log_step_count_steps": None, **config}
    return est.Estimator(model_fn, config=est.RunConfig(folder, **config), params={"optimizer": optimizer})


def train(folder, optimizer, make_input, steps=12, **hook):
    estimator, watch = make_estimator(folder, optimizer), Watch(**hook)
    estimator.train(make_input, hooks=[watch], max_steps=steps)
    return {"losses": watch.losses}


def equal(folder, batch):
    """Everything that must come out as in one process, one training after the other."""
    found = {name: train(f"{folder}/{name}", name, input_fn(batch)) for name in ("momentum", "adam")}
    found["norm"] = train(f"{folder}/norm", "norm", input_fn(batch), steps=1)
    found["ours"] = train(f"{folder}/ours", "ours", input_fn(batch), steps=6)
    found["context"] = train(f"{folder}/context", "momentum", sharding_input_fn(batch))
    # Both see nine whole batches of their own, or one process nine of twice the size.
    found["ends"] = train(f"{folder}/ends", "adam", input_fn(batch, repeats=False, num=75), steps=100)
    return found


def stops(folder):
    """One process's hook stops both, in the middle; then the same training goes on; then there is nothing to do."""
    is_worker = "worker" in os.environ["TF_CONFIG"].partition("task")[2]
    first = train(folder, "adam", input_fn(4), stop_at=4 if is_worker else 0)
    last = train(folder, "adam", input_fn(4))
    return {"first": first, "last": last, "none": train(folder, "adam", input_fn(4))}


def both(folder, **spec):
    estimator = make_estimator(folder, "adam")
    train_spec = est.TrainSpec(input_fn(4), max_steps=6)
    eval_spec = est.EvalSpec(input_fn(4, repeats=False), start_delay_secs=0, throttle_secs=0)
    est.train_and_evaluate(estimator, train_spec, eval_spec)
    return {}


def killed(folder, role, steps=12, **hook):
    mine = role in os.environ["TF_CONFIG"].partition("task")[2]
    return train(folder, "momentum", input_fn(4), steps, **(hook if mine else {}))


def strategies(folder):
    """Made in a graph, the strategy of several workers has no server of its own."""
    v1.disable_eager_execution()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    estimator = make_estimator(f"{folder}/strategy", "adam", train_distribute=strategy)
    watch = Watch()
    estimator.train(input_fn(4), hooks=[watch], max_steps=4)
    return {"losses": watch.losses}
'''


class Zygote:
    """Starts processes, one for each task, and says how they ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "zygote.py").write_text(ZYGOTE)
        (folder / "scenes.py").write_text(SCENES)
        environ = {**os.environ, "NO_COLOR": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
        environ.pop("TF_CONFIG", None)
        self._errors = (folder / "zygote.err").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "zygote.py"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._errors, text=True, env=environ,
        )  # fmt: skip

    def start(self, tasks: list[dict[str, Any]]) -> list[int]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(tasks) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, (self.folder / "zygote.err").read_text()
        statuses: list[int] = json.loads(line)
        return statuses

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def together(
        self, what: dict[str, Any], chief: str = "chief", evaluator: bool = False
    ) -> tuple[list[int], list[str], list[str]]:
        """Statuses, outputs and errors of a chief and a worker, and of an evaluator if asked for."""
        addresses = free_addresses(2)
        cluster = {chief: addresses[:1], "worker": addresses[1:]}
        roles = [chief, "worker", *(["evaluator"] if evaluator else [])]
        configs = [json.dumps({"cluster": cluster, "task": {"type": role, "index": 0}}) for role in roles]
        return self.each([{**what, "environ": {"TF_CONFIG": config}} for config in configs])

    def each(self, tasks: list[dict[str, Any]]) -> tuple[list[int], list[str], list[str]]:
        logs = [str(self.folder / f"log{number}") for number in range(len(tasks))]
        statuses = self.start([{**task, "log": log} for task, log in zip(tasks, logs, strict=True)])
        outputs, errors = ([Path(f"{log}.{name}").read_text() for log in logs] for name in ("out", "err"))
        return statuses, outputs, errors

    def play(self, scene: str, **given: Any) -> list[dict[str, Any]]:
        """What a scene returns in both processes."""
        statuses, outputs, errors = self.together({"scene": scene, "given": given})
        assert statuses == [0, 0], errors
        return [json.loads(output) for output in outputs]

    def play_alone(self, scene: str, **given: Any) -> dict[str, Any]:
        statuses, outputs, errors = self.each([{"scene": scene, "given": given, "environ": {}}])
        assert statuses == [0], errors
        found: dict[str, Any] = json.loads(outputs[0])
        return found

    def weights(self, folder: str) -> dict[str, Any]:
        import tensorflow as tf

        newest = tf.train.latest_checkpoint(str(self.folder / folder))
        return {name: tf.train.load_variable(newest, name) for name, _ in tf.train.list_variables(newest)}


def free_addresses(count: int) -> list[str]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return addresses


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    zygote = Zygote(tmp_path_factory.mktemp("together"))
    yield zygote
    zygote.close()


@pytest.fixture(scope="module")
def whole(zygote: Zygote) -> dict[str, Any]:
    """A training of two processes that nobody disturbs."""
    return zygote.play("killed", folder="whole", role="nobody")[0]


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    assert len(one) > 4
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_two_processes_are_one_of_twice_the_batch(zygote: Zygote) -> None:
    chief, worker = zygote.play("equal", folder="two", batch=4)
    one = zygote.play_alone("equal", folder="one", batch=8)
    assert chief == worker
    assert [len(chief[name]["losses"]) for name in ("adam", "ours", "ends")] == [12, 12, 9]
    for name in ("momentum", "adam", "ours", "context", "ends"):
        np.testing.assert_allclose(chief[name]["losses"], one[name]["losses"], rtol=2e-5, err_msg=name)
        together, alone = zygote.weights(f"two/{name}"), zygote.weights(f"one/{name}")
        assert together.keys() == alone.keys()
        for variable in alone:
            np.testing.assert_allclose(
                together[variable], alone[variable], rtol=1e-3, atol=1e-5, err_msg=name
            )
    assert chief["context"]["losses"] != chief["momentum"]["losses"]  # it reads in another order


def test_statistics_are_of_all_data(zygote: Zygote) -> None:
    """Each process normalises by its own batch, and yet the moving mean is that of both batches."""
    moving = zygote.weights("two/norm")["norm/moving_mean"]
    np.testing.assert_allclose(moving, zygote.weights("one/norm")["norm/moving_mean"], rtol=1e-4)
    assert np.abs(moving).max() > 0.01


def test_a_hook_of_one_process_stops_both(zygote: Zygote) -> None:
    chief, worker = zygote.play("stops", folder="stops")
    assert chief == worker
    assert [len(chief[part]["losses"]) for part in ("first", "last", "none")] == [4, 8, 0]


@pytest.mark.parametrize("role", ["chief", "worker"])
def test_sigterm_to_one_process_ends_both(zygote: Zygote, whole: dict[str, Any], role: str) -> None:
    given = {"folder": f"term_{role}", "role": role, "at": 4, "number": int(signal.SIGTERM)}
    statuses, _, errors = zygote.together({"scene": "killed", "given": given})
    assert statuses == [85, 85], errors
    rest = zygote.play("killed", folder=f"term_{role}", role="nobody")[0]
    assert whole["losses"][-len(rest["losses"]) :] == rest["losses"]
    assert 0 < len(rest["losses"]) < 9
    assert_same(zygote.weights("whole"), zygote.weights(f"term_{role}"))


@pytest.mark.parametrize("role", ["chief", "worker"])
def test_a_killed_process_is_named_and_the_run_goes_on_exactly(
    zygote: Zygote, whole: dict[str, Any], role: str
) -> None:
    given = {"folder": f"kill_{role}", "role": role, "at": 8, "number": int(signal.SIGKILL)}
    statuses, _, errors = zygote.together({"scene": "killed", "given": given})
    dead, living = (0, 1) if role == "chief" else (1, 0)
    assert statuses[dead] == -signal.SIGKILL
    assert statuses[living] == 2, errors
    assert f"{role} 0 at 127.0.0.1:" in errors[living]
    assert "is gone" in errors[living]
    rest = zygote.play("killed", folder=f"kill_{role}", role="nobody")[0]
    assert whole["losses"][-len(rest["losses"]) :] == rest["losses"]
    assert_same(zygote.weights("whole"), zygote.weights(f"kill_{role}"))


@pytest.mark.parametrize(("chief", "evaluator"), [("chief", True), ("master", False)])
def test_train_and_evaluate_gives_each_process_its_role(zygote: Zygote, chief: str, evaluator: bool) -> None:
    what = {"scene": "both", "given": {"folder": f"both_{chief}"}}
    statuses, _, errors = zygote.together(what, chief, evaluator)
    assert set(statuses) == {0}, errors
    assert list((zygote.folder / f"both_{chief}" / "eval").glob("events*"))


def test_a_strategy_of_several_workers_trains_so_too(zygote: Zygote) -> None:
    chief, worker = zygote.play("strategies", folder="strategies")
    assert chief == worker
    assert len(chief["losses"]) == 4


def test_a_wrong_tf_config_is_one_line(zygote: Zygote) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address, other = f"127.0.0.1:{taken.getsockname()[1]}", free_addresses(1)[0]
        two = {"chief": [address], "worker": [other]}
        cases = [
            ({**two, "ps": ["127.0.0.1:1"]}, "chief", 0, "parameter servers"),
            (two, "worker", 1, "out of range"),
            (two, "wroker", 0, "'wroker' is not in its cluster"),
            (two, "worker", "x", "must be a number"),
            ({"chief": [other], "worker": [other]}, "chief", 0, "twice"),
            ({"chief": [other], "worker": "host:1"}, "chief", 0, "host:port"),
            (two, "chief", 0, f"cannot listen at {address}"),
        ]
        tasks = [
            {"scene": "killed", "given": {"folder": "wrong", "role": "nobody"},
             "environ": {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})}}
            for cluster, job, index, _ in cases
        ]  # fmt: skip
        statuses, _, errors = zygote.each(tasks)
    for status, error, (*_, expected) in zip(statuses, errors, cases, strict=True):
        lines = [line for line in error.splitlines() if line.startswith("error: ")]
        assert status == 2, error
        assert len(lines) == 1
        assert expected in lines[0]
        assert "Traceback" not in error


# -- run.py ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(zygote: Zygote) -> Path:
    return copy_folder(zygote.folder / "mymodel")


def run_both(zygote: Zygote, model: Path, model_dir: str, *more: str, mode: str = "train") -> Any:
    argv = ["CPU", "--mode", mode, "--params", "configs/params.yaml", "--model_dir", model_dir, *more]
    return zygote.together({"folder": str(model), "argv": argv})


def test_run_writes_and_speaks_in_the_chief_alone(zygote: Zygote, model: Path) -> None:
    options = ("--max_steps", "12", "-D", "runconfig.eval_frequency=6", "-D", "runconfig.log_steps=3")
    statuses, outputs, errors = run_both(zygote, model, "both", *options, "--json", mode="train_and_eval")
    assert statuses == [0, 0], errors
    document = json.loads(outputs[0])
    assert document["step"] == 12
    assert "eval/accuracy" in document["values"]
    assert outputs[1] == ""
    assert "train step 12/12" in errors[0]
    assert "train step" not in errors[1]
    assert "eval at step" not in errors[1]
    lines = [
        json.loads(line) for line in (model / "both" / "train" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [line["step"] for line in lines if line["kind"] == "train"] == [3, 6, 9, 12]
    assert [line["step"] for line in lines if line["kind"] == "eval"] == [6, 12]
    # Nothing left to train: nobody waits for anybody.
    statuses, _, errors = run_both(zygote, model, "both", *options)
    assert statuses == [0, 0], errors
    assert "nothing to train" in errors[0]
    statuses, outputs, errors = run_both(zygote, model, "both", mode="eval")
    assert statuses == [0, 0], errors
    assert "accuracy" in outputs[0]
    assert "the chief's alone" in errors[1]


def test_a_loss_that_is_not_finite_ends_both_with_3(zygote: Zygote, model: Path) -> None:
    options = (
        "--max_steps",
        "30",
        "-D",
        "optimizer.learning_rate=1e30",
        "-D",
        "optimizer.optimizer_type=SGD",
    )
    statuses, _, errors = run_both(zygote, model, "nan", *options)
    assert statuses == [3, 3], errors
    assert all("not finite at step" in error for error in errors)


def test_a_chief_that_cannot_begin_ends_the_worker(zygote: Zygote, model: Path) -> None:
    (model / "nowhere").write_text("a file")
    statuses, _, errors = run_both(zygote, model, "nowhere", "--max_steps", "3")
    assert statuses == [2, 2], errors
    assert "model_dir" in errors[0]
    assert "chief 0 at" in errors[1]
