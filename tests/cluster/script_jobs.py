"""Jobs of stand-in programs, to see what their scripts do on a real SLURM."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from slurm_cluster import SlurmCluster

from portwright.launch.job import Job, Resources, Step, Tasks
from portwright.launch.script import render_job
from portwright.launch.site import Site
from portwright.launch.task_script import render_task

# Counts to a number, a step each 0.2 s, and saves when a signal asks for it; `trouble` happens at step 10.
COUNTER = """
import json, os, signal, sys, time
from pathlib import Path
asked = []
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, lambda got, frame: asked.append(signal.Signals(got).name))
model_dir, name, goal, trouble = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
rank = int(os.environ["RANK"])
place = {key: value for key, value in os.environ.items() if key.isupper() and not key.startswith("SLURM")}
with (model_dir / f"{name}.{rank}").open("a") as told:
    told.write(json.dumps({"argv": sys.argv[5:], "cwd": os.getcwd(), "env": place}) + "\\n")
first = max([int(path.name[11:]) for path in model_dir.glob("checkpoint_*")], default=0)
for step in range(first, goal if name == "train" else 0):
    time.sleep(0.2)
    if asked:
        if rank == 0:
            time.sleep(1)  # the others have ended, and must not take this one with them
            (model_dir / f"checkpoint_{step}").mkdir(exist_ok=True)
        print("saved at", step, "for", asked, flush=True)
        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # one that comes again would kill Python while it ends
        sys.exit(85)
    if rank == 0:
        (model_dir / "at").write_text(str(step))
    if step == 10:
        exec(trouble)
(model_dir / f"{name}.{rank}.finished").touch()
"""


def ask(cluster: SlurmCluster, *nodes: int, **changes: Any) -> Resources:
    """Three tasks on these nodes, which are counted from 1."""
    flag = f"--nodelist={','.join(cluster.names[number - 1] for number in nodes)}"
    fields = {
        "nodes": len(nodes),
        "ntasks": 3,
        "cpus_per_task": 1,
        "minutes": 20,
        "grace_seconds": 30,
        **changes,
    }
    return Resources(flags=(flag,), **fields)


class CountingJob:
    """A chain of validate and train on the cluster."""

    def __init__(
        self,
        cluster: SlurmCluster,
        root: Path,
        *,
        goal: int = 60,
        trouble: str = "pass",
        tasks: Tasks = "parallel",
        resources: Resources | None = None,
        words: tuple[str, ...] = (),
        folder: Path | None = None,
        tables: dict[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        self.cluster = cluster
        self.folder = folder or root / "job"
        self.model_dir = root / "model dir"
        for path in (self.folder, self.model_dir):
            path.mkdir(parents=True, exist_ok=True)
        (root / "counter.py").write_text(COUNTER)

        def step(name: str, count: int, kind: Tasks) -> Step:
            told = (str(self.model_dir), name, str(goal), trouble, *words)
            return Step(name, count, ("python", str(root / "counter.py"), *told), kind)

        asked = resources or ask(cluster, 1, 2)
        site = {"name": "here", "scheduler": "slurm", "target": "CPU", **(tables or {})}
        self.job = Job(
            name="counting-1",
            folder=self.folder,
            workdir=root,
            site=Site.model_validate(site),
            target="CPU",
            steps=(step("validate", 1, "single"), step("train", asked.ntasks, tasks)),
            resources=asked,
            model_dir=self.model_dir,
            python=sys.executable,
            **fields,
        )
        for name, text in (("job.sh", render_job(self.job)), ("task.sh", render_task(self.job))):
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o700)
        self.id = 0

    def submit(self, *flags: str) -> None:
        self.id = self.cluster.submit(*flags, self.folder / "job.sh", cwd=Path("/"))

    def wait_at(self, step: int) -> None:
        """Until this step, with every task there to hear a signal, or the job's end."""

        def reached() -> bool:
            path, ranks = self.model_dir / "at", range(self.job.resources.ntasks)
            if self.state in ("failed", "done"):
                return True
            return (
                path.exists()
                and int(path.read_text() or 0) >= step
                and all((self.model_dir / f"train.{rank}").exists() for rank in ranks)
            )

        self.cluster.wait(reached, 120, lambda: self.log)

    def wait_for(self, *states: str) -> str:
        """Until the script says one of these, and Slurm has nothing more to do with it."""
        self.cluster.wait(lambda: self.state in states, 240, lambda: f"{self.state}\n{self.log}")
        if self.state != "requeued":
            self.cluster.wait(lambda: self._slurm_is_done(), 60, lambda: self.cluster.state(self.id))
        return self.state

    def _slurm_is_done(self) -> bool:
        return self.cluster.state(self.id) not in ("PENDING", "RUNNING", "COMPLETING")

    def told(self, step: str, rank: int) -> list[dict[str, Any]]:
        """What the program saw of itself each time it began."""
        path = self.model_dir / f"{step}.{rank}"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def state(self) -> str:
        path = self.folder / "state.json"
        return str(json.loads(path.read_text())["state"]) if path.exists() else ""

    @property
    def attempts(self) -> list[str]:
        """Why each ended."""
        path = self.folder / "attempts"
        return [line.split()[1] for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def log(self) -> str:
        path = self.folder / "log.txt"
        return path.read_text(errors="replace") if path.exists() else "(no log)"
