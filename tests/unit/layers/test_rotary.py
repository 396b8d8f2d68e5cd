from __future__ import annotations

import cmath
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from portwright.errors import UserError
from portwright.layers.positions import RotaryPositionEmbeddingHelper


def rotated(x, frequencies, layout, first_position=0, magnitude=1.0):
    """Turns each pair of dimensions as a complex number, one at a time."""
    result = x.clone()
    half = len(frequencies)
    for index in torch.cartesian_prod(*map(torch.arange, x.shape[:-1])).reshape(-1, 3).tolist():
        row, position = x[tuple(index)].tolist(), index[2] + first_position
        for pair, frequency in enumerate(frequencies):
            a, b = (2 * pair, 2 * pair + 1) if layout == "interleaved" else (pair, pair + half)
            turned = complex(row[a], row[b]) * cmath.exp(1j * position * frequency) * magnitude
            result[tuple(index)][a], result[tuple(index)][b] = turned.real, turned.imag
    return result


def plain_frequencies(rotary_dim, base=10000.0):
    return [base ** (-2 * pair / rotary_dim) for pair in range(rotary_dim // 2)]


@settings(max_examples=30, deadline=None)
@given(
    layout=st.sampled_from(["interleaved", "half"]),
    pairs=st.integers(1, 4),
    passed=st.integers(0, 3),
    length=st.integers(1, 6),
    offset=st.integers(0, 9),
    base=st.sampled_from([100.0, 10000.0, 5e5]),
)
def test_turns_each_pair_by_its_position(layout, pairs, passed, length, offset, base):
    torch.manual_seed(0)
    helper = RotaryPositionEmbeddingHelper(16, 2 * pairs, base, layout=layout)
    x = torch.randn(2, 2, length, 2 * pairs + passed, dtype=torch.float64)
    expected = rotated(x, plain_frequencies(2 * pairs, base), layout, offset)
    torch.testing.assert_close(helper.rotate_tensor(x, offset), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        helper.rotate_tensor(x.transpose(1, 2), offset, seq_dim=1).transpose(1, 2),
        expected,
        atol=1e-5,
        rtol=1e-5,
    )


def llama3_frequencies(rotary_dim, base, factor, low, high, length):
    """By wavelength, as Llama 3.1's report has it: long ones stretched, short ones kept, the rest blended."""
    result = []
    for frequency in plain_frequencies(rotary_dim, base):
        wavelength = 2 * math.pi / frequency
        if wavelength < length / high:
            result.append(frequency)
        elif wavelength > length / low:
            result.append(frequency / factor)
        else:
            share = (length / wavelength - low) / (high - low)
            result.append((1 - share) * frequency / factor + share * frequency)
    return result


def yarn_frequencies(rotary_dim, base, factor, length, fast=32, slow=1):
    def boundary(turns):
        return rotary_dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(boundary(fast)), 0), min(math.ceil(boundary(slow)), rotary_dim - 1)
    result = []
    for pair, frequency in enumerate(plain_frequencies(rotary_dim, base)):
        stretched = min(max((pair - low) / (high - low), 0), 1)
        result.append(frequency * (1 - stretched) + frequency / factor * stretched)
    return result


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize(
    ("scaling", "extra", "frequencies", "magnitude"),
    [
        ("linear", None, [f / 4 for f in plain_frequencies(16)], 1.0),
        ("llama3", {"original_max_position_embeddings": 64}, llama3_frequencies(16, 1e4, 4, 1, 4, 64), 1.0),
        ("yarn", {"original_max_position_embeddings": 64}, yarn_frequencies(16, 1e4, 4, 64), 0.1 * math.log(4) + 1),
        ("YaRN", {"original_max_position_embeddings": 512, "beta_fast": 8, "beta_slow": 2, "mscale_a": 0.2},
         yarn_frequencies(16, 1e4, 4, 512, 8, 2), 0.2 * math.log(4) + 1),
    ],
)  # fmt: skip
def test_scaling_changes_the_frequencies(layout, scaling, extra, frequencies, magnitude):
    torch.manual_seed(0)
    helper = RotaryPositionEmbeddingHelper(64, 16, 1e4, 4.0, scaling, extra, layout=layout)
    x = torch.randn(1, 1, 30, 16, dtype=torch.float64)
    expected = rotated(x, frequencies, layout, magnitude=magnitude)
    torch.testing.assert_close(helper(x), expected, atol=1e-5, rtol=1e-5)
    assert len({round(f, 9) for f in frequencies} - {round(f, 9) for f in plain_frequencies(16)}) > 0


def test_yarn_without_a_stretch_changes_nothing():
    plain = RotaryPositionEmbeddingHelper(32, 8)
    yarn = RotaryPositionEmbeddingHelper(32, 8, 1e4, 1.0, "yarn", {"original_max_position_embeddings": 32})
    torch.testing.assert_close(plain.cos, yarn.cos)


def test_scores_depend_on_the_distance_alone():
    torch.manual_seed(0)
    for layout in ("interleaved", "half"):
        helper = RotaryPositionEmbeddingHelper(64, 8, layout=layout)
        query, key = torch.randn(2, 1, 1, 1, 8)

        def score(at, offset, helper=helper, query=query, key=key):
            return (helper(query, at + offset) * helper(key, at)).sum()

        torch.testing.assert_close(score(0, 5), score(40, 5), atol=1e-4, rtol=1e-4)
        assert (score(0, 5) - score(0, 6)).abs() > 1e-3


def test_positions_can_be_given_for_all_or_for_each_sequence():
    torch.manual_seed(0)
    helper = RotaryPositionEmbeddingHelper(32, 4)
    x = torch.randn(2, 3, 5, 6)
    assert torch.equal(helper(x, position_ids=torch.arange(5) + 7), helper(x, 7))
    each = torch.stack((torch.arange(5), torch.arange(5) + 20))
    expected = torch.cat((helper(x[:1]), helper(x[1:], 20)))
    assert torch.equal(helper(x, position_ids=each), expected)
    swapped = helper(x.transpose(1, 2), position_ids=each, seq_dim=1).transpose(1, 2)
    assert torch.equal(swapped, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_are_turned_in_float32(dtype):
    torch.manual_seed(0)
    helper = RotaryPositionEmbeddingHelper(4096, 8).to(dtype)
    x = torch.randn(1, 1, 4096, 8).to(dtype)
    exact = RotaryPositionEmbeddingHelper(4096, 8)(x.float())
    result = helper(x)
    assert helper.cos.dtype == torch.float32
    assert result.dtype == dtype
    torch.testing.assert_close(result, exact.to(dtype))


def test_tables_are_neither_saved_nor_left_on_the_meta_device():
    helper = RotaryPositionEmbeddingHelper(8, 4)
    assert not helper.state_dict()
    empty = RotaryPositionEmbeddingHelper(8, 4, device="meta").to_empty(device="cpu")
    assert torch.equal(empty.cos, helper.cos)
    assert torch.equal(empty.sin, helper.sin)


class Turned(nn.Module):
    def __init__(self, layout):
        super().__init__()
        self.helper = RotaryPositionEmbeddingHelper(128, 4, layout=layout)

    def forward(self, x):
        return self.helper.rotate_tensor(x)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_compiles_and_exports_for_every_length(layout):
    torch.compiler.reset()
    module = Turned(layout)
    x = torch.randn(2, 3, 5, 6, requires_grad=True)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), module(x))
    (ours,) = torch.autograd.grad(compiled(x).square().sum(), [x])
    torch.testing.assert_close(ours, 2 * x.detach())  # a rotation keeps lengths
    length = torch.export.Dim("length", min=2, max=128)
    program = torch.export.export(module, (x.detach(),), dynamic_shapes=({2: length},))
    longer = torch.randn(2, 3, 90, 6)
    torch.testing.assert_close(program.module()(longer), module(longer))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rotary_dim": 3}, "rotary_dim is 3"),
        ({"rotary_dim": 0}, "rotary_dim is 0"),
        ({"max_position_embeddings": 0}, "max_position_embeddings is 0"),
        ({"base": 1.0}, "base is 1.0"),
        ({"scaling_factor": 0.0}, "factor is 0.0"),
        ({"scaling_factor": math.nan}, "factor is nan"),
        ({"scaling_type": "yarm"}, "'yarm'. Did you mean 'yarn'"),
        ({"scaling_type": None}, "None"),
        ({"scaling_type": "yarn"}, "needs original_max_position_embeddings"),
        ({"scaling_extra_args": {"beta_fast": 3}}, "no option 'beta_fast'. It takes none"),
        ({"scaling_type": "llama3", "scaling_extra_args": {"low_freq": 1}}, "Did you mean 'low_freq_factor'"),
        ({"scaling_type": "llama3", "scaling_extra_args": {"low_freq_factor": 4}}, "low_freq_factor=4"),
        (
            {"scaling_type": "llama3", "scaling_extra_args": {"high_freq_factor": "4"}},
            "high_freq_factor is '4'",
        ),
        ({"layout": "neox"}, "'neox'"),
    ],
)
def test_bad_options_are_named(arguments, message):
    with pytest.raises(UserError, match=message):
        RotaryPositionEmbeddingHelper(**{"max_position_embeddings": 8, "rotary_dim": 4, **arguments})


def test_bad_tensors_are_named():
    helper = RotaryPositionEmbeddingHelper(8, 4)
    with pytest.raises(UserError, match=r"\(2, 3, 4\)"):
        helper(torch.zeros(2, 3, 4))
    with pytest.raises(UserError, match="turns 4 dimensions, and the heads have 2"):
        helper(torch.zeros(1, 1, 3, 2))
    with pytest.raises(UserError, match="Positions 6 to 8 were asked of 8"):
        helper(torch.zeros(1, 1, 3, 4), 6)
    with pytest.raises(UserError, match="Positions -1"):
        helper(torch.zeros(1, 1, 3, 4), -1)
    with pytest.raises(UserError, match=r"\(2,\) for a sequence of 3"):
        helper(torch.zeros(1, 1, 3, 4), position_ids=torch.arange(2))
