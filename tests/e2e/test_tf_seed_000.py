"""Sentences of seed 000 about TensorFlow, as its folder has them: run as it is, without --compat."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tf_folders import PARAMS
from warm_python import WarmPython

from portwright.discover import find_targets

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
ROOT = Path(__file__).parents[2]
TRAIN = ("CPU", "--mode", "train", *PARAMS)
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def seed_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "seed_000"
    shutil.copytree(ROOT / "tests" / "fixtures" / "seed_000", folder)
    return folder


@pytest.fixture
def run(seed_folder: Path, warm_tensorflow: WarmPython) -> Run:
    def run(*words: str) -> Any:
        env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "400"}
        return warm_tensorflow.run(words, seed_folder, env, 300, ("run.py",))

    return run


def test_the_folder_of_the_seed_trains_and_is_scored_by_its_host_call(run: Run, seed_folder: Path) -> None:
    """`host_call (dict)`: `{ "accuracy": tf.compat.v1.metrics.accuracy() }`, of what "The EstimatorSpec takes"; and
    `def input_fn(params: dict, mode=tf.estimator.ModeKeys.TRAIN) -> tf.data.Dataset`.
    """
    told = run("CPU", "--mode", "train_and_eval", *PARAMS, "--json")
    assert told.returncode == 0, told.stderr
    outcome = json.loads(told.stdout)
    assert outcome["step"] == 100
    assert outcome["values"]["eval/accuracy"] > 0.8
    assert (seed_folder / "model_dir" / "model.ckpt-100.index").is_file()


def test_validating_and_training_agree_on_a_folder_that_is_not_there_yet(run: Run, seed_folder: Path) -> None:
    """`data_dir`: './tfds' # Place to store data."""
    assert not (seed_folder / "tfds").exists()
    checked = run(*TRAIN, "--validate_only")
    assert checked.returncode == 0, checked.stderr
    assert "does not exist" not in checked.stderr
    shutil.rmtree(seed_folder / "tfds")
    trained = run(*TRAIN, "--max_steps", "2")
    assert trained.returncode == 0, trained.stderr


def test_validating_and_training_agree_on_a_folder_that_nobody_makes(run: Run, seed_folder: Path) -> None:
    data = seed_folder / "data.py"
    data.write_text(data.read_text().replace("    place.mkdir(exist_ok=True)\n", ""))
    for words in (("--validate_only",), ("--max_steps", "2")):
        ended = run(*TRAIN, *words)
        assert ended.returncode == 2, ended.stderr
        assert "configs/params.yaml:2: train_input.data_dir: './tfds' does not exist" in ended.stderr
        assert "FileNotFoundError at" in ended.stderr
    params = seed_folder / "configs" / "params.yaml"
    params.write_text(params.read_text() + "eval_input:\n  data_dir: gone\n")
    unused = run(*TRAIN, "--validate_only", "-D", "train_input.data_dir=.")
    assert unused.returncode == 0, unused.stderr
    assert "eval_input.data_dir: 'gone' does not exist" in unused.stderr


def test_tensorflow_is_planned_for_csx_and_not_trained_there(run: Run) -> None:
    """Seed 000: "Run run.py to validate and compile your code"; training there needs software that is no longer had."""
    why = find_targets()["CSX"].no_tensorflow
    assert why == "today's SDK of Cerebras has no TensorFlow"
    checked = run("CSX", "--mode", "train", *PARAMS, "--validate_only")
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.startswith(f"CSX, planned only ({why}): supported on ")
    assert f"TensorFlow does not train on CSX: {why}." in checked.stdout.partition("notes")[2]
    compiled = run("CSX", "--mode", "train", *PARAMS, "--compile_only", "--json")
    assert (
        f"TensorFlow does not train on CSX: {why}."
        in json.loads(compiled.stdout)["compiled"]["train"]["notes"]
    )
    trained = run("CSX", "--mode", "train", *PARAMS)
    assert trained.returncode == 1
    assert f"TensorFlow does not train on CSX: {why}. Train on CPU or GPU." in trained.stderr


@pytest.mark.parametrize("page", ["README.md", "docs/tensorflow.md"])
def test_the_tables_of_targets_say_so_too(page: str) -> None:
    rows = [line for line in (ROOT / page).read_text().splitlines() if line.startswith("| CSX")]
    (row,) = (line for line in rows if "TensorFlow" in line.partition("|")[2] and "no:" in line)
    assert find_targets()["CSX"].no_tensorflow in row
    assert "planned" in row


def edit(folder: Path, old: str, new: str) -> None:
    model = folder / "model.py"
    text = model.read_text()
    assert old in text
    model.write_text(text.replace(old, new))


def test_a_metric_of_keras_trains_nothing_and_is_scored_on_a_cpu(run: Run, seed_folder: Path) -> None:
    """Seed 000: "It supports the usage of the Tensorflow Keras Layers API, but the Tensorflow Metrics API is not supported":
    on the wafer, as check says; a CPU runs it as tf.estimator did, which never updates a metric in training.
    """
    edit(
        seed_folder,
        'host_call = {"accuracy": tf.compat.v1.metrics.accuracy(labels, tf.argmax(logits, 1))}',
        "metric = tf.keras.metrics.SparseCategoricalAccuracy()\n"
        "    metric.update_state(labels, logits)\n"
        '    host_call = {"accuracy": metric}',
    )
    told = run("CPU", "--mode", "train_and_eval", *PARAMS, "--json")
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["values"]["eval/accuracy"] > 0.8
    assert "updates of Keras layers" not in told.stderr


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("tf.estimator.Estimator(model_fn, 'own').train(lambda: None, steps=1)", "train"),
        ("tf.keras.Sequential([tf.keras.layers.Dense(2)]).fit(features, labels)", "fit"),
    ],
)
def test_a_model_function_that_trains_by_itself_is_refused(
    run: Run, seed_folder: Path, call: str, name: str
) -> None:
    """Seed 000: "your code will not call "train" or "fit" as the Estimator does that"."""
    edit(seed_folder, "    host_call =", f"    {call}\n    host_call =")
    for words in (("--validate_only",), ()):
        ended = run(*TRAIN, *words)
        assert ended.returncode == 2, ended.stderr
        assert f"model_fn calls {name}() itself. Leave the call out" in ended.stderr
    assert not (seed_folder / "own").exists()
