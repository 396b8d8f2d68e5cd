"""The workflow that the seeds teach for TensorFlow, as a user does it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import Folder
from tf_folders import PARAMS, run_process, tf_folder  # noqa: F401

from portwright.job.model_list import make_model_folder

SHORT = ("--max_steps", "40", "-D", "runconfig.checkpoint_steps=20", "-D", "runconfig.log_steps=10")


class Session:
    """Runs a folder inside this process, and reads what it prints."""

    def __init__(self, folder: Folder, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capfd = folder, capfd
        self.stderr = ""

    def run(self, *arguments: str, status: int = 0) -> str:
        self.folder.arguments = arguments
        self._capfd.readouterr()
        ended = self.folder.run()
        captured = self._capfd.readouterr()
        self.stderr = captured.err
        assert ended == status, captured.err
        return captured.out

    def json(self, *arguments: str, status: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", status=status))

    def variable(self, checkpoint: str, name: str) -> Any:
        import tensorflow as tf

        return tf.train.load_variable(str(self.folder.path / checkpoint), name)


@pytest.fixture
def user(tf_folder: Folder, capfd: pytest.CaptureFixture[str]) -> Session:  # noqa: F811
    return Session(tf_folder, capfd)


def test_validate_train_eval_predict_resume(user: Session) -> None:
    folder = user.folder.path
    shutil.rmtree(folder)
    make_model_folder(folder, "tensorflow", None)
    assert {p.name for p in folder.iterdir()} == {"model.py", "data.py", "utils.py", "run.py", "configs"}

    said = user.run("CPU", "--mode", "train_and_eval", *PARAMS, "--validate_only")
    assert "train_input: features float32[64, 8, 8, 1], labels int64[64]" in said
    assert "weights: 17,226" in said
    assert not (folder / "model_dir").exists(), "validating writes nothing"

    outcome = user.json("CPU", "--mode", "train", *PARAMS, "--max_steps", "500")
    assert outcome["step"] == 500
    assert outcome["values"]["train/loss"] < 0.3
    model_dir = folder / "model_dir"
    assert outcome["checkpoint"] == str(model_dir / "model.ckpt-500")
    resolved = yaml.safe_load((model_dir / "train" / "params_train.yaml").read_text())
    assert resolved["runconfig"]["max_steps"] == 500
    lines = [json.loads(line) for line in (model_dir / "train" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(50, 501, 50))
    assert sum(len(line["losses"]) for line in lines) == 500
    assert list((model_dir / "train").glob("events.out.tfevents.*"))

    evaluated = user.json("CPU", "--mode", "eval", *PARAMS)
    assert evaluated["values"]["eval/accuracy"] > 0.93
    assert evaluated["step"] == 500

    rows = user.json("CPU", "--mode", "eval_all", *PARAMS)["evaluations"]
    assert [row["step"] for row in rows] == [0, 250, 500]
    assert rows[0]["accuracy"] < 0.5 < rows[2]["accuracy"]

    (file,) = user.json("CPU", "--mode", "predict", *PARAMS)["predictions"]
    arrays = np.load(file, allow_pickle=False)
    assert arrays["probabilities"].shape == (360, 10)
    assert (arrays["probabilities"].argmax(-1) == arrays["digit"]).all()

    again = user.json("CPU", "--mode", "train", *PARAMS, "--max_steps", "510")
    assert "resuming" in user.stderr
    assert again["step"] == 510
    user.run("CPU", "--mode", "train", *PARAMS, "--max_steps", "510")
    assert "nothing to train" in user.stderr


def test_train_and_eval_does_not_disturb_training(user: Session) -> None:
    for mode in ("train", "train_and_eval"):
        user.run("CPU", "--mode", mode, *PARAMS, *SHORT, "--model_dir", mode)
    for name in ("hidden_0/kernel", "logits/bias"):
        a, b = (user.variable(f"{mode}/model.ckpt-40", name) for mode in ("train", "train_and_eval"))
        assert np.array_equal(a, b)
    lines = (user.folder.path / "train_and_eval" / "train" / "metrics.jsonl").read_text().splitlines()
    kinds = [(json.loads(line)["kind"], json.loads(line)["step"]) for line in lines]
    assert [step for kind, step in kinds if kind == "eval"] == [20, 40]


def test_a_checkpoint_from_elsewhere(user: Session) -> None:
    whole = user.json("CPU", "--mode", "train", *PARAMS, *SHORT)
    path = ("--checkpoint_path", "model_dir/model.ckpt-20")

    continued = user.json("CPU", "--mode", "train", *PARAMS, *SHORT, *path, "--model_dir", "other")
    assert continued["step"] == 40
    name = "hidden_0/kernel"
    assert np.array_equal(
        user.variable(whole["checkpoint"], name), user.variable("other/model.ckpt-40", name)
    )

    user.run("CPU", "--mode", "train", *PARAMS, *SHORT, *path)
    assert "though" in user.stderr, "one of its own is a wish to go back"
    assert np.array_equal(
        user.variable("other/model.ckpt-40", name), user.variable("model_dir/model.ckpt-40", name)
    )

    fine = ("--is_pretrained_checkpoint", "--model_dir", "fine", "-D", "model.num_classes=12")
    user.run("CPU", "--mode", "train", *PARAMS, *SHORT, *path, *fine)
    assert "left as initialised: logits/kernel, logits/bias" in user.stderr
    assert "starting at step 0" in user.stderr
    start = user.variable("fine/model.ckpt-0", name)
    assert np.array_equal(start, user.variable("model_dir/model.ckpt-20", name))
    user.run("CPU", "--mode", "train", *PARAMS, *SHORT, *path, *fine)
    assert "nothing to train" in user.stderr, "its own checkpoint wins over the pretrained one"


def test_a_damaged_checkpoint_is_passed_over(user: Session) -> None:
    user.run("CPU", "--mode", "train", *PARAMS, *SHORT)
    newest = user.folder.path / "model_dir" / "model.ckpt-40.data-00000-of-00001"
    newest.write_bytes(newest.read_bytes()[:-500] + b"x" * 500)
    user.run("CPU", "--mode", "train", *PARAMS, *SHORT)
    assert "model.ckpt-40 is damaged" in user.stderr
    assert "resuming from" in user.stderr
    assert "model.ckpt-20 at step 20" in user.stderr


def test_one_input_fn_for_every_mode(user: Session) -> None:
    """The form of seed 000: input_fn(params, mode)."""
    user.folder.edit(
        "run.py",
        "train_input_fn=train_input_fn,\n        eval_input_fn=eval_input_fn,",
        "train_input_fn=input_fn,",
    )
    user.folder.edit(
        "run.py",
        "def main()",
        "def input_fn(params, mode):\n    return (train_input_fn if mode == 'train' else eval_input_fn)(params)\n\n\n"
        "def main()",
    )
    user.run("CPU", "--mode", "train_and_eval", *PARAMS, *SHORT)
    assert user.json("CPU", "--mode", "predict", *PARAMS)["predictions"]


def test_data_that_ends_and_a_loss_that_diverges(user: Session) -> None:
    user.folder.edit("data.py", ".repeat().prefetch", ".prefetch")
    ended = user.json("CPU", "--mode", "train", *PARAMS, *SHORT)
    assert ended["step"] == 22
    assert "ended at step 22 of 40" in user.stderr

    user.folder.edit(
        "model.py", "    loss = tf.reduce_mean(", "    logits *= 1e30\n    loss = tf.reduce_mean("
    )
    told = user.json(
        "CPU",
        "--mode",
        "train",
        *PARAMS,
        *SHORT,
        "-D",
        "optimizer.learning_rate=1e20",
        "--model_dir",
        "bad",
        status=3,
    )
    assert "not finite at step" in told["error"]


def test_on_the_wafer_a_step_is_planned(user: Session) -> None:
    told = user.json("CSX", "--mode", "train", *PARAMS, "--validate_only")
    assert told["validated"]["train"]["supported"]
    assert not (user.folder.path / "model_dir").exists()
    user.run("CSX", "--mode", "train", *PARAMS, "--compile_only")
    written = {path.name for path in (user.folder.path / "model_dir" / "compile").iterdir()}
    assert {"plan.json", "key_metrics.json", "plan.html"} <= written
    user.run("CSX", "--mode", "train", *PARAMS, status=1)
    assert "does not train on CSX" in user.stderr


def test_as_a_script(tf_folder: Folder) -> None:  # noqa: F811
    done = run_process(tf_folder.path, "--mode", "train", *PARAMS, *SHORT, "-cpu")
    assert done.returncode == 0, done.stderr
    assert "using CPU" in done.stderr
    assert all(line.startswith(("train step", "note: ")) for line in done.stderr.splitlines()), done.stderr
    assert Path(done.stdout.split("checkpoint: ")[1].split("\n")[0] + ".index").is_file()


def test_tensorflow_names_of_optimizers_and_the_logged_rate(user: Session) -> None:
    user.folder.edit("configs/params.yaml", "AdamW", "momentum")
    rate = "optimizer.learning_rate={scheduler: Linear, initial_learning_rate: 0.1, end_learning_rate: 0.0, total_iters: 100}"
    outcome = user.json(
        "CPU", "--mode", "train", *PARAMS, *SHORT, "-D", rate, "-D", "optimizer.weight_decay_rate=0"
    )
    assert outcome["values"]["train/learning_rate"] == pytest.approx(0.1 * (1 - 39 / 100))
    lines = (user.folder.path / "model_dir" / "train" / "metrics.jsonl").read_text().splitlines()
    rates = [json.loads(line)["values"]["learning_rate"] for line in lines]
    assert rates == pytest.approx([0.1 * (1 - (step - 1) / 100) for step in (10, 20, 30, 40)])
    resolved = yaml.safe_load((user.folder.path / "model_dir" / "train" / "params_train.yaml").read_text())
    assert (resolved["optimizer"]["optimizer_type"], resolved["optimizer"]["momentum"]) == ("SGD", 0.9)
    user.folder.edit("configs/params.yaml", "momentum", "momentun")
    user.run("CPU", "--mode", "train", *PARAMS, status=2)
    assert "configs/params.yaml:17: optimizer.optimizer_type: unknown optimizer 'momentun'" in user.stderr
