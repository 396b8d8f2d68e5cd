"""Damage of any kind is seen, and what is good is found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from portwright.errors import UserError
from portwright.runtime import checkpoint_folder
from portwright.runtime.checkpoint import (
    CheckpointWriter,
    find_last_good,
    list_checkpoints,
    read_checkpoint,
    verify_checkpoint,
)
from portwright.runtime.checkpoint_files import hash_file
from portwright.runtime.checkpoint_folder import Manifest, parse_manifest, render_manifest
from portwright.target import Shard


def save(directory: Path, *steps: int, max_checkpoints: int | None = None) -> None:
    with CheckpointWriter(directory, max_checkpoints, on_note=pytest.fail) as writer:
        for step in steps:
            shards = [
                Shard("model/w", torch.full((3,), float(step))),
                Shard("optimizer/w/momentum", torch.full((3,), step)),
                Shard("rng/0/cpu", torch.zeros(5, dtype=torch.uint8)),
                Shard("other", torch.zeros(1, dtype=torch.complex64)),
            ]
            writer.save(step, shards, {"epoch": step})


FILES = [
    "model.safetensors",
    "optimizer.safetensors",
    "rng.safetensors",
    "extra.safetensors",
    "state.json",
    "manifest.json",
]


@pytest.fixture
def good(tmp_path: Path) -> Path:
    save(tmp_path, 5)
    path = tmp_path / "checkpoint_5"
    assert verify_checkpoint(path) == []
    assert sorted(file.name for file in path.iterdir()) == sorted(FILES)
    return path


@pytest.mark.parametrize("name", FILES)
def test_any_flipped_byte_is_seen(good: Path, name: str) -> None:
    data = (good / name).read_bytes()
    for index in range(len(data)):
        flipped = bytearray(data)
        flipped[index] ^= 1 << index % 8
        (good / name).write_bytes(flipped)
        assert verify_checkpoint(good), f"byte {index}"
    (good / name).write_bytes(data)
    assert verify_checkpoint(good) == []


@pytest.mark.parametrize("name", FILES)
def test_any_truncation_or_growth_is_seen(good: Path, name: str) -> None:
    data = (good / name).read_bytes()
    for length in range(len(data)):
        (good / name).write_bytes(data[:length])
        assert verify_checkpoint(good), f"length {length}"
        assert not list_checkpoints(good.parent)[0].complete
    for more in (b"\0", b" ", b"\n"):
        (good / name).write_bytes(data + more)
        assert verify_checkpoint(good)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "folder", "other", "lfs", "page"])
def test_other_damage_is_seen_and_said(good: Path, name: str, damage: str) -> None:
    file = good / name
    file.unlink()
    if damage == "folder":
        file.mkdir()
    elif damage == "other":
        file.write_bytes(b"[[[[" * 100_000)
    elif damage == "lfs":
        file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    elif damage == "page":
        file.write_text("\n<!DOCTYPE html><html>not found</html>")
    problems = verify_checkpoint(good)
    assert name in problems[0]
    if damage == "lfs" and name != "manifest.json":
        assert "git lfs pull" in problems[0]
    with pytest.raises(UserError):
        read_checkpoint(good)


def test_verify_of_what_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert verify_checkpoint(tmp_path / "file") == ["it is not a folder"]
    assert verify_checkpoint(tmp_path / "missing") == ["it does not exist"]


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '"x"', '{"files": []}', '{"format": true}', "[" * 100_000]
)
def test_manifest_of_any_json(good: Path, text: str) -> None:
    (good / "manifest.json").write_text(text)
    assert "manifest.json is damaged" in verify_checkpoint(good)[0]
    assert [(info.complete, info.sequence) for info in list_checkpoints(good.parent)] == [(False, 0)]


def test_list_is_by_step_and_only_of_checkpoints(tmp_path: Path) -> None:
    save(tmp_path, 100, 9, 20)
    for name in (
        "checkpoint_x",
        "checkpoint_01",
        "checkpoint_-1",
        "checkpoint_5.mdl",
        "checkpoint_٣",
        "train",
    ):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint_7").write_text("a file")
    (tmp_path / "checkpoint_8").mkdir()
    found = [(info.step, info.complete) for info in list_checkpoints(tmp_path)]
    assert found == [(8, False), (9, True), (20, True), (100, True)]
    assert list_checkpoints(tmp_path / "nowhere") == []
    assert list_checkpoints(tmp_path / "checkpoint_7") == []


def test_last_good_one_is_found_behind_damaged_ones(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3, 4)
    (tmp_path / "checkpoint_4" / "manifest.json").unlink()
    data = bytearray((tmp_path / "checkpoint_3" / "model.safetensors").read_bytes())
    data[-2] ^= 4
    (tmp_path / "checkpoint_3" / "model.safetensors").write_bytes(data)
    (tmp_path / "checkpoint_1" / "state.json").unlink()  # older than the good one: nobody needs to know
    notes: list[str] = []
    found = find_last_good(tmp_path, notes.append)
    assert found is not None
    assert found.step == 2
    assert len(notes) == 2
    assert "checkpoint_4: manifest.json is missing" in notes[0]
    assert "checkpoint_3: model.safetensors is damaged" in notes[1]


def test_nothing_good(tmp_path: Path) -> None:
    notes: list[str] = []
    assert find_last_good(tmp_path, notes.append) is None
    assert find_last_good(tmp_path / "nowhere", notes.append) is None
    assert notes == []
    (tmp_path / "checkpoint_100.mdl").write_bytes(b"")
    assert find_last_good(tmp_path, notes.append) is None
    assert "old layout" in notes.pop()


def test_run_started_again_from_an_older_step_is_continued(tmp_path: Path) -> None:
    """The highest step may be of a training that was given up; what was written last is what goes on."""
    save(tmp_path, 100, 200, 300)
    save(tmp_path, 150)
    notes: list[str] = []
    found = find_last_good(tmp_path, notes.append)
    assert found is not None
    assert found.step == 150
    assert notes == ["Taking checkpoint_150: it was written after checkpoint_300."]
    # a damaged one is passed over in its place in that order
    (tmp_path / "checkpoint_150" / "state.json").write_text("")
    notes.clear()
    found = find_last_good(tmp_path, notes.append)
    assert found is not None
    assert found.step == 300


def test_copy_to_another_folder_keeps_the_order(tmp_path: Path) -> None:
    save(tmp_path / "a", 10, 20, 15)
    for step in (15, 10, 20):  # in another order, so that file times say nothing
        shutil.copytree(tmp_path / "a" / f"checkpoint_{step}", tmp_path / "b" / f"checkpoint_{step}")
    found = find_last_good(tmp_path / "b", lambda note: None)
    assert found is not None
    assert found.step == 15


def test_checkpoint_pruned_while_it_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation beside a training: the only checkpoint is replaced by a newer one in the meantime."""
    save(tmp_path, 1)
    verify = checkpoint_folder.verify_checkpoint

    def verify_late(path: Path) -> list[str]:
        if path.name == "checkpoint_1":
            save(tmp_path, 2, max_checkpoints=1)
        return verify(path)

    monkeypatch.setattr(checkpoint_folder, "verify_checkpoint", verify_late)
    notes: list[str] = []
    found = find_last_good(tmp_path, notes.append)
    assert found is not None
    assert found.step == 2
    assert notes == []


def test_state_that_contradicts_the_manifest(good: Path) -> None:
    manifest = parse_manifest((good / "manifest.json").read_bytes())
    for state, problem in (
        ({"format": 1, "step": 6, "counters": {}, "stored": {}}, "of step 6"),
        ({"format": 3, "step": 5, "counters": {}, "stored": {}}, "format 1"),
        ({"format": 1, "step": 5}, "lacks"),
        ([], "format 1"),
    ):
        (good / "state.json").write_text(json.dumps(state))
        files = {**manifest.files, "state.json": hash_file(good / "state.json")}
        (good / "manifest.json").write_text(render_manifest(Manifest(5, 1, files)))
        assert problem in verify_checkpoint(good)[0]


def test_manifest_cannot_point_elsewhere(good: Path) -> None:
    manifest = parse_manifest((good / "manifest.json").read_bytes())
    (good.parent / "outside").write_text("")
    files = {**manifest.files, "../outside": hash_file(good.parent / "outside")}
    (good / "manifest.json").write_text(render_manifest(Manifest(5, 1, files)))
    assert "outside the checkpoint" in verify_checkpoint(good)[0]
