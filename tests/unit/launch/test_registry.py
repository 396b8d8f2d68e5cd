"""Which jobs a user has."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from portwright.errors import UserError
from portwright.launch import local, registry, slurm
from portwright.launch.queue_words import explain_word
from portwright.launch.registry import Entry, ask_state, list_entries
from portwright.launch.slurm import SlurmState
from portwright.launch.watch import look_at_job


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "the state"))


def make_entry(tmp_path: Path, name: str = "mine-1", **more: object) -> Entry:
    folder = tmp_path / "jobs" / name
    folder.mkdir(parents=True, exist_ok=True)
    values = {"scheduler_id": "7", "submitted": "2026-01-01T00:00:00+00:00", **more}
    return Entry(name, folder, "local", "none", **values)  # type: ignore[arg-type]


def test_what_is_written_is_found_by_name_id_and_folder(tmp_path: Path) -> None:
    entry = make_entry(tmp_path, title='it\'s "mine" ü', model_dir="/a b")
    registry.write_entry(entry)
    (entry.folder / "manifest.json").write_text("{}")
    assert registry.find_entry("mine-1") == entry
    assert registry.find_entry("7") == entry
    assert registry.find_entry(str(entry.folder)) == entry
    assert registry.names() == {"mine-1"}


def test_an_id_that_two_clusters_gave_means_the_newest(tmp_path: Path) -> None:
    registry.write_entry(make_entry(tmp_path, "new-1", submitted="2026-02-01T00:00:00+00:00"))
    registry.write_entry(make_entry(tmp_path, "old-1"))
    assert registry.find_entry("7").name == "new-1"


def test_a_name_goes_before_an_id(tmp_path: Path) -> None:
    registry.write_entry(make_entry(tmp_path, "8"))
    registry.write_entry(make_entry(tmp_path, "other-1", scheduler_id="8"))
    assert registry.find_entry("8").name == "8"


def test_the_folder_of_another_users_job(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    manifest = {
        "name": "x-1",
        "site": "s",
        "scheduler": "slurm",
        "time": "t",
        "model_dir": "/m",
        "subject": "x",
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert registry.find_entry(str(folder)).scheduler_id == ""
    (folder / "scheduler_id").write_text("12\n")
    found = registry.find_entry(str(folder))
    assert (found.name, found.scheduler, found.scheduler_id, found.model_dir) == ("x-1", "slurm", "12", "/m")
    registry.note_end(found, "done", 0)
    assert registry.read_entries() == []  # it is not ours


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": 3}'])
def test_a_folder_whose_manifest_is_not_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(UserError, match="not that of a job"):
        registry.find_entry(str(tmp_path))


def test_what_does_not_exist_is_told_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No job has been submitted"):
        registry.find_entry("mine")
    registry.write_entry(make_entry(tmp_path))
    with pytest.raises(UserError, match="Did you mean 'mine-1'"):
        registry.find_entry("mine")
    with pytest.raises(UserError, match="not that of a job"):
        registry.find_entry(str(tmp_path))
    with pytest.raises(UserError, match="empty"):
        registry.find_entry(" ")


def test_a_damaged_file_hides_no_other(tmp_path: Path) -> None:
    registry.write_entry(make_entry(tmp_path))
    for number, text in enumerate(["", "{", "[]", "null", '{"name": "x"}', '{"unknown": 1}']):
        (registry.registry_folder() / f"bad-{number}.json").write_text(text)
    (registry.registry_folder() / "newer.json").write_text(
        json.dumps(
            {"name": "newer", "folder": "/x", "site": "s", "scheduler": "none", "of_a_later_release": 1}
        )
    )
    assert [entry.name for entry in registry.read_entries()] == ["newer", "mine-1"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"submitted": None},
        {"name": None},
        {"name": 3},
        {"model_dir": 3},
        {"model_dir": "/a\0b"},
        {"model_dir": "/\ud800"},
        {"folder": "/a\0b"},
        {"folder": None},
        {"site": ["local"]},
        {"scheduler": {}},
        {"scheduler_id": 7},
        {"title": None},
        {"error": False},
        {"ended": 1},
        {"status": "3"},
        {"status": True},
        {"reason": None},
    ],
    ids=str,
)
def test_a_file_with_values_of_another_kind_hides_no_other(tmp_path: Path, wrong: dict[str, object]) -> None:
    registry.write_entry(make_entry(tmp_path))
    registry.write_entry(make_entry(tmp_path, "bad-1"))
    path = registry.registry_folder() / "bad-1.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **wrong}))
    assert [entry.name for entry in list_entries(everything=True)[0]] == ["mine-1"]
    path.write_text(100_000 * "[")
    assert [entry.name for entry in registry.read_entries()] == ["mine-1"]


def test_an_end_is_remembered(tmp_path: Path) -> None:
    entry = make_entry(tmp_path)
    registry.write_entry(entry)
    registry.note_end(entry, "failed", 3)
    state = ask_state(registry.find_entry("mine-1"))
    assert (state.state, state.exit) == ("failed", 3)


def test_the_reason_of_an_end_is_remembered(tmp_path: Path) -> None:
    entry = make_entry(tmp_path)
    registry.write_entry(entry)
    (entry.folder / "supervisor.json").write_text(
        json.dumps({"pid": 1, "started": "x", "host": socket.gethostname()})
    )
    first = ask_state(registry.find_entry("mine-1"))
    assert first.state == "failed"
    assert "is gone" in first.reason
    noted = registry.find_entry("mine-1")
    assert (noted.ended, noted.reason) == ("failed", first.reason)
    assert ask_state(noted).reason == first.reason
    assert first.reason in look_at_job(noted).why_failed  # as `portwright jobs JOB` says it
    # An older release wrote none.
    path = registry.registry_folder() / "mine-1.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "reason"}))
    assert registry.find_entry("mine-1").reason == ""


def test_a_word_of_slurms_is_remembered_as_what_it_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = replace(make_entry(tmp_path), scheduler="slurm")
    registry.write_entry(entry)
    answer = SlurmState("failed", word="TIMEOUT", reason="TimeLimit", ended_seconds=999)
    monkeypatch.setattr(slurm, "job_state", lambda _: answer)
    ask_state(entry)
    assert ask_state(registry.find_entry("mine-1")).reason == explain_word("TIMEOUT") != ""


def set_times(entry: Entry, *, state_is_newer: bool) -> None:
    path = registry.registry_folder() / f"{entry.name}.json"
    os.utime(path, (1000, 1000))
    os.utime(entry.folder / "state.json", (1001, 1001) if state_is_newer else (999, 999))


def test_what_a_folder_says_since_an_end_was_noted_counts(tmp_path: Path) -> None:
    entry = make_entry(tmp_path, ended="cancelled", status=143)
    registry.write_entry(entry)
    (entry.folder / "state.json").write_text('{"state": "done", "status": 0}')
    set_times(entry, state_is_newer=False)
    assert registry.find_entry("mine-1").ended == "cancelled"
    set_times(entry, state_is_newer=True)
    found = registry.find_entry("mine-1")
    assert (found.ended, ask_state(found).state) == ("", "done")
    assert registry.find_entry("mine-1").ended == "done"


def test_a_state_without_processes_is_no_running_job(tmp_path: Path) -> None:
    entry = make_entry(tmp_path, ended="failed")
    registry.write_entry(entry)
    (entry.folder / "state.json").write_text('{"state": "running"}')
    set_times(entry, state_is_newer=True)
    assert registry.find_entry("mine-1").ended == "failed"
    # What job.sh starts is marked, and job.sh itself is not.
    words = ["sleep", "600"]
    task = subprocess.Popen(words, env={**os.environ, local.FOLDER_VARIABLE: str(entry.folder)})
    try:
        found = registry.find_entry("mine-1")
        assert (found.ended, ask_state(found).state) == ("", "running")
        set_times(entry, state_is_newer=False)
        assert registry.find_entry("mine-1").ended == "failed"
    finally:
        task.kill()
        task.wait()


def test_a_job_that_was_not_taken_is_no_running_one(tmp_path: Path) -> None:
    state = ask_state(make_entry(tmp_path, scheduler_id="", error="no such account"))
    assert (state.state, state.reason) == ("failed", "no such account")


def test_of_those_that_ended_the_newest_few_are_listed(tmp_path: Path) -> None:
    for number in range(9):
        entry = make_entry(tmp_path, f"job-{number}", submitted=f"2026-01-0{number + 1}", ended="done")
        registry.write_entry(replace(entry, ended="" if number == 0 else "done"))
    listed, left_out = list_entries(everything=False)
    assert [entry.name for entry in listed] == ["job-0", "job-4", "job-5", "job-6", "job-7", "job-8"]
    assert left_out == 3
    assert len(list_entries(everything=True)[0]) == 9


def test_one_submission_at_a_time(tmp_path: Path) -> None:
    order: list[str] = []
    inside = threading.Event()

    def second() -> None:
        inside.wait()
        with registry.locked():
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with registry.locked():
        inside.set()
        thread.join(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_a_state_folder_that_cannot_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError, match="file"):
        registry.write_entry(make_entry(tmp_path))
