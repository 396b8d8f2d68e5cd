"""The main job from beginning to end: a plain PyTorch script is checked, ported, proven, lowered and trained.

`make demo` runs this; each command is printed before it runs, so that it can be repeated by hand.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from portwright.errors import UserError
from portwright.job.atomic import atomic_write_text
from portwright.report.page import render_page
from portwright.targets.csx import TARGET

SCRIPT = Path(__file__).parent / "transformer" / "train.py"
MARK = ".portwright-demo"


@dataclass(frozen=True)
class Task:
    """One command of the demo; `good` are the statuses that it may end with, `page` and `makes` what it must leave."""

    title: str
    command: list[str]
    good: tuple[int, ...] = (0,)
    page: str = ""
    makes: str = ""


def tasks(out: Path) -> list[Task]:
    """What is run, in order; the vendor's front end only where its environment is."""
    portwright, python = [sys.executable, "-m", "portwright"], [sys.executable]
    ported = str(out / "ported" / "run.py")
    params = ["--mode", "train", "--params", str(out / "ported" / "configs" / "params.yaml")]
    all_tasks = [
        Task(
            "Check the script for every target",
            [*portwright, "check", str(SCRIPT), "--format", "html", "--out", str(out / "check.html")],
            good=(0, 1),
            page="check.html",
        ),
        Task(
            "Port it to the five files of the workflow",
            [*portwright, "port", str(SCRIPT), "--target", "csx", "--style", "layout", "--out", str(out / "ported")],
            good=(0, 1),
            makes="ported/run.py",
        ),
        Task(
            "Prove that the port computes the same",
            [*portwright, "verify", str(SCRIPT), shlex.join([ported, "CPU", *params]),
             "--steps", "20", "--out", str(out / "proof.json"), "--html", str(out / "proof.html")],
            page="proof.html",
        ),
        Task(
            "Train and evaluate the port on the CPU",
            [*python, ported, "CPU", "--mode", "train_and_eval", *params[2:], "--model_dir", str(out / "model_dir")],
        ),
    ]  # fmt: skip
    if front_end_is_here():
        lower = Task(
            "Let Cerebras's own front end lower the whole training step",
            [*python, ported, "CSX", *params, "--validate_only", "--model_dir", str(out / "lowered")],
        )
        all_tasks.insert(3, lower)
    return all_tasks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("model_dir/demo"), help="folder for what it makes")
    out: Path = parser.parse_args().out
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the model is too small for more threads to pay
    make_empty(out)
    rows: list[tuple[Task, float]] = []
    for task in tasks(out):
        print(f"\n== {task.title}\n$ {shown(task.command)}", flush=True)
        begun = time.monotonic()
        status = subprocess.run(task.command, check=False).returncode
        rows.append((task, time.monotonic() - begun))
        if status not in task.good or not all((out / name).exists() for name in (task.page, task.makes)):
            sys.exit(
                f"error: '{task.title}' ended with status {status}; the command above shows why when repeated."
            )
    if not front_end_is_here():
        print("\nCerebras's front end was not asked: `make csx-env` installs it (6 GB, once), then repeat.")
    write_page(out, rows)
    print(f"\nreport: {out / 'report.html'}")


def front_end_is_here() -> bool:
    return TARGET.why_not() is None


def make_empty(out: Path) -> None:
    """An earlier demo is replaced; a folder of anybody else is not."""
    if out.exists():
        if any(out.iterdir()) and not (out / MARK).exists():
            raise UserError(
                f"{out} exists and is not from an earlier demo.", "Choose another folder with --out."
            )
        shutil.rmtree(out)
    out.mkdir(parents=True)
    (out / MARK).touch()


def shown(command: list[str]) -> str:
    """The command as a user of the activated environment would type it."""
    text = shlex.join(command)
    for long, short in ((f"{sys.executable} -m portwright", "portwright"), (sys.executable, "python")):
        text = text.replace(shlex.quote(long) if " " not in long else long, short)
    return text


def write_page(out: Path, rows: list[tuple[Task, float]]) -> None:
    done = [(task.title, shown(task.command), seconds, task.page) for task, seconds in rows]
    atomic_write_text(out / "report.html", render_page("demo.html.j2", tasks=done))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
