"""What a stranger found by attacking: each stays a test."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import TRAIN, Folder
from safetensors.torch import load_file

from portwright.job.logs import read_metrics

EVERY_2 = ("-D", "runconfig.checkpoint_steps=2")
BOTH = ("CPU", "--mode", "train_and_eval", *TRAIN[3:])


def weights(folder: Folder, model_dir: str, step: int) -> dict[str, bytes]:
    tensors = load_file(folder.path / model_dir / f"checkpoint_{step}" / "model.safetensors")
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


def run(folder: Folder, *arguments: str) -> int:
    folder.arguments = arguments
    return folder.run()


def test_evaluation_data_that_draw_random_numbers_do_not_disturb_a_resume(folder: Folder) -> None:
    folder.edit(
        "data.py",
        "    data_dir = options",
        "    if split == 'test':\n        torch.rand(3), np.random.rand()\n    data_dir = options",
    )
    common = (*BOTH[:-2], "-D", "runconfig.eval_frequency=3", *EVERY_2)
    assert run(folder, *common, "--max_steps", "8", "--model_dir", "whole") == 0
    assert run(folder, *common, "--max_steps", "4", "--model_dir", "parts") == 0
    assert run(folder, *common, "--max_steps", "8", "--model_dir", "parts") == 0
    assert weights(folder, "whole", 8) == weights(folder, "parts", 8)


def test_a_home_in_model_dir_is_one_folder(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.path))
    for steps in ("4", "6"):
        assert run(folder, *TRAIN[:-1], steps, "--model_dir", "~/runs") == 0
    assert (folder.path / "runs" / "checkpoint_6").is_dir()
    assert not (folder.path / "~").exists()


def test_json_is_pure_though_the_model_prints(folder: Folder, capfd: pytest.CaptureFixture[str]) -> None:
    folder.edit(
        "model.py",
        "        images, labels = data\n",
        "        print('hello from the model')\n        images, labels = data\n",
    )
    assert run(folder, *TRAIN, "--json") == 0
    captured = capfd.readouterr()
    assert json.loads(captured.out)["step"] == 4
    assert "hello from the model" in captured.err
    assert run(folder, *TRAIN, "--json", "-D", "runconfig.log_stepz=1") == 2
    failure = json.loads(capfd.readouterr().out)
    assert failure["status"] == 2
    assert "log_stepz" in failure["error"]


def test_checkpoint_path_of_params_counts_in_eval(folder: Folder, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(folder, *TRAIN, *EVERY_2) == 0
    capfd.readouterr()
    evaluate = ("CPU", "--mode", "eval", "--params", "configs/params.yaml", "--json")
    assert run(folder, *evaluate, "-D", "runconfig.checkpoint_path=model_dir/checkpoint_2") == 0
    assert json.loads(capfd.readouterr().out)["step"] == 2


def test_a_run_that_began_elsewhere_goes_on_where_it_stopped(
    folder: Folder, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, *TRAIN, *EVERY_2, "--model_dir", "first") == 0
    second = ("--checkpoint_path", "first/checkpoint_4", "--model_dir", "second", *EVERY_2)
    assert run(folder, *TRAIN[:-1], "6", *second) == 0
    capfd.readouterr()
    assert run(folder, *TRAIN[:-1], "8", *second) == 0
    assert "second/checkpoint_6 at step 6" in capfd.readouterr().err
    back = ("--checkpoint_path", "second/checkpoint_6", "--model_dir", "second", *EVERY_2)
    assert run(folder, *TRAIN[:-1], "10", *back) == 0
    assert "second/checkpoint_6 at step 6" in capfd.readouterr().err, "one of its own is a wish to go back"


def test_an_evaluation_that_a_signal_cut_off_is_made_up_for(
    folder: Folder, capfd: pytest.CaptureFixture[str]
) -> None:
    folder.edit(
        "model.py",
        "            self.accuracy(labels",
        "            import os, signal\n            if not os.environ.pop('SPARED', ''):\n"
        "                os.environ['SPARED'] = '1'\n                os.kill(os.getpid(), signal.SIGTERM)\n            self.accuracy(labels",
    )
    common = (*BOTH, "-D", "runconfig.eval_frequency=2", *EVERY_2)
    assert run(folder, *common) == 85
    assert "saved checkpoint_2" in capfd.readouterr().err
    folder.edit("model.py", "os.kill(os.getpid(), signal.SIGTERM)", "pass")
    assert run(folder, *common) == 0
    lines = read_metrics(folder.path / "model_dir" / "train")
    assert [line["step"] for line in lines if line["kind"] == "eval"] == [2, 4]


def test_weights_beside_the_model_are_refused(folder: Folder, capfd: pytest.CaptureFixture[str]) -> None:
    folder.edit(
        "model.py", "        self.loss_fn =", "        self.head = nn.Linear(3, 3)\n        self.loss_fn ="
    )
    assert run(folder, *TRAIN) == 2
    assert "self.head of MNISTModel has 12 weights outside self.model" in capfd.readouterr().err


def test_epochs_count_batches_and_not_whole_updates(
    folder: Folder, capfd: pytest.CaptureFixture[str]
) -> None:
    """1,437 digits in batches of 400 are 4 batches; 3 epochs in accumulations of 3 are 4 updates."""
    common = (*TRAIN[:-2], "-D", "runconfig.max_steps=null", "-D", "train_input.batch_size=400", "--json")
    assert run(folder, *common, "--num_epochs", "3", "-D", "optimizer.grad_accum_steps=3") == 0
    assert json.loads(capfd.readouterr().out)["step"] == 4
    assert (
        run(folder, *common, "--num_epochs", "1", "-D", "optimizer.grad_accum_steps=9", "--model_dir", "none")
        == 2
    )
    assert "not one update" in capfd.readouterr().err


def test_validation_says_when_nothing_tells_how_long(
    folder: Folder, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, *TRAIN[:-2], "-D", "runconfig.max_steps=null", "--validate_only") == 2
    assert "how long" in capfd.readouterr().err


def test_predictions_may_have_any_name_but_must_be_arrays(
    folder: Folder, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, *TRAIN) == 0
    predict = ("CPU", "--mode", "predict", "--params", "configs/params.yaml", "--json")
    folder.edit("model.py", '"digit": logits.argmax(-1)', '"file": logits.argmax(-1).numpy()')
    capfd.readouterr()
    assert run(folder, *predict) == 0
    arrays = np.load(json.loads(capfd.readouterr().out)["predictions"][0], allow_pickle=False)
    assert arrays["file"].shape == (360,)
    folder.edit("model.py", '"file": logits.argmax(-1).numpy()', '"name": "seven"')
    assert run(folder, *predict) == 2
    assert "'name'" in capfd.readouterr().err


def test_a_signal_in_an_evaluation_ends_it(folder: Folder, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(folder, *TRAIN) == 0
    folder.edit(
        "model.py",
        "            self.accuracy(labels",
        "            import os, signal\n            os.kill(os.getpid(), signal.SIGINT)\n            self.accuracy(labels",
    )
    capfd.readouterr()
    assert (
        run(
            folder,
            "CPU",
            "--mode",
            "eval",
            "--params",
            "configs/params.yaml",
            "-D",
            "eval_input.batch_size=10",
        )
        == 130
    )
    assert "stopped by SIGINT" in capfd.readouterr().err


def test_a_bad_logging_level_is_an_error_of_one_line(
    folder: Folder, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, *TRAIN, "--logging", "LOUD") == 2
    assert "Traceback" not in capfd.readouterr().err


def test_never_saving_is_never_promised(folder: Folder, capfd: pytest.CaptureFixture[str]) -> None:
    common = (
        *TRAIN,
        "-D",
        "runconfig.checkpoint_steps=0",
        "-D",
        "runconfig.save_initial_checkpoint=true",
        "--json",
    )
    assert run(folder, *common) == 0
    assert json.loads(capfd.readouterr().out)["checkpoint"] is None
    folder.edit(
        "model.py",
        "        images, labels = data\n",
        "        import os, signal\n        os.kill(os.getpid(), signal.SIGTERM)\n        images, labels = data\n",
    )
    assert run(folder, *common) == 130
    assert "starts anew" in capfd.readouterr().err


def test_a_finished_run_still_says_where_its_checkpoint_is(
    folder: Folder, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert run(folder, *BOTH, "--json") == 0
        outcome = json.loads(capfd.readouterr().out)
        assert outcome["checkpoint"].endswith("checkpoint_4")
        assert outcome["values"]["eval/accuracy"] > 0


def test_the_lock_is_free_again_after_a_failure(folder: Folder) -> None:
    assert (
        run(folder, *TRAIN, "-D", "optimizer.optimizer_type=SGD", "-D", "optimizer.learning_rate=1e39") == 3
    )
    assert run(folder, *TRAIN) == 0
    assert Path(folder.path / "model_dir" / "checkpoint_4").is_dir()
