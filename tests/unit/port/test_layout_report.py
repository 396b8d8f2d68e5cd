"""What a layout's report says: what is left out, what one step of the folder gave, and no share of anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from portwright.cli import app
from portwright.port.layout.trial import try_layout

SCRIPT = """
import torch
import wandb
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

wandb.init(project="x")
loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=8, drop_last=True)
model = nn.Linear(8, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        wandb.log({"loss": loss.item()})
    print(epoch)
    torch.save(model.state_dict(), "mine.pt")
"""


def report(text: str, tmp_path: Path, *options: str) -> tuple[int, str]:
    script = tmp_path / "train.py"
    script.write_text(text)
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
            *options,
        ],
    )
    return result.exit_code, result.stderr


def test_what_is_left_out_is_listed_with_its_line(tmp_path: Path) -> None:
    status, text = report(SCRIPT, tmp_path, "--no-try")
    assert status == 0
    for words in (
        'train.py:7 wandb.init(project="x")', "train.py:17 wandb.log", "train.py:18 print(epoch)",
        "train.py:19 torch.save", "batch_size 8 in data.py:", "8 of Linear(), argument 1, in model.py:", "The folder was not tried.",
    ):  # fmt: skip
        assert words in text
    assert "%" not in text
    assert "minutes" not in text


def test_a_refused_port_counts_nothing(tmp_path: Path) -> None:
    status, text = report(SCRIPT.replace("loss.backward()", "loss.mean()"), tmp_path)
    assert status == 1
    assert text.strip().endswith("No layout: nothing was written.")
    assert not {"%", "fixed", "minutes"} & set(text.split())
    assert "train.py:1" in text


def test_text_of_the_script_does_not_reach_the_terminal_raw(tmp_path: Path) -> None:
    _, text = report(SCRIPT.replace("print(epoch)", "print('\x1b[31m')"), tmp_path, "--no-try")
    assert "\x1b" not in text
    assert r"\x1b[31m" in text


OUTCOMES = [
    (
        'print("{\\n  \\"mode\\": \\"train\\", \\"validated\\": {\\"train_loss\\": 0.5}\\n}")',
        "ran",
        "loss 0.5",
    ),
    ("pass", "ran", "its loss was not told"),
    ("import sys\nsys.exit('error: the loss is not a number.')", "failed", "the loss is not a number."),
    ("x = undefined", "failed", "NameError"),
    ("import no_such_module", "not tried", "no_such_module"),
    ("import helper", "failed", "helper"),  # the script's own module, which the layout should have
    ("open('no/such/file')", "not tried", "FileNotFoundError"),
]


@pytest.mark.parametrize(("code", "outcome", "words"), OUTCOMES)
def test_one_step_of_the_folder(code: str, outcome: str, words: str, tmp_path: Path) -> None:
    root, folder = tmp_path / "script", tmp_path / "out"
    root.mkdir()
    folder.mkdir()
    (root / "helper.py").touch()
    (folder / "run.py").write_text(code)
    tried = try_layout(folder, "torch", root, evaluates=False)
    assert (tried.outcome, words in tried.words) == (outcome, True), tried


def test_without_its_framework_nothing_is_tried(tmp_path: Path) -> None:
    assert try_layout(tmp_path, "no_such_framework", tmp_path, evaluates=False).outcome == "not tried"


def test_a_folder_that_does_not_run_is_not_called_done(tmp_path: Path) -> None:
    """The batch size does not fit what the script's model asks for: only a run tells."""
    status, text = report(SCRIPT.replace("nn.Linear(8, 3)", "nn.Linear(9, 3)"), tmp_path)
    assert status == 1
    assert "The folder was written, but its validate step failed: " in text


def test_a_folder_that_runs_is_said_to(tmp_path: Path) -> None:
    status, text = report(
        SCRIPT.replace("import wandb\n", "")
        .replace('wandb.init(project="x")\n', "")
        .replace('        wandb.log({"loss": loss.item()})\n', ""),
        tmp_path,
    )
    assert status == 0
    assert (
        "Ran one validate step of it on the CPU: loss 1." in text
        or "Ran one validate step of it on the CPU: loss 0." in text
    )
