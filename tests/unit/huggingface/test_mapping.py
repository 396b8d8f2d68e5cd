import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from portwright.errors import UserError
from portwright.huggingface.mapping import (
    Entry,
    Family,
    Move,
    copies_of,
    same_bits,
    to_ours,
    to_theirs,
)
from portwright.huggingface.problems import fold


def _entries(params):
    count = params["num_hidden_layers"]
    head = [] if params.get("tied", True) else [Entry("head.weight", "lm_head.weight")]
    return [
        Entry("tokens.weight", "base.wte.weight"),
        Entry("layers.{i}.qkv", ("base.h.{i}.q", "base.h.{i}.k", "base.h.{i}.v"), count=count),
        Entry("layers.{i}.up.weight", "base.h.{i}.up.weight", transposed=True, count=count),
        Entry("layers.{i}.norm.weight", "base.h.{i}.LayerNorm.weight", count=count),
        Entry("layers.{i}.norm.bias", "base.h.{i}.LayerNorm.bias", count=count),
        *head,
    ]


class _Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Parameter(torch.empty(3 * width, width))
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.norm = nn.LayerNorm(width)


class _Network(nn.Module):
    def __init__(self, params):
        super().__init__()
        self.tokens = nn.Embedding(params["vocab_size"], params["hidden_size"])
        self.layers = nn.ModuleList(_Layer(params["hidden_size"]) for _ in range(params["num_hidden_layers"]))
        if not params.get("tied", True):
            self.head = nn.Linear(params["hidden_size"], params["vocab_size"], bias=False)


def _family(**changes):
    given = {
        "name": "made_up",
        "model_type": "made-up",
        "architectures": {"made_up": ("MadeUpForLm", "MadeUpModel")},
        "entries": _entries,
        "params_of": dict,
        "config_of": dict,
        "ignored": ("*.attn.bias", "*position_ids"),
        "tied": (("base.wte.weight", "lm_head.weight"),),
        "prefix": "base.",
        "network": _Network,
    }
    return Family(**{**given, **changes})


PARAMS = {"vocab_size": 5, "hidden_size": 4, "num_hidden_layers": 2}


def _theirs(params=PARAMS, dtype=torch.float32):
    torch.manual_seed(0)
    v, h = params["vocab_size"], params["hidden_size"]
    state = {"base.wte.weight": torch.randn(v, h, dtype=dtype)}
    for i in range(params["num_hidden_layers"]):
        for name in "qkv":
            state[f"base.h.{i}.{name}"] = torch.randn(h, h, dtype=dtype)
        state[f"base.h.{i}.up.weight"] = torch.randn(h, 2 * h, dtype=dtype)
        state[f"base.h.{i}.LayerNorm.weight"] = torch.randn(h, dtype=dtype)
        state[f"base.h.{i}.LayerNorm.bias"] = torch.randn(h, dtype=dtype)
    if not params.get("tied", True):
        state["lm_head.weight"] = torch.randn(v, h, dtype=dtype)
    return state


def _assert_same(one, two):
    assert one.keys() == two.keys()
    assert all(same_bits(one[name], two[name]) for name in one)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_there_and_back_is_bit_for_bit(dtype):
    state = _theirs(dtype=dtype)
    state["base.wte.weight"][0, 0] = float("nan")
    state["base.wte.weight"][0, 1] = -0.0
    ours = to_ours(state, _family(), PARAMS)
    _Network(PARAMS).to(dtype).load_state_dict(ours)
    assert torch.equal(ours["layers.1.qkv"][4:8], state["base.h.1.k"])
    assert torch.equal(ours["layers.0.up.weight"], state["base.h.0.up.weight"].t())
    _assert_same(to_theirs(ours, _family(), PARAMS), state)


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: name.removeprefix("base."),
        lambda name: f"module.{name}",
        lambda name: f"_orig_mod.{name}",
        lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("Norm.bias", "Norm.beta"),
        lambda name: name.removeprefix("base.").replace("Norm.weight", "Norm.gamma"),
    ],
)
def test_other_spellings_are_found(rename):
    state = _theirs()
    ours = to_ours({rename(name): tensor for name, tensor in state.items()}, _family(), PARAMS)
    _assert_same(ours, to_ours(state, _family(), PARAMS))


def test_buffers_are_passed_over_with_and_without_the_prefix():
    state = _theirs()
    more = {
        "base.h.0.attn.bias": torch.ones(1),
        "h.1.attn.bias": torch.ones(1),
        "base.position_ids": torch.ones(2),
    }
    _assert_same(to_ours({**state, **more}, _family(), PARAMS), to_ours(state, _family(), PARAMS))


def test_a_tied_weight_may_be_saved_twice_or_only_as_the_head():
    state = _theirs()
    twice = {**state, "lm_head.weight": state["base.wte.weight"].clone()}
    _assert_same(to_ours(twice, _family(), PARAMS), to_ours(state, _family(), PARAMS))
    other = {"lm_head.weight" if name == "base.wte.weight" else name: t for name, t in state.items()}
    _assert_same(to_ours(other, _family(), PARAMS), to_ours(state, _family(), PARAMS))


def test_two_different_values_for_a_tied_weight_are_refused():
    state = _theirs()
    state["lm_head.weight"] = state["base.wte.weight"] + 1
    with pytest.raises(UserError, match=r"'base.wte.weight' and 'lm_head.weight' are one weight"):
        to_ours(state, _family(), PARAMS)


def test_an_untied_head_is_a_weight_of_its_own():
    params = {**PARAMS, "tied": False}
    state = _theirs(params)
    ours = to_ours(state, _family(), params)
    assert torch.equal(ours["head.weight"], state["lm_head.weight"])
    _assert_same(to_theirs(ours, _family(), params), state)
    del state["lm_head.weight"]
    with pytest.raises(UserError, match=r"1 missing: lm_head.weight"):
        to_ours(state, _family(), params)


def test_everything_wrong_is_in_one_error_with_the_nearest_names():
    state = _theirs()
    del state["base.wte.weight"]
    state["base.wtf.weight"] = torch.ones(5, 4)
    state["extra"] = torch.ones(1)
    for i in range(2):
        state[f"base.h.{i}.up.weight"] = torch.ones(4, 7)
    with pytest.raises(UserError) as caught:
        to_ours(state, _family(), PARAMS)
    message = str(caught.value)
    assert "1 missing: base.wte.weight (nearest: base.wtf.weight)" in message
    assert "2 unexpected: base.wtf.weight (nearest: base.wte.weight), extra" in message
    assert "2 of another shape: base.h.{0..1}.up.weight is 4x7, not 4x8" in message
    assert "hidden_size=4" in message
    assert caught.value.details["missing"] == ["base.wte.weight"]
    assert caught.value.details["unexpected"] == ["base.wtf.weight", "extra"]
    assert caught.value.details["misshapen"][1] == {
        "name": "base.h.1.up.weight",
        "shape": [4, 7],
        "expected": [4, 8],
    }


def test_a_missing_part_of_a_stack_is_named_alone():
    state = _theirs()
    del state["base.h.1.k"]
    with pytest.raises(UserError, match=r"1 missing: base.h.1.k\b"):
        to_ours(state, _family(), PARAMS)


@pytest.mark.parametrize("shape", [(3, 4), (4,), (4, 4, 1), ()])
def test_parts_that_do_not_stack_are_misshapen(shape):
    state = _theirs()
    state["base.h.0.k"] = torch.ones(shape)
    with pytest.raises(UserError, match="of another shape"):
        to_ours(state, _family(), PARAMS)


def test_a_vector_cannot_be_transposed():
    state = _theirs()
    state["base.h.0.up.weight"] = torch.ones(8)
    with pytest.raises(UserError, match=r"base.h.0.up.weight is 8"):
        to_ours(state, _family(), PARAMS)


def test_our_side_is_checked_too():
    ours = to_ours(_theirs(), _family(), PARAMS)
    del ours["layers.0.qkv"]
    ours["layers.0.kqv"] = torch.ones(1)
    ours["layers.1.qkv"] = torch.ones(13, 4)
    with pytest.raises(UserError) as caught:
        to_theirs(ours, _family(), PARAMS)
    assert "missing: layers.0.qkv (nearest: layers.0.kqv)" in str(caught.value)
    assert "layers.1.qkv is 13x4" in str(caught.value)


def test_one_of_theirs_may_be_two_of_ours_if_they_agree():
    entries = [Entry("tokens", "wte"), Entry("head", "wte")]
    network = nn.ParameterDict({"tokens": torch.ones(2), "head": torch.ones(2)})
    family = _family(entries=lambda params: entries, network=lambda params: network, tied=())
    ours = to_ours({"wte": torch.ones(2)}, family, {})
    assert ours.keys() == {"tokens", "head"}
    _assert_same(to_theirs(ours, family, {}), {"wte": torch.ones(2)})
    with pytest.raises(UserError, match="one weight"):
        to_theirs({**ours, "head": torch.zeros(2)}, family, {})


def test_a_dead_name_is_a_copy_where_its_source_is():
    family = _family(copies={"dead": "b"})
    assert copies_of(family, {"a", "b"}) == {"dead": "b"}
    assert copies_of(family, {"a", "dead"}) == copies_of(family, {"b", "dead"}) == {}


def test_partial_passes_over_missing_and_surplus_but_not_over_shapes():
    state = _theirs()
    del state["base.h.1.k"]
    state["cls.weight"] = torch.ones(1)
    ours = to_ours(state, _family(), PARAMS, partial=True)
    assert "layers.1.qkv" not in ours
    assert "layers.0.qkv" in ours
    state["base.wte.weight"] = torch.ones(6, 4)
    with pytest.raises(UserError, match=r"base.wte.weight is 6x4, not 5x4"):
        to_ours(state, _family(), PARAMS, partial=True)


def test_entries_must_cover_the_network():
    family = _family(entries=lambda params: _entries(params)[1:])
    with pytest.raises(ValueError, match=r"leave out \['tokens.weight'\]"):
        to_ours(_theirs(), family, PARAMS)


@given(
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(0, 3),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_moves_are_inverse(count, rows, columns, transposed, seed):
    torch.manual_seed(seed)
    shape = (columns, rows) if transposed else (rows, columns)
    parts = {f"t{i}": torch.randn(shape) for i in range(count)}
    move = Move("ours", tuple(parts), transposed)
    made = move.gather(parts.__getitem__)
    assert move.their_shape(tuple(made.shape)) == shape
    _assert_same(move.scatter(made), parts)


def test_fold_gathers_layers():
    names = ["h.0.a", "h.1.a", "h.2.a", "wte", "h.0.b", "h.2.b", "x1.weight"]
    assert list(fold(names)) == ["h.{0..2}.a", "wte", "h.{0,2}.b", "x1.weight"]
