"""Files and folders of a run: whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from portwright.errors import UserError
from portwright.job.rundir import atomic_write_bytes, atomic_write_text


def test_writes_text_and_creates_parents(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "ünï.txt"
    atomic_write_text(target, "grüße\n")
    assert target.read_bytes() == "grüße\n".encode()
    assert list(target.parent.iterdir()) == [target]


def test_parent_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="file is a file, not a folder"):
        atomic_write_bytes(tmp_path / "file" / "sub" / "x.txt", b"")
