from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import nn

from portwright.errors import UserError
from portwright.layers.initializers import get_initializer

NAMES = [
    "constant", "ones", "zeros", "eye", "uniform", "normal", "truncated_normal", "xavier_normal", "glorot_normal",
    "xavier_uniform", "glorot_uniform", "kaiming_normal", "kaiming_uniform", "lecun_normal", "lecun_uniform",
    "variance_scaling",
]  # fmt: skip
OUT, IN = 300, 200
CUT_STD = 0.8796256610342398  # of a standard normal cut at two standard deviations


def filled(spec, shape=(OUT, IN), dtype=torch.float32):
    torch.manual_seed(0)
    weight = nn.Parameter(torch.full(shape, math.nan, dtype=dtype))
    assert get_initializer(spec)(weight) is weight
    assert weight.requires_grad
    assert weight.grad_fn is None
    return weight.detach()


@pytest.mark.parametrize(
    ("spec", "mean", "std", "bound"),
    [
        ("uniform", 0.0, 0.1 / math.sqrt(12), 0.05),
        ({"name": "uniform", "a": 1.0, "b": 3.0}, 2.0, 2 / math.sqrt(12), 3.0),
        ("normal", 0.0, 0.05, math.inf),
        ({"name": "normal", "mean": 1.0, "std": 0.5}, 1.0, 0.5, math.inf),
        ("truncated_normal", 0.0, 0.05 * CUT_STD, 0.1),
        ({"name": "truncated_normal", "std": 0.5}, 0.0, 0.5 * CUT_STD, 1.0),
        ({"name": "truncated_normal", "mean": 3.0, "std": 0.5}, 3.0, 0.5 * CUT_STD, 4.0),
        ({"name": "truncated_normal", "std": 0.02, "a": -0.1, "b": 0.1}, 0.0, 0.02, 0.1),
        ("xavier_normal", 0.0, math.sqrt(2 / (IN + OUT)), math.inf),
        ("glorot_normal", 0.0, math.sqrt(2 / (IN + OUT)), math.inf),
        ("xavier_uniform", 0.0, math.sqrt(2 / (IN + OUT)), math.sqrt(6 / (IN + OUT))),
        ({"name": "glorot_uniform", "gain": 2.0}, 0.0, 2 * math.sqrt(2 / (IN + OUT)), 2 * math.sqrt(6 / (IN + OUT))),
        ({"name": "xavier_normal", "gain": "relu"}, 0.0, math.sqrt(4 / (IN + OUT)), math.inf),
        ("kaiming_normal", 0.0, math.sqrt(2 / IN), math.inf),
        ({"name": "kaiming_normal", "mode": "fan_out", "nonlinearity": "relu"}, 0.0, math.sqrt(2 / OUT), math.inf),
        ({"name": "kaiming_uniform", "a": 1.0}, 0.0, math.sqrt(1 / IN), math.sqrt(3 / IN)),
        ("lecun_normal", 0.0, math.sqrt(1 / IN), 2 * math.sqrt(1 / IN) / CUT_STD),
        ("lecun_uniform", 0.0, math.sqrt(1 / IN), math.sqrt(3 / IN)),
        ("variance_scaling", 0.0, math.sqrt(1 / IN), 2 * math.sqrt(1 / IN) / CUT_STD),
        ({"name": "variance_scaling", "scale": 2.0, "mode": "fan_out", "distribution": "normal"},
         0.0, math.sqrt(2 / OUT), math.inf),
        ({"name": "variance_scaling", "mode": "fan_avg", "distribution": "uniform"},
         0.0, math.sqrt(2 / (IN + OUT)), math.sqrt(6 / (IN + OUT))),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_draws_from_its_distribution(spec, mean, std, bound, dtype):
    weight = filled(spec, dtype=dtype).double()
    assert math.isclose(weight.mean().item(), mean, abs_tol=std / 40 + 0.002 * abs(mean))
    assert math.isclose(weight.std().item(), std, rel_tol=0.02)
    assert weight.abs().max() <= bound * (1 + torch.finfo(dtype).eps)


def test_fills_with_constants():
    assert (filled({"name": "constant", "val": 2.5}) == 2.5).all()
    assert (filled("constant") == 0).all()
    assert (filled("ones") == 1).all()
    assert (filled("ZEROS") == 0).all()
    assert torch.equal(filled("eye", (3, 4)), torch.eye(3, 4))
    assert (filled({"name": "truncated_normal", "mean": 1.0, "std": 0}) == 1).all()


def test_kernels_count_their_positions():
    shape = (64, 32, 3, 3)
    assert math.isclose(filled("lecun_normal", shape).std().item(), math.sqrt(1 / (32 * 9)), rel_tol=0.02)
    scaled = filled({"name": "variance_scaling", "mode": "fan_out"}, shape)
    assert math.isclose(scaled.std().item(), math.sqrt(1 / (64 * 9)), rel_tol=0.02)


def test_options_that_are_none_take_their_defaults_and_text_may_be_a_number():
    assert torch.equal(
        filled({"name": "truncated_normal", "std": 0.02, "a": None, "b": None, "mean": None}),
        filled({"name": "truncated_normal", "std": 0.02}),
    )
    assert torch.equal(filled({"name": "normal", "std": "2e-2"}), filled({"name": "normal", "std": 0.02}))


def test_the_spec_is_not_changed_and_not_watched():
    spec = {"name": "normal", "std": 0.02}
    initializer = get_initializer(spec)
    spec["std"] = 100.0
    weight = torch.empty(50, 50)
    assert initializer(weight).std() < 1


def test_callables_pass_through():
    assert get_initializer(nn.init.orthogonal_) is nn.init.orthogonal_
    own = get_initializer("normal")
    assert get_initializer(own) is own


@pytest.mark.parametrize("name", NAMES)
def test_copies_pickles_and_accepts_nothing_to_fill(name):
    initializer = get_initializer(name)
    for twin in (copy.deepcopy(initializer), pickle.loads(pickle.dumps(initializer))):
        torch.manual_seed(0)
        assert torch.equal(twin(torch.empty(3, 4)), filled(name, (3, 4)))
    assert initializer(torch.empty(0, 4)).shape == (0, 4)
    assert initializer(torch.empty(3, 4, device="meta")).device.type == "meta"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("xavier_uniforn", "'xavier_uniforn'. Did you mean 'xavier_uniform'"),
        ({"std": 0.02}, "has no name"),
        ({"name": 3}, "has no name"),
        ({"name": "normal", "stddev": 0.02}, "no option 'stddev'. Did you mean 'std'"),
        ({"name": "zeros", "val": 1}, "takes no options"),
        ({"name": "normal", "std": -1}, "std is -1"),
        ({"name": "normal", "std": "small"}, "std is 'small'"),
        ({"name": "normal", "std": True}, "std is True"),
        ({"name": "normal", "mean": float("nan")}, "mean is nan"),
        ({"name": "uniform", "a": 1.0}, "a=1 and b=0.05"),
        ({"name": "uniform", "a": float("inf")}, "a is inf"),
        ({"name": "truncated_normal", "std": 0.01, "a": 5, "b": 6}, "mean=0, std=0.01"),
        ({"name": "variance_scaling", "mode": "fan_avgg"}, "Did you mean 'fan_avg'"),
        ({"name": "variance_scaling", "scale": 0}, "scale is 0"),
        ({"name": "variance_scaling", "distribution": ["normal"]}, "distribution is"),
        ({"name": "kaiming_normal", "nonlinearity": "gelu"}, "nonlinearity is 'gelu'"),
        ({"name": "xavier_normal", "gain": "gelu"}, "gain is 'gelu'"),
        (None, "of type NoneType"),
        (0.02, "of type float"),
        (nn.Linear, "of type type"),
    ],
)
def test_bad_specs_are_named(spec, message):
    with pytest.raises(UserError, match=message):
        get_initializer(spec)


@pytest.mark.parametrize(
    "name", ["xavier_normal", "kaiming_uniform", "lecun_normal", "variance_scaling", "eye"]
)
def test_vectors_have_no_fans(name):
    with pytest.raises(UserError, match=r"\(5,\)"):
        get_initializer(name)(torch.empty(5))
