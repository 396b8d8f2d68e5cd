"""Files and folders that cannot be read or written: each is a finding of its own, and the rest goes on."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from portwright.errors import UserError
from portwright.port import apply, files
from portwright.port.api import check, port
from portwright.port.report_formats import FORMATS, render
from portwright.port.undo import undo

GOOD = b"import torch\nx = torch.zeros(3).cuda()\n"
BAD = {
    "latin.py": b"import torch\nx = '\xe9'\n",
    "nul.py": b"import torch\nx = '\0'\n",
    "utf16.py": "import torch\n".encode("utf-16"),
    "huge.py": b"import torch\n" + b"x = 1\n" * 800_000,
    "newer.py": b"import torch\nmatch = lambda: (yield)\ntry:\n    pass\nexcept* A, B:\n    pass\n",
    "parentheses.py": b"import torch\nx = " + b"(" * 3000 + b"1" + b")" * 3000,
    "minus.py": b"import torch\nx = " + b"-" * 100_000 + b"1\n",
    "plus.py": b"import torch\nx = " + b"+".join([b"1"] * 20_000),
    "chain.py": b"import torch\nx = torch.zeros(1)" + b".cuda()" * 3000,
    "coding.py": b"# coding: no-such-thing\nimport torch\n",
    "broken.ipynb": b"{",
    "strange.ipynb": b'{"cells": [1, {"cell_type": "code", "source": 3}], "torch": 1}',
}
FINE = {"empty.py": b"", "comment.py": b"# torch", "feed.py": b"import torch\n\x0c\nx = 1\n"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    for name, content in {**BAD, **FINE, "good.py": GOOD, "line\nend.py": GOOD}.items():
        (folder / name).write_bytes(content)
    (folder / "deep").mkdir()
    (folder / "deep" / "inner.py").write_bytes(GOOD)
    (folder / os.fsdecode(b"odd\xff.py")).write_bytes(GOOD)
    (folder / "folder.py").mkdir()
    os.mkfifo(folder / "pipe.py")
    for name, goal in {
        "self.py": "self.py",
        "nowhere.py": "x",
        "loop": "loop",
        "up": "..",
        "same.py": "good.py",
    }.items():
        (folder / name).symlink_to(goal)
    (tmp_path / "outside.py").write_bytes(GOOD)
    return folder


UNREAD = {*BAD, "pipe.py", "self.py", "nowhere.py"}
REWRITTEN = {"good.py", "line\nend.py", "deep/inner.py", os.fsdecode(b"odd\xff.py")}


def names(paths: list[str], tree: Path) -> set[str]:
    return {Path(path).relative_to(tree).as_posix() for path in paths}


def test_check_says_why_of_each(tree: Path) -> None:
    result = check([tree], ["csx"], use_cache=False)
    findings = result.findings
    assert names([f.path for f in findings if f.code == "PW001"], tree) == UNREAD
    assert names([f.path for f in findings if f.code == "PW502"], tree) == REWRITTEN
    for format in FORMATS:
        text = render(result, format)
        assert "good.py" in text
    json.loads(render(result, "sarif"))


def contents(folder: Path) -> dict[Path, bytes]:
    return {
        p: p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and ".portwright" not in p.relative_to(folder).parts
    }


def test_port_and_undo(tree: Path) -> None:
    before = contents(tree.parent)
    done = port([tree], ["csx"], write=True)
    after = contents(tree.parent)
    assert names(done.changed, tree) == REWRITTEN
    assert {p.relative_to(tree).as_posix() for p in after if after[p] != before[p]} == REWRITTEN | {"same.py"}
    assert (tree / "same.py").is_symlink()
    undone = undo([tree])  # of the folders below too, each of which is a project of its own here
    assert {u.path.relative_to(tree).as_posix() for u in undone} == REWRITTEN
    assert contents(tree.parent) == before


def test_copy(tree: Path) -> None:
    done = port([tree], ["csx"], out=tree.parent / "out")
    assert names(done.not_copied, tree) == {"pipe.py", "self.py", "nowhere.py"}
    copied = contents(tree.parent / "out")
    assert copied[tree.parent / "out" / "latin.py"] == BAD["latin.py"]
    assert b".cuda" not in copied[tree.parent / "out" / "good.py"]


def test_a_folder_that_cannot_be_listed(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in, since whoever is root can list everything."""
    plain = os.scandir

    def scandir(folder: Path) -> object:
        if Path(folder).name == "deep":
            raise PermissionError(13, "Permission denied")
        return plain(folder)

    monkeypatch.setattr(files.os, "scandir", scandir)
    findings = check([tree], ["csx"], use_cache=False).findings
    (found,) = [f for f in findings if f.path.endswith("deep")]
    assert found.message == "not checked, for it is a folder that cannot be listed"
    assert any(f.path.endswith("good.py") for f in findings)
    with pytest.raises(UserError, match="Cannot list"):
        check([tree / "deep"], ["csx"], use_cache=False)


def test_a_folder_whose_marks_cannot_be_asked_for(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Path.exists

    def exists(self: Path) -> bool:
        if "deep" in self.parts:
            raise PermissionError(13, "Permission denied")
        return plain(self)

    monkeypatch.setattr(Path, "exists", exists)
    assert any(path.name == "good.py" for path in files.find_files([tree]))


def test_where_nothing_can_be_saved_nothing_is_written(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = apply.save_originals

    def save(root: Path, *args: object) -> Path:
        if root.name == "deep":
            raise PermissionError(13, "Permission denied")
        return plain(root, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(apply, "save_originals", save)
    done = port([tree], ["csx"], write=True)
    assert names(done.changed, tree) == REWRITTEN - {"deep/inner.py"}
    assert (tree / "deep" / "inner.py").read_bytes() == GOOD
    left = [f for f in done.left if f.path.endswith("inner.py")]
    assert [f.code for f in left] == ["PW001", "PW502"]
    assert "permission denied" in left[0].message
    undo([tree])
    assert (tree / "good.py").read_bytes() == GOOD


def test_all_is_saved_before_anything_is_written(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    save, write = apply.save_originals, apply.atomic_write_bytes
    monkeypatch.setattr(apply, "save_originals", lambda *a: (order.append("save"), save(*a))[1])
    monkeypatch.setattr(apply, "atomic_write_bytes", lambda *a: (order.append("write"), write(*a))[1])
    port([tree], ["csx"], write=True)
    assert order == sorted(order)
    assert order.count("save") == 2


def test_a_read_only_file_stays(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "good.py").chmod(0o444)
    plain = os.access
    monkeypatch.setattr(apply.os, "access", lambda p, mode: plain(p, mode) and (mode != os.W_OK or bool(Path(p).stat().st_mode & stat.S_IWUSR)))  # fmt: skip
    done = port([tree], ["csx"], write=True)
    assert "good.py" not in names(done.changed, tree)
    assert (tree / "good.py").read_bytes() == GOOD
    (blocked,) = [f for f in done.left if f.path.endswith("/good.py") and f.code == "PW001"]
    assert "read-only" in blocked.message


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[tool.portwright]\n# \xff\n", "not utf-8"),
        (b"[tool.portwright\n", "is not TOML"),
        (b"[tool]\nportwright = 3\n", "tool.portwright is 3"),
        (b"tool = 3 # portwright\n", None),
        (b"\xff\xfe", None),
    ],
)
def test_settings_that_cannot_be_read(content: bytes, reason: str | None, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(content)
    (tmp_path / "good.py").write_bytes(GOOD)
    if reason is None:
        assert check([tmp_path], ["csx"], use_cache=False).findings
    else:
        with pytest.raises(UserError, match=reason):
            check([tmp_path], ["csx"], use_cache=False)
