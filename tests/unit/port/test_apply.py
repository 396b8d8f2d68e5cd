"""Writing ports, and taking them back."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from portwright.errors import UserError
from portwright.port import api
from portwright.port.undo import STORE, undo

BEFORE = "import torch\n\nm = torch.nn.Linear(2, 2)\nm.cuda()\n"
AFTER = "import torch\n\nm = torch.nn.Linear(2, 2)\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "train.py").write_text(BEFORE)
    return tmp_path


def write(path: Path, **options: bool) -> api.PortResult:
    return api.port([path], ["csx"], write=True, **options)


def test_write_and_undo(project: Path) -> None:
    path = project / "train.py"
    path.chmod(0o755)
    done = write(path)
    assert done.changed == ["train.py"]
    assert [f.code for f in done.fixed] == ["PW502"]
    assert path.read_text() == AFTER
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert write(path).changed == []
    assert [(u.path, u.was_changed) for u in undo([path])] == [(path, True)]
    assert path.read_text() == BEFORE
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert list((project / STORE).iterdir()) == []
    with pytest.raises(UserError, match="nothing was saved"):
        undo([path])


def test_undo_goes_back_one_port_at_a_time(project: Path) -> None:
    path = project / "train.py"
    write(path)
    path.write_text(AFTER + "m.cuda()\nx = 1\n")
    write(path)
    assert path.read_text() == AFTER + "x = 1\n"
    undo([path])
    assert path.read_text() == AFTER + "m.cuda()\nx = 1\n"
    with pytest.raises(UserError, match="edited after"):
        undo([path])
    undo([path], force=True)
    assert path.read_text() == BEFORE


def test_undo_refuses_all_where_one_file_was_edited(project: Path) -> None:
    other = project / "other.py"
    other.write_text(BEFORE)
    write(project)
    other.write_text("mine\n")
    with pytest.raises(UserError, match=r"other\.py was edited"):
        undo([project])
    assert (project / "train.py").read_text() == AFTER
    assert other.read_text() == "mine\n"
    undo([project / "train.py"])
    assert (project / "train.py").read_text() == BEFORE


def test_undo_after_a_write_that_was_killed(project: Path) -> None:
    """The originals are saved before the first file is written, so files that were not reached are as before."""
    path = project / "train.py"
    write(path)
    path.write_text(BEFORE)
    assert [u.was_changed for u in undo([path])] == [False]


def test_undo_restores_a_file_that_was_deleted(project: Path) -> None:
    path = project / "train.py"
    write(path)
    path.unlink()
    undo([path])
    assert path.read_text() == BEFORE


def test_damaged_originals_are_not_restored(project: Path) -> None:
    path = project / "train.py"
    write(path)
    (saved,) = (project / STORE).iterdir()
    (saved / "00000").write_text("something else")
    with pytest.raises(UserError, match="damaged"):
        undo([path])
    (saved / "files.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        undo([path])
    assert path.read_text() == AFTER


def test_the_store_is_kept_out_of_git(project: Path) -> None:
    write(project / "train.py")
    assert (project / ".portwright" / ".gitignore").read_text() == "*\n"


def test_nothing_is_written_without_being_asked(project: Path) -> None:
    done = api.port([project / "train.py"], ["csx"])
    assert "-m.cuda()" in done.diff
    assert (project / "train.py").read_text() == BEFORE
    assert not (project / ".portwright").exists()


def test_a_copy_runs_by_itself(project: Path) -> None:
    (project / "net.py").write_text("import torch\nm = torch.zeros(1).cuda()\n")
    (project / "train.py").write_text("import net\n" + BEFORE)
    (project / "data.txt").write_text("data")
    (project / ".git").mkdir()
    out = project / "ported"
    done = api.port([project / "train.py"], ["csx"], out=out)
    assert sorted(p.name for p in out.iterdir()) == [".portwright", "net.py", "train.py"]
    assert (out / "train.py").read_text() == "import net\n" + AFTER
    assert ".cuda()" in (out / "net.py").read_text()  # it was not named
    assert done.not_ported == ["net.py"]
    assert (project / "train.py").read_text() == "import net\n" + BEFORE

    api.port([project], ["csx"], out=out)
    assert sorted(p.name for p in out.iterdir()) == [
        ".portwright",
        "data.txt",
        "net.py",
        "pyproject.toml",
        "train.py",
    ]
    assert ".cuda()" not in (out / "net.py").read_text()
    assert api.port([project], ["csx"], out=out).changed == ["net.py", "train.py"]


def test_a_copy_never_replaces_what_is_not_its_own(project: Path) -> None:
    out = project / "out"
    api.port([project / "train.py"], ["csx"], out=out)
    (out / "train.py").write_text("edited")
    with pytest.raises(UserError, match="was changed or added"):
        api.port([project / "train.py"], ["csx"], out=out)
    (project / "mine").mkdir()
    (project / "mine" / "x").write_text("x")
    with pytest.raises(UserError, match="not written by"):
        api.port([project / "train.py"], ["csx"], out=project / "mine")
    with pytest.raises(UserError, match="is or holds"):
        api.port([project], ["csx"], out=project)
    with pytest.raises(UserError, match="is a file"):
        api.port([project / "train.py"], ["csx"], out=project / "pyproject.toml")
    with pytest.raises(UserError, match="choose one"):
        api.port([project], ["csx"], out=out, write=True)


def test_large_files_are_not_copied_and_said(project: Path) -> None:
    (project / "weights.bin").write_bytes(b"0" * 1_000_001)
    done = api.port([project], ["csx"], out=project / "out")
    assert done.not_copied == ["weights.bin"]


def test_one_target_is_needed(project: Path) -> None:
    with pytest.raises(UserError, match="one target"):
        api.port([project / "train.py"], [])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_an_error(project: Path) -> None:
    project.chmod(0o555)
    try:
        with pytest.raises(UserError, match="Cannot write"):
            write(project / "train.py")
    finally:
        project.chmod(0o755)
    assert (project / "train.py").read_text() == BEFORE


def test_a_file_that_cannot_be_written_stays_a_finding(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from portwright.port import apply

    (project / "other.py").write_text(BEFORE)
    real = apply.atomic_write_bytes

    def refuse(path: Path, data: bytes) -> None:
        if path.name == "train.py":
            raise UserError(f"Cannot write {path}: permission denied.", "Ask for it.")
        real(path, data)

    monkeypatch.setattr(apply, "atomic_write_bytes", refuse)
    done = write(project)
    assert done.changed == ["other.py"]
    assert [(f.path, f.code) for f in done.left] == [("train.py", "PW001"), ("train.py", "PW502")]
    assert (project / "other.py").read_text() == AFTER
    assert (project / "train.py").read_text() == BEFORE


def test_unreadable_files_do_not_stop_the_rest(project: Path) -> None:
    (project / "bad.py").write_text("import torch\nx = = 1\n")
    (project / "latin.py").write_bytes(b"import torch\n# \xe9\n")
    (project / "loop").symlink_to(project)
    (project / "itself.py").symlink_to("itself.py")
    done = write(project)
    assert done.changed == ["train.py"]
    assert {f.path for f in done.left if f.code == "PW001"} == {"bad.py", "latin.py", "itself.py"}


def test_two_names_of_one_file_are_one_file(project: Path) -> None:
    (project / "link.py").symlink_to("train.py")
    assert len(write(project).changed) == 1
    assert (project / "link.py").is_symlink()
    assert (project / "train.py").read_text() == AFTER


def test_a_change_in_one_file_is_seen_from_another(project: Path) -> None:
    """A class that leaves torch is no layer of torch's any more, also where it is imported."""
    (project / "layers.py").write_text("from torch import nn\n\nRnn = nn.LSTM\n")
    (project / "train.py").write_text("from layers import Rnn\nimport torch\n\nnet = Rnn(2, 2)\n")
    done = write(project)
    assert "Rnn = legal.LSTM" in (project / "layers.py").read_text()
    assert write(project).changed == []
    assert done.left == []


def test_saved_originals_name_their_files_relative_to_the_project(project: Path) -> None:
    write(project / "train.py")
    (saved,) = (project / STORE).iterdir()
    assert [row["path"] for row in json.loads((saved / "files.json").read_text())] == ["train.py"]


@pytest.mark.parametrize("named", ["spam", "spam/train.py"])
def test_a_package_that_imports_itself_by_name_keeps_its_name_in_a_copy(named: str, tmp_path: Path) -> None:
    package = tmp_path / "project" / "spam"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "model.py").write_text("def make():\n    return 'made'\n")
    (package / "train.py").write_text(
        "import torch\nfrom spam.model import make\nprint(make(), torch.__name__)\n"
    )
    api.port([tmp_path / "project" / named], ["csx"], out=tmp_path / "out")
    assert {p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*.py")} == {
        "spam/__init__.py",
        "spam/model.py",
        "spam/train.py",
    }
    (package / "train.py").write_text("from .model import make\nprint(make())\n")
    api.port([tmp_path / "project" / named], ["csx"], out=tmp_path / "flat")
    assert (tmp_path / "flat" / "train.py").is_file(), "relative imports hold under any name"
    assert (tmp_path / "flat" / "model.py").is_file()


LEFT = """import torch


def train(model, loader, optimizer):
    model.cuda()
    for x in loader:
        x = x.cuda()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
"""


def test_what_is_left_stands_where_it_is_said_to(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    script = project / "train.py"
    script.write_text(LEFT)

    def left(**options: Any) -> list[str]:
        done = api.port([script], ["csx"], ["PW401", "PW502"], **options)
        found = [(Path(f.path), f.line) for f in done.left]
        return [f"{path}: {path.read_text().splitlines()[line - 1].strip()}" for path, line in found]

    assert left() == ["train.py: loss.backward()"], "nothing was written: the lines are those of the file"
    assert left(out=project / "out") == ["out/train.py: loss.backward()"]
    assert left(write=True) == ["train.py: loss.backward()"]
    assert "cuda" not in script.read_text()


def test_what_is_left_of_a_notebook_is_in_the_order_of_its_cells(project: Path) -> None:
    texts = ["import torch\nmodel.cuda()\n" + LEFT, "x = 1\n", LEFT.partition("\n\n\n")[2]]
    cells = [
        {
            "cell_type": "code",
            "id": str(i),
            "metadata": {},
            "outputs": [],
            "execution_count": None,
            "source": t,
        }
        for i, t in enumerate(texts)
    ]
    book = project / "book.ipynb"
    book.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    done = api.port([book], ["csx"], ["PW401", "PW502"])
    assert [(f.message.partition(":")[0], f.line) for f in done.left] == [("cell 1", 11), ("cell 3", 6)]
