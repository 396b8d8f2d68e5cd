"""The conversion demo, as a user follows it: both models train to the end, from a copy of the folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from portwright.models import alphabet
from portwright.models.alphabet import cb_transformer, literal_transformer, pytorch_transformer

FOLDER = Path(next(iter(alphabet.__path__)))
PARAMS = ("--params", "configs/params.yaml")
SIZES = (26, 64, 2, 64, 2, 0.0, "gelu", 10)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the demo, in which the tests of this file share what they trained."""
    copy = tmp_path_factory.mktemp("demo") / "alphabet"
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("__pycache__", "model_dir"))
    return copy


@pytest.mark.parametrize("variant", ["pytorch", "layers"])
def test_a_thousand_steps_learn_the_alphabet(folder: Path, variant: str, run_script) -> None:
    model_dir = ("--model_dir", variant)
    trained = run_script(
        folder,
        "CPU",
        "--mode",
        "train_and_eval",
        *PARAMS,
        "-D",
        f"model.variant={variant}",
        *model_dir,
        "--json",
    )
    assert trained.returncode == 0, trained.stderr
    outcome = json.loads(trained.stdout)
    assert outcome["step"] == 1000
    assert outcome["values"]["eval/accuracy"] > 0.99


def test_trained_weights_carry_over(folder: Path) -> None:
    """The trained torch model's weights are a trained layers model; for the seed's literal form they are not."""
    if not (folder / "pytorch" / "checkpoint_1000").is_dir():
        pytest.fail("the torch variant has not been trained")
    state = load_file(folder / "pytorch" / "checkpoint_1000" / "model.safetensors")
    original = pytorch_transformer.TransformerModel(*SIZES)
    original.load_state_dict(state)
    converted = cb_transformer.TransformerModel(*SIZES)
    converted.load_state_dict(cb_transformer.state_from_pytorch(state))
    literal = literal_transformer.TransformerModel(*SIZES)
    carried = cb_transformer.state_from_pytorch(state)
    literal.load_state_dict({name: carried[name] for name in literal.state_dict()})
    assert accuracy(original) == accuracy(converted) > 0.99
    assert accuracy(literal) < 0.9


def accuracy(model: torch.nn.Module) -> float:
    slices = torch.arange(16).unsqueeze(1) + torch.arange(11)
    with torch.no_grad():
        scores = model.eval()(slices[:, :-1], pytorch_transformer.generate_square_subsequent_mask(10))
    return float((scores.argmax(-1) == slices[:, 1:]).float().mean())


def test_the_literal_variant_runs_and_resumes(folder: Path, run_script) -> None:
    common = (
        "CPU",
        "--mode",
        "train",
        *PARAMS,
        "-D",
        "model.variant=literal",
        "--model_dir",
        "literal",
        "--json",
    )
    first = run_script(folder, *common, "--max_steps", "20")
    assert first.returncode == 0, first.stderr
    second = run_script(folder, *common, "--max_steps", "30")
    assert second.returncode == 0, second.stderr
    assert "resuming" in second.stderr
    assert json.loads(second.stdout)["step"] == 30


def test_a_misspelt_variant(folder: Path, run_script) -> None:
    done = run_script(
        folder, "CPU", "--mode", "train", *PARAMS, "-D", "model.variant=layer", "--model_dir", "none"
    )
    assert done.returncode == 2
    assert "model.variant" in done.stderr
    assert "'layers'" in done.stderr


def test_the_reference_model_is_found_by_name(tmp_path: Path, run_cli) -> None:
    done = run_cli("run", "alphabet", "CPU", "--mode", "train", "--validate_only", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "int32[32, 10]" in done.stdout
