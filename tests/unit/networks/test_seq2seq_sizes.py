"""The configs of published sizes have the published numbers of parameters."""

from pathlib import Path

import pytest
import torch

import portwright
from portwright.job.params import get_params
from portwright.networks import T5, Seq2Seq

MODELS = Path(portwright.__file__).parent / "models"
# transformers counts the same for the released checkpoints.
T5_SIZES = {
    "small": 60_506_624,
    "base": 222_903_552,
    "large": 737_668_096,
    "3b": 2_851_598_336,
    "11b": 11_307_321_344,
    "v1_1_small": 76_961_152,
    "v1_1_base": 247_577_856,
    "v1_1_large": 783_150_080,
    "v1_1_xl": 2_849_757_184,
    "v1_1_xxl": 11_135_332_352,
}


def count(network, folder, size):
    params = get_params(MODELS / folder / "configs" / f"params_{size}.yaml")
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in network(params["model"]).parameters())


@pytest.mark.parametrize("size", T5_SIZES)
def test_t5(size):
    assert count(T5, "t5", size) == T5_SIZES[size]


@pytest.mark.parametrize(("size", "millions"), [("base", 65), ("big", 213)])  # table 3 of arXiv 1706.03762
def test_transformer(size, millions):
    assert count(Seq2Seq, "transformer", size) == pytest.approx(millions * 1e6, rel=0.04)


def test_every_size_is_counted():
    found = {path.stem.removeprefix("params_") for path in (MODELS / "t5" / "configs").glob("params_*.yaml")}
    assert found == set(T5_SIZES)
