from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from portwright.errors import UserError
from portwright.layers.activations import ACTIVATIONS, get_activation, is_gated

GATED = ["liglu", "geglu", "geglu_new", "reglu", "swiglu"]


def erf_gelu(x):
    return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))


def tanh_gelu(x):
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772

# Each written out for one number, from its paper.
FORMULAS = {
    "relu": lambda x: max(x, 0.0),
    "relu6": lambda x: min(max(x, 0.0), 6.0),
    "leaky_relu": lambda x: x if x > 0 else 0.01 * x,
    "elu": lambda x: x if x > 0 else math.expm1(x),
    "selu": lambda x: SELU_SCALE * (x if x > 0 else SELU_ALPHA * math.expm1(x)),
    "silu": lambda x: x * sigmoid(x),
    "swish": lambda x: x * sigmoid(x),
    "gelu": erf_gelu,
    "gelu_new": tanh_gelu,
    "gelu_fast": tanh_gelu,
    "quick_gelu": lambda x: x * sigmoid(1.702 * x),
    "squared_gelu": lambda x: erf_gelu(x) ** 2,
    "squared_relu": lambda x: max(x, 0.0) ** 2,
    "mish": lambda x: x * math.tanh(math.log1p(math.exp(x))),
    "tanh": math.tanh,
    "sigmoid": sigmoid,
    "linear": lambda x: x,
}
GATES = {
    "liglu": FORMULAS["linear"],
    "geglu": erf_gelu,
    "geglu_new": tanh_gelu,
    "reglu": FORMULAS["relu"],
    "swiglu": FORMULAS["silu"],
}


def test_every_name_has_a_formula_here():
    assert set(ACTIVATIONS) == set(FORMULAS) | set(GATES)


@pytest.mark.parametrize("name", FORMULAS)
def test_computes_its_formula(name):
    x = torch.linspace(-9, 9, 91, dtype=torch.float64)
    expected = torch.tensor([FORMULAS[name](value) for value in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(get_activation(name)(x), expected, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(get_activation(f" {name.upper()} ")(x), expected, atol=1e-9, rtol=1e-9)


def test_swish_is_silu_and_not_relu6():
    # The model zoo's release 1.6 clips it at 6.
    x = torch.tensor([-3.0, 8.0])
    assert torch.equal(get_activation("swish")(x), F.silu(x))
    assert get_activation("swish")(x)[1] > 6


@pytest.mark.parametrize("name", GATED)
def test_gated_takes_the_two_apart_or_together(name):
    torch.manual_seed(0)
    value, gate = torch.randn(2, 3, 4, dtype=torch.float64)
    gates = torch.tensor([GATES[name](number) for number in gate.reshape(-1).tolist()], dtype=torch.float64)
    expected = value * gates.reshape(gate.shape)
    activation = get_activation(name)
    torch.testing.assert_close(activation(value, gate), expected)
    torch.testing.assert_close(activation(torch.cat((value, gate), dim=-1)), expected)


@pytest.mark.parametrize("name", GATED)
def test_gated_refuses_what_it_cannot_halve(name):
    with pytest.raises(UserError, match=r"\(2, 3\)"):
        get_activation(name)(torch.zeros(2, 3))
    with pytest.raises(UserError, match=r"\(2, 4\).*\(2, 1\)"):
        get_activation(name)(torch.zeros(2, 4), torch.zeros(2, 1))


def test_only_the_glu_family_is_gated():
    assert [name for name in ACTIVATIONS if is_gated(name)] == GATED
    assert is_gated("SwiGLU")
    assert is_gated(get_activation("geglu"))
    assert not is_gated(nn.GELU())
    assert not is_gated(None)

    def own(x):
        return x

    assert not is_gated(own)
    own.is_gated = True
    assert is_gated(own)
    with pytest.raises(UserError, match="swiglu"):
        is_gated("swiglo")


def test_callables_and_modules_pass_through():
    # The model zoo's release 1.6 calls .lower() on them.
    module = nn.PReLU()
    assert get_activation(module) is module
    assert get_activation(torch.sin) is torch.sin
    assert get_activation(F.gelu) is F.gelu
    x = torch.randn(3)
    assert torch.equal(get_activation(None)(x), x)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("gelu_nwe", "'gelu_nwe'. Did you mean 'gelu_new'"),
        ("softmax", "Valid: elu, geglu"),
        ("", "Unknown activation ''"),
        (nn.ReLU, r"ReLU\(\)"),
        (3, "of type int"),
        (["relu"], "of type list"),
    ],
)
def test_what_is_unknown_is_named(wrong, message):
    with pytest.raises(UserError, match=message):
        get_activation(wrong)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_compiles_copies_and_keeps_half_types(name):
    activation = get_activation(name)
    assert pickle.loads(pickle.dumps(activation))(torch.ones(2)).shape == activation(torch.ones(2)).shape
    assert copy.deepcopy(activation)(torch.ones(4)).shape == activation(torch.ones(4)).shape
    x = torch.randn(3, 4)
    torch.compiler.reset()  # one lambda compiled for every name would be a recompilation too many
    compiled = torch.compile(lambda tensor: activation(tensor), fullgraph=True, backend="eager")
    assert torch.equal(compiled(x), activation(x))
    for dtype in (torch.bfloat16, torch.float16):
        assert activation(x.to(dtype)).dtype == dtype
