"""A user's commands: check, port, undo, explain."""

from __future__ import annotations

import json
import os
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = '''\
"""Train a small recurrent model on made-up data."""
import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
args = parser.parse_args()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(3, 4, 3, padding=1)
        self.rnn = nn.GRU(4, 8, batch_first=True)
        self.out = nn.Linear(8, 2)

    def forward(self, x):
        steps = torch.arange(x.size(2)).float()  # a host tensor
        h, _ = self.rnn((self.conv(x) + steps).transpose(1, 2))
        return self.out(torch.flip(h, [1])[:, 0].contiguous().view(x.size(0), -1))


def main():
    torch.manual_seed(0)
    torch.cuda.manual_seed(0)
    data = TensorDataset(torch.randn(64, 3, 10), torch.randint(0, 2, (64,)))
    loader = DataLoader(data, batch_size=16, shuffle=True, pin_memory=True)
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.CrossEntropyLoss()
    for _ in range(args.epochs):
        total = 0.0
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print("loss", round(total / len(loader), 5))


main()
'''


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").write_text("")
    (folder / "train.py").write_text(SCRIPT)
    return folder


def portwright(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "portwright.cli", *arguments],
        cwd=project,
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(project.parent / "cache"), "PYTHONWARNINGS": ""},
    )


def run_script(path: Path) -> str:
    ran = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
    return ran.stdout


def test_from_check_to_a_port_that_computes_the_same_and_back(project: Path) -> None:
    checked = portwright(project, "check", "train.py", "--target", "csx")
    assert checked.returncode == 1
    assert "train.py:17:21: PW320 nn.Conv1d" in checked.stdout

    shown = portwright(project, "port", "train.py", "--target", "csx")
    assert shown.returncode == 1
    assert "+        self.rnn = legal.GRU(4, 8, batch_first=True)" in shown.stdout
    assert (project / "train.py").read_text() == SCRIPT

    before = run_script(project / "train.py")
    wrote = portwright(project, "port", "train.py", "--target", "csx", "--write")
    assert wrote.returncode == 1  # the loop itself is left
    assert "PW401" in wrote.stderr
    text = (project / "train.py").read_text()
    assert "cuda" not in text
    assert ".to(device)" not in text
    assert run_script(project / "train.py") == before

    again = portwright(project, "port", "train.py", "--target", "csx", "--write", "--json")
    assert json.loads(again.stdout)["changed"] == []
    assert (project / "train.py").read_text() == text

    back = portwright(project, "undo", "train.py")
    assert (back.returncode, back.stdout) == (0, "train.py: restored\n")
    assert (project / "train.py").read_text() == SCRIPT
    assert portwright(project, "undo", "train.py").returncode == 2


def test_documents(project: Path) -> None:
    checked = json.loads(portwright(project, "check", "train.py", "-t", "csx", "--json").stdout)
    assert list(checked) == ["findings", "entries", "summary"]
    assert list(checked["findings"][0]) == [
        "code", "path", "line", "column", "message", "cure", "safety", "targets",
    ]  # fmt: skip
    ported = json.loads(
        portwright(project, "port", ".", "-t", "csx", "--out", "ported", "--unsafe", "--json").stdout
    )
    assert list(ported) == ["changed", "fixed", "left", "summary"]
    assert ported["changed"] == ["train.py"]
    assert {f["safety"] for f in ported["fixed"]} == {"safe", "unsafe"}
    assert {f["safety"] for f in ported["left"]} == {"manual"}
    py_compile.compile(str(project / "ported" / "train.py"), doraise=True)
    assert "drop_last=True" in (project / "ported" / "train.py").read_text()
    sarif = json.loads(portwright(project, "check", "train.py", "--format", "sarif").stdout)
    assert len(sarif["runs"][0]["results"]) >= len(checked["findings"])
    page = portwright(project, "check", "train.py", "--format", "html", "--out", "page.html")
    assert page.stdout == ""
    assert (project / "page.html").read_text().startswith("<!DOCTYPE html>")
    # The copy is not checked with the project that it is a copy of.
    assert {
        f["path"] for f in json.loads(portwright(project, "check", ".", "--json").stdout)["findings"]
    } == {"train.py"}


def test_statuses_and_errors(project: Path) -> None:
    (project / "fine.py").write_text("x = 1\n")
    fine = portwright(project, "check", "fine.py")
    assert fine.returncode == 1
    assert "cannot tell, because no training loop was found in fine.py" in fine.stdout
    assert portwright(project, "port", "fine.py", "-t", "csx").returncode == 0
    for arguments, says in [
        (("check", "no.py"), "does not exist"),
        (("check", "."  , "--target", "tpu"), "unknown target 'tpu'"),
        (("check", ".", "--format", "xml"), "unknown format 'xml'"),
        (("check", ".", "--select", "PW9"), "no rule is called 'PW9'"),
        (("check", ".", "--jobs", "0"), "jobs"),
        (("check",), "paths"),
        (("port", "train.py"), "one target"),
        (("port", "train.py", "-t", "csx", "--write", "--out", "x"), "choose one"),
        (("undo", "train.py"), "nothing was saved"),
        (("explain", "PW20"), "Did you mean 'PW"),
    ]:  # fmt: skip
        ran = portwright(project, *arguments)
        assert ran.returncode == 2, arguments
        assert says in ran.stderr
        assert ran.stderr.startswith("error: ")
        assert ran.stderr.count("\n") == 1
    assert (project / "train.py").read_text() == SCRIPT


def test_explain(project: Path) -> None:
    by_code, by_name = (portwright(project, "explain", name).stdout for name in ("pw201", "item-in-step"))
    assert by_code == by_name
    assert by_code.startswith("# PW201 item-in-step\n")
    assert "PW604" in portwright(project, "explain").stdout
    assert "could not be read" in portwright(project, "explain", "pw001").stdout
    described = json.loads(portwright(project, "explain", "PW320", "--json").stdout)
    assert (described["safety"], described["targets"]) == ("safe", ["csx"])


def test_rules_of_another_package(project: Path) -> None:
    """A rule comes by entry point, as targets do."""
    (project / "house_rule.py").write_text(
        "from portwright.port.rule import Rule\n\n\n"
        "class House(Rule):\n"
        '    """Finds assert."""\n\n'
        "    code, name, targets, safety = 'PW199', 'house', ('csx',), 'manual'\n"
        "    words, cure = ('assert',), 'Raise an error.'\n\n"
        "    def find(self, file):\n"
        "        import ast\n\n"
        "        for node in file.tree.all(ast.Assert):\n"
        "            yield self.report(file, node, 'an assert')\n"
    )
    info = project / "house-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: house\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[portwright.rules]\nhouse = house_rule:House\n")
    (project / "x.py").write_text("import torch\nassert torch\n")
    ran = subprocess.run(
        [sys.executable, "-m", "portwright.cli", "check", "x.py", "--no-cache"],
        cwd=project, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(project)},
    )  # fmt: skip
    assert "x.py:2:1: PW199 an assert" in ran.stdout
    shutil.rmtree(info)


def test_a_killed_port_leaves_whole_files_that_undo_brings_back(project: Path) -> None:
    before = "import torch\n" + "x = torch.zeros(3).cuda()\n" * 5
    after = before.replace(".cuda()", "")
    files = [project / f"m{i:02}.py" for i in range(80)]
    for path in files:
        path.write_text(before)
    port = subprocess.Popen(
        [sys.executable, "-m", "portwright.cli", "port", ".", "-t", "csx", "--write"],
        cwd=project, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while port.poll() is None and files[5].read_text() == before:
        pass
    port.kill()
    port.wait()
    assert {path.read_text() for path in files} <= {before, after}
    assert portwright(project, "undo", ".").returncode == 0
    assert {path.read_text() for path in files} == {before}
    assert (project / "train.py").read_text() == SCRIPT


CORPUS = os.environ.get("PORTWRIGHT_CORPUS")


@pytest.mark.skipif(CORPUS is None, reason="PORTWRIGHT_CORPUS=DIR names no folder of public projects")
@pytest.mark.slow
def test_public_projects_are_ported_without_a_crash_and_once() -> None:
    from portwright.port.apply import make_port
    from portwright.port.config import Config, make_selection
    from portwright.port.files import find_files
    from portwright.port.patch import make_patch
    from portwright.port.project import Project, find_root

    projects = sorted(p for p in Path(CORPUS or "").iterdir() if p.is_dir())
    assert projects
    for project in projects:
        files = find_files([project])
        for target in ("csx", "ipu", "rdu"):
            selection = make_selection(Config(), [target], [], [])
            port = make_port(files, selection, ("safe", "unsafe"))
            assert [f.message for f in port.left if f.code == "PW002"] == [], project
            overlay = {path: patch.after for path, patch in port.changed.items()}
            for path, patch in port.changed.items():
                patch.after.parse()
                again = make_patch(
                    patch.after, Project(find_root(path), overlay), selection, ("safe", "unsafe")
                )
                assert not again.is_change, path


@pytest.mark.parametrize(
    ("words", "status", "error"),
    [
        (["check", "nowhere.py", "--json"], 2, "'nowhere.py' does not exist"),
        (["port", "train.py", "--target", "cxs", "--json"], 2, "unknown target 'cxs'"),
        (["port", "train.py", "--tarjet", "csx", "--json"], 2, "No such option: --tarjet"),
        (["undo", "train.py", "--json"], 2, "nothing was saved"),
        (["verify", "train.py", "nowhere.py", "--json"], 2, "no script nowhere.py"),
        (["verify", "train.py", "train.py", "--front-end", "ipu", "--json"], 1, "IPU has no front end"),
    ],
)
def test_a_failure_is_a_document_too(words: list[str], status: int, error: str, project: Path) -> None:
    done = portwright(project, *words)
    assert done.returncode == status
    document = json.loads(done.stdout)
    assert list(document) == ["status", "error", "cure"]
    assert document["status"] == status
    assert error in document["error"]
    assert done.stderr.startswith("error: ")
