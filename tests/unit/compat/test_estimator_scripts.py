"""Old scripts of ours, each in the style of its time, run with not one line changed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from warm_python import WarmPython

SCRIPTS = Path(__file__).parents[2] / "fixtures" / "estimator_scripts"

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("tensorflow is not installed", allow_module_level=True)


Run = Callable[..., subprocess.CompletedProcess[str]]
Result = Callable[..., dict[str, Any]]


@pytest.fixture
def run(warm_tensorflow: WarmPython) -> Run:
    """Runs a script in a process of its own; `fresh` imports TensorFlow in it anew, as a user's does."""

    def go(
        script: Path, *arguments: str | Path, cwd: Path, compat: bool = True, fresh: bool = False
    ) -> subprocess.CompletedProcess[str]:
        lent = ["--compat", "estimator"] if compat else []
        words = ("run", *lent, str(script), *map(str, arguments))
        what = ("-m", "portwright.cli")
        env = {**os.environ, "NO_COLOR": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
        if not fresh:
            return warm_tensorflow.run(words, cwd, env, 500, what)
        command = [sys.executable, *what, *words]
        return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=500)

    return go


@pytest.fixture
def result(run: Run) -> Result:
    def get(script: Path, *arguments: str | Path, cwd: Path, fresh: bool = False) -> dict[str, Any]:
        done = run(script, *arguments, cwd=cwd, fresh=fresh)
        assert done.returncode == 0, done.stderr[-3000:]
        line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
        loaded: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
        return loaded

    return get


def write(path: Path, source: str) -> Path:
    path.write_text(source)
    return path


def test_script_of_version_1_trains_and_goes_on(tmp_path: Path, result: Result) -> None:
    script = SCRIPTS / "version_1.py"
    found = result(
        script,
        f"--model_dir={tmp_path / 'out'}",
        "--steps",
        "90",
        "rest",
        "--",
        "--more",
        cwd=tmp_path,
        fresh=True,
    )
    assert found["accuracy"] > 0.9
    assert found["global_step"] == 90
    assert found["predicted"] == 64
    assert found["argv"] == ["rest", "--more"]
    assert (found["script"], found["file"], found["module"]) == ("version_1.py", "version_1.py", "__main__")
    assert (found["version"][:2], found["eager"]) == ("1.", False)
    assert found["arguments"] == ["features", "labels", "mode", "params"]
    assert found["mapping"]
    again = result(script, f"--model_dir={tmp_path / 'out'}", "--steps", "100", cwd=tmp_path)
    assert again["global_step"] == 100


def test_a_failure_names_the_users_line(tmp_path: Path, run: Run) -> None:
    script = SCRIPTS / "version_1.py"
    done = run(script, f"--model_dir={tmp_path / 'out'}", "--fail", cwd=tmp_path)
    assert done.returncode == 1
    number = next(n for n, line in enumerate(script.read_text().splitlines(), 1) if "# here" in line)
    assert f'version_1.py", line {number}, in model_fn' in done.stderr
    assert "ValueError: as asked" in done.stderr


def test_tpu_estimator_without_a_tpu(tmp_path: Path, result: Result) -> None:
    found = result(SCRIPTS / "tpu.py", f"--model_dir={tmp_path / 'out'}", cwd=tmp_path)
    assert found["global_step"] == 4
    assert 0 < found["loss"] < 3


def test_parts_of_contrib_train_under_their_names_of_variables(tmp_path: Path, result: Result) -> None:
    found = result(SCRIPTS / "contrib.py", tmp_path / "out", cwd=tmp_path)
    assert found["accuracy"] > 0.5
    assert found["names"] == ["x", "y"]
    assert found["moved"]
    assert found["variables"] == [
        "LayerNorm/beta", "LayerNorm/gamma", "conv1/BatchNorm/beta", "conv1/BatchNorm/moving_mean",
        "conv1/BatchNorm/moving_variance", "conv1/weights", "global_step", "lstm_fused_cell/bias", "lstm_fused_cell/kernel",
        "scores/biases", "scores/weights", "transitions",
    ]  # fmt: skip


def test_cerebras_packages(tmp_path: Path, run: Run, result: Result) -> None:
    script = SCRIPTS / "cerebras" / "run.py"
    trained = run(script, "--mode", "train", "--model_dir", tmp_path / "out", cwd=tmp_path, fresh=True)
    assert trained.returncode == 0, trained.stderr[-3000:]
    found = result(script, "--mode", "eval", "--model_dir", tmp_path / "out", cwd=tmp_path)
    assert found == {"accuracy": 1.0, "step": 20, "eager": True}


def test_layout_of_seed_000(tmp_path: Path, result: Result) -> None:
    folder = SCRIPTS / "seed_000"
    found = result(
        folder,
        "--params",
        folder / "configs" / "params.yaml",
        "--mode",
        "train",
        "--model_dir",
        tmp_path / "out",
        cwd=tmp_path,
    )
    assert found == {"accuracy": 1.0}
    assert (tmp_path / "out" / "params.yaml").is_file()


def test_script_of_version_2_stays_eager_and_gets_keras_2(tmp_path: Path, result: Result) -> None:
    found = result(SCRIPTS / "version_2.py", tmp_path / "out", cwd=tmp_path, fresh=True)
    again = result(SCRIPTS / "version_2.py", tmp_path / "again", cwd=tmp_path)
    assert again == found  # also its first weights: Keras draws them from the graph's seed
    assert (found["total"], found["eager"], found["version"]) == (3, True, "2.")
    assert found["keras"] == ["tf_keras", "tf_keras", True]
    assert found["same"] == [True, False]  # canned estimators of version 1 take its optimizers
    assert found["variables"] == ["global_step", "line/bias", "line/kernel"]
    assert found["step"] == 10


def test_each_file_gets_the_api_it_was_written_for(tmp_path: Path, result: Result) -> None:
    found = result(SCRIPTS / "mixed" / "main.py", cwd=tmp_path)
    assert found == {
        "doubled": [2.0, 4.0],
        "version": "1.",
        "its_version": "2.",
        "its_has_placeholder": False,
    }


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import tensorflow as tf\ntf.contrib.seq2seq.BasicDecoder\n", ("old.py:2", "contrib.seq2seq.BasicDecoder", "tf.while_loop")),
        ("x = 1\nfrom tensorflow.contrib import gan\n", ("old.py:2", "gan", "tensorflow-gan")),
        ("import tensorflow.contrib.cudnn_rnn as rnn\n", ("old.py:1", "contrib.cudnn_rnn", "tf.keras.layers.LSTM")),
        ("import keras\n", ("old.py:1", "Keras 3", "from tensorflow import keras")),
        ("import tensorflow as tf\ntf.placeholder\ntf.initialise_all()\n", ("old.py:3", "tensorflow.initialise_all")),
        ("x = 1\nprint 'python 2'\n", ("old.py:2", "Missing parentheses", "Python 2")),
        ("import no_such_package\n", ("old.py:1", "no_such_package", "neither installed nor beside the script")),
    ],
)  # fmt: skip
def test_what_is_not_lent_is_one_line_with_its_place_and_a_cure(
    source: str, expected: tuple[str, ...], tmp_path: Path, run: Run
) -> None:
    done = run(write(tmp_path / "old.py", source), cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    error = next(line for line in done.stderr.splitlines() if line.startswith("error: "))
    for part in expected:
        assert part in error
    assert "Traceback" not in done.stderr
