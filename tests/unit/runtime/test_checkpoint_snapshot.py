"""Snapshots: private for as long as they are held, and memory that is used again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from portwright.runtime import checkpoint_writer
from portwright.runtime.checkpoint import CheckpointWriter, HostSnapshot, read_checkpoint


def state(value: float) -> list[tuple[str, torch.Tensor]]:
    return [
        ("model/w", torch.full((3, 5), value, requires_grad=True)),
        ("model/t", torch.full((5, 3), value).t()),
        ("model/half", torch.full((7,), value, dtype=torch.bfloat16)),
        ("model/flag", torch.tensor(value > 1)),
        ("model/none", torch.empty(0, 4)),
        ("optimizer/w/step", torch.tensor(value)),
        ("optimizer/w/z", torch.full((2,), complex(value, 1), dtype=torch.complex128)),
        ("rng/0/cpu", torch.full((11,), int(value), dtype=torch.uint8)),
    ]


def test_copies_are_equal_and_private() -> None:
    snapshot = HostSnapshot()
    source = state(3.0)
    shards = snapshot.take(source)
    assert [shard.name for shard in shards] == [name for name, _ in source]
    for shard, (_, tensor) in zip(shards, source, strict=True):
        assert torch.equal(shard.tensor, tensor)
        assert shard.tensor.dtype == tensor.dtype
        assert shard.tensor.is_contiguous()
        assert not shard.tensor.requires_grad
    with torch.no_grad():
        source[0][1].fill_(9.0)
    assert torch.all(shards[0].tensor == 3.0)


def test_held_snapshots_never_change() -> None:
    snapshot = HostSnapshot()
    held = [snapshot.take(state(float(value))) for value in range(6)]
    for value, shards in enumerate(held):
        assert torch.all(shards[0].tensor == value)
        assert shards[-1].tensor[0] == value


def test_memory_is_used_again_when_it_was_dropped() -> None:
    snapshot = HostSnapshot()
    first = snapshot.take(state(1.0))
    address = first[0].tensor.data_ptr()
    second = snapshot.take(state(2.0))
    assert second[0].tensor.data_ptr() != address
    del first
    third = snapshot.take(state(3.0))
    assert third[0].tensor.data_ptr() == address
    assert torch.all(second[0].tensor == 2.0)


@pytest.mark.parametrize("index", [0, 3, 7])
def test_anything_made_of_a_shard_holds_the_memory(index: int) -> None:
    snapshot = HostSnapshot()
    shards = snapshot.take(state(1.0))
    array = shards[index].tensor.view(-1)[:1].numpy()
    before = array.tobytes()
    del shards
    for value in (2.0, 3.0):
        snapshot.take(state(value))
    assert array.tobytes() == before


def test_other_tensors_than_before() -> None:
    snapshot = HostSnapshot()
    for size in (3, 4, 4, 2, 1000):
        shards = snapshot.take([("model/w", torch.full((size,), float(size)))])
        assert torch.equal(shards[0].tensor, torch.full((size,), float(size)))
    assert snapshot.take([]) == []
    assert snapshot.take([("model/e", torch.empty(0))])[0].tensor.shape == (0,)


def test_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_writer, "_BLOCK_BYTES", 1000)
    source = [(str(index), torch.randn(index * 7 % 400)) for index in range(60)]
    snapshot = HostSnapshot()
    for _ in range(3):
        shards = snapshot.take(source)
        assert all(
            torch.equal(shard.tensor, tensor) for shard, (_, tensor) in zip(shards, source, strict=True)
        )
        del shards
    assert len(snapshot._slots) == 1
    last = snapshot.take(source)[-1:]  # one tensor keeps only its block, but that is enough
    assert snapshot.take(source)[-1].tensor.data_ptr() != last[0].tensor.data_ptr()


def test_inference_mode_leaves_no_trace() -> None:
    snapshot = HostSnapshot()
    with torch.inference_mode():
        snapshot.take([("model/w", torch.ones(3))])
    shards = snapshot.take([("model/w", torch.zeros(3))])
    assert torch.equal(shards[0].tensor, torch.zeros(3))


def test_writer_gives_the_memory_back(tmp_path: Path) -> None:
    snapshot = HostSnapshot()
    with CheckpointWriter(tmp_path, None, on_note=pytest.fail) as writer:
        for step in range(6):
            writer.save(step, snapshot.take(state(float(step))), {})
            if step % 2:
                writer.wait()
    assert len(snapshot._slots) <= 2
    assert not any(slot.is_held() for slot in snapshot._slots)
    for step in range(6):
        loaded = {
            shard.name: shard.tensor for shard in read_checkpoint(tmp_path / f"checkpoint_{step}").shards
        }
        assert all(torch.equal(loaded[name], tensor) for name, tensor in state(float(step)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_from_a_gpu() -> None:
    snapshot = HostSnapshot()
    for value in range(4):
        source = [
            (name, tensor.cuda() if "rng" not in name else tensor) for name, tensor in state(float(value))
        ]
        shards = snapshot.take(source)
        for shard, (_, tensor) in zip(shards, source, strict=True):
            assert shard.tensor.device.type == "cpu"
            assert torch.equal(shard.tensor, tensor.cpu())
        del shards, shard  # one shard is enough to hold the memory
    assert len(snapshot._slots) == 1
    assert all(block.is_pinned() for block in snapshot._slots[0]._blocks)
