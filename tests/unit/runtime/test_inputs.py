"""A job's inputs: which function makes them, what they tell, what they are without a short last batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from portwright.errors import UserError
from portwright.runtime.inputs import Inputs, explaining, find_data_fn


def make_data(params: dict[str, Any]) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(10.0)), batch_size=params["size"])


def make_job(size: int = 4) -> Any:
    params = SimpleNamespace(values={"size": size}, runconfig=SimpleNamespace(seed=1))
    return SimpleNamespace(
        mode="train", params=params, train_data_fn=make_data, eval_data_fn=None, stream=None
    )


def test_an_input_without_a_function_is_refused() -> None:
    assert find_data_fn(make_job(), "train_input") is make_data
    with pytest.raises(UserError, match="mode train needs eval_data_fn"):
        find_data_fn(make_job(), "eval_input")


@pytest.mark.parametrize(("size", "full"), [(4, 2), (5, 2), (10, 1), (11, 0)])
def test_a_short_last_batch_is_not_counted(size: int, full: int) -> None:
    loader = Inputs(make_job(size), lambda line: None).open("train_input", repeat=False)
    assert loader.num_full_batches == full
    assert loader.num_batches == -(-10 // size)


def test_first_batches_are_fewer_where_there_are_no_more() -> None:
    inputs = Inputs(make_job(), lambda line: None)
    assert [len(batch[0]) for batch in inputs.first_batches("train_input", 2)] == [4, 4]
    assert [len(batch[0]) for batch in inputs.first_batches("train_input", 9)] == [4, 4, 2]


def test_a_note_is_told_once_whichever_loader_has_it() -> None:
    told: list[str] = []
    inputs = Inputs(make_job(), told.append)
    for notes in (["a"], ["a", "b"], ["b"]):
        inputs.tell_notes(SimpleNamespace(notes=notes))  # type: ignore[arg-type]
    assert told == ["a", "b"]


def test_what_the_loader_knows_of_an_error_is_raised_in_its_place() -> None:
    known = SimpleNamespace(explain=lambda error: UserError("sample 3 killed a worker.", "Look at it."))
    with pytest.raises(UserError, match="sample 3") as caught, explaining(known):  # type: ignore[arg-type]
        raise RuntimeError("DataLoader worker exited")
    assert isinstance(caught.value.__cause__, RuntimeError)
    unknown: Any = SimpleNamespace(explain=lambda error: None)
    for loader in (None, unknown):
        with pytest.raises(RuntimeError, match="other"), explaining(loader):
            raise RuntimeError("other")
