"""Model folders written for the model zoo, run with not one line changed.

Those of the public release 1.6 are taken from $PORTWRIGHT_CORPUS/modelzoo-1.6; a folder of our own in its style
always runs.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from e2e.zoo_cases import CASES, ZooCase
from safetensors.torch import load_file

FIXTURES = Path(__file__).parents[1] / "fixtures"
STYLE = FIXTURES / "zoo_style"
COUNTING = STYLE / "modelzoo" / "counting" / "pytorch"


Run = Callable[..., subprocess.CompletedProcess[str]]
Outcome = Callable[..., dict[str, Any]]


@pytest.fixture
def run(run_cli: Run) -> Run:
    return partial(run_cli, "run", "--compat", "modelzoo")


@pytest.fixture
def outcome(run: Run) -> Outcome:
    def get(*arguments: str | Path, cwd: Path, env: dict[str, str] | None = None) -> dict[str, Any]:
        done = run(*arguments, "--json", cwd=cwd, env=env)
        assert done.returncode == 0, done.stderr
        loaded: dict[str, Any] = json.loads(done.stdout)
        return loaded

    return get


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    return load_file(checkpoint / "model.safetensors")


def assert_equal_weights(one: Path, other: Path) -> None:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert all(first[name].equal(second[name]) for name in first)


# -- a folder of our own -----------------------------------------------------------------------------------


def test_train_resume_and_evaluate(tmp_path: Path, run: Run, outcome: Outcome) -> None:
    whole = outcome(COUNTING, "CPU", "--mode", "train_and_eval", "--model_dir", "whole", cwd=tmp_path)
    assert whole["step"] == 12
    assert whole["values"]["eval/longest"] == 12
    outcome(COUNTING, "CPU", "--mode", "train", "--max_steps", "5", "--model_dir", "parts", cwd=tmp_path)
    resumed = run(COUNTING, "CPU", "--mode", "train", "--model_dir", "parts", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming" in resumed.stderr
    assert_equal_weights(tmp_path / "whole" / "checkpoint_12", tmp_path / "parts" / "checkpoint_12")
    evaluated = outcome(COUNTING, "CPU", "--mode", "eval", "--model_dir", "parts", cwd=tmp_path)
    assert evaluated["values"]["eval/loss"] == pytest.approx(whole["values"]["eval/loss"])
    assert {"eval/accuracy", "eval/perplexity", "eval/longest"} <= evaluated["values"].keys()


def test_the_form_of_1_6_without_a_target(tmp_path: Path, run: Run) -> None:
    config = COUNTING / "configs" / "params.yaml"
    done = run(
        COUNTING / "run.py", "-cpu", "-m", "train", "-p", config, "--stride", "3", "-o", "here",
        "-D", "train_input.buckets=[8, 10]", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "here" / "checkpoint_12").is_dir()


def test_what_release_1_6_did_with_params(tmp_path: Path, run: Run) -> None:
    done = run(COUNTING, "CPU", "--mode", "train", "--max_steps", "1", "--model_dir", "m", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "release 1.6 computed in fp32" in done.stderr
    resolved = (tmp_path / "m" / "train" / "params_train.yaml").read_text()
    assert "correct_bias: false" in resolved
    assert "precision: fp32" in resolved
    assert "mode: train" in resolved


def test_a_loss_that_is_not_finite_is_explained_though_the_model_empties_its_batch(
    tmp_path: Path, run: Run
) -> None:
    done = run(
        COUNTING, "CPU", "--mode", "train", "--model_dir", "m", "-D", "optimizer.learning_rate=1.0e+30",
        "-D", "optimizer.max_gradient_norm=0", "-D", "optimizer.loss_scaling_factor=1.0", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "at step 2" in done.stderr
    assert "KeyError" not in done.stderr


def test_a_part_of_pretrained_weights_is_taken_over(tmp_path: Path, run: Run, outcome: Outcome) -> None:
    outcome(COUNTING, "CPU", "--mode", "train", "--max_steps", "2", "--model_dir", "small", cwd=tmp_path)
    done = run(
        COUNTING, "CPU", "--mode", "train", "--max_steps", "1", "--model_dir", "large", "-D", "model.num_hidden_layers=3",
        "-D", "runconfig.save_initial_checkpoint=true", "--checkpoint_path", "small/checkpoint_2", "--is_pretrained_checkpoint",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "left as initialised: decoder.layers.2." in done.stderr
    small, large = weights(tmp_path / "small" / "checkpoint_2"), weights(tmp_path / "large" / "checkpoint_0")
    assert small.keys() < large.keys()
    assert all(small[name].equal(large[name]) for name in small)


def test_names_of_2_x(tmp_path: Path, outcome: Outcome) -> None:
    result = outcome(STYLE / "later", "CPU", "--mode", "train_and_eval", "--model_dir", "m", cwd=tmp_path)
    assert result["step"] == 3


def test_an_installed_cerebras_is_not_shadowed(tmp_path: Path, run: Run) -> None:
    for part, text in (("pytorch", "VALUE = 1"), ("appliance", "VALUE = 2")):
        folder = tmp_path / part / "cerebras" / part
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(text)
    script = tmp_path / "run.py"
    script.write_text(
        "import cerebras.modelzoo.layers, cerebras.pytorch, cerebras.appliance\n"
        "assert (cerebras.pytorch.VALUE, cerebras.appliance.VALUE) == (1, 2)\n"
        "print(cerebras.modelzoo.layers.EmbeddingLayer.__module__, len(list(cerebras.__path__)))\n"
    )
    paths = os.pathsep.join(
        [str(tmp_path / "pytorch"), str(tmp_path / "appliance"), os.environ.get("PYTHONPATH", "")]
    )
    done = run(script, cwd=tmp_path, env={"PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["portwright.compat.modelzoo_layers", "2"]


def test_the_run_of_seed_003(tmp_path: Path, outcome: Outcome) -> None:
    """Seed 003, whose folder is that of release 2.2: "python run.py CPU/GPU --mode train --params configs/params.yaml"."""
    folder = STYLE / "release_2_2"
    words = ("CPU", "--mode", "train", "--params", folder / "configs" / "params.yaml", "--model_dir", "m")
    assert outcome(folder / "run.py", *words, "-D", "runconfig.max_steps=2", cwd=tmp_path)["step"] == 2
    assert weights(tmp_path / "m" / "checkpoint_2")["model.encoder.word_embeddings.weight"].shape == (26, 16)


def test_an_installed_model_zoo_with_its_sdk_goes_first(tmp_path: Path, run: Run) -> None:
    for name, text in (("pytorch", ""), ("modelzoo", ""), ("modelzoo/layers", "EmbeddingLayer = 'its own'")):
        folder = tmp_path / "site" / "cerebras" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(text)
    script = tmp_path / "run.py"
    script.write_text("from cerebras.modelzoo.layers import EmbeddingLayer\nprint(EmbeddingLayer)\n")
    paths = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    assert run(script, cwd=tmp_path, env={"PYTHONPATH": paths}).stdout.strip() == "its own"


def test_without_compat_nothing_is_lent(tmp_path: Path, run_cli: Run) -> None:
    script = tmp_path / "run.py"
    script.write_text("import modelzoo.common.pytorch\n")
    done = run_cli("run", script, cwd=tmp_path)
    assert "ModuleNotFoundError: No module named 'modelzoo'" in done.stderr


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "from modelzoo.common.pytorch.run_util import run",
            "Did you mean 'modelzoo.common.pytorch.run_utils'?",
        ),
        ("from modelzoo.common.pytorch.layers import Transformr", "cannot import name 'Transformr'"),
        ("import modelzoo.transformers.pytorch.gpt2.model", "docs/compat.md"),
        ("import not_installed_anywhere", "neither installed nor beside the script"),
        ("from json import nothing", "cannot import name 'nothing' from 'json'"),
    ],
)
def test_what_cannot_be_imported_is_one_line(tmp_path: Path, code: str, said: str, run: Run) -> None:
    script = tmp_path / "run.py"
    script.write_text(code + "\n")
    done = run(script, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert f"{script}:1" in done.stderr
    assert said in done.stderr


def test_an_unknown_library(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "portwright.cli", "run", "--compat", "modelzo", str(COUNTING)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "Did you mean 'modelzoo'?" in done.stderr


# -- the public release ------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def release() -> Path:
    folder = os.environ.get("PORTWRIGHT_CORPUS")
    if folder is None:
        pytest.skip("PORTWRIGHT_CORPUS is not set: the model zoo's release 1.6 is not here")
    found = Path(folder) / "modelzoo-1.6"
    if not (found / "modelzoo" / "common").is_dir():
        pytest.fail(f"PORTWRIGHT_CORPUS={folder} has no modelzoo-1.6/modelzoo")
    return found.resolve()


@pytest.fixture(scope="session")
def stand_in() -> dict[str, str]:
    """torchvision where it works, a stand-in for fc_mnist where it does not."""
    code = "import torchvision.datasets, torchvision.transforms"
    if subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0:
        return {}
    paths = [str(FIXTURES / "torchvision_stand_in"), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_release_1_6(
    case: ZooCase, release: Path, stand_in: dict[str, str], tmp_path: Path, outcome: Outcome
) -> None:
    missing = [name for name in case.packages if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"the zoo's {case.folder} imports packages that are not installed: {', '.join(missing)}")
    script = release / "modelzoo" / case.folder / "run.py"
    arguments = case.arguments(release, tmp_path / "data")

    def go(mode: str, model_dir: str, *more: str) -> dict[str, Any]:
        words = (script, "CPU", "--mode", mode, *arguments, "--model_dir", model_dir, *more)
        return outcome(*words, cwd=tmp_path, env=stand_in)

    whole = go("train", "whole", "--max_steps", "9")
    assert whole["step"] == 9
    go("train", "parts", "--max_steps", "5")
    assert go("train", "parts", "--max_steps", "9")["step"] == 9
    assert_equal_weights(tmp_path / "whole" / "checkpoint_9", tmp_path / "parts" / "checkpoint_9")
    first, last = (weights(tmp_path / "parts" / f"checkpoint_{step}") for step in (5, 9))
    assert any(not first[name].equal(last[name]) for name in first), "nothing was trained"
    values = go("eval", "parts")["values"]
    assert values["eval/loss"] > 0
    reported = {name.removeprefix("eval/") for name in values}
    assert {name.removeprefix("eval/") for name in case.metrics} <= reported


@pytest.mark.parametrize("kind", ["gpt2", "layers_api_demo"])
def test_losses_are_those_of_the_zoos_own_code(kind: str, release: Path, tmp_path: Path) -> None:
    """Weights of the zoo's model, read by its names into the same model with our parts: the same losses.

    The zoo rounds its loss to float16, one part in 2,048, and its factor of the scores too.
    """
    file = tmp_path / "losses.pt"
    for whose in ("theirs", "ours"):
        command = [
            sys.executable,
            str(Path(__file__).with_name("zoo_losses.py")),
            str(release),
            kind,
            whose,
            str(file),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    found = torch.load(file, weights_only=True)
    theirs, ours = torch.tensor(found["theirs"]), torch.tensor(found["ours"])
    torch.testing.assert_close(ours[0], theirs[0], rtol=1 / 2048, atol=0)
    torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=0)
    assert theirs.unique().numel() > 10
