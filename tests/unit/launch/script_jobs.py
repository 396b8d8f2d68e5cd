"""Jobs for tests of their scripts, and a way to run these on this machine without a scheduler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from portwright.launch.job import Job, Resources, Step, Tasks
from portwright.launch.script import render_job
from portwright.launch.site import Site
from portwright.launch.task_script import render_task

STAND_IN = """
import json, os, signal, sys, time
from pathlib import Path
out = Path(sys.argv[1])
asked = []
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, lambda got, frame: asked.append(got))
step, rank = sys.argv[2], os.environ["RANK"]
with (out / f"{step}.{rank}.ran").open("a") as ran:
    ran.write(json.dumps({"argv": sys.argv[3:], "cwd": os.getcwd(), "env": dict(os.environ)}) + "\\n")
exec((out / f"{step}.py").read_text() if (out / f"{step}.py").exists() else "")
"""


def make_site(scheduler: str = "none", **tables: Any) -> Site:
    return Site.model_validate({"name": "here", "scheduler": scheduler, "target": "CPU", **tables})


def make_job(folder: Path, *steps: Step, scheduler: str = "none", **changes: Any) -> Job:
    fields: dict[str, Any] = {
        "name": "mymodel-1",
        "folder": folder,
        "workdir": folder.parent,
        "site": changes.pop("site", None) or make_site(scheduler),
        "target": "CPU",
        "steps": steps or (Step("train", 1, ("python", "run.py")),),
        "resources": Resources(grace_seconds=30),
        "model_dir": folder.parent / "model dir",
        "python": sys.executable,
        **changes,
    }
    return Job(**fields)


class LocalJob:
    """A job of stand-in programs; what a step does is a text of Python, and it sees `rank`, `asked` and `out`."""

    def __init__(self, root: Path, names: tuple[str, ...] = ("validate", "train"), **changes: Any) -> None:
        self.out = root / "out"
        self.out.mkdir(parents=True)
        (root / "stand_in.py").write_text(STAND_IN)
        self.folder = changes.pop("folder", root / "job")
        self.folder.mkdir(parents=True)
        words: tuple[str, ...] = changes.pop("words", ())
        ntasks: int = changes.pop("ntasks", 1)
        tasks: Tasks = changes.pop("tasks", "parallel")
        tells_end: bool = changes.pop("tells_end", False)
        steps = [
            Step(
                name,
                ntasks if name == "train" else 1,
                ("python", str(root / "stand_in.py"), str(self.out), name, *words),
                tasks if name == "train" else "single",
                tells_end=tells_end,
            )
            for name in names
        ]
        self.job = make_job(self.folder, *steps, **{"workdir": root, **changes})
        for name, text in (("job.sh", render_job(self.job)), ("task.sh", render_task(self.job))):
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o700)

    def does(self, step: str, program: str) -> None:
        (self.out / f"{step}.py").write_text(program)

    def start(self, **environ: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log.txt").open("ab") as log:
            return subprocess.Popen(
                ["bash", str(self.folder / "job.sh")],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1", **environ},
                start_new_session=True,
            )

    def run(self, **environ: str) -> int:
        return self.start(**environ).wait(60)

    def ran(self, step: str, rank: int = 0) -> list[dict[str, Any]]:
        path = self.out / f"{step}.{rank}.ran"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
        return state

    @property
    def attempts(self) -> list[list[str]]:
        path = self.folder / "attempts"
        return [line.split()[1:] for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def log(self) -> str:
        return (self.folder / "log.txt").read_text()
