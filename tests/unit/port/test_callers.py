"""What a training step reaches in the project's other files."""

from __future__ import annotations

from pathlib import Path

import pytest

from portwright.port import api
from portwright.port.project import group_by_root

TRAIN = """\
import torch
from {source} import {names}


def train(model, loader, optimizer):
    for x, y in loader:
        loss = {call}
        loss.backward()
        optimizer.step()
"""
LOSS = """\
import torch


def dice_loss(input, target):
    return 1 - (input * target).sum((-1, -2)).mean()


def unused(input, target):
    return (input * target).sum((-1, -2))
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    return project


def write(name: str, text: str) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)


def train(source: str = "losses", names: str = "dice_loss", call: str = "dice_loss(model(x), y)") -> str:
    return TRAIN.format(source=source, names=names, call=call)


def found(*, select: str = "PW337") -> list[str]:
    findings = api.check([Path()], ["csx"], [select]).findings
    return [f"{f.path}:{f.line}" for f in findings]


def test_a_function_that_another_files_step_calls_is_part_of_the_step() -> None:
    write("train.py", train())
    write("losses.py", LOSS)
    assert found() == ["losses.py:5"]


def test_a_function_that_no_step_calls_is_not() -> None:
    write("train.py", train(names="dice_loss", call="model(x)"))
    write("losses.py", LOSS)
    assert found() == []


@pytest.mark.parametrize(
    ("source", "names", "call"),
    [
        ("losses", "*", "dice_loss(model(x), y)"),
        ("losses", "dice_loss as criterion", "criterion(model(x), y)"),
        ("util.losses", "dice_loss", "dice_loss(model(x), y)"),
    ],
)
def test_whatever_way_it_is_imported(source: str, names: str, call: str) -> None:
    write("train.py", train(source, names, call))
    write(source.replace(".", "/") + ".py", LOSS)
    assert found() == [source.replace(".", "/") + ".py:5"]


def test_a_module_that_is_imported_whole() -> None:
    write(
        "train.py",
        train()
        .replace("from losses import dice_loss", "import losses as L")
        .replace("dice_loss(", "L.dice_loss("),
    )
    write("losses.py", LOSS)
    assert found() == ["losses.py:5"]


def test_forward_of_another_file_reaches_as_far() -> None:
    write(
        "model.py",
        "from torch import nn\nfrom losses import dice_loss\n\n\nclass Net(nn.Module):\n    def forward(self, x):\n        return dice_loss(x, x)\n",
    )
    write("losses.py", LOSS)
    assert found() == ["losses.py:5"]


def test_through_a_function_between() -> None:
    write("train.py", train("between", "both", "both(model(x), y)"))
    write(
        "between.py",
        "from losses import dice_loss\n\n\ndef both(x, y):\n    return dice_loss(x, y) + dice_loss(y, x)\n",
    )
    write("losses.py", LOSS)
    assert found() == ["losses.py:5"]


def test_through_functions_of_the_same_file_that_are_handed_on() -> None:
    write("train.py", train(names="choose", call="choose(model(x), y)"))
    chooser = "\n\ndef choose(x, y, other=False):\n    function = unused if other else dice_loss\n    return function(x, y)\n"
    write("losses.py", LOSS + chooser)
    assert found() == ["losses.py:5", "losses.py:9"]


def test_through_several_functions_of_the_training_script() -> None:
    text = train(call="performance(model(x), y)") + "\n\ndef performance(x, y):\n    return cost(x, y)\n"
    write("train.py", text + "\n\ndef cost(x, y):\n    return (x * y).sum((-1, -2))\n")
    assert found() == ["train.py:17"]


def test_evaluation_is_not_a_step() -> None:
    text = train(call="model(x)") + "\n\n@torch.no_grad()\ndef evaluate(x, y):\n    return dice_loss(x, y)\n"
    write("train.py", text)
    write("losses.py", LOSS)
    assert found() == []


def test_files_that_import_each_other() -> None:
    write("train.py", train() + "\n\ndef helper(x):\n    return x.sum((-1, -2))\n")
    write(
        "losses.py",
        LOSS.replace("import torch\n", "import torch\nfrom train import helper\n").replace(
            "1 - ", "helper(input) - "
        ),
    )
    assert found() == ["losses.py:6", "train.py:13"]


def test_a_new_file_that_calls_it_is_seen_in_spite_of_the_cache() -> None:
    write("losses.py", LOSS)
    assert found() == []
    write("train.py", train())
    assert found() == ["losses.py:5"]
    write("train.py", train(call="model(x)"))
    assert found() == []


def test_the_number_of_processes_does_not_matter() -> None:
    write("train.py", train() + "# " + "x" * 500_000 + "\n")
    write("sub/losses.py", "# " + "x" * 500_000 + "\n" + LOSS)
    write("train.py", Path("train.py").read_text().replace("from losses", "from sub.losses"))
    several = api.check([Path()], ["csx"], ["PW337"], jobs=2, use_cache=False).findings
    one = api.check([Path()], ["csx"], ["PW337"], jobs=1, use_cache=False).findings
    assert [f.path for f in several] == [f.path for f in one] == ["sub/losses.py"]


def test_folders_without_a_sign_belong_to_what_was_named_above_them(tmp_path: Path) -> None:
    top = tmp_path / "top"
    files = [
        top / "train.py",
        top / "utils" / "loss.py",
        top / "a" / "b" / "deep.py",
        tmp_path / "other" / "x.py",
    ]
    assert group_by_root(files) == {top: files[:3], tmp_path / "other": files[3:]}


def test_a_package_belongs_to_the_folder_above_it(tmp_path: Path) -> None:
    package = tmp_path / "top" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    assert list(group_by_root([package / "a.py"])) == [tmp_path / "top"]


def test_a_project_that_says_where_it_begins_begins_there(tmp_path: Path) -> None:
    inner = tmp_path / "top" / "inner"
    inner.mkdir(parents=True)
    (inner / "pyproject.toml").write_text("")
    assert list(group_by_root([inner / "a.py", tmp_path / "top" / "b.py"])) == [inner, tmp_path / "top"]
