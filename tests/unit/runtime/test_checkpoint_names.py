"""A checkpoint's weights meet a model's by name, all or those that fit, and the person is told how they differ."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from portwright.errors import UserError
from portwright.runtime.checkpoint import CheckpointWriter, TensorSpec, match_names, read_checkpoint
from portwright.runtime.checkpoint_names import take_over
from portwright.target import Shard

MODEL = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))


def shards(prefix: str = "") -> list[Shard]:
    weights = [Shard(f"model/{prefix}{name}", tensor) for name, tensor in MODEL.state_dict().items()]
    return [
        *weights,
        Shard(f"optimizer/{prefix}0.weight/exp_avg", torch.ones(3, 2)),
        Shard("rng/0/cpu", torch.ones(1)),
    ]


def names(given: Iterator[Shard]) -> list[str]:
    return [shard.name for shard in given]


def test_equal_names_pass_as_they_are() -> None:
    assert names(match_names(shards(), MODEL.state_dict(), on_note=pytest.fail)) == names(iter(shards()))


@pytest.mark.parametrize("prefix", ["module.", "model.", "_orig_mod.", "module.model."])
def test_common_prefix_is_taken_off_or_added(prefix: str) -> None:
    notes: list[str] = []
    assert names(match_names(shards(prefix), MODEL.state_dict(), notes.append)) == names(iter(shards()))
    assert f"'{prefix}'" in notes.pop()
    wanted = {prefix + name: tensor for name, tensor in MODEL.state_dict().items()}
    assert names(match_names(shards(), wanted, notes.append)) == names(iter(shards(prefix)))
    assert "adding" in notes.pop()


def test_prefix_of_some_names_only_is_no_prefix() -> None:
    mixed = [Shard("model/module.0.weight", torch.ones(3, 2)), Shard("model/0.bias", torch.ones(3))]
    wanted = {"0.weight": torch.ones(3, 2), "0.bias": torch.ones(3)}
    with pytest.raises(UserError, match=r"1 missing: 0\.weight; 1 unexpected: module\.0\.weight"):
        match_names(mixed, wanted, pytest.fail)
    # nor is a beginning that ends within a word
    with pytest.raises(UserError, match="another model"):
        match_names([Shard("model/old_w", torch.ones(1))], {"w": torch.ones(1)}, pytest.fail)


def test_differences_are_listed_with_their_number() -> None:
    wanted = {f"layer.{index}": torch.empty(2, 3, device="meta") for index in range(20)} | {
        "head": torch.empty(4)
    }
    given = [Shard("model/head", torch.ones(5)), Shard("model/extra", torch.ones(1))]
    with pytest.raises(UserError) as caught:
        match_names(given, wanted, pytest.fail)
    message = caught.value.message
    assert "This checkpoint is of another model" in message
    assert "20 missing: layer.0, layer.1, layer.2, layer.3, layer.4, ..." in message
    assert "1 unexpected: extra" in message
    assert "head is 5 float32, not 4 float32" in message
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("found", "wanted", "fits"),
    [
        (torch.float32, torch.bfloat16, True),
        (torch.float16, torch.float64, True),
        (torch.int64, torch.float32, False),
        (torch.float32, torch.bool, False),
        (torch.complex64, torch.float32, False),
        (torch.int64, torch.int64, True),
    ],
)
def test_precision_may_differ_but_not_the_kind(found: torch.dtype, wanted: torch.dtype, fits: bool) -> None:
    given = [Shard("model/w", torch.ones(2, dtype=found))]
    notes: list[str] = []
    if not fits:
        with pytest.raises(UserError, match="1 of another shape or kind: w is 2"):
            match_names(given, {"w": TensorSpec((2,), wanted)}, notes.append)
        return
    assert names(match_names(given, {"w": TensorSpec((2,), wanted)}, notes.append)) == ["model/w"]
    assert len(notes) == (found != wanted)


@pytest.mark.parametrize(
    ("given", "wanted"), [([], {"w": torch.ones(1)}), ([Shard("model/w", torch.ones(1))], {})]
)
def test_nothing_on_one_side(given: list[Shard], wanted: dict[str, torch.Tensor]) -> None:
    with pytest.raises(UserError, match="another model"):
        match_names(given, wanted, pytest.fail)


def test_names_are_checked_before_any_tensor_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CheckpointWriter(tmp_path, None, on_note=pytest.fail) as writer:
        writer.save(1, shards("module."), {})
    loaded = read_checkpoint(tmp_path / "checkpoint_1")
    with monkeypatch.context() as patched:
        patched.setattr("portwright.runtime.checkpoint.read_tensors", lambda *args: pytest.fail("read"))
        with pytest.raises(UserError, match="another model"):
            match_names(loaded.shards, {"w": torch.ones(1)}, pytest.fail)
        matched = match_names(loaded.shards, MODEL.state_dict(), print)
    weights = {shard.name[6:]: shard.tensor for shard in matched if shard.name.startswith("model/")}
    MODEL.load_state_dict(weights)


def weights(**tensors: torch.Tensor) -> list[Shard]:
    return [Shard(f"model/{name}", tensor) for name, tensor in tensors.items()]


def test_what_fits_is_taken_and_the_rest_told() -> None:
    notes: list[str] = []
    given = [
        *weights(body=torch.ones(2), head=torch.ones(5), old=torch.ones(1)),
        Shard("optimizer/body/step", torch.ones(1)),
    ]
    own = [*weights(body=torch.zeros(2), head=torch.zeros(3)), Shard("rng/0/torch", torch.zeros(1))]
    made = {shard.name: shard.tensor.tolist() for shard in take_over(given, own, notes.append)}
    assert made == {"model/body": [1, 1], "model/head": [0, 0, 0]}
    assert notes == [
        "of another shape in the checkpoint, and left as initialised: head (5 there, 3 here)",
        "in the checkpoint, and not in the model: old",
    ]


def test_what_is_missing_is_told_apart_from_what_has_another_shape() -> None:
    notes: list[str] = []
    own = weights(a=torch.zeros(1), new=torch.zeros(2), table=torch.zeros(3, 2))
    list(take_over(weights(a=torch.ones(1), table=torch.ones(4, 2)), own, notes.append))
    assert notes == [
        "not in the checkpoint, and left as initialised: new",
        "of another shape in the checkpoint, and left as initialised: table (4x2 there, 3x2 here)",
    ]


def test_all_of_it_is_not_worth_a_word() -> None:
    notes: list[str] = []
    list(take_over(weights(a=torch.ones(1)), weights(a=torch.zeros(1)), notes.append))
    assert notes == []


def test_long_lists_are_cut() -> None:
    notes: list[str] = []
    many = {f"w{index}": torch.ones(1) for index in range(8)}
    list(take_over(weights(a=torch.ones(1), **many), weights(a=torch.zeros(1)), notes.append))
    assert notes == ["in the checkpoint, and not in the model: w0, w1, w2, w3, w4, and 3 more"]


def test_nothing_in_common() -> None:
    with pytest.raises(UserError, match="no weight of this model"):
        list(take_over(weights(a=torch.ones(1)), weights(b=torch.ones(1)), lambda line: None))


@pytest.mark.parametrize("prefix", ["module.", "model."])
def test_a_wrappers_prefix_is_taken_off(prefix: str) -> None:
    given = [Shard(f"model/{prefix}a", torch.ones(1))]
    (shard,) = take_over(given, weights(a=torch.zeros(1)), lambda line: None)
    assert shard.name == "model/a"
    assert shard.tensor == 1
