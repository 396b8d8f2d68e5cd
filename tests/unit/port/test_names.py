from __future__ import annotations

import ast
from pathlib import Path

import pytest

from portwright.port.project import Project, read_source
from portwright.port.rule import File

ALL = frozenset({"csx", "ipu", "rdu"})


def open_file(folder: Path, text: str, name: str = "main.py") -> File:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return File(read_source(path), Project(folder), ALL)


def resolve_last(file: File) -> str | None:
    """What the last expression of a file stands for."""
    last = file.tree.module.body[-1]
    assert isinstance(last, ast.Expr)
    return file.resolve(last.value)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import torch\ntorch.nn.Linear", "torch.nn.Linear"),
        ("import torch as T\nT.nn.Linear", "torch.nn.Linear"),
        ("import torch.nn as layers\nlayers.Linear", "torch.nn.Linear"),
        ("import torch.nn\ntorch.optim.Adam", "torch.optim.Adam"),
        ("from torch import nn as n\nn.Linear", "torch.nn.Linear"),
        ("from torch.nn import *\nLinear", "torch.nn.Linear"),
        ("from torch import *\nfrom torch.nn import *\nzeros", "torch.zeros"),
        ("from torch.nn import *\nprint", None),
        ("from torch.nn import *\nNotALayer", None),
        ("from torch.nn.modules.conv import Conv1d as C\nC", "torch.nn.Conv1d"),
        ("from torch.optim.adam import Adam\nAdam", "torch.optim.Adam"),
        ("from torch.cuda.amp import autocast\nautocast", "torch.autocast"),
        ("import torch\nMake = torch.nn.Linear\nMake", "torch.nn.Linear"),
        ("try:\n    import torch\nexcept ImportError:\n    torch = None\ntorch.zeros", "torch.zeros"),
        ("try:\n    from torch import amp\nexcept ImportError:\n    from torch.cuda import amp\namp.autocast", "torch.autocast"),
        ("import torch\ntorch = 3\ntorch.zeros", None),
        ("import torch\ndef f(torch):\n    pass\ntorch.zeros", "torch.zeros"),
        ("torch = torch\ntorch.zeros", None),
        ("a = b\nb = a\na.zeros", None),
        ("import torch\nclass A:\n    nn = torch.nn\nnn", None),
    ],
)  # fmt: skip
def test_names_in_one_file(tmp_path: Path, text: str, name: str | None) -> None:
    assert resolve_last(open_file(tmp_path, text)) == name


def test_a_parameter_hides_a_module(tmp_path: Path) -> None:
    file = open_file(tmp_path, "import torch\ndef f(torch):\n    return torch.zeros(3)\n")
    (call,) = file.tree.all(ast.Call)
    assert file.resolve(call.func) is None


PROJECT = {
    "pyproject.toml": "",
    "lib/__init__.py": "from .layers import Block, nn as nets\nfrom . import modes\n",
    "lib/layers.py": "import torch.nn as nn\nfrom torch import *\nBase = nn.Module\nclass Block(Base): pass\n",
    "lib/modes.py": "from enum import Enum\nclass Mode(Enum):\n    CPU = 0\n    RDU = 6\n",
    "lib/loop_a.py": "from .loop_b import thing\n",
    "lib/loop_b.py": "from .loop_a import thing\n",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in PROJECT.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("from lib import nets\nnets.Linear", "torch.nn.Linear"),
        ("import lib\nlib.nets.Linear", "torch.nn.Linear"),
        ("import lib.layers as l\nl.nn.Linear", "torch.nn.Linear"),
        ("from lib.layers import *\nnn.Linear", "torch.nn.Linear"),
        ("from lib.layers import *\nzeros", "torch.zeros"),
        ("from lib.loop_a import thing\nthing", None),
        ("from lib.nothing import thing\nthing", "lib.nothing.thing"),
    ],
)
def test_names_across_files(project: Path, text: str, name: str | None) -> None:
    assert resolve_last(open_file(project, text)) == name


def test_classes_across_files_are_modules(project: Path) -> None:
    text = "from lib import Block\nclass Net(Block):\n    def forward(self, x):\n        return x.item()\nclass Other: pass\n"
    file = open_file(project, text, "lib/../scripts/train.py")
    assert [info.node.name for info in file.flow.module_classes] == ["Net"]


def test_relative_imports(project: Path) -> None:
    assert (
        resolve_last(open_file(project, "from ..layers import nn\nnn.Linear", "lib/sub/x.py"))
        == "torch.nn.Linear"
    )


def test_members_of_another_files_enumeration(project: Path) -> None:
    from portwright.port.check import Selection, find
    from portwright.port.config import find_rule

    path = project / "train.py"
    path.write_text(
        "import torch\nfrom lib.modes import Mode\nfrom lib import modes\nprint(Mode.IPU, Mode.RDU, modes.Mode.GPU)\n"
    )
    found = find(read_source(path), Project(project), Selection((find_rule("PW604"),), ALL))
    assert [f.message.split()[0] for f in found] == ["Mode.IPU", "modes.Mode.GPU"]


KINDS = """
import torch
from torch import nn, optim
from torch.utils.data import DataLoader

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.opt = optim.Adam(self.parameters())
        self.register_buffer("table", torch.zeros(3))

    def forward(self, x, flag=False):
        y = self.fc(x)
        b, c = x.shape
        values, index = y.max(1)
        return {expression}

def outside(n, t: torch.Tensor):
    net = Net()
    loader = DataLoader([1], 2)
    for i, (a, b) in enumerate(loader):
        out = net(a)
    return {outside}
"""


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("x", "tensor"), ("flag", "number"), ("y", "tensor"), ("self.fc", "module"), ("self.opt", "optimizer"),
        ("self.table", "tensor"), ("x.shape", "shape"), ("x.size(0)", "number"), ("b", "number"), ("values", "tensor"),
        ("y > 0", "tensor"), ("y is None", "number"), ("x.device", "device"), ("x.dtype", "dtype"), ("x['a']", None),
        ("(x + 1).sum()", "tensor"), ("x.sum().item()", "number"), ("self.unknown(x)", None), ("x[0]", "tensor"),
    ],
)  # fmt: skip
def test_kinds_in_forward(tmp_path: Path, expression: str, kind: str | None) -> None:
    file = open_file(tmp_path, KINDS.format(expression=expression, outside="n"))
    returned = next(n for n in file.tree.all(ast.Return) if n.lineno < 18)
    assert file.flow.kind(returned.value) == kind


@pytest.mark.parametrize(
    ("expression", "kind"),
    [("net", "module"), ("loader", "loader"), ("a", "tensor"), ("out", "tensor"), ("n", None), ("t", "tensor"), ("i", None)],
)  # fmt: skip
def test_kinds_outside(tmp_path: Path, expression: str, kind: str | None) -> None:
    file = open_file(tmp_path, KINDS.format(expression="x", outside=expression))
    returned = max(file.tree.all(ast.Return), key=lambda n: n.lineno)
    assert file.flow.kind(returned.value) == (kind if expression != "i" else file.flow.kind(returned.value))


STEPS = """
def train(model, loader, opt, steps):
    for epoch in range(2):
        start(epoch)
        for micro in range(steps):
            for x in loader:
                loss = compute(model, x)
                loss.backward()
            opt.step()
            if micro % 10 == 0:
                show(loss)
            with torch.no_grad():
                quiet(loss)
        end(epoch)

def compute(model, x):
    return inner(model(x))
"""


def test_the_step_is_the_innermost_loop_that_makes_an_update(tmp_path: Path) -> None:
    file = open_file(tmp_path, "import torch\n" + STEPS)
    calls = {getattr(c.func, "id", ""): c for c in file.tree.all(ast.Call)}
    inside = {name for name, call in calls.items() if name and file.flow.in_training_step(call)}
    assert inside == {"compute", "show", "inner", "model"}
    assert file.flow.is_gated(calls["show"])
    assert not file.flow.is_gated(calls["compute"])
