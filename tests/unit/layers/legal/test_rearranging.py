"""Windows, flips, rolls, indices, scatters, diagonals: odd sizes and negative dimensions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from unit.layers.legal.equality import IS_OLD, assert_equal_calls, values

from portwright.errors import UserError
from portwright.layers import legal
from portwright.layers.legal.positions import take_positions

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), shape=SHAPES)
def test_flip_and_roll(data, shape):
    dims = data.draw(st.lists(st.integers(-len(shape), len(shape) - 1), unique_by=lambda d: d % len(shape)))
    x = values(*shape)
    assert_equal_calls(lambda x: torch.flip(x, dims), lambda x: legal.flip(x, dims), x)
    shifts = [data.draw(st.integers(-7, 7)) for _ in dims]
    if dims:
        assert_equal_calls(lambda x: torch.roll(x, shifts, dims), lambda x: legal.roll(x, shifts, dims), x)
        assert_equal_calls(lambda x: x.flip(*dims), lambda x: legal.flip(x, *dims), x)
    assert_equal_calls(lambda x: torch.roll(x, 3), lambda x: legal.roll(x, 3), x)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), size=st.integers(1, 9))
def test_take_positions(data, size):
    positions = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20))
    x = values(2, size, 3)
    index = torch.tensor(positions)
    assert_equal_calls(lambda x: x.index_select(1, index), lambda x: take_positions(x, -2, positions), x)


def test_more_pieces_than_slices_are_gathered():
    x = values(2, 150)
    assert_equal_calls(lambda x: x.flip(1), lambda x: legal.flip(x, 1), x)
    assert_equal_calls(
        lambda x: F.pad(x, (100, 90), "reflect"), lambda x: legal.pad(x, (100, 90), "reflect"), x
    )


@pytest.mark.parametrize("k", range(-3, 6))
@pytest.mark.parametrize("dims", [(0, 1), (2, -2), (-1, 0)])
def test_rot90(k, dims):
    assert_equal_calls(lambda x: torch.rot90(x, k, dims), lambda x: legal.rot90(x, k, dims), values(2, 3, 4))


def test_fliplr_flipud():
    x = values(3, 4, 2)
    assert_equal_calls(torch.fliplr, legal.fliplr, x)
    assert_equal_calls(torch.flipud, legal.flipud, x)


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0,)])
def test_one_hot(shape):
    index = torch.randint(0, 7, shape)
    result = legal.one_hot(index, 7)
    assert torch.equal(result, F.one_hot(index, 7))
    assert result.dtype == torch.int64


@pytest.mark.parametrize("wrong", [-1, 7, 100])
def test_classes_outside_raise_as_in_torch(wrong):
    for function in (legal.one_hot, F.one_hot):
        with pytest.raises(RuntimeError, match=r"[Cc]lass"):
            function(torch.tensor([0, wrong]), 7)


def test_one_hot_needs_the_number_of_classes():
    with pytest.raises(UserError, match="num_classes"):
        legal.one_hot(torch.tensor([1]))


@pytest.mark.parametrize(
    "key",
    [(slice(None), [0, -1, 2]), (..., [1]), (slice(None), torch.tensor([[0, -2], [1, 1]])), torch.tensor([2, 0]), [1, 1],
     (slice(None), slice(None), torch.tensor([2, 0])), (slice(None), [2, 0], slice(1, 3)), (slice(None), torch.tensor([1, 0]), slice(None, None, 2)),
     (0, slice(None), torch.tensor([1, 3])), (slice(None), -1, [0, 4]), (slice(1, 3), [1, 0], 2), (None, slice(None), [2, 1]),
     (..., torch.tensor([3, 3]), None), (slice(None), torch.tensor(2)), (torch.tensor(-1),), (1, ..., torch.tensor(0)),
     (slice(None), torch.tensor([], dtype=torch.int64)), (slice(None), torch.tensor([1], dtype=torch.int32))],
)  # fmt: skip
def test_getitem(key):
    assert_equal_calls(lambda x: x[key], lambda x: legal.getitem(x, key), values(3, 4, 5))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_indices_of_a_dimension(dim):
    x, index = values(4, 5, 6), torch.tensor([2, 0, 3])
    shape = [4, 5, 6]
    shape[dim] = 3
    source = values(*shape, seed=1)
    assert_equal_calls(lambda x: x.index_select(dim, index), lambda x: legal.index_select(x, dim, index), x)
    assert_equal_calls(
        lambda x: x.index_fill(dim, index, 2.5), lambda x: legal.index_fill(x, dim, index, 2.5), x
    )
    for name in ("index_copy", "index_add"):
        assert_equal_calls(
            lambda x, s, name=name: getattr(torch, name)(x, dim, index, s),
            lambda x, s, name=name: getattr(legal, name)(x, dim, index, s),
            x, source,
        )  # fmt: skip
    assert_equal_calls(
        lambda x, s: x.index_add(dim, index, s, alpha=3),
        lambda x, s: legal.index_add(x, dim, index, s, alpha=3),
        x,
        source,
    )


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("scalar", [False, True])
def test_index_put(accumulate, pair, scalar):
    indices = (torch.tensor([[0, 2], [3, -4]]), torch.tensor([1, -1]))[: 2 if pair else 1]
    shape = (2, 2, 3) if pair else (2, 2, 5, 3)
    if not accumulate:  # of places written twice, either value may stay
        indices = (torch.tensor([[0, 2], [3, 1]]), *indices[1:])
    source = values(seed=1) if scalar else values(*shape, seed=1)
    assert_equal_calls(
        lambda x, s: x.index_put(indices, s, accumulate),
        lambda x, s: legal.index_put(x, indices, s, accumulate),
        values(4, 5, 3), source,
    )  # fmt: skip


def test_take_and_channel_shuffle():
    index = torch.tensor([[0, 5], [-1, 3]])
    assert_equal_calls(lambda x: torch.take(x, index), lambda x: legal.take(x, index), values(3, 4))
    assert_equal_calls(
        nn.ChannelShuffle(3), legal.ChannelShuffle(3), values(2, 6, 4, 5), differentiable=not IS_OLD
    )


@settings(max_examples=60, deadline=None)
@given(
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilation=st.integers(1, 2),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 1)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    batched=st.booleans(),
)
def test_unfold_and_fold(kernel, dilation, padding, stride, batched):
    lead = (2,) if batched else ()
    options = (kernel, dilation, padding, stride)
    x = values(*lead, 3, 6, 7)
    assert_equal_calls(nn.Unfold(*options), legal.Unfold(*options), x)
    columns = F.unfold(x, *options)
    assert_equal_calls(
        nn.Fold((6, 7), *options), legal.Fold((6, 7), *options), values(*columns.shape, seed=2)
    )


@settings(max_examples=60, deadline=None)
@given(data=st.data(), shape=SHAPES)
def test_tensor_unfold(data, shape):
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    size, step = data.draw(st.integers(1, shape[dim])), data.draw(st.integers(1, 3))
    assert_equal_calls(
        lambda x: x.unfold(dim, size, step),
        lambda x: legal.unfold_dimension(x, dim, size, step),
        values(*shape),
    )


@pytest.mark.parametrize("call", [lambda: legal.unfold(values(1, 1, 2, 2), 3), lambda: legal.unfold_dimension(values(3), 0, 4, 1),
                                  lambda: legal.fold(values(1, 4, 3), (2, 2), 2), lambda: legal.flip(values(3), 1), lambda: legal.roll(values(3), (1, 2), 0)])  # fmt: skip
def test_what_does_not_fit_raises(call):
    with pytest.raises((RuntimeError, IndexError)):
        call()


@settings(max_examples=60, deadline=None)
@given(data=st.data(), shape=st.lists(st.integers(1, 4), min_size=2, max_size=4), offset=st.integers(-4, 4))
def test_diagonals(data, shape, offset):
    first = data.draw(st.integers(-len(shape), len(shape) - 1))
    second = data.draw(st.integers(-len(shape), len(shape) - 1))
    assume(first % len(shape) != second % len(shape))
    x = values(*shape)
    rows, columns = shape[first], shape[second]
    if -rows < offset < columns:
        assert_equal_calls(
            lambda x: torch.diagonal(x, offset, first, second),
            lambda x: legal.diagonal(x, offset, first, second),
            x,
        )
    first, second = first % len(shape), second % len(shape)  # the result has a dimension more
    assert_equal_calls(
        lambda x: torch.diag_embed(x, offset, first, second),
        lambda x: legal.diag_embed(x, offset, first, second),
        x,
    )
    for name in ("tril", "triu"):
        ours, theirs = getattr(legal, name), getattr(torch, name)
        assert_equal_calls(lambda x, f=theirs: f(x, offset), lambda x, f=ours: f(x, offset), x)
        assert torch.equal(ours(x > 0, offset), theirs(x > 0, offset))


def test_diag_trace_cross():
    assert_equal_calls(lambda x: torch.diag(x, -1), lambda x: legal.diag(x, -1), values(4))
    assert_equal_calls(lambda x: torch.diag(x, 1), lambda x: legal.diag(x, 1), values(3, 5))
    assert_equal_calls(torch.trace, legal.trace, values(4, 3))
    a, b = values(3, 4, 3), values(3, 4, 3, seed=1)
    for dim in (0, -1):
        assert_equal_calls(
            lambda a, b, d=dim: torch.linalg.cross(a, b, dim=d),
            lambda a, b, d=dim: legal.linalg_cross(a, b, dim=d),
            a,
            b,
        )
    assert_equal_calls(lambda a, b: torch.cross(a, b, dim=0), lambda a, b: legal.cross(a, b, 0), a, b)
