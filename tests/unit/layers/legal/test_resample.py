"""Resampling and sampling: every mode, up and down, by size and by factor, and torch's single-precision positions."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from unit.layers.legal.equality import assert_equal_calls, assert_equal_modules, values

from portwright.layers import legal

SMOOTH = {1: ["linear"], 2: ["bilinear", "bicubic"], 3: ["trilinear"]}


@settings(max_examples=80, deadline=None)
@given(data=st.data(), num_dims=st.integers(1, 3))
def test_interpolate(data, num_dims):
    mode = data.draw(st.sampled_from(["nearest", "nearest-exact", "area", *SMOOTH[num_dims]]))
    sizes = data.draw(st.lists(st.integers(1, 7), min_size=num_dims, max_size=num_dims))
    options = {"mode": mode}
    if mode in SMOOTH[num_dims]:
        options["align_corners"] = data.draw(st.sampled_from([None, False, True]))
    if data.draw(st.booleans()):
        options["size"] = data.draw(
            st.one_of(st.integers(1, 13), st.lists(st.integers(1, 13), min_size=num_dims, max_size=num_dims))
        )
    else:
        options["scale_factor"] = data.draw(
            st.sampled_from([1.0, 1.3, 1.5, 2, 2.0, 3, 0.7 if min(sizes) > 1 else 1.1])
        )
        # Torch's backward of nearest takes such sizes for whole factors and is not the gradient of its own forward.
        targets = [int(size * options["scale_factor"]) for size in sizes]
        whole = any(target in (size, 2 * size) for size, target in zip(sizes, targets, strict=True))
        assume(not (mode.startswith("nearest") and whole and options["scale_factor"] not in (1, 2)))
        # Nor is its backward of bicubic, which hands the gradient through where the size stays the same.
        assume(not (mode == "bicubic" and targets == sizes and options["scale_factor"] != 1))
        options["recompute_scale_factor"] = data.draw(st.sampled_from([None, False, True]))
    dtype = data.draw(st.sampled_from([torch.float64, torch.float32]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_equal_calls(
            lambda x: F.interpolate(x, **options),
            lambda x: legal.interpolate(x, **options),
            values(2, 2, *sizes, dtype=dtype),
            rtol=1e-4 if dtype == torch.float32 else None,
        )


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("source", [3, 10, 31, 64])
@pytest.mark.parametrize("factor", [0.3, 0.6, 1.7, 2.2, 3.0, 4.9])
def test_nearest_positions_are_exactly_torchs(mode, source, factor):
    x = torch.arange(float(source)).reshape(1, 1, -1)
    if int(source * factor) >= 1:
        for options in ({"scale_factor": factor}, {"size": int(source * factor)}):
            assert torch.equal(
                legal.interpolate(x, mode=mode, **options), F.interpolate(x, mode=mode, **options)
            )


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(3, 4), (11, 13), (8, 2), (7, 9)])
@pytest.mark.parametrize("align_corners", [False, True])
def test_antialias(mode, size, align_corners):
    options = {"size": size, "mode": mode, "antialias": True, "align_corners": align_corners}
    assert_equal_calls(
        lambda x: F.interpolate(x, **options), lambda x: legal.interpolate(x, **options), values(1, 2, 7, 9)
    )


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Upsample", {"scale_factor": (2, 3)}),
        ("Upsample", {"size": 9, "mode": "bicubic", "align_corners": False}),
        ("Upsample", {"scale_factor": 1.5, "mode": "bilinear", "recompute_scale_factor": True}),
        ("UpsamplingNearest2d", {"scale_factor": 2}),
        ("UpsamplingBilinear2d", {"size": (4, 9)}),
    ],
)
def test_modules(name, options):
    assert_equal_modules(getattr(nn, name)(**options), getattr(legal, name)(**options), values(2, 3, 5, 6))


@pytest.mark.parametrize(
    "options",
    [{}, {"size": 3, "scale_factor": 2}, {"size": (3, 3)}, {"size": 0}, {"size": 3, "align_corners": True},
     {"size": 3, "mode": "bilinear"}, {"size": 3, "mode": "sinc"}, {"size": 3, "antialias": True}],
)  # fmt: skip
def test_impossible_calls_raise(options):
    with pytest.raises((ValueError, RuntimeError, NotImplementedError)):
        legal.interpolate(values(1, 1, 5), **options)


@settings(max_examples=60, deadline=None)
@given(
    num_dims=st.integers(2, 3),
    mode=st.sampled_from(["bilinear", "nearest"]),
    padding_mode=st.sampled_from(["zeros", "border", "reflection"]),
    align_corners=st.booleans(),
    seed=st.integers(0, 1000),
    size=st.integers(1, 5),
)
def test_grid_sample(num_dims, mode, padding_mode, align_corners, seed, size):
    x = values(2, 3, *[size, 4, 5][-num_dims:], seed=seed)
    grid = values(2, *[3, 2, 4][-num_dims:], num_dims, seed=seed + 1) * 1.5
    options = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    assert_equal_calls(
        lambda x, g: F.grid_sample(x, g, **options), lambda x, g: legal.grid_sample(x, g, **options), x, grid
    )


@pytest.mark.parametrize("padding_mode", ["border", "reflection"])
def test_grid_sample_at_the_border_itself(padding_mode):
    grid = torch.tensor([-1.0, 1.0, 0.0, 3.0], dtype=torch.float64)
    grid = torch.stack(torch.meshgrid(grid, grid, indexing="ij"), -1).unsqueeze(0)
    options = {"padding_mode": padding_mode, "align_corners": True}
    assert_equal_calls(
        lambda x, g: F.grid_sample(x, g, **options), lambda x, g: legal.grid_sample(x, g, **options),
        values(1, 2, 4, 5), grid,
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore:Since version 1.3.0")
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 1, 1, 3), (2, 3, 2, 4, 5)])
@pytest.mark.parametrize("align_corners", [False, True])
def test_affine_grid(size, align_corners):
    num_dims = len(size) - 2
    assert_equal_calls(
        lambda t: F.affine_grid(t, size, align_corners), lambda t: legal.affine_grid(t, size, align_corners),
        values(2, num_dims, num_dims + 1),
    )  # fmt: skip
