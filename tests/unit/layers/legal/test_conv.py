"""Convolutions: every padding mode, groups of every kind, strides, dilations, odd sizes, unbatched."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from unit.layers.legal.equality import assert_equal_calls, assert_equal_modules, values

from portwright.layers import legal

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
CONVS = {1: (nn.Conv1d, legal.Conv1d), 2: (nn.Conv2d, legal.Conv2d), 3: (nn.Conv3d, legal.Conv3d)}
TRANSPOSED = {
    1: (nn.ConvTranspose1d, legal.ConvTranspose1d),
    2: (nn.ConvTranspose2d, legal.ConvTranspose2d),
    3: (nn.ConvTranspose3d, legal.ConvTranspose3d),
}


@settings(max_examples=60, deadline=None)
@given(
    num_dims=st.integers(1, 3),
    groups=st.sampled_from([1, 2, 3]),
    per_group=st.integers(1, 2),
    out_per_group=st.integers(1, 2),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    padding=st.one_of(st.integers(0, 2), st.sampled_from(["same", "valid"])),
    mode=st.sampled_from(["zeros", "reflect", "replicate", "circular"]),
    bias=st.booleans(),
    size=st.integers(5, 8),
    batched=st.booleans(),
)
def test_conv(
    num_dims, groups, per_group, out_per_group, kernel, stride, dilation, padding, mode, bias, size, batched
):
    assume(padding != "same" or stride == 1)
    assume(dilation * (kernel - 1) < size)
    theirs_class, ours_class = CONVS[num_dims]
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "bias": bias}
    arguments = (groups * per_group, groups * out_per_group, kernel)
    theirs = theirs_class(*arguments, **options, padding_mode=mode).double()
    ours = ours_class(*arguments, **options, padding_mode=mode).double()
    lead = (2,) if batched else ()
    assert_equal_modules(theirs, ours, values(*lead, groups * per_group, *[size] * num_dims))


@settings(max_examples=40, deadline=None)
@given(
    num_dims=st.integers(1, 3),
    groups=st.sampled_from([1, 2, 3]),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    padding=st.integers(0, 1),
    output_padding=st.integers(0, 1),
    dilation=st.integers(1, 2),
    bias=st.booleans(),
)
def test_conv_transpose(num_dims, groups, kernel, stride, padding, output_padding, dilation, bias):
    assume(output_padding < max(stride, dilation))
    assume((4 - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1 > 0)
    theirs_class, ours_class = TRANSPOSED[num_dims]
    arguments = (groups * 2, groups, kernel, stride, padding, output_padding, groups, bias, dilation)
    assert_equal_modules(
        theirs_class(*arguments).double(),
        ours_class(*arguments).double(),
        values(2, groups * 2, *[4] * num_dims),
    )


def test_output_size_of_a_transposed_convolution():
    theirs, ours = (
        nn.ConvTranspose1d(2, 3, 3, stride=2).double(),
        legal.ConvTranspose1d(2, 3, 3, stride=2).double(),
    )
    ours.load_state_dict(theirs.state_dict())
    x = values(1, 2, 5)
    torch.testing.assert_close(ours(x, output_size=[12]), theirs(x, output_size=[12]))


@pytest.mark.parametrize(
    ("channels", "out", "groups", "kernel"),
    [(40, 40, 40, (3, 3)), (6, 18, 6, (2, 3)), (66, 99, 33, (2, 1)), (4, 4, 4, (9, 9)), (68, 34, 34, (1, 1))],
    ids=["depthwise", "multiplier", "dense", "large_depthwise", "many"],
)
def test_each_form_of_a_grouped_convolution(channels, out, groups, kernel):
    x, w, b = values(2, channels, 9, 9), values(out, channels // groups, *kernel, seed=1), values(out, seed=2)
    assert_equal_calls(
        lambda x, w, b: F.conv2d(x, w, b, padding=(1, 2), groups=groups),
        lambda x, w, b: legal.conv2d(x, w, b, padding=(1, 2), groups=groups),
        x, w, b,
    )  # fmt: skip


def test_many_groups_transposed():
    x, w = values(2, 66, 3, 3), values(66, 2, 2, 2, seed=1)
    assert_equal_calls(
        lambda x, w: F.conv_transpose2d(x, w, groups=33, stride=2),
        lambda x, w: legal.conv_transpose2d(x, w, groups=33, stride=2),
        x, w,
    )  # fmt: skip


@pytest.mark.parametrize("groups", [2, 5])
def test_malformed_calls_raise_as_torch_does(groups):
    with pytest.raises((RuntimeError, ValueError)):
        legal.conv2d(values(1, 4, 5, 5), values(4, 3, 3, 3), groups=groups)


def test_single_precision():
    theirs, ours = nn.Conv2d(6, 6, 3, groups=6), legal.Conv2d(6, 6, 3, groups=6)
    assert_equal_modules(theirs, ours, values(2, 6, 7, 7, dtype=torch.float32))


@settings(max_examples=60, deadline=None)
@given(
    num_dims=st.integers(1, 3),
    mode=st.sampled_from(["reflect", "replicate"]),
    amounts=st.lists(st.integers(-2, 4), min_size=6, max_size=6),
    batched=st.booleans(),
)
def test_pad(num_dims, mode, amounts, batched):
    pad = amounts[: 2 * num_dims]
    lead = (2, 3) if batched else (3,)
    x = values(*lead, *[5] * num_dims)
    if num_dims == 3 and mode == "reflect" and min(pad) < 0:
        return  # torch's own has no backward there
    assert_equal_calls(lambda x: F.pad(x, pad, mode), lambda x: legal.pad(x, pad, mode), x)


@pytest.mark.parametrize("pad", [(5, 0), (1,), (1, 1, 1, 1, 1, 1, 1, 1)])
def test_impossible_padding_raises(pad):
    with pytest.raises((RuntimeError, NotImplementedError)):
        legal.pad(values(2, 3, 5), pad, "reflect")
