from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn

from portwright.errors import UserError
from portwright.job.optimizer import optimizer_schema
from portwright.runtime.param_groups import make_param_groups


def spec(optimizer_type: str = "AdamW", **values: Any) -> Any:
    return optimizer_schema(optimizer_type).model_validate(
        {"learning_rate": 0.1, "weight_decay_rate": 0.5, **values}
    )


def decayed(model: nn.Module, **values: Any) -> set[str]:
    groups = make_param_groups(model, spec(**values))
    return {name for group in groups if group["weight_decay"] for name in group["param_names"]}


def undecayed(model: nn.Module, **values: Any) -> set[str]:
    return {name for name, _ in model.named_parameters()} - decayed(model, **values)


class RootMeanSquare(nn.Module):
    """A norm that only the attribute it is kept under tells."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))


class MyRMSNorm(RootMeanSquare):
    pass


class ChannelNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1, width, 1, 1))


class Renamed(nn.LayerNorm):
    pass


class LayerNormFp32(RootMeanSquare):
    pass


class WeightNormLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight_v = nn.Parameter(torch.ones(3, 3))


class LinearWithWeightNorm(WeightNormLinear):
    pass


class NormedLinear(WeightNormLinear):
    pass


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, add_bias_kv=True)
        self.first = nn.LayerNorm(4)  # the name says nothing: the model zoo's patterns would decay it
        self.second = MyRMSNorm(4)
        self.third = Renamed(4)
        self.channels = ChannelNorm(4)
        self.wide = LayerNormFp32(4)
        self.ln_1 = RootMeanSquare(4)
        self.map = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))


def test_biases_and_norms_are_spared_by_type() -> None:
    assert decayed(Block()) == {
        "attention.in_proj_weight",
        "attention.out_proj.weight",
        "map.weight",
        "scale",
    }


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm1d(3),
        nn.BatchNorm2d(3),
        nn.BatchNorm3d(3),
        nn.SyncBatchNorm(3),
        nn.InstanceNorm2d(3, affine=True),
        nn.GroupNorm(1, 3),
        nn.LayerNorm([3, 4, 5]),
        nn.RMSNorm(3),
    ],
    ids=lambda norm: type(norm).__name__,
)
def test_every_norm_of_torch_is_spared_whole(norm: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), norm)
    assert decayed(model) == {"0.weight"}


@pytest.mark.parametrize("module", [WeightNormLinear(), LinearWithWeightNorm(), NormedLinear()])
def test_a_matrix_that_is_only_written_with_a_norm_is_decayed(module: nn.Module) -> None:
    assert decayed(nn.Sequential(module)) == {"0.weight_v"}


def test_embeddings_stay_decayed_even_when_they_are_called_bias() -> None:
    model = nn.ModuleDict({"relative_attention_bias": nn.Embedding(4, 2), "word": nn.Embedding(4, 2)})
    assert undecayed(model) == set()


def test_biases_of_other_spellings() -> None:
    model = nn.ModuleDict({"lstm": nn.LSTM(2, 2), "bilinear": nn.Bilinear(2, 2, 2)})
    model["listed"] = nn.ParameterList([nn.Parameter(torch.ones(2))])
    model.register_parameter("biases", nn.Parameter(torch.ones(2)))
    model.register_parameter("debiased", nn.Parameter(torch.ones(2)))
    assert undecayed(model) == {"lstm.bias_ih_l0", "lstm.bias_hh_l0", "bilinear.bias", "biases"}


def test_a_parametrized_bias_is_still_a_bias() -> None:
    linear = nn.Linear(2, 2)
    nn.utils.parametrize.register_parametrization(linear, "bias", nn.Identity())
    assert undecayed(linear) == {"parametrizations.bias.original"}


def test_patterns_add_to_the_rule_and_an_empty_list_turns_it_off() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Linear(2, 2))
    norms = {"0.bias", "1.weight", "1.bias", "2.bias"}
    assert undecayed(model) == norms
    assert undecayed(model, exclude_from_weight_decay=["0.weight"]) == norms | {"0.weight"}
    assert undecayed(model, exclude_from_weight_decay=[]) == set()


def test_a_pattern_that_matches_nothing_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        make_param_groups(nn.Linear(2, 2), spec(exclude_from_weight_decay=["LayerNrom", "weight"]))
    assert [record.getMessage() for record in caplog.records] == [
        "exclude_from_weight_decay: 'LayerNrom' is in no parameter's name."
    ]


def test_without_weight_decay_there_is_one_group() -> None:
    (group,) = make_param_groups(Block(), spec(weight_decay_rate=0))
    assert len(group["params"]) == len(group["param_names"]) == len(list(Block().parameters()))


def test_a_tied_parameter_appears_once() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    model["head"].weight = model["embed"].weight
    groups = make_param_groups(model, spec())
    assert [group["param_names"] for group in groups] == [["embed.weight"]]


def test_a_weight_tied_to_a_norm_is_spared_wherever_it_comes_first() -> None:
    model = nn.ModuleDict({"a": RootMeanSquare(3), "norm": nn.LayerNorm(3)})
    model["a"].weight = model["norm"].weight
    assert decayed(model) == set()


def test_frozen_parameters_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    names = [name for group in make_param_groups(model, spec()) for name in group["param_names"]]
    assert sorted(names) == ["1.bias", "1.weight"]


@pytest.mark.parametrize("model", [nn.ReLU(), nn.Linear(2, 2).requires_grad_(False)])
def test_nothing_to_train_is_an_error(model: nn.Module) -> None:
    with pytest.raises(UserError, match="no trainable parameter"):
        make_param_groups(model, spec())


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_lazy_module_is_named() -> None:
    with pytest.raises(UserError, match=r"'1\.weight' has no shape yet"):
        make_param_groups(nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(2)), spec())


def test_muon_takes_hidden_matrices_and_adamw_the_rest() -> None:
    model = nn.ModuleDict(
        {
            "tokens": nn.Embedding(5, 4),
            "patch_embed": nn.Conv2d(3, 4, 2),
            "conv": nn.Conv1d(4, 4, 3),
            "hidden": nn.Linear(4, 4),
            "norm": nn.LayerNorm([2, 4]),
            "lm_head": nn.Linear(4, 5),
        }
    )
    model.register_parameter("experts", nn.Parameter(torch.ones(2, 3, 4)))
    groups = make_param_groups(model, spec("Muon", adamw_lr_scale=0.1))
    by_muon = {name for group in groups if group["use_muon"] for name in group["param_names"]}
    assert by_muon == {"conv.weight", "hidden.weight"}
    assert {(group["use_muon"], group["lr_scale"]) for group in groups} == {(True, 1.0), (False, 0.1)}
    names = [name for group in groups for name in group["param_names"]]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
