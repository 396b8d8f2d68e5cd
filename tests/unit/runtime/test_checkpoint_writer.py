"""The writer's thread: one write at a time, errors that surface, and never one checkpoint too few."""

from __future__ import annotations

import errno
import os
import resource
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from portwright.errors import UserError
from portwright.runtime import checkpoint_writer
from portwright.runtime.checkpoint import (
    CheckpointWriter,
    find_last_good,
    list_checkpoints,
    read_checkpoint,
    verify_checkpoint,
)
from portwright.target import Shard


def shards(value: float, size: int = 4) -> list[Shard]:
    return [Shard("model/w", torch.full((size,), value))]


def steps(directory: Path) -> list[int]:
    return [info.step for info in list_checkpoints(directory)]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize(
    ("keep", "kept"), [(None, [1, 2, 3, 4]), (0, [1, 2, 3, 4]), (1, [4]), (3, [2, 3, 4]), (9, [1, 2, 3, 4])]
)
def test_as_many_are_kept_as_asked(tmp_path: Path, keep: int | None, kept: list[int]) -> None:
    with CheckpointWriter(tmp_path, keep, on_note=pytest.fail) as writer:
        for step in (1, 2, 3, 4):
            writer.save(step, shards(step), {})
    assert names(tmp_path) == [f"checkpoint_{step}" for step in kept]


def test_new_one_is_kept_when_its_step_is_the_lowest(tmp_path: Path) -> None:
    with CheckpointWriter(tmp_path, 3, on_note=pytest.fail) as writer:
        for step in (100, 200, 300, 50):
            writer.save(step, shards(step), {})
        writer.wait()
        assert steps(tmp_path) == [50, 200, 300]
        for step in (60, 70):
            writer.save(step, shards(step), {})
    assert steps(tmp_path) == [50, 60, 70]


def test_damaged_ones_do_not_count_as_kept(tmp_path: Path) -> None:
    with CheckpointWriter(tmp_path, 2, on_note=pytest.fail) as writer:
        for step in (1, 2):
            writer.save(step, shards(step), {})
        writer.wait()
        (tmp_path / "checkpoint_2" / "manifest.json").unlink()
        writer.save(3, shards(3), {})
    complete = [info.step for info in list_checkpoints(tmp_path) if info.complete]
    assert complete == [1, 3]


def test_same_step_is_replaced(tmp_path: Path) -> None:
    with CheckpointWriter(tmp_path, 2, on_note=pytest.fail) as writer:
        writer.save(7, shards(1), {"run": 1})
        writer.save(7, shards(2), {"run": 2})
    loaded = read_checkpoint(tmp_path / "checkpoint_7")
    assert loaded.counters == {"run": 2}
    assert next(iter(loaded.shards)).tensor[0] == 2
    assert names(tmp_path) == ["checkpoint_7"]


def test_torn_folder_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "checkpoint_7").mkdir()
    (tmp_path / "checkpoint_7" / "junk").write_text("")
    with CheckpointWriter(tmp_path, 2, on_note=pytest.fail) as writer:
        writer.save(7, shards(1), {})
    assert verify_checkpoint(tmp_path / "checkpoint_7") == []
    assert not (tmp_path / "checkpoint_7" / "junk").exists()


def test_counters_are_taken_at_once(tmp_path: Path) -> None:
    counters: dict[str, Any] = {"data": {"position": 1}}
    with CheckpointWriter(tmp_path, None, on_note=pytest.fail) as writer:
        writer.save(1, shards(1), counters)
        counters["data"]["position"] = 2
    assert read_checkpoint(tmp_path / "checkpoint_1").counters == {"data": {"position": 1}}


@pytest.mark.parametrize(
    ("counters", "error"),
    [
        ({"a": {1: 2}}, "counters.a has the key 1"),
        ({"a": [{None: 1}]}, "the key None"),
        ({"a": torch.ones(1)}, "serializable"),
    ],
)
def test_counters_that_json_would_lose(tmp_path: Path, counters: dict[str, Any], error: str) -> None:
    writer = CheckpointWriter(tmp_path, None, on_note=pytest.fail)
    with pytest.raises(TypeError, match=error):
        writer.save(1, shards(1), counters)
    assert names(tmp_path) == []


def test_double_name(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, None, on_note=pytest.fail)
    with pytest.raises(ValueError, match="two shards are named 'model/w'"):
        writer.save(1, [*shards(1), *shards(2)], {})


class Gate:
    """Holds the writer's thread where it begins to write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.opened, self.threads = threading.Semaphore(0), threading.Semaphore(0), list[str]()
        write = checkpoint_writer.write_text

        def write_when_open(*args: Any) -> Any:
            if args[0].name == "manifest.json":
                self.threads.append(threading.current_thread().name)
                self.reached.release()
                self.opened.acquire()
            return write(*args)

        monkeypatch.setattr(checkpoint_writer, "write_text", write_when_open)


def test_save_returns_before_it_is_written_and_the_next_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    writer = CheckpointWriter(tmp_path, None, on_note=pytest.fail)
    writer.save(1, shards(1), {})  # would never return if it wrote here
    gate.reached.acquire()
    assert steps(tmp_path) == []
    seen_by_second: list[list[int]] = []

    def second_shards() -> Iterator[Shard]:
        seen_by_second.append(steps(tmp_path))
        yield from shards(2)

    second = threading.Thread(target=lambda: writer.save(2, second_shards(), {}))
    second.start()
    gate.opened.release()
    second.join()
    assert seen_by_second == [[1]]  # the first was whole before the second was even taken
    gate.opened.release()
    writer.wait()
    assert steps(tmp_path) == [1, 2]
    assert gate.threads == ["checkpoint_1", "checkpoint_2"]


def test_tensors_are_dropped_once_written(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, None, on_note=pytest.fail)
    taken = shards(1)
    alive = weakref.ref(taken[0].tensor.untyped_storage())
    held = weakref.ref(taken[0].tensor)
    writer.save(1, taken, {})
    del taken
    writer.wait()
    assert held() is None
    assert alive() is None


@pytest.mark.parametrize("how", ["save", "wait"])
def test_full_disk_surfaces_and_keeps_the_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    writer = CheckpointWriter(tmp_path, 1, on_note=pytest.fail)
    writer.save(1, shards(1), {})
    writer.wait()

    def refuse(*args: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    tensor = torch.full((4,), 2.0)
    held = weakref.ref(tensor)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint_writer, "write_text", refuse)
        writer.save(2, [Shard("model/w", tensor)], {})
        del tensor
        with pytest.raises(UserError, match=r"step 2 was not saved.*no space left") as caught:
            writer.save(3, shards(3), {}) if how == "save" else writer.wait()
    assert "Free space" in caught.value.cure
    assert "Older checkpoints are kept" in caught.value.cure
    assert held() is None  # a failed write gives its memory back too
    assert names(tmp_path) == ["checkpoint_1"]
    writer.wait()  # said once
    writer.save(4, shards(4), {})  # and there may be space again
    writer.wait()
    assert names(tmp_path) == ["checkpoint_4"]


def test_disk_that_takes_only_a_part(tmp_path: Path) -> None:
    """The kernel refuses to let the file grow, in the middle of a tensor."""
    writer = CheckpointWriter(tmp_path, None, on_note=pytest.fail)
    writer.save(1, shards(1), {})
    writer.wait()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5 << 20, limits[1]))
    try:
        writer.save(2, shards(2, size=4 << 20), {})
        with pytest.raises(UserError, match="file too large"):
            writer.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(tmp_path) == ["checkpoint_1"]
    found = find_last_good(tmp_path, pytest.fail)
    assert found is not None
    assert found.step == 1


@pytest.mark.parametrize("most", [1, 7, 1000])
def test_system_that_writes_a_part_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    def write_some(descriptor: int, parts: list[memoryview]) -> int:
        return os.write(descriptor, b"".join(parts)[:most])

    monkeypatch.setattr(os, "writev", write_some)
    tensors = {f"model/{size}": torch.arange(float(size)) for size in (1, 3, 50, 400)}
    with CheckpointWriter(tmp_path, None, on_note=pytest.fail) as writer:
        writer.save(1, [Shard(name, tensor) for name, tensor in tensors.items()], {})
    for shard in read_checkpoint(tmp_path / "checkpoint_1").shards:
        assert torch.equal(shard.tensor, tensors.pop(shard.name))
    assert not tensors


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    writer = CheckpointWriter(tmp_path / "file", None, on_note=pytest.fail)
    writer.save(1, shards(1), {})
    with pytest.raises(UserError, match="step 1 was not saved"):
        writer.wait()


def test_mistake_of_ours_is_not_dressed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mistaken(*args: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(checkpoint_writer, "write_tensors", mistaken)
    writer = CheckpointWriter(tmp_path, None, on_note=pytest.fail)
    writer.save(1, shards(1), {})
    with pytest.raises(ZeroDivisionError, match="a bug") as caught:
        writer.wait()
    assert any(entry.name == "_write" for entry in caught.traceback)  # and can be traced


def test_error_of_the_run_is_not_hidden_by_one_of_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    notes: list[str] = []

    def run() -> None:
        with CheckpointWriter(tmp_path / "file", None, notes.append) as writer:
            writer.save(1, shards(1), {})
            raise KeyError("the run's own")

    with pytest.raises(KeyError):
        run()
    assert "step 1 was not saved" in notes[0]


def test_old_checkpoint_that_cannot_be_removed_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(checkpoint_writer, "remove_directory", refuse)
    notes: list[str] = []
    with CheckpointWriter(tmp_path, 1, notes.append) as writer:
        writer.save(1, shards(1), {})
        writer.save(2, shards(2), {})
    assert steps(tmp_path) == [1, 2]
    assert len(notes) == 1
    assert "Cannot remove the old checkpoint" in notes[0]
