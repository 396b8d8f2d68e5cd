"""Mutated real files: nothing crashes, and what parsed before still parses after a port.

PORTWRIGHT_FUZZ_FILES=10000 tries that many; a run without it takes seconds.
"""

from __future__ import annotations

import os
import random
import sysconfig
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.port.rule_fixtures import FOLDER

from portwright.port.check import find
from portwright.port.config import Config, make_selection
from portwright.port.patch import make_patch
from portwright.port.project import Project
from portwright.port.source import MAX_BYTES, Source, UnreadableError, decode

NUM_FILES = int(os.environ.get("PORTWRIGHT_FUZZ_FILES", "150"))
TARGETS = {name: make_selection(Config(), [name], [], []) for name in ("csx", "ipu", "rdu")}
ALL = make_selection(Config(), [], [], [])
FIXTURES = [path.read_text() for path in sorted(FOLDER.glob("*.in.py"))]
PIECES = [
    "torch", "nn.", ".cuda()", ".to(device)", "(", ")", "[", "]", ":", "\n", "    ", "\t", "#", "'", '"', "\\\n", ";", ",", "=", "*",
    "**", "lambda x: x", "if x:\n", "def f(x):\n", "class A(nn.Module):\n", "x.item()", "loss.backward()\n", "pass\n", "é", "\r\n", "\x0c",
    "@torch.compile\n", "nn.LSTM(2, 2)", "torch.load(p)", "import torch as T\n", "from torch.nn import *\n", "yield", "await ", "f'{x}'",
    "torch.cuda.synchronize()\n", "for x in loader:\n", "x = x.to(device)\n", "with torch.no_grad():\n", "Variable(x)", "self.", "global x\n",
]  # fmt: skip


def try_port(text: str | bytes) -> bool:
    """Whether a text could be read; asserts all that a port promises of one that could."""
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    project = Project(Path("/nowhere"))
    try:
        source = decode(Path("/nowhere/x.py"), raw)
        found = find(source, project, ALL)
    except UnreadableError:
        return False
    assert [f.message for f in found if f.code == "PW002"] == []
    for selection in TARGETS.values():
        patch = make_patch(source, project, selection, ("safe", "unsafe"))
        assert patch.after.to_bytes() == raw or patch.is_change
        assert [f.message for f in patch.left if f.code == "PW002"] == []
        patch.after.parse()
        again = make_patch(
            decode(source.path, patch.after.to_bytes()), project, selection, ("safe", "unsafe")
        )
        assert not again.is_change, again.after.text
    return True


def mutate(text: str, random_: random.Random) -> str:
    """Cuts, repeats, moves and adds pieces, by lines and by characters."""
    for _ in range(random_.randint(1, 4)):
        lines = text.splitlines(keepends=True) or [""]
        first = random_.randrange(len(lines))
        last = min(len(lines), first + random_.randint(1, 6))
        kind = random_.randrange(7)
        if kind == 0:
            del lines[first:last]
        elif kind == 1:
            lines[first:first] = lines[first:last]
        elif kind == 2:
            lines[first:first] = random_.choice(FIXTURES).splitlines(keepends=True)[:40]
        elif kind == 3:
            lines[first] = random_.choice(PIECES) + lines[first]
        elif kind == 4:
            indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
            lines[first:first] = [indent + random_.choice(PIECES).rstrip("\n") + "\n"]
        else:
            at = random_.randrange(len(lines[first]) + 1)
            lines[first] = (
                lines[first][:at] + random_.choice(PIECES) + lines[first][at + random_.randint(0, 3) :]
            )
        text = "".join(lines)
    return text


def real_files() -> list[Path]:
    folders = [Path(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib")]
    seeds = [*FOLDER.glob("*.in.py")]
    found = [p for folder in folders for p in folder.glob("*/*.py") if p.stat().st_size < 20_000]
    torch_files = [p for p in (folders[1] / "torch").rglob("*.py") if p.stat().st_size < 20_000]
    return sorted(seeds) * 4 + sorted(found)[::7] + sorted(torch_files)[::5]


def test_mutated_real_files() -> None:
    random_ = random.Random(0 if os.environ.get("CI") or NUM_FILES < 1000 else None)
    files = real_files()
    readable = 0
    for _ in range(NUM_FILES):
        path = random_.choice(files)
        text = path.read_bytes().decode("utf-8", "replace")
        readable += try_port(mutate(text, random_))
    assert readable > NUM_FILES * 0.15  # or the mutations would test the parser only


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.in.py")), ids=lambda p: p.name.removesuffix(".in.py"))
def test_all_rules_together_on_each_fixture(path: Path) -> None:
    assert try_port(path.read_bytes())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(PIECES), max_size=25))
def test_pieces_put_together(pieces: list[str]) -> None:
    try_port("import torch\nfrom torch import nn\n" + "".join(pieces))


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes(raw: bytes) -> None:
    try_port(b"import torch\n" + raw)


def test_a_tree_too_deep_to_walk_by_recursion() -> None:
    text = "import torch\nx = " + "+".join(["torch.zeros(3).cuda()"] * 600) + "\n"
    assert len(text) < MAX_BYTES
    source = Source(Path("/x.py"), text.encode())
    assert b".cuda()" not in make_patch(source, Project(Path("/")), TARGETS["csx"], ("safe",)).after.data
