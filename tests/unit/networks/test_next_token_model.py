"""GPT-2, GPT-3 and GPT-J as run() holds them: losses, metrics, predictions, and the sizes of their configs."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml

import portwright.models
from portwright.networks import Gpt
from portwright.networks.next_token_model import NextTokenModel

FOLDERS = Path(next(iter(portwright.models.__path__)))
NAMES = ("gpt2", "gpt3", "gptj")
CONFIGS = sorted(path for name in NAMES for path in (FOLDERS / name / "configs").glob("*.yaml"))
PUBLISHED = {  # of the published weights
    "gpt2/params_small": 124_439_808,
    "gpt2/params_medium": 354_823_168,
    "gpt2/params_large": 774_030_080,
    "gpt2/params_xl": 1_557_611_200,
    "gptj/params_6b": 6_050_882_784,
}
ROUNDED = {  # table 2.1 of GPT-3's paper
    "gpt3/params_125m": 125e6,
    "gpt3/params_350m": 350e6,
    "gpt3/params_760m": 760e6,
    "gpt3/params_1p3b": 1.3e9,
    "gpt3/params_2p7b": 2.7e9,
    "gpt3/params_6p7b": 6.7e9,
    "gpt3/params_13b": 13e9,
    "gpt3/params_175b": 175e9,
}


def named(path: Path) -> str:
    return f"{path.parents[1].name}/{path.stem}"


def read(path: Path) -> dict[str, Any]:
    utils = runpy.run_path(str(path.parents[1] / "utils.py"))
    params: dict[str, Any] = yaml.safe_load(path.read_text())
    for section, kind in utils["PARAMS_SCHEMA"].items():
        unknown = params[section].keys() - kind.model_fields.keys()
        assert not unknown
        kind(**params[section])
    filled: dict[str, Any] = utils["set_defaults"](params)
    return filled


@pytest.mark.parametrize("path", CONFIGS, ids=named)
def test_configs_make_models_of_the_published_sizes(path: Path) -> None:
    params = read(path)
    with torch.device("meta"):
        network = Gpt(params["model"])
    count = sum(parameter.numel() for parameter in network.parameters())
    if named(path) in PUBLISHED:
        assert count == PUBLISHED[named(path)]
    elif path.stem != "params":
        assert count == pytest.approx(ROUNDED[named(path)], rel=0.025)
    assert params["train_input"]["max_sequence_length"] <= params["model"]["max_position_embeddings"]


@pytest.fixture(params=NAMES)
def model(request: pytest.FixtureRequest) -> NextTokenModel:
    torch.manual_seed(0)
    params = read(FOLDERS / request.param / "configs" / "params.yaml")
    params["model"].update(vocab_size=31, hidden_size=16, num_heads=2, filter_size=24, num_hidden_layers=2)
    params["model"].update(dropout_rate=0.0, attention_dropout_rate=0.0)
    if request.param == "gptj":
        params["model"]["rotary_dim"] = 4
    return NextTokenModel(params)


def make_batch() -> dict[str, torch.Tensor]:
    tokens = torch.randint(0, 31, (3, 9), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    mask = (torch.arange(8) < torch.tensor([[8], [5], [1]])).int()
    return {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:], "attention_mask": mask}


def test_loss_metrics_and_predictions_agree(model: NextTokenModel) -> None:
    batch = make_batch()
    model.train()
    trained = model(batch)
    model.eval()
    with torch.no_grad():
        evaluated = model(batch)
        made = model.predict(batch)
        logits = model.model(batch["input_ids"])
    torch.testing.assert_close(trained, evaluated)
    counted = batch["attention_mask"] == 1
    labels = batch["labels"][counted].long()
    expected = F.cross_entropy(logits[counted], labels)
    torch.testing.assert_close(evaluated, expected)
    assert model.perplexity.compute() == pytest.approx(float(expected.exp()), rel=1e-5)
    right = (logits[counted].argmax(-1) == labels).float().mean()
    assert model.accuracy.compute() == pytest.approx(float(right))
    assert torch.equal(made["next_tokens"], logits.argmax(-1))
    torch.testing.assert_close(made["probabilities"], logits.softmax(-1).amax(-1))


def test_mask_hides_nothing_from_attention_and_may_be_left_out(model: NextTokenModel) -> None:
    batch = make_batch()
    model.train()
    batch["attention_mask"] = torch.zeros_like(batch["attention_mask"])
    batch["attention_mask"][:, -1] = 1  # a prompt, and the label that counts
    logits = model.model(batch["input_ids"])
    torch.testing.assert_close(model(batch), F.cross_entropy(logits[:, -1], batch["labels"][:, -1].long()))
    del batch["attention_mask"]
    torch.testing.assert_close(
        model(batch), F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten().long())
    )


def test_packed_documents_reach_the_network(model: NextTokenModel) -> None:
    batch = make_batch()
    del batch["attention_mask"]
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]], dtype=torch.int32).expand(3, 8)
    for mode in (model.train, model.eval):
        mode()
        apart = model({**batch, "document_ids": documents})
        pieces = [{name: part[:, here] for name, part in batch.items()} for here in (slice(3), slice(3, 8))]
        expected = (3 * model(pieces[0]) + 5 * model(pieces[1])) / 8
        torch.testing.assert_close(apart, expected)
        assert not torch.allclose(apart, model(batch), rtol=1e-6)
