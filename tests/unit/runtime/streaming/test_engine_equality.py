"""Weight streaming computes what a resident session computes, to the bit: for every shape of net."""

from __future__ import annotations

import pytest
from streaming_cases import CASES, HUGGING_FACE, assert_equal_runs


@pytest.mark.parametrize("name", CASES)
def test_any_net(name: str) -> None:
    assert_equal_runs(CASES[name])


@pytest.mark.parametrize("name", HUGGING_FACE)
@pytest.mark.filterwarnings("ignore")
def test_nets_of_hugging_face(name: str) -> None:
    pytest.importorskip("transformers")
    assert_equal_runs(HUGGING_FACE[name], num_steps=4)
