"""`new --from gpt2`, a training, `convert --to hf`: the folder says by itself which model it is of."""

from __future__ import annotations

from pathlib import Path

import pytest

TRAIN = (
    "CPU", "--mode", "train", "--max_steps", "1", "-D", "train_input.batch_size=2", "-D", "model.num_hidden_layers=1",
    "-D", "runconfig.checkpoint_steps=1",
)  # fmt: skip


@pytest.mark.parametrize("folder", ["g", "bert"])  # a name of one's own, and one of another model
def test_a_new_folder_converts_without_a_name(run_cli, tmp_path: Path, folder: str) -> None:
    assert run_cli("new", folder, "--from", "gpt2", cwd=tmp_path).returncode == 0
    trained = run_cli("run", folder, *TRAIN, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    made = run_cli("convert", "--to", "hf", folder, "hf", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith("gpt2: ")


def test_a_run_of_a_reference_model_converts_without_a_name(run_cli, tmp_path: Path) -> None:
    assert run_cli("run", "gpt2", *TRAIN, cwd=tmp_path).returncode == 0
    made = run_cli("convert", "--to", "hf", "gpt2_run", "hf", cwd=tmp_path)
    assert made.returncode == 0, made.stderr


def test_a_model_of_one_s_own_is_asked_for_its_name(run_cli, tmp_path: Path) -> None:
    assert run_cli("new", "g", "--from", "gpt2", cwd=tmp_path).returncode == 0
    with (tmp_path / "g" / "model.py").open("a") as file:
        file.write("# changed\n")
    assert run_cli("run", "g", *TRAIN, cwd=tmp_path).returncode == 0
    asked = run_cli("convert", "--to", "hf", "g", "hf", cwd=tmp_path)
    assert asked.returncode == 2
    assert "does not say which model it is of" in asked.stderr
