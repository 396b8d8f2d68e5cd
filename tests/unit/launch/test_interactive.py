"""`portwright shell` in a container; test_submit.py has the rest of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from portwright.launch.interactive import make_shell
from portwright.launch.planning import Request


@pytest.mark.parametrize(("kind", "has_nv"), [("apptainer", True), ("ch-run", False)])
def test_flags_of_the_site_are_not_given_to_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, has_nv: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    words = make_shell(Request("", site="slurm-gpu", container=kind, image=str(tmp_path / "image"))).words
    assert any(kind in word for word in words)
    assert any("--nv" in word for word in words) is has_nv
