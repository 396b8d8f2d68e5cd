"""A batch by shapes alone."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from portwright.errors import UserError
from portwright.graph.capturing.capture import capture
from portwright.graph.graph import ITEM_BYTES
from portwright.graph.inputs import TensorSpec, map_tensors, parse_inputs


@pytest.mark.parametrize(
    ("written", "parsed"),
    [
        (["x:float32[8,784]"], {"x": TensorSpec((8, 784), "float32")}),
        (["float32[8, 784]"], TensorSpec((8, 784), "float32")),
        (["int64[]"], TensorSpec((), "int64")),
        (
            [" ids : long[2,0] ", "y:bool[2]"],
            {"ids": TensorSpec((2, 0), "int64"), "y": TensorSpec((2,), "bool")},
        ),
        (["half[1]", "double[2]"], (TensorSpec((1,), "float16"), TensorSpec((2,), "float64"))),
        (["größe:float[3]"], {"größe": TensorSpec((3,), "float32")}),
    ],
)
def test_what_input_may_say(written: list[str], parsed: Any) -> None:
    assert parse_inputs(written) == parsed


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ([], "no input"),
        (["x"], "'x' cannot be read"),
        ([""], "cannot be read"),
        (["x:float32"], "cannot be read"),
        (["x:float32[8"], "cannot be read"),
        (["x:float33[8]"], "Did you mean 'float32'"),
        (["x:float32[8,a]"], "size 'a'"),
        (["x:float32[-1]"], "size '-1'"),
        (["x:float32[1.5]"], "size '1.5'"),
        (["x:float32[²]"], "size '²'"),
        (["x:float32[8]", "x:int64[8]"], "'x' is given twice"),
        (["x:float32[8]", "int64[8]"], "1 of 2 inputs"),
    ],
)
def test_what_it_may_not(written: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said.replace("[", r"\[")):
        parse_inputs(written)


@given(st.lists(st.integers(0, 10**6), max_size=5), st.sampled_from(sorted(ITEM_BYTES)))
def test_a_spec_reads_what_it_shows(shape: list[int], dtype: str) -> None:
    spec = TensorSpec(tuple(shape), dtype)
    assert parse_inputs([str(spec)]) == spec


Pair = namedtuple("Pair", "left right")


@dataclass
class Batch:
    images: Any
    note: str = "kept"


@pytest.mark.parametrize(
    ("batch", "names"),
    [
        (TensorSpec((1,)), [""]),
        ([TensorSpec((1,)), (torch.ones(1), 3)], ["0", "1.0"]),
        (OrderedDict(a=TensorSpec((1,)), b={"c": torch.ones(1)}), ["a", "b.c"]),
        (Pair(TensorSpec((1,)), None), ["left"]),
        (Batch(TensorSpec((1,))), ["images"]),
        ("text", []),
    ],
)
def test_a_batch_keeps_its_structure(batch: Any, names: list[str]) -> None:
    found = []

    def note(tensor: Any, name: str) -> Any:
        found.append(name)
        return tensor

    assert type(map_tensors(batch, note)) is type(batch)
    assert found == names


def test_a_spec_that_no_tensor_has() -> None:
    with pytest.raises(UserError, match="float32"):
        TensorSpec((1,), "float33")
    with pytest.raises(UserError, match="-1"):
        TensorSpec((-1,))
    with pytest.raises(UserError, match="cannot make the input x"):
        capture(lambda: lambda batch: None, {"x": TensorSpec((2**40, 2**40))})
