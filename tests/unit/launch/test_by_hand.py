"""A job's script that a person hands to SLURM again is the same job, under another id."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from portwright.launch import registry
from portwright.launch.registry import Entry


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Entry:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "mine-1"
    folder.mkdir()
    entry = Entry("mine-1", folder, "here", "slurm", "7", ended="failed", status=3)
    registry.write_entry(entry)
    return entry


def test_the_id_that_the_script_noted_last_counts(entry: Entry) -> None:
    (entry.folder / "scheduler_id").write_text("7\n")
    assert registry.find_entry("mine-1") == entry
    (entry.folder / "scheduler_id").write_text("12\n")
    found = registry.find_entry("12")
    assert found == replace(entry, scheduler_id="12", ended="", status=None)
    registry.note_end(found, "done", 0)
    assert registry.find_entry("mine-1").ended == "done"


@pytest.mark.parametrize("noted", ["", "nonsense\n", "12;other", None])
def test_what_is_no_id_does_not(entry: Entry, noted: str | None) -> None:
    if noted is not None:
        (entry.folder / "scheduler_id").write_text(noted)
    assert registry.find_entry("mine-1") == entry
