"""What `port --style layout` writes, what it says of each statement, and what it refuses."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from portwright.errors import UserError
from portwright.port.api import PortResult, port

SCRIPTS = Path(__file__).parents[2] / "fixtures" / "layout"
NAMES = [*sorted(p.name for p in SCRIPTS.glob("*.py")), "package/train.py"]
HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=8)
model = nn.Linear(4, 1)
criterion = nn.MSELoss()
"""
LOOP = """
for epoch in range(3):
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
SGD = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"


def layout(tmp_path: Path, text: str, **options: Any) -> tuple[PortResult, dict[str, str]]:
    script = tmp_path / "train.py"
    script.write_text(text)
    done = port([script], ["csx"], style="layout", out=tmp_path / "out", **options)
    files = {
        p.relative_to(tmp_path / "out").as_posix(): p.read_text()
        for p in (tmp_path / "out").rglob("*")
        if p.suffix in (".py", ".yaml")
    }
    for name, content in files.items():
        if name.endswith(".py"):
            ast.parse(content)
    return done, files


def params(files: dict[str, str]) -> Any:
    return yaml.safe_load(files["configs/params.yaml"])


def codes(done: PortResult) -> list[str]:
    return [f.code for f in done.left if f.code.startswith("PW7")]


@pytest.mark.parametrize("name", [n for n in NAMES if n != "gan.py"])
def test_every_statement_is_accounted_for(name: str, tmp_path: Path) -> None:
    script = SCRIPTS / name
    done = port([script], ["csx"], style="layout", out=tmp_path / "out")
    rows = [*done.placed, *done.dissolved]
    told = {r["line"] for r in rows if Path(r["path"]).name == script.name}
    told |= {f.line for f in done.fixed if Path(f.path).name == script.name}  # taken away by a rule
    told |= {f.line for f in done.left if Path(f.path).name == script.name}
    tree = ast.parse(script.read_text())
    wanted = list(tree.body)
    main = [n for n in tree.body if isinstance(n, ast.If) and "__name__" in ast.unparse(n.test)]
    for guard in main:
        wanted.remove(guard)
        wanted += [s for s in guard.body if not isinstance(s, ast.Expr)]
    for function in [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "main"]:
        wanted += function.body
    for loop in [n for n in ast.walk(tree) if isinstance(n, ast.For) and "backward()" in ast.unparse(n)]:
        wanted += loop.body
    missing = []
    for statement in wanted:
        text = ast.unparse(statement)
        follows = any(
            isinstance(c, ast.Call) and ast.unparse(c.func) in _followed(tree) for c in ast.walk(statement)
        )
        if statement.lineno not in told and not follows and not isinstance(statement, ast.With):
            missing.append(f"{statement.lineno}: {text.splitlines()[0]}")
    assert not missing


def _followed(tree: ast.Module) -> set[str]:
    """Functions and methods that the way to the step leads through: their statements are told one by one."""
    trains = {"train", "train_epoch", "train_one_epoch", "run", "main"}
    return trains | {"trainer.train", "self._run_epoch", "self._run_batch", "load_train_objs", "Trainer"}


@pytest.mark.parametrize("name", [n for n in NAMES if n != "gan.py"])
def test_files_are_whole(name: str, tmp_path: Path) -> None:
    """All names are defined or imported, and comments came along."""
    port([SCRIPTS / name], ["csx"], style="layout", out=tmp_path / "out")
    for path in (tmp_path / "out").rglob("*.py"):
        tree = ast.parse(path.read_text())
        bound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
        bound |= {
            a.asname or a.name.split(".")[0]
            for n in ast.walk(tree)
            if isinstance(n, (ast.Import, ast.ImportFrom))
            for a in n.names
        }
        bound |= {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
        bound |= (
            {a.arg for a in ast.walk(tree) if isinstance(a, ast.arg)}
            | set(dir(__builtins__))
            | set(__builtins__)
        )
        used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
        assert used <= bound, (path.name, used - bound)
    yaml.safe_load((tmp_path / "out" / "configs" / "params.yaml").read_text())


def test_comments_and_formatting_stay(tmp_path: Path) -> None:
    text = (
        HEAD.replace("model = nn", "# the only layer\nmodel = nn")
        + SGD
        + LOOP.replace("loss = criterion(model(x), y)", "loss = criterion( model(x),y )  # as it is")
    )
    _, files = layout(tmp_path, text)
    assert "# the only layer" in files["model.py"]
    assert "loss = self.criterion( self.model(x),y )  # as it is" in files["model.py"]


@pytest.mark.parametrize(
    ("made", "section"),
    [
        ("SGD(model.parameters(), 0.1, 0.9, nesterov=True)", {"optimizer_type": "SGD", "learning_rate": 0.1, "momentum": 0.9, "use_nesterov": True}),
        ("Adam(model.parameters())", {"optimizer_type": "Adam", "learning_rate": 0.001, "betas": [0.9, 0.999], "eps": 1e-8}),
        (
            "AdamW(model.parameters(), lr=2 * 0.01, betas=(0.9, 0.95))",
            {"optimizer_type": "AdamW", "learning_rate": 0.02, "betas": [0.9, 0.95], "weight_decay_rate": 0.01, "exclude_from_weight_decay": [], "eps": 1e-8},
        ),
        ("RMSprop(filter(lambda p: p.requires_grad, model.parameters()), lr=0.5)", {"optimizer_type": "RMSprop", "learning_rate": 0.5, "eps": 1e-8}),
    ],
)  # fmt: skip
def test_optimizers(made: str, section: dict[str, Any], tmp_path: Path) -> None:
    done, files = layout(tmp_path, HEAD + f"optimizer = torch.optim.{made}\n" + LOOP)
    assert params(files)["optimizer"] == section
    assert not codes(done)


@pytest.mark.parametrize(
    ("made", "schedule"),
    [
        ("StepLR(optimizer, 2, gamma=0.5)", {"scheduler": "Step", "initial_learning_rate": 0.1, "gamma": 0.5, "step_size": 16}),
        ("MultiStepLR(optimizer, [1, 2])", {"scheduler": "MultiStep", "initial_learning_rate": 0.1, "gamma": 0.1, "milestones": [8, 16]}),
        ("ExponentialLR(optimizer, 0.9)", {"scheduler": "Exponential", "initial_learning_rate": 0.1, "decay_rate": 0.9, "staircase": True, "total_iters": 8}),
        ("CosineAnnealingLR(optimizer, 3)", 0.1),
    ],
)  # fmt: skip
def test_schedules_that_count_epochs(made: str, schedule: Any, tmp_path: Path) -> None:
    text = HEAD + SGD + f"scheduler = torch.optim.lr_scheduler.{made}\n" + LOOP + "    scheduler.step()\n"
    done, files = layout(tmp_path, text)
    assert params(files)["optimizer"]["learning_rate"] == schedule
    assert ("def learning_rates(params)" in files["utils.py"]) == (schedule == 0.1)
    assert not codes(done)


def test_runconfig_of_loops(tmp_path: Path) -> None:
    text = "import torch\ntorch.manual_seed(17)\n" + HEAD + SGD
    text += LOOP.replace("for x, y in loader:", "for i, (x, y) in enumerate(loader):")
    text += "        if i % 5 == 0:\n            print(i, loss.item())\n    torch.save(model.state_dict(), 'm.pt')\n"
    _, files = layout(tmp_path, text)
    assert params(files)["runconfig"] == {"num_epochs": 3, "seed": 17, "log_steps": 5, "checkpoint_steps": 8}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("        optimizer.step()\n", "        optimizer.step()\n        with torch.no_grad():\n            model.weight.clamp_(-1, 1)\n"), "with torch.no_grad()"),
        (("        optimizer.step()\n", "        optimizer.step()\n    if loss.item() < 0.1:\n        break\n"), "training ends early"),
        (("        optimizer.step()\n", "        optimizer.step()\n    for group in optimizer.param_groups:\n        group['lr'] *= 0.5\n"), "for group in"),
        (("for epoch", "download('somewhere')\nfor epoch"), "download"),
    ],
)  # fmt: skip
def test_what_has_no_place_is_a_finding(change: tuple[str, str], words: str, tmp_path: Path) -> None:
    text = "def download(url): open(url)\n" + HEAD + SGD + LOOP.replace(*change)
    done, files = layout(tmp_path, text)
    found = [f for f in done.left if f.code == "PW701"]
    assert len(found) == 1
    assert words in found[0].message
    line = (tmp_path / "train.py").read_text().splitlines()[found[0].line - 1]
    assert line.strip().startswith(
        change[1].replace(change[0], "").strip().splitlines()[0].split("(")[0][:12]
    )
    assert "model.py" in files


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ((SCRIPTS / "gan.py").read_text(), "more than one backward()"),
        ("x = 1\n", "no loop that calls backward()"),
        (HEAD + SGD + "loss = criterion(model(torch.ones(1, 4)), torch.ones(1, 1))\nloss.backward()\n", "no loop"),
        (HEAD + LOOP.replace("optimizer.step()", "pass").replace("optimizer.zero_grad()", "pass"), "no optimizer"),
        (HEAD + SGD + "h = torch.zeros(1)\n" + LOOP.replace("loss = criterion(model(x), y)", "h = model(x).mean() + h\n        loss = criterion(model(x) + h, y)"), "'h' is carried"),
        (HEAD + SGD + LOOP.replace("model(x), y)", "model(x), y) * epoch"), "'epoch', which counts"),
        (HEAD + SGD + LOOP.replace("for epoch in range(3)", "while True"), "while loop"),
        (HEAD + "other = nn.Linear(1, 1)\noptimizer = torch.optim.SGD(list(model.parameters()) + list(other.parameters()))\n" + LOOP, "2 modules"),
    ],
)  # fmt: skip
def test_refusals(text: str, words: str, tmp_path: Path) -> None:
    done, files = layout(tmp_path, text)
    assert codes(done) == ["PW702"]
    assert words in done.left[0].message
    assert not files
    assert not done.changed


def test_settings_are_sorted(tmp_path: Path) -> None:
    done = port([SCRIPTS / "lstm_classifier.py"], ["csx"], style="layout", out=tmp_path / "out")
    values = yaml.safe_load((tmp_path / "out" / "configs" / "params.yaml").read_text())
    # num_workers stand behind no_cuda and is_available(), for both loaders: the question stays as it is written.
    assert values["train_input"] == {"batch_size": 32, "test_batch_size": 100, "no_cuda": False}
    assert (
        'not params["train_input"]["no_cuda"] and torch.cuda.is_available()'
        in (tmp_path / "out" / "data.py").read_text()
    )
    assert [f.code for f in done.left] == ["PW501"]
    assert values["model"] == {"hidden": 16, "smoothing": 0.1}
    assert values["optimizer"]["max_gradient_norm"] == 1.0
    assert values["runconfig"] == {"num_epochs": 2, "seed": 1, "log_steps": 5}
    assert 'setdefault("eval_frequency", every)' in (tmp_path / "out" / "utils.py").read_text()
    assert "# input batch size for training" in (tmp_path / "out" / "configs" / "params.yaml").read_text()
    assert not codes(done)


def test_modules_of_a_package_are_taken_along(tmp_path: Path) -> None:
    port([SCRIPTS / "package"], ["csx"], style="layout", out=tmp_path / "out")
    names = {p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*.py")}
    assert names >= {
        "model.py",
        "data.py",
        "utils.py",
        "run.py",
        "script_data.py",
        "nets/mlp.py",
        "nets/blocks.py",
        "nets/__init__.py",
    }
    assert "from script_data import get_dataset" in (tmp_path / "out" / "data.py").read_text()


def test_parts(tmp_path: Path) -> None:
    _, files = layout(tmp_path, HEAD + SGD + LOOP, part="data")
    assert set(files) == {"data.py", "configs/params.yaml"}
    assert set(params(files)) == {"train_input", "eval_input"}
    done = port([tmp_path / "train.py"], ["csx"], style="layout", out=tmp_path / "other", part="model")
    assert {Path(p).name for p in done.changed} == {"model.py", "params.yaml"}
    in_place = port([tmp_path / "train.py"], ["csx"], part="data")
    assert {f.code for f in in_place.left} <= {"PW101", "PW102", "PW103", "PW106", "PW107"}


def test_again_gives_the_same(tmp_path: Path) -> None:
    _, first = layout(tmp_path, HEAD + SGD + LOOP)
    _, second = layout(tmp_path, HEAD + SGD + LOOP)
    assert first == second
    (tmp_path / "out" / "model.py").write_text("mine")
    with pytest.raises(UserError, match="changed or added"):
        layout(tmp_path, HEAD + SGD + LOOP)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"style": "layout"}, "--out DIR"),
        ({"style": "layout", "write": True, "out": None}, "--out DIR"),
        ({"style": "lay-out"}, "no style 'lay-out'"),
        ({"part": "loss"}, "no part 'loss'"),
    ],
)
def test_bad_options(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(HEAD + SGD + LOOP)
    with pytest.raises(UserError) as error:
        port([script], ["csx"], **options)
    assert words in str(error.value)


def test_unreadable_script_is_a_finding(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print 'old'\n")
    done = port([script], ["csx"], style="layout", out=tmp_path / "out")
    assert [f.code for f in done.left] == ["PW001"]
    assert not (tmp_path / "out").exists()


def test_json_of_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from typer.testing import CliRunner

    from portwright.cli import app

    script = tmp_path / "train.py"
    script.write_text(HEAD + SGD + LOOP)
    result = CliRunner().invoke(
        app,
        [
            "port",
            str(script),
            "--target",
            "csx",
            "--style",
            "layout",
            "--out",
            str(tmp_path / "out"),
            "--json",
        ],
    )
    document = json.loads(result.stdout)
    assert {"changed", "fixed", "left", "placed", "dissolved"} <= document.keys()
    assert all({"path", "line", "statement", "where"} <= row.keys() for row in document["placed"])
    assert all({"path", "line", "statement", "into"} <= row.keys() for row in document["dissolved"])


def test_settings_in_a_dict_become_params(tmp_path: Path) -> None:
    text = 'config = {"hidden": 7, "lr": 0.3, "epochs": 4, "size": 16}\n' + HEAD.replace(
        "nn.Linear(4, 1)", 'nn.Sequential(nn.Linear(4, config["hidden"]), nn.Linear(config["hidden"], 1))'
    )
    text = (
        text.replace("batch_size=8", 'batch_size=config["size"]')
        + SGD.replace("0.1", 'config["lr"]')
        + LOOP.replace("range(3)", 'range(config["epochs"])')
    )
    done, files = layout(tmp_path, text)
    values = params(files)
    assert values["model"] == {"hidden": 7}
    assert values["train_input"] == {"size": 16}
    assert values["optimizer"]["learning_rate"] == 0.3
    assert values["runconfig"]["num_epochs"] == 4
    assert not codes(done)


def test_a_break_after_so_many_steps_is_max_steps(tmp_path: Path) -> None:
    text = (
        HEAD
        + SGD
        + "for i, (x, y) in enumerate(loader):\n    if i >= 5:\n        break\n"
        + "\n".join(line[4:] for line in LOOP.splitlines()[3:])
    )
    done, files = layout(tmp_path, text)
    assert params(files)["runconfig"]["max_steps"] == 5
    assert "num_epochs" not in params(files)["runconfig"]
    assert not codes(done)


def test_where_the_script_stands_is_asked(tmp_path: Path) -> None:
    done, _ = layout(
        tmp_path,
        "import os\nhere = os.path.dirname(__file__)\n"
        + HEAD.replace("torch.randn(64, 1)", "torch.load(here)")
        + SGD
        + LOOP,
    )
    assert codes(done) == ["PW703"]
    assert [f.line for f in done.left if f.code == "PW703"] == [2]


def test_a_loader_for_validation_is_found_by_its_name(tmp_path: Path) -> None:
    text = HEAD + "val_loader = DataLoader(TensorDataset(torch.ones(8, 4), torch.ones(8, 1)))\n" + SGD + LOOP
    text += "    print(sum(criterion(model(x), y).item() for x, y in val_loader))\n"
    _, files = layout(tmp_path, text)
    evaluation = files["data.py"].partition("def get_eval_dataloader(params):")[2]
    assert "torch.ones(8, 4)" in evaluation
    assert "return val_loader" in evaluation


def test_a_part_of_a_package_keeps_its_package(tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "sizes.py").write_text("INPUTS = 4\n")
    (package / "net.py").write_text(
        "from torch import nn\nfrom .sizes import INPUTS\n\n\ndef make():\n    return nn.Linear(INPUTS, 1)\n"
    )
    (package / "train.py").write_text(
        "from .net import make\n" + HEAD.replace("nn.Linear(4, 1)", "make()") + SGD + LOOP
    )
    port([package / "train.py"], ["csx"], style="layout", out=tmp_path / "out")
    assert "from pkg.net import make" in (tmp_path / "out" / "model.py").read_text()
    assert {p.name for p in (tmp_path / "out" / "pkg").iterdir()} == {"__init__.py", "net.py", "sizes.py"}


def test_tabs_crlf_and_letters_of_all_kinds(tmp_path: Path) -> None:
    text = (
        HEAD.replace("model =", "größe = 4  # Breite\nmodel =").replace(
            "nn.Linear(4, 1)", "nn.Linear(größe, 1)"
        )
        + SGD
        + LOOP.replace("    ", "\t")
    )
    script = tmp_path / "train.py"
    script.write_bytes(text.replace("\n", "\r\n").encode())
    done = port([script], ["csx"], style="layout", out=tmp_path / "out")
    assert not codes(done)
    assert yaml.safe_load((tmp_path / "out" / "configs" / "params.yaml").read_text())["model"] == {"größe": 4}
    assert b"\r" not in (tmp_path / "out" / "model.py").read_bytes()
    assert "# Breite" in (tmp_path / "out" / "configs" / "params.yaml").read_text()


WARM_UP = """
def warm_up(optimizer, count):
    def factor(step):
        return min(1.0, (step + 1) / count)
    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


class Ramp:
    def __init__(self, optimizer, count):
        self.optimizer, self.count, self.step_number = optimizer, count, 0

    def step(self):
        self.step_number += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 * min(1.0, self.step_number / self.count)


class Poly(torch.optim.lr_scheduler.LRScheduler):
    def __init__(self, optimizer, count):
        self.count = count
        super().__init__(optimizer)

    def get_lr(self):
        return [rate * (1 - self.last_epoch / self.count) for rate in self.base_lrs]
"""


@pytest.mark.parametrize("made", ["warm_up(optimizer, 8)", "Ramp(optimizer, 8)", "Poly(optimizer, count=99)"])
def test_a_scheduler_of_the_project_is_asked_for_its_rates(made: str, tmp_path: Path) -> None:
    head = HEAD.replace("loader =", WARM_UP + "\nloader =", 1)
    done, files = layout(
        tmp_path, f"{head}{SGD}ramp = {made}\n{LOOP}        ramp.step()\n        print(loss.item())\n"
    )
    assert f"scheduler = {made}" in files["utils.py"]
    assert 'params["optimizer"]["learning_rate"] = learning_rates(params)' in files["utils.py"]
    assert [f.code for f in done.left if f.code != "PW101"] == []
    rows = {row["statement"]: row["into"] for row in done.dissolved}
    assert "schedule" in rows["ramp.step()"]


def test_what_may_change_the_optimizer_is_not_taken_for_a_report(tmp_path: Path) -> None:
    text = "class Ramp:\n    def __init__(self, optimizer):\n        self.of = optimizer\n    def advance(self):\n"
    text += "        self.of.param_groups[0]['lr'] *= 0.9\n"
    done, _ = layout(tmp_path, f"{HEAD}{text}{SGD}ramp = Ramp(optimizer)\n{LOOP}        ramp.advance()\n")
    assert [f.message for f in done.left if f.code == "PW701"] == [
        "run() has no place for this: ramp.advance()"
    ]


@pytest.mark.parametrize("start", ["sys.exit(main())", "exit(main())", "raise SystemExit(main())"])
def test_a_script_that_ends_with_its_status_is_followed(start: str, tmp_path: Path) -> None:
    body = (SGD + LOOP + "return 0\n").replace("\n", "\n    ")
    done, files = layout(tmp_path, f"import sys\n{HEAD}\ndef main():\n    {body}\n{start}\n")
    assert params(files)["runconfig"]["num_epochs"] == 3
    assert codes(done) == []


def test_a_step_that_is_not_reached_is_named(tmp_path: Path) -> None:
    text = HEAD + SGD + "def step(x, y):\n    criterion(model(x), y).backward()\n    optimizer.step()\n"
    done, _ = layout(tmp_path, text + "losses = [step(x, y) for x, y in loader]\n")
    assert [(f.code, f.line) for f in done.left] == [
        ("PW702", text.split("\n").index("    optimizer.step()"))
    ]


def test_a_progress_bar_that_need_not_be_installed_is_one(tmp_path: Path) -> None:
    bar = "try:\n    from tqdm import tqdm\nexcept ImportError:\n    tqdm = lambda x, **_: x\n"
    loop = LOOP.replace("in loader", "in tqdm(loader, disable=True)")
    done, files = layout(tmp_path, bar + HEAD + SGD + loop)
    assert "tqdm" not in files["data.py"]
    assert codes(done) == []


def test_a_schedule_of_an_optimizer_that_stays_code_is_not_lost_silently(tmp_path: Path) -> None:
    made = "optimizer = torch.optim.SGD([{'params': model.parameters(), 'lr': 1.0}], lr=0.1)\n"
    step = "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)\n"
    done, files = layout(tmp_path, HEAD + made + step + LOOP + "    scheduler.step()\n")
    assert "def get_optimizer" in files["model.py"]
    assert any("StepLR is lost" in f.message for f in done.left if f.code == "PW703")
    assert "scheduler" not in files["configs/params.yaml"]


def test_an_optimizer_that_comes_with_something_else_is_named(tmp_path: Path) -> None:
    make = "def make(net):\n    made = torch.optim.SGD(net.parameters(), lr=0.1)\n    return made, 1\n"
    make += "optimizer, rest = make(model)\n"
    done, _ = layout(tmp_path, HEAD + make + LOOP)
    (refusal,) = done.left
    assert refusal.code == "PW702"
    assert refusal.message.endswith("an optimizer of torch.optim: optimizer")


def test_an_optimizer_that_stays_code_reads_its_section(tmp_path: Path) -> None:
    made = "optimizer = torch.optim.SGD([{'params': model.parameters(), 'lr': 1.0}], lr=0.1, momentum=0.5)\n"
    done, files = layout(tmp_path, HEAD + made + LOOP)
    assert 'lr=self.params["optimizer"]["learning_rate"]' in files["model.py"]
    assert 'momentum=self.params["optimizer"]["momentum"]' in files["model.py"]
    assert params(files)["optimizer"]["momentum"] == 0.5
    assert [text for text in done.literals if text.startswith("lr 1.0 in model.py")], done.literals


def test_a_call_that_was_followed_is_not_called_left_out(tmp_path: Path) -> None:
    body = (SGD + LOOP + "return 3, 4\n").replace("\n", "\n    ")
    done, _ = layout(
        tmp_path, f"{HEAD}\ndef main(name):\n    {body}\nfirst, rest = main('a')\nprint(first)\n"
    )
    assert codes(done) == []
    rows = {row["statement"]: row["into"] for row in done.dissolved}
    assert rows["first, rest = main('a')"] == "its statements, which are placed one by one"


def test_the_scripts_own_command_line_is_refused_where_the_files_would_read_it(tmp_path: Path) -> None:
    read = "import sys\n" + HEAD.replace("nn.Linear(4, 1)", "nn.Linear(int(sys.argv[1]), 1)") + SGD + LOOP
    done, files = layout(tmp_path, read)
    assert files == {}
    assert [f.message for f in done.left] == ["no layout: the script's own command line is read here"]
    elsewhere = "import sys\n" + HEAD + SGD + LOOP + "print(sys.argv[0])\n"
    assert layout(tmp_path, elsewhere)[1]


def test_a_module_that_is_imported_by_a_text_is_taken_along(tmp_path: Path) -> None:
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "__init__.py").write_text("")
    (tmp_path / "nets" / "small.py").write_text("from torch import nn\nmake = nn.Linear\n")
    named = HEAD.replace("nn.Linear(4, 1)", "importlib.import_module(f'nets.{KIND}').make(4, 1)")
    done, files = layout(tmp_path, "import importlib\nKIND = 'small'\n" + named + SGD + LOOP, try_out=True)
    assert {"nets/__init__.py", "nets/small.py"} <= set(files)
    assert done.tried is not None
    assert done.tried.outcome == "ran", done.tried
