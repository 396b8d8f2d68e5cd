"""What data processors of release 1.6 import."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from portwright.compat import modelzoo_cb_model as cm
from portwright.compat.modelzoo_data import (
    BufferedShuffleDataset,
    bucketed_batch,
    get_input_dtype,
    get_params,
    group_optimizer_params,
    to_tensor,
    update_defaults,
    visit_structure,
)
from portwright.compat.old_calls import HfFolder, accept_old_calls
from portwright.errors import UserError


@given(st.integers(0, 40), st.integers(1, 50), st.integers(0, 10))
def test_a_buffer_shuffles_and_loses_nothing(count: int, size: int, seed: int) -> None:
    random.seed(seed)
    shuffled = list(BufferedShuffleDataset(range(count), size))
    assert sorted(shuffled) == list(range(count))
    # Nothing comes more than a buffer too early.
    assert all(item <= place + size for place, item in enumerate(shuffled))
    random.seed(seed)
    assert list(BufferedShuffleDataset(range(count), size)) == shuffled
    if size == 1:
        assert shuffled == list(range(count))


def test_buffers_of_no_size_and_streams_of_no_length() -> None:
    with pytest.raises(UserError, match="buffer_size is 0"):
        BufferedShuffleDataset([1], 0)
    assert len(BufferedShuffleDataset([1, 2], 1)) == 2
    with pytest.raises(TypeError, match="has no length"):
        len(BufferedShuffleDataset(iter([1]), 1))


@given(
    st.lists(st.integers(0, 20), max_size=40),
    st.integers(1, 5),
    st.one_of(st.none(), st.lists(st.integers(1, 20), min_size=1, max_size=4).map(sorted)),
    st.booleans(),
)
def test_batches_by_length(
    lengths: list[int], batch_size: int, buckets: list[int] | None, drop_last: bool
) -> None:
    samples = list(enumerate(lengths))
    made = list(
        bucketed_batch(
            samples,
            batch_size,
            buckets,
            element_length_fn=lambda sample: sample[1],
            collate_fn=list,
            drop_last=drop_last,
            seed=1,
        )
    )
    seen = [sample for batch in made for sample in batch]
    assert len(seen) == len(set(seen))
    if drop_last:
        assert all(len(batch) == batch_size for batch in made)
        for batch in made:  # all of one batch lie between the same two edges
            assert len({sum(edge <= length for edge in buckets or ()) for _, length in batch}) == 1
    else:
        assert sorted(seen) == samples
        assert all(len(batch) == batch_size for batch in made[:-1])


@pytest.mark.parametrize("buckets", [[], [3, 2], [0, 4], [1.5], 4])
def test_bad_buckets(buckets: Any) -> None:
    with pytest.raises(UserError, match="buckets is"):
        list(bucketed_batch([], 2, buckets, len))


def test_buckets_need_lengths_and_batches_a_size() -> None:
    with pytest.raises(UserError, match="element_length_fn"):
        list(bucketed_batch([], 2, [3]))
    with pytest.raises(UserError, match="batch_size is 0"):
        list(bucketed_batch([], 0))
    (batch,) = bucketed_batch([torch.ones(2), torch.zeros(2)], 2)
    assert batch.tolist() == [[1, 1], [0, 0]]


def test_numbers_as_tensors() -> None:
    made = to_tensor([1, (2.5, "text")])
    assert (made[0].dtype, made[1][0].dtype, made[1][1]) == (torch.int32, torch.float32, "text")


def test_visiting() -> None:
    structure = {"a": [1, "x", {"b": 2}], "c": (3,)}
    assert list(visit_structure(structure, lambda item: isinstance(item, int))) == [
        (["a", "0"], 1),
        (["a", "2", "b"], 2),
        (["c", "0"], 3),
    ]
    with pytest.raises(ValueError, match=r"a\.1 holds a str"):
        list(visit_structure(structure, lambda item: isinstance(item, int), strict=True))


def test_params(tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    file.write_text("one:\n  model: {a: 1}\n")
    assert get_params(file) == {"one": {"model": {"a": 1}}}
    assert get_params(str(file), "one") == {"model": {"a": 1}}
    with pytest.raises(UserError, match="no config 'two'"):
        get_params(file, "two")
    assert update_defaults({"a": {"b": 1}}, {"a": {"b": 2, "c": 3}, "d": 4}) == {
        "a": {"b": 1, "c": 3},
        "d": 4,
    }


def test_groups_by_name() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2))
    decayed, exempt = group_optimizer_params(model.named_parameters(), {"weight_decay_rate": 0.1})
    assert [p.dim() for p in decayed["params"]] == [
        2,
        1,
    ]  # the norm's weight goes by its name, which is 1.weight
    assert (decayed["weight_decay"], exempt["weight_decay"]) == (0.1, 0.0)
    assert len(exempt["params"]) == 2


def test_one_streamer_on_no_cerebras_system() -> None:
    assert not cm.use_cs()
    assert cm.is_streamer()
    assert cm.is_master_ordinal()
    assert (cm.num_streamers(), cm.get_streaming_rank(), cm.num_tasks()) == (1, 0, 1)
    assert cm.rendezvous("tag", b"x") == [b"x"]
    assert cm.step_closure(len) is len
    assert cm.to_cpu({"a": [torch.ones(1), None]}) == {"a": [torch.ones(1), None]}
    with pytest.raises(TypeError):
        cm.to_cpu("text")
    if not torch.cuda.is_available():
        assert get_input_dtype(True) == torch.float32


def test_dataloader_takes_prefetch_without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="prefetch_factor"):
        DataLoader([1, 2], prefetch_factor=2)
    monkeypatch.setattr(DataLoader, "__init__", DataLoader.__init__)
    accept_old_calls()
    accept_old_calls()
    assert len(DataLoader([1, 2], prefetch_factor=2)) == 2
    assert DataLoader([1, 2], 1, False, None, None, 1, prefetch_factor=3).prefetch_factor == 3
    with pytest.raises(ValueError):
        DataLoader([1, 2], num_workers=-1)


def test_what_huggingface_dropped_says_so() -> None:
    with pytest.raises(UserError, match="dropped HfFolder"):
        HfFolder()
