"""One target's branch among others: an enumeration's other members, another vendor's branch, optimizers and Hydra."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from portwright.port.branches.api import port_branches

FIXTURES = Path(__file__).parents[3] / "fixtures" / "branches"
PLAIN = """import torch
from torch import nn
import torch.nn.functional as F

model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in data:
    out = model(x)
    loss = F.cross_entropy(out, y)
    loss.backward()
    optimizer.step()
"""


def port_text(tmp_path: Path, text: str, *targets: str) -> tuple[str, list[str]]:
    path = tmp_path / "train.py"
    path.write_text(text)
    left: list[str] = []
    for target in targets:
        left += [f.message for f in port_branches([path], [target], select=["PW6"], write=True).left]
    return path.read_text(), left


@pytest.fixture
def trainer(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    shutil.copytree(FIXTURES / "trainer_project", project)
    return project


@pytest.mark.parametrize("order", [("ipu", "rdu"), ("rdu", "ipu")])
def test_a_trainer_gets_both_branches_one_after_the_other(order: tuple[str, str], trainer: Path) -> None:
    for target in order:
        done = port_branches([trainer], [target], select=["PW6"], write=True)
        assert done.changed, [f.message for f in done.left]
        assert not any("no " in f.message and "branch was added" in f.message for f in done.left)
    text = (trainer / "trainer.py").read_text()
    tree = ast.parse(text)
    assert {"IPU", "RDU"} <= {
        t.id
        for n in ast.walk(ast.parse((trainer / "config" / "modes.py").read_text()))
        if isinstance(n, ast.Assign)
        for t in n.targets
        if isinstance(t, ast.Name)
    }
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for call in calls:
        if call.func.attr == "backward" and ast.unparse(call) == "loss.backward()":  # type: ignore[attr-defined]
            outer: ast.AST = call
            tests = []
            while outer in parents:
                outer = parents[outer]
                tests += [ast.unparse(outer.test)] if isinstance(outer, ast.If) else []
            assert {"self.ipu_training is None", "self.rdu_training is None"} <= set(tests)
    for target in order:
        assert port_branches([trainer], [target], select=["PW6"]).changed == []


def test_what_another_device_runs_is_not_touched(trainer: Path) -> None:
    before = (trainer / "trainer.py").read_text()
    port_branches([trainer], ["ipu"], select=["PW6"], write=True)
    after = (trainer / "trainer.py").read_text()
    for line in ("self.scaler.scale(loss).backward()", "self.scaler.step(self._opt)", "self.scaler.update()"):
        indents = [
            [len(found) - len(found.lstrip()) for found in text.splitlines() if found.strip() == line]
            for text in (before, after)
        ]
        assert indents[0] == indents[1] != []


@pytest.mark.parametrize("cut", ["if mode == Mode.GPU:\n    x = 1\nelif other:\n    x = 2\nelse:\n    x = 3\n", "if mode == Mode.GPU or other:\n    x = 1\n"])  # fmt: skip
def test_conditions_that_say_nothing_of_the_target_stay(cut: str, tmp_path: Path) -> None:
    enum = "from enum import Enum\n\nclass Mode(Enum):\n    CPU = 0\n    GPU = 1\n\nmode, other = Mode.CPU, False\n"
    text, left = port_text(tmp_path, enum + cut + PLAIN, "ipu", "rdu")
    assert left == []
    assert "    IPU = 2\n    RDU = 3\n" in text
    assert cut in text


def test_the_vendors_optimizer_is_made_only_for_its_device(tmp_path: Path) -> None:
    text, left = port_text(tmp_path, PLAIN.replace("lr=0.1)", "lr=0.1,\n    momentum=0.9)"), "ipu")
    assert left == []
    assert (
        'if os.environ.get("ACCELERATOR") == "ipu":\n'
        "    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1,\n"
        "        momentum=0.9)\nelse:\n    optimizer = torch.optim.SGD(" in text
    )
    assert text.index("and poptorch is None:") < text.index("poptorch.optim.SGD(")


@pytest.mark.parametrize("made", ["torch.optim.SGD(model.parameters(), **settings)", "torch.optim.Adam(model.parameters(), decoupled_weight_decay=True)"])  # fmt: skip
def test_an_optimizer_with_settings_that_the_vendors_may_lack_stays_torchs(made: str, tmp_path: Path) -> None:
    text, left = port_text(
        tmp_path, PLAIN.replace("torch.optim.SGD(model.parameters(), lr=0.1)", made), "ipu"
    )
    assert left == []
    assert "poptorch.optim" not in text
    assert text.count(made) == 1


ADAM = PLAIN.replace(
    "torch.optim.SGD(model.parameters(), lr=0.1)", "torch.optim.Adam(model.parameters(), 1e-3{})"
)


@pytest.mark.parametrize(("settings", "is_taken"), [("", True), (", weight_decay=0.0", True), (", weight_decay=0.1", False), (", amsgrad=True", False), (", (0.9, 0.99), 1e-8, 0.1", False)])  # fmt: skip
def test_adam_on_the_rdu_is_adamw_as_long_as_nothing_decays(
    settings: str, is_taken: bool, tmp_path: Path
) -> None:
    text, left = port_text(tmp_path, ADAM.format(settings), "rdu")
    assert ("RduTraining(" in text) == is_taken
    assert [m for m in left if "has no Adam" in m] == (
        [] if is_taken else ["no RDU branch was added: the SambaNova RDU has no Adam with these settings"]
    )


def test_an_optimizer_that_only_one_branch_makes_is_told(trainer: Path) -> None:
    done = port_branches([trainer], ["rdu"], select=["PW6"], write=True)
    assert [f.message for f in done.left if "RMSprop" in f.message] == [
        "the RDU has no RMSprop with these settings: asking for it there is an error"
    ]


def test_moments_that_a_checkpoint_lacks_are_told(tmp_path: Path) -> None:
    saved = PLAIN + "torch.save(optimizer.state_dict(), 'x')\n"
    _, left = port_text(tmp_path, saved, "rdu")
    assert [m for m in left if "moments" in m]
    _, left = port_text(tmp_path, saved, "ipu")  # poptorch.optim has them in its own state_dict()
    assert left == []


def test_evaluation_where_a_branch_only_trains_is_an_error_not_the_cpu(trainer: Path) -> None:
    port_branches([trainer], ["rdu"], select=["PW6"], write=True)
    text = (trainer / "trainer.py").read_text()
    assert 'raise NotImplementedError("this branch trains on the SambaNova RDU' in text


HYDRA = """import sys
import hydra


@hydra.main({}config_name="x")
def main(cfg):
    print("ran")


if __name__ == "__main__":
    sys.argv += [
        'hydra.job.chdir=False',
        'hydra.run.dir=.',
    ]
    main()
    print(sys.argv[1:])
"""
OLD = "def main(config_path=None, config_name=None):\n    return lambda task: lambda: task(None)\n"
NEW = "def main(config_path=None, config_name=None, version_base='1.1'):\n    assert version_base is None\n    return lambda task: lambda: task(None)\n"


@pytest.mark.parametrize("installed", ["old", "new"])
def test_hydra_with_and_without_version_base(installed: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PLAIN)
    app = tmp_path / "app.py"
    app.write_text(HYDRA.format("version_base=None, "))
    done = port_branches([tmp_path], ["ipu"], select=["PW6"], write=True)
    assert len(done.changed) == 2
    assert any("version_base" in f.message for f in done.fixed)
    text = app.read_text()
    again = port_branches([tmp_path], ["rdu"], select=["PW6"], write=True)
    assert app.read_text() == text
    assert [Path(p).name for p in again.changed] == ["train.py"]
    vendor = tmp_path / "installed"
    vendor.mkdir()
    (vendor / "hydra.py").write_text(OLD if installed == "old" else NEW)
    ran = subprocess.run(
        [sys.executable, str(app)],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(vendor)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    chdir = [] if installed == "old" else ["hydra.job.chdir=False"]
    assert ran.stdout == f"ran\n{[*chdir, 'hydra.run.dir=.']}\n"


def test_hydra_without_version_base_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PLAIN)
    (tmp_path / "app.py").write_text(HYDRA.format(""))
    port_branches([tmp_path], ["ipu"], select=["PW6"], write=True)
    assert (tmp_path / "app.py").read_text() == HYDRA.format("")


def test_the_import_stands_before_the_optimizer_that_names_it(tmp_path: Path) -> None:
    text, left = port_text(
        tmp_path, PLAIN.replace("for x, y in data", "import math\n\nfor x, y in data"), "ipu"
    )
    assert left == []
    assert text.index("import poptorch") < text.index("poptorch.optim.SGD(")


def test_a_device_chosen_before_the_arguments_are_known_is_left_alone(tmp_path: Path) -> None:
    body = PLAIN[PLAIN.index("model =") :].replace("for x, y in data", "for x, y in args.data")
    main = "def main(args):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    head = PLAIN[: PLAIN.index("model =")] + "import argparse\n\ndevice = torch.device('cuda')\n\n"
    ask = (
        "if __name__ == '__main__':\n    parser = argparse.ArgumentParser()\n    parser.add_argument('--lr', type=float)\n"
        "    args = parser.parse_args()\n    main(args)\n"
    )
    text, left = port_text(tmp_path, head + main + ask, "ipu", "rdu")
    assert left == []
    for target in ("ipu", "rdu"):
        assert f'parser.add_argument("--{target}", action="store_true"' in text
        assert text.index("def main(args)") < text.index(f"if args.{target}")


def test_data_made_before_the_loop_are_inputs_of_the_graph(tmp_path: Path) -> None:
    """A graph takes no tensor of the host that stands around it."""
    whole = PLAIN.replace(
        "for x, y in data:", "x, y = torch.randn(6, 3), torch.randint(2, (6,))\nfor epoch in range(3):"
    )
    for target in ("ipu", "rdu"):
        text, left = port_text(tmp_path, whole, target)
        assert f"{target}_training(x, y)" in text
        assert left == []


def test_data_of_other_shapes_are_evaluated_on_the_host(tmp_path: Path) -> None:
    """PopTorch compiles an executor for one shape."""
    one = PLAIN + "out = model(held_out)\n"
    assert "ipu_inference)(held_out)" in port_text(tmp_path, one, "ipu")[0]
    two = port_text(tmp_path, one + "out = model(x_test)\n", "ipu")[0]
    assert "ipu_inference)(held_out)" in two
    assert "ipu_training.copyWeightsToHostIfNeeded()\nout = model(x_test)\n" in two
    asked = "def score(rows):\n    return model(rows)\n"
    text = port_text(
        tmp_path,
        PLAIN.replace("optimizer =", asked + "optimizer =") + "score(held_out)\nscore(x_test)\n",
        "ipu",
    )[0]
    assert "ipu_inference" not in text


def test_a_name_that_hides_one_of_pythons_is_no_trap_for_the_branch(tmp_path: Path) -> None:
    hidden = PLAIN.replace("for x, y in data:", "for NAME in range(3):\n    x, y = data[NAME]")
    assert "RduTraining(" in port_text(tmp_path, hidden.replace("NAME", "iter"), "rdu")[0]
    text, left = port_text(tmp_path, hidden.replace("NAME", "type"), "rdu")
    assert "RduTraining(" not in text
    assert left == [
        "no RDU branch was added: 'type' is no longer Python's own here, and the branch needs that"
    ]
