"""Run by `ranks.py`: forks the processes of one scenario after another, so that torch is imported once for all of them.

A scenario is a line of JSON on standard input; the answer, a line on standard output, has the result of every process.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
import yaml
from pipelined_models import MODELS, Samples, eval_data, train_data

from portwright.base_model import LossModule
from portwright.errors import PortwrightError
from portwright.job.params import load_params
from portwright.runtime import metrics
from portwright.runtime.backend import _session_class
from portwright.runtime.pipelined.recorder import record
from portwright.runtime.pipelined.weights import StandIns
from portwright.runtime.world import Launch, World
from portwright.target import JobSpec, Shard, Stretch

BASE = {
    "train_input": {"batch_size": 8, "num_samples": 20},
    "eval_input": {"batch_size": 6, "num_samples": 16},
    "model": {"dropout": 0.0},
    "optimizer": {"optimizer_type": "SGD", "learning_rate": 0.1},
    "runconfig": {"max_steps": 4, "seed": 1},
}


def make_job(scenario: dict[str, Any], folder: Path) -> JobSpec:
    values = {name: dict(section) for name, section in BASE.items()}
    values["model"]["name"] = scenario["model"]
    for name, section in scenario.get("params", {}).items():
        values[name].update(section)
    path = folder / f"params.{os.getpid()}.yaml"
    path.write_text(yaml.safe_dump(values))
    params = load_params(path)
    mode = scenario.get("mode", "train_and_eval")
    return JobSpec(params, MODELS[scenario["model"]], train_data, eval_data, mode)


def play(scenario: dict[str, Any], folder: Path, launch: Launch) -> dict[str, Any]:
    """One process's part of a scenario: open, load, train, evaluate, save, in that order, as far as asked for."""
    notes: list[str] = []
    job = make_job(scenario, folder)
    world = World(launch, "cpu", None, f"file://{folder}/meet")
    kind = _session_class("pipelined" if scenario.get("pipelined", True) else "resident", world.size)
    result: dict[str, Any] = {"notes": notes}
    try:
        session = kind(job, torch.device("cpu"), world, notes.append)
        first = 0
        if "load" in scenario:
            stored = torch.load(scenario["load"], weights_only=True)
            session.load_state([Shard(*item) for item in stored["shards"].items()], stored["counters"])
            first = stored["step"]
        result["losses"] = []
        result["held"] = sum(p.numel() for p in session._module.net.parameters() if not p.is_meta)
        last = first + scenario.get("steps", 4)
        if last > first:
            stretch = Stretch(first, last, log_steps=1, boundary_steps=0, should_stop=lambda: False)
            for event in session.train(stretch):
                result["losses"] += event.losses
                if event.values:
                    result["values"] = dict(event.values)
        if scenario.get("evaluates"):
            result["evaluation"] = session.evaluate(None)
        shards = {shard.name: shard.tensor.clone() for shard in session.state()}
        if world.is_main:
            result["weights"] = {
                name: tensor.tolist() for name, tensor in shards.items() if not name.startswith("rng/")
            }
            if "save" in scenario:
                stored = {"shards": shards, "counters": session.counters(), "step": last}
                torch.save(stored, scenario["save"])
        session.close()
        world.barrier()
    except PortwrightError as error:
        result["error"] = [type(error).__name__, str(error)]
        if world.size > 1:
            world.barrier()
    world.close()
    metrics.clear_registry()
    return result


def run_rank(scenario: dict[str, Any], folder: Path, rank: int, size: int) -> None:
    warnings.simplefilter("error")
    try:
        result = play(scenario, folder, Launch(rank, size, rank, size, "torchrun"))
    except BaseException:
        result = {"crash": traceback.format_exc()}
    (folder / f"{rank}.json").write_text(json.dumps(result))


def warm_up() -> None:
    """Lets torch import here what a trace needs, and learn the shapes that tensors without data go through."""
    device = torch.device("cpu")
    for name, make in MODELS.items():
        for dtype in (torch.float32, torch.float64):
            made = LossModule(make({"model": {"name": name, "dropout": 0.0, "how": ""}}))
            made.net.to(dtype)
            batch = {
                key: field[:2].to(dtype) if field.is_floating_point() else field[:2]
                for key, field in Samples(name, 2).fields.items()
            }
            record(made, batch, StandIns(made.net, device), None, device)


def main() -> None:
    torch.set_num_threads(1)
    warm_up()
    for line in sys.stdin:
        scenario = json.loads(line)
        size = scenario.get("size", 1)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            children = []
            for rank in range(size):
                pid = os.fork()
                if pid == 0:
                    os.dup2(2, 1)
                    run_rank(scenario, folder, rank, size)
                    os._exit(0)
                children.append(pid)
            for pid in children:
                os.waitpid(pid, 0)
            results = [
                json.loads(path.read_text())
                if (path := folder / f"{rank}.json").exists()
                else {"crash": "died"}
                for rank in range(size)
            ]
        print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
