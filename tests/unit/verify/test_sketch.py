from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from portwright.verify.record_digest import Sketcher
from portwright.verify.recording import SKETCH_SIZE

SIZES = st.integers(0, 5000)


@settings(max_examples=40, deadline=None)
@given(SIZES, st.integers(0, 2**31))
def test_is_linear_and_the_same_for_the_same(size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    one, other = (torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(2))
    assert np.array_equal(Sketcher()(one), Sketcher()(one.clone()))
    np.testing.assert_allclose(
        Sketcher()(one + 2 * other), Sketcher()(one) + 2 * Sketcher()(other), atol=1e-9
    )


@pytest.mark.parametrize("shape", [(10_000,), (300, 64), (64, 128, 3), (2_100_000,)])
def test_distance_is_about_that_of_the_tensors(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    one = torch.randn(shape)
    for change in (1e-3 * torch.randn(shape), _one_column(shape), _one_element(shape)):
        distance = np.linalg.norm(Sketcher()(one + change) - Sketcher()(one))
        assert 0.5 < distance / float(change.norm()) < 1.6


def _one_column(shape: tuple[int, ...]) -> torch.Tensor:
    change = torch.zeros(shape)
    change[..., 0] = torch.randn(shape[:-1])
    return change if len(shape) > 1 else torch.randn(shape)


def _one_element(shape: tuple[int, ...]) -> torch.Tensor:
    change = torch.zeros(shape)
    change.view(-1)[-1] = 3
    return change


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(7),
        torch.ones(3, dtype=torch.bfloat16),
        torch.tensor(2.0),
        torch.tensor([True, False]),
        torch.zeros(0),
        torch.complex(torch.ones(3), torch.ones(3)),
        torch.eye(3).to_sparse(),
        torch.randn(4, 6).t(),
    ],
)
def test_takes_any_tensor(tensor: torch.Tensor) -> None:
    sketch = Sketcher()(tensor)
    assert sketch.shape == (SKETCH_SIZE,)
    assert sketch.dtype == np.float64


def test_layout_counts_and_memory_order_does_not() -> None:
    tensor = torch.randn(5, 7)
    assert np.array_equal(Sketcher()(tensor), Sketcher()(tensor.t().contiguous().t()))
    assert not np.array_equal(Sketcher()(tensor), Sketcher()(tensor.t()))
