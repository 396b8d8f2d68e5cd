"""Draws follow the filtered distribution, and hang on the seed and the row alone."""

from __future__ import annotations

import pytest
import torch

from portwright.generation.adapter import choose
from portwright.generation.api import draw_uniforms


def test_draws_follow_the_probabilities() -> None:
    scores = torch.tensor([[2.0, float("-inf"), 0.0, 1.0, -30.0]])
    num_draws = 40_000
    uniforms = draw_uniforms(11, 1, num_draws, torch.device("cpu"))
    tokens = choose(scores.expand(num_draws, -1), uniforms[:, 0])
    shares = tokens.bincount(minlength=5) / num_draws
    # Four standard deviations of a share: a right draw of this seed is far inside, a wrong one is not.
    assert (shares - scores.softmax(-1)[0]).abs().max() < 4 * (0.25 / num_draws) ** 0.5
    assert shares[1] == 0


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2.0**-32])
def test_the_ends_of_the_draw_are_tokens_that_can_be(uniform: float) -> None:
    can = torch.tensor([[float("-inf"), 1.0, 0.5, float("-inf")]])
    assert int(choose(can, torch.tensor([uniform], dtype=torch.float64))) == (1 if uniform == 0 else 2)


def test_a_rows_draws_do_not_depend_on_other_rows_or_on_torchs_seed() -> None:
    torch.manual_seed(1)
    many = draw_uniforms(5, 4, 10, torch.device("cpu"))
    torch.manual_seed(2)
    few = draw_uniforms(5, 2, 6, torch.device("cpu"))
    assert torch.equal(many[:6, :2], few)
    assert not torch.equal(many[:, 0], many[:, 1])
    assert not torch.equal(many, draw_uniforms(6, 4, 10, torch.device("cpu")))
    assert draw_uniforms(2**64 - 1, 1, 3, torch.device("cpu")).shape == (3, 1)
