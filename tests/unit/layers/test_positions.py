from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from portwright.errors import UserError
from portwright.layers.positions import (
    AlibiPositionEmbeddingLayer,
    FixedPositionEmbeddingLayer,
    RelativePositionEmbeddingLayer,
    alibi_slopes,
    relative_position_bucket,
    sinusoids,
)


@settings(max_examples=60, deadline=None)
@given(num_positions=st.integers(1, 40), width=st.integers(1, 21), scale=st.sampled_from([100.0, 1e4, 5e5]))
def test_tutorial_sinusoids_divide_by_n(num_positions, width, scale):
    table = sinusoids(num_positions, width, max_timescale=scale)
    assert table.shape == (num_positions, width)
    assert table.dtype == torch.float32
    for position in {0, num_positions // 2, num_positions - 1}:
        for column in range(width):
            angle = position * scale ** (-(column // 2 * 2) / width)
            expected = math.cos(angle) if column % 2 else math.sin(angle)
            assert math.isclose(table[position, column].item(), expected, abs_tol=1e-5)


@settings(max_examples=60, deadline=None)
@given(num_positions=st.integers(1, 40), width=st.integers(1, 21), scale=st.sampled_from([100.0, 1e4]))
def test_modelzoo_sinusoids_divide_by_n_minus_one(num_positions, width, scale):
    table = sinusoids(num_positions, width, variant="modelzoo", max_timescale=scale)
    assert table.shape == (num_positions, width)
    steps = max(width // 2 - 1, 1)
    for position in {0, num_positions // 2, num_positions - 1}:
        for column in range(width):
            angle = position * scale ** (-(column // 2) / steps)
            expected = math.cos(angle) if column % 2 else math.sin(angle)
            if width % 2 and column == width - 1:
                expected = 0.0
            assert math.isclose(table[position, column].item(), expected, abs_tol=1e-5)


def test_the_two_sinusoids_differ():
    assert (sinusoids(10, 8) - sinusoids(10, 8, variant="modelzoo")).abs().max() > 0.1


def test_timescales_set_the_slowest_and_fastest_wave():
    # Half of the columns are sines; the first turns once every 2 pi min_timescale positions.
    slow = sinusoids(9, 4, min_timescale=4.0, max_timescale=64.0)
    torch.testing.assert_close(slow[:, 0], torch.sin(torch.arange(9) / 4.0))
    zoo = sinusoids(9, 4, variant="modelzoo", min_timescale=2.0, max_timescale=32.0)
    torch.testing.assert_close(zoo[:, 0], torch.sin(torch.arange(9) * 2.0))
    torch.testing.assert_close(zoo[:, 2], torch.sin(torch.arange(9) * 2.0 / 16.0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"variant": "torch"}, "tutorial"),
        ({"num_positions": 0}, "0 positions"),
        ({"width": 0}, "width 0"),
        ({"min_timescale": 0.0}, "min_timescale is 0.0"),
        ({"max_timescale": 0.5}, "max_timescale 0.5"),
    ],
)
def test_bad_sinusoids_are_named(arguments, message):
    with pytest.raises(UserError, match=message):
        sinusoids(**{"num_positions": 4, "width": 4, **arguments})


def test_fixed_positions_are_cut_offset_and_looked_up():
    layer = FixedPositionEmbeddingLayer(10, 5)
    table = sinusoids(10, 5)
    assert torch.equal(layer(4), table[:4])
    assert torch.equal(layer(4, past_length=3), table[3:7])
    ids = torch.tensor([[0, 9, 2], [1, 1, 5]])
    assert torch.equal(layer(3, ids), table[ids])
    assert layer(4, dtype=torch.bfloat16).dtype == torch.bfloat16
    for length, past in ((11, 0), (4, 7), (1, -1)):
        with pytest.raises(UserError, match=f"{length} after {past} does not fit in 10"):
            layer(length, past_length=past)


def test_fixed_positions_survive_casts_and_the_meta_device():
    table = sinusoids(2000, 6)
    layer = FixedPositionEmbeddingLayer(2000, 6).bfloat16().float()
    assert torch.equal(layer.table, table)
    empty = FixedPositionEmbeddingLayer(2000, 6, device="meta")
    assert empty.table.device.type == "meta"
    assert torch.equal(empty.to_empty(device="cpu").table, table)
    assert not layer.state_dict()


# T5's buckets as its checkpoints were trained with them, written out.
BIDIRECTIONAL = {0: 0, -1: 1, -7: 7, -8: 8, -11: 8, -12: 9, -16: 10, -127: 15, -128: 15, -9999: 15,
                 1: 17, 7: 23, 8: 24, 127: 31, 9999: 31}  # fmt: skip
CAUSAL = {5: 0, 1: 0, 0: 0, -1: 1, -15: 15, -16: 16, -18: 16, -19: 17, -32: 21, -64: 26, -113: 31, -9999: 31}


@pytest.mark.parametrize(("bidirectional", "expected"), [(True, BIDIRECTIONAL), (False, CAUSAL)])
def test_distances_fall_into_t5s_buckets(bidirectional, expected):
    distances = torch.tensor(list(expected))
    buckets = relative_position_bucket(distances, bidirectional=bidirectional)
    assert buckets.dtype == torch.int64
    assert buckets.tolist() == list(expected.values())


@settings(max_examples=50, deadline=None)
@given(num_buckets=st.integers(4, 64), bidirectional=st.booleans(), seed=st.integers(0, 99))
def test_buckets_are_in_range_and_grow_with_distance(num_buckets, bidirectional, seed):
    distances = torch.arange(-500, 501)
    buckets = relative_position_bucket(distances, bidirectional, num_buckets, max_distance=200)
    assert buckets.min() == 0
    assert buckets.max() < num_buckets
    back = buckets[:501].flip(0)
    assert (back.diff() >= 0).all()
    if bidirectional:
        assert torch.equal(buckets[501:] - num_buckets // 2, back[1:])
    else:
        assert not buckets[501:].any()


@pytest.mark.parametrize("bidirectional", [False, True])
def test_relative_bias_looks_up_each_distance(bidirectional):
    # The model zoo's release 1.6 fails here: its buckets are fractions.
    layer = RelativePositionEmbeddingLayer(3, bidirectional_relative_attention=bidirectional)
    bias = layer(6, 8)
    assert bias.shape == (1, 3, 6, 8)
    for query in range(6):
        for key in range(8):
            bucket = relative_position_bucket(torch.tensor(key - query), bidirectional)
            assert torch.equal(bias[0, :, query, key], layer.relative_attention_bias.weight[bucket])
    bias.sum().backward()
    assert layer.relative_attention_bias.weight.grad.any()


@pytest.mark.parametrize("make", [RelativePositionEmbeddingLayer, AlibiPositionEmbeddingLayer])
def test_a_cached_step_gets_the_last_rows(make):
    layer = make(2)
    whole = layer(7, 7)
    assert torch.equal(layer(1, 7, past_kv=object()), whole[:, :, -1:])
    assert torch.equal(layer(3, 7, past_kv=object()), whole[:, :, -3:])
    assert torch.equal(layer(2, 7, past_length=1), whole[:, :, 1:3])
    with pytest.raises(UserError, match="5 queries and 3 keys"):
        layer(5, 3, past_kv=object())


def test_relative_bias_can_be_shared_and_is_then_left_alone():
    owner = RelativePositionEmbeddingLayer(2, relative_attn_bias_initializer={"name": "constant", "val": 3.0})
    for shared in (owner.relative_attention_bias, owner.relative_attention_bias.weight):
        sharer = RelativePositionEmbeddingLayer(2, shared)
        assert sharer.relative_attention_bias.weight is owner.relative_attention_bias.weight
        assert (sharer(2, 2) == 3).all()
    with pytest.raises(UserError, match=r"\(4, 2\).*\(32, 2\)"):
        RelativePositionEmbeddingLayer(2, nn.Embedding(4, 2))
    with pytest.raises(UserError, match="Tensor of"):
        RelativePositionEmbeddingLayer(2, torch.zeros(32, 2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_heads": 0}, "num_heads=0"),
        ({"num_relative_attention_buckets": 1}, "1 buckets"),
        ({"num_relative_attention_buckets": 3, "bidirectional_relative_attention": True}, "3 buckets"),
        ({"max_relative_positions": 16}, "max_relative_positions is 16"),
        ({"relative_attn_bias_initializer": "xavier"}, "xavier_normal|xavier_uniform"),
    ],
)
def test_bad_relative_positions_are_named(arguments, message):
    with pytest.raises(UserError, match=message):
        RelativePositionEmbeddingLayer(**{"num_heads": 2, **arguments})


def test_alibi_slopes_are_the_papers():
    assert alibi_slopes(8) == [2.0**-step for step in range(1, 9)]
    assert alibi_slopes(16)[:3] == [2**-0.5, 2**-1.0, 2**-1.5]
    assert alibi_slopes(1) == [2**-8.0]
    # 12 heads: those of 8, then every other of 16.
    assert alibi_slopes(12) == [*alibi_slopes(8), 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
    assert all(len(alibi_slopes(heads)) == heads for heads in range(1, 70))
    with pytest.raises(UserError, match="num_heads is 0"):
        alibi_slopes(0)


def test_alibi_penalises_distance_in_both_directions():
    layer = AlibiPositionEmbeddingLayer(4, scaling_factor=2.0)
    bias = layer(5, 6)
    assert bias.shape == (1, 4, 5, 6)
    for head, slope in enumerate(alibi_slopes(4)):
        assert math.isclose(bias[0, head, 4, 1].item(), -slope * 3 / 2, rel_tol=1e-6)
        assert math.isclose(bias[0, head, 1, 5].item(), -slope * 4 / 2, rel_tol=1e-6)
    assert not bias.requires_grad
    assert list(layer.state_dict()) == ["slopes"]
    assert layer.bfloat16()(3, 3).dtype == torch.bfloat16


def test_alibi_slopes_can_be_given_and_trained():
    fixed = AlibiPositionEmbeddingLayer(2, slopes=[0.5, 0.25])
    assert torch.equal(fixed.slopes, torch.tensor([[0.5], [0.25]]))
    trained = AlibiPositionEmbeddingLayer(2, slopes=torch.tensor([0.5, 0.25]), alibi_trainable_slopes=True)
    assert torch.equal(trained.slopes, fixed.slopes)
    trained(3, 3).sum().backward()
    assert trained.slopes.grad.any()
    with torch.no_grad():
        trained.slopes.zero_()
    trained.reset_parameters()
    assert torch.equal(trained.slopes, fixed.slopes)
    drawn = AlibiPositionEmbeddingLayer(2, None, True, {"name": "constant", "val": 0.1})
    assert (drawn.slopes == 0.1).all()
    with pytest.raises(UserError, match=r"\(3,\) for 2 heads"):
        AlibiPositionEmbeddingLayer(2, slopes=[1.0, 2.0, 3.0])
    with pytest.raises(UserError, match="scaling factor is 0"):
        AlibiPositionEmbeddingLayer(2, scaling_factor=0)


class Biased(nn.Module):
    """A bias added to scores, as attention does it."""

    def __init__(self, bias):
        super().__init__()
        self.bias = bias

    def forward(self, scores):
        return scores + self.bias(scores.shape[-2], scores.shape[-1])


@pytest.mark.parametrize("make", [RelativePositionEmbeddingLayer, AlibiPositionEmbeddingLayer])
def test_biases_compile_and_export_for_every_length(make):
    torch.compiler.reset()
    module = Biased(make(2))
    scores = torch.randn(1, 2, 5, 7)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(scores), module(scores))
    queries, keys = torch.export.Dim("queries", min=2, max=64), torch.export.Dim("keys", min=2, max=64)
    program = torch.export.export(module, (scores,), dynamic_shapes=({2: queries, 3: keys},))
    longer = torch.randn(1, 2, 9, 11)
    torch.testing.assert_close(program.module()(longer), module(longer))
