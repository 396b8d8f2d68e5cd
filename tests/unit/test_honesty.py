"""What check says today of the small programs of docs/honesty_programs.md, against what the page says that it says."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from honesty.runner import HERE, SAID, TAUGHT, copy_of, load, rows

from portwright.port.api import check

PROGRAMS = load(HERE / "programs.toml")
KEPT = json.loads((HERE / "results.json").read_text())
PUBLIC = json.loads((HERE / "public.json").read_text())


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program["entry"])
def test_check_says_today_what_the_page_says(
    program: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    entry = copy_of(str(program["entry"]), tmp_path)
    monkeypatch.chdir(entry.parent)
    targets = program.get("targets", ["csx"])
    assert isinstance(targets, list)
    (said,) = check([Path(entry.name)], targets).entries
    today = [asdict(row) for row in rows(program, said.as_dict(), entry.parent)]
    kept = [row for row in KEPT if row["program"] == program["entry"]]
    assert len(kept) == len(targets)
    by_target = {row["target"]: row for row in kept}
    for row in today:
        said = {name: by_target[row["target"]][name] for name in SAID}
        assert {name: row[name] for name in SAID} == said, "runner.py --said writes it anew"


def test_every_word_held_and_few_are_that_nobody_can_tell() -> None:
    assert [row["program"] for row in [*KEPT, *PUBLIC] if not row["held"]] == []
    assert {row["program"] for row in KEPT} == {program["entry"] for program in PROGRAMS}
    assert len(PROGRAMS) >= 40
    assert len({row["program"] for row in PUBLIC}) >= 12
    unsure = {row["program"] for row in KEPT if row["verdict"] == "cannot tell"}
    assert len(unsure) <= 8, unsure
    assert TAUGHT in {row["program"] for row in KEPT}
