"""The workflow that the seeds teach, as a user does it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.torch import load_file

PARAMS = ("--params", "configs/params.yaml")
SHORT = ("--max_steps", "60", "-D", "runconfig.checkpoint_steps=20", "-D", "runconfig.log_steps=10")


def portwright(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "portwright.cli", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("makes", [True, False])
def test_validating_and_training_agree_on_a_folder_that_is_not_there_yet(
    model_folder: Path, run_script, makes: bool
) -> None:
    """Seed 000: "`data_dir`: './tfds' # Place to store data"."""
    data, params = model_folder / "data.py", model_folder / "configs" / "params.yaml"
    params.write_text(params.read_text().replace("train_input:\n", "train_input:\n  data_dir: './tfds'\n"))
    work = "Path(options['data_dir']).mkdir(exist_ok=True)" if makes else "next(Path('tfds').iterdir())"
    data.write_text(
        data.read_text().replace(
            '    data_dir = options.get("data_dir")\n',
            f'    data_dir = None\n    if options.get("data_dir"):\n        {work}\n',
        )
    )
    for words in (("--validate_only",), ("--max_steps", "2")):
        ended = run_script(model_folder, "CPU", "--mode", "train", *PARAMS, *words)
        assert ended.returncode == (0 if makes else 2), ended.stderr
        line = "configs/params.yaml:3: train_input.data_dir: './tfds' does not exist"
        assert (line in ended.stderr) is not makes
        shutil.rmtree(model_folder / "tfds", ignore_errors=True)


def test_new_train_eval_predict_resume(tmp_path: Path, run_script) -> None:
    made = portwright("new", "mymodel", "--framework", "pytorch", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    folder = tmp_path / "mymodel"
    assert {p.name for p in folder.iterdir()} >= {"model.py", "data.py", "utils.py", "run.py", "configs"}

    validated = run_script(folder, "CPU", "--mode", "train_and_eval", *PARAMS, "--validate_only")
    assert validated.returncode == 0, validated.stderr
    assert "float32[64, 1, 8, 8]" in validated.stdout
    assert not (folder / "model_dir").exists() or not list((folder / "model_dir").rglob("*.safetensors"))

    trained = run_script(folder, "CPU", "--mode", "train", *PARAMS, "--json", fresh=True)
    assert trained.returncode == 0, trained.stderr
    outcome = json.loads(trained.stdout)
    assert outcome["step"] == 1000
    assert outcome["values"]["train/loss"] < 0.5
    model_dir = folder / "model_dir"
    assert [p.name for p in sorted(model_dir.glob("checkpoint_*"))] == [
        "checkpoint_1000",
        "checkpoint_500",
        "checkpoint_750",
    ]
    resolved = yaml.safe_load((model_dir / "train" / "params_train.yaml").read_text())
    assert resolved["runconfig"]["max_steps"] == 1000
    lines = [json.loads(line) for line in (model_dir / "train" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(50, 1001, 50))
    assert list((model_dir / "train").glob("events.out.tfevents.*"))

    evaluated = run_script(folder, "CPU", "--mode", "eval", *PARAMS, "--json")
    assert evaluated.returncode == 0, evaluated.stderr
    assert json.loads(evaluated.stdout)["values"]["eval/accuracy"] > 0.95

    all_of_them = run_script(folder, "CPU", "--mode", "eval_all", *PARAMS, "--json")
    assert [row["step"] for row in json.loads(all_of_them.stdout)["evaluations"]] == [500, 750, 1000]

    predicted = run_script(folder, "CPU", "--mode", "predict", *PARAMS, "--json")
    assert predicted.returncode == 0, predicted.stderr
    (file,) = json.loads(predicted.stdout)["predictions"]
    arrays = np.load(file, allow_pickle=False)
    assert arrays["probabilities"].shape == (360, 10)

    again = run_script(folder, "CPU", "--mode", "train", *PARAMS, "--max_steps", "1010", "--json")
    assert again.returncode == 0, again.stderr
    assert "resuming" in again.stderr
    assert json.loads(again.stdout)["step"] == 1010


def test_old_flat_form(model_folder: Path, run_script) -> None:
    done = run_script(model_folder, "--mode", "train", *PARAMS, "--validate_only", "-cpu")
    assert done.returncode == 0, done.stderr
    assert "using CPU" in done.stderr


def test_train_and_eval_does_not_disturb_training(model_folder: Path, run_script) -> None:
    """Evaluating in between draws random numbers of its own, so the weights are those of plain training."""
    for mode in ("train", "train_and_eval"):
        done = run_script(model_folder, "CPU", "--mode", mode, *PARAMS, *SHORT, "--model_dir", mode)
        assert done.returncode == 0, done.stderr
    a, b = (
        load_file(model_folder / m / "checkpoint_60" / "model.safetensors")
        for m in ("train", "train_and_eval")
    )
    assert all(a[name].equal(b[name]) for name in a)


def test_bad_evaluation_data_is_told_before_the_training(model_folder: Path, run_script) -> None:
    data = model_folder / "data.py"
    data.write_text(
        data.read_text() + "\n\ndef get_eval_dataloader(params):\n    raise ValueError('no such data')\n"
    )
    done = run_script(model_folder, "CPU", "--mode", "train_and_eval", *PARAMS, *SHORT)
    assert done.returncode != 0
    assert "no such data" in done.stderr
    assert not list(model_folder.rglob("checkpoint_*"))


def test_pretrained_checkpoint_starts_at_step_0(model_folder: Path, run_script) -> None:
    assert run_script(model_folder, "CPU", "--mode", "train", *PARAMS, *SHORT).returncode == 0
    arguments = (
        *PARAMS, *SHORT, "--checkpoint_path", "model_dir/checkpoint_60", "--is_pretrained_checkpoint",
        "--model_dir", "fine", "--json",
    )  # fmt: skip
    tuned = run_script(model_folder, "CPU", "--mode", "train", *arguments)
    assert tuned.returncode == 0, tuned.stderr
    lines = (model_folder / "fine" / "train" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["step"] == 10
    again = run_script(model_folder, "CPU", "--mode", "train", *arguments)
    assert "nothing to train" in again.stderr, "its own checkpoint wins over the pretrained one"


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")),
    reason="torch.compile needs a C++ compiler, and none is here",
)
def test_compile_only_then_train_compiled(model_folder: Path, run_script) -> None:
    compiled = run_script(
        model_folder, "CPU", "--mode", "train", *PARAMS, "--compile_only", "--json", fresh=True
    )
    assert compiled.returncode == 0, compiled.stderr
    report = json.loads(compiled.stdout)["compiled"]
    assert report["graphs"] >= 1
    assert report["graph_breaks"] == {}
    assert any((Path(model_folder) / report["compile_dir"]).rglob("*.so")) or any(
        Path(report["compile_dir"]).rglob("*.so")
    )
    assert not list((model_folder / "model_dir").rglob("*.safetensors"))
    trained = run_script(
        model_folder, "CPU", "--mode", "train", *PARAMS, *SHORT, "-D", "runconfig.compile=true", fresh=True
    )
    assert trained.returncode == 0, trained.stderr
    assert "using what was compiled" in trained.stderr


def test_light_commands_do_not_import_torch(tmp_path: Path) -> None:
    code = (
        "import sys, portwright, portwright.cli\n"
        "try:\n    portwright.cli.app(['--help'])\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'tensorflow' not in sys.modules and 'numpy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
