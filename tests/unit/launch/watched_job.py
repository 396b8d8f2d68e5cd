"""Job folders as a job's script and a run leave them, for the tests of what a person sees of a job."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from portwright.launch.registry import Entry
from portwright.launch.slurm import SlurmState
from portwright.launch.view import Looker, View

SUBMITTED = 1_800_000_000.0
NOW = SUBMITTED + 3600
STEPS = ("validate", "compile", "train", "eval")


def line(
    step: int, loss: float | None, seconds: float, wall: float, kind: str = "train", **more: Any
) -> dict[str, Any]:
    values = {"loss": loss, "steps_per_second": 2.0, "samples_per_second": 128.0}
    if kind != "train":
        values = {"loss": loss}
    return {"step": step, "kind": kind, "values": values, "time_seconds": seconds, "wall_time": wall, **more}


def training_lines(last: int, *, every: int = 10, per_second: float = 2.0) -> list[dict[str, Any]]:
    """A training that was logged until a minute ago, its loss going down."""
    steps = range(every, last + 1, every)
    return [line(s, 100.0 / s, s / per_second, NOW - 60 - (last - s) / per_second) for s in steps]


class Watched:
    """A job's folder and its run's."""

    def __init__(self, root: Path, name: str = "mymodel-3", scheduler: str = "slurm") -> None:
        self.folder, self.model_dir = root / name, root / f"{name} run"
        (self.folder / "steps").mkdir(parents=True)
        (self.model_dir / "train").mkdir(parents=True)
        submitted = datetime.datetime.fromtimestamp(SUBMITTED, datetime.timezone.utc).isoformat()
        self.entry = Entry(
            name,
            self.folder,
            "neocortex",
            scheduler,
            "4711",
            submitted=submitted,
            model_dir=str(self.model_dir),
            title="fc_mnist",
        )
        resources = {"partition": "sdf", "minutes": 240, "grace_seconds": 120}
        steps = [{"name": step, "ntasks": 1} for step in STEPS]
        self.write("manifest.json", {"name": name, "steps": steps, "resources": resources, "time": submitted})
        self.write("params.yaml", "runconfig:\n  max_steps: 1000\n")

    def write(self, name: str, content: Any) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        (self.folder / name).write_text(text, encoding="utf-8")

    def state(
        self, state: str, step: str = "train", status: int = 0, restarts: int = 0, at: float = NOW - 900
    ) -> None:
        moment = datetime.datetime.fromtimestamp(at, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.write(
            "state.json",
            {"state": state, "step": step, "status": status, "restarts": restarts, "time": moment},
        )

    def done(self, *steps: str) -> None:
        for step in steps:
            (self.folder / "steps" / f"{step}.done").touch()

    @property
    def metrics(self) -> Path:
        return self.model_dir / "train" / "metrics.jsonl"

    def log(self, lines: Iterable[dict[str, Any]], end: str = "\n") -> None:
        self.metrics.write_text("\n".join(json.dumps(x) for x in lines) + end)

    def checkpoint(self, step: int) -> None:
        folder = self.model_dir / f"checkpoint_{step}"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"w" * 1000)
        (folder / "manifest.json").write_text("{}")

    def view(self, state: SlurmState | Exception) -> View:
        looker = Looker(self.entry, lambda _: _answer(state), lambda: NOW)
        looker.ask()
        return looker.look()


def _answer(state: SlurmState | Exception) -> SlurmState:
    if isinstance(state, Exception):
        raise state
    return state


def running(**more: Any) -> SlurmState:
    return SlurmState("running", "RUNNING", nodes="sdf-[1-2]", **more)
