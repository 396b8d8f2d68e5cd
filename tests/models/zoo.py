"""Reference models loaded and run inside this process, one after the other though all have a model.py."""

from __future__ import annotations

import copy
import json
import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portwright.base_model import LossModule, make_model
from portwright.discover import find_models
from portwright.job.arguments import parse_arguments
from portwright.job.model_list import config_files
from portwright.job.run_params import load_run_params
from portwright.planning import subject
from portwright.runtime import run as run_module
from portwright.runtime.metrics import clear_registry
from portwright.watching.random_states import seed_all

FOLDERS = find_models()
NAMES = sorted(FOLDERS)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Inside, the folder's files are found; afterwards none of them is left under a name that another folder has too."""
    saved, argv, where = list(sys.path), sys.argv, Path.cwd()
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:], sys.argv = saved, argv
        os.chdir(where)
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(f"{folder}{os.sep}"):
                del sys.modules[name]
        clear_registry()


@dataclass
class Model:
    """A model folder's parts, and its params as a run sees them."""

    name: str
    parts: Any
    params: Any

    def make(self, device: Any = None) -> LossModule:
        """A fresh model with the weights that a run begins with."""
        import torch

        seed_all(self.params.runconfig.seed or 0, torch.device("cpu"))
        where = None if device is None else torch.device(device)
        return make_model(self.parts.model_fn, copy.deepcopy(self.params.values), where)

    def batch(self) -> Any:
        """The first batch of the training data."""
        return subject._read_batch(self.parts.train_data_fn, copy.deepcopy(self.params.values), self.params)[
            0
        ]


@contextmanager
def loaded(name: str, config: Path | None = None, overrides: Sequence[str] = ()) -> Iterator[Model]:
    """A model folder up to its call of run()."""
    folder = FOLDERS[name]
    with alone(folder):
        parts = run_module.Parts(**subject._ask(folder / "run.py", None))
        words = [word for text in overrides for word in ("-D", text)]
        path = config or folder / "configs" / "params.yaml"
        parsed = parse_arguments(["CPU", "--mode", "train", "--params", str(path), *words], None)
        yield Model(name, parts, load_run_params(parsed, parts.default_params_fn))


def count_parameters(name: str) -> dict[str, int]:
    """Of each config the parameters of its network, which is made without memory."""
    import torch

    counts = {}
    for config in config_files(FOLDERS[name]):
        with loaded(name, config) as model, torch.device("meta"):
            counts[config.name] = sum(p.numel() for p in model.make("meta").net.parameters())
    return counts


def run(folder: Path, *arguments: str, num_steps: int | None = 5) -> list[float]:
    """Trains a model folder by its run.py as `python run.py` would, and gives the loss of each step; None: to the config's end."""
    out = folder / "model_dir"
    words = ["--mode", "train", "--params", "configs/params.yaml", "--model_dir", str(out)]
    words += ["-D", "runconfig.log_steps=1"] + ([] if num_steps is None else ["--max_steps", str(num_steps)])
    with alone(folder):
        os.chdir(folder)
        sys.argv = ["run.py", "CPU", *words, *arguments]
        try:
            runpy.run_path("run.py", run_name="__main__")
        except SystemExit as stop:
            if stop.code:
                raise AssertionError(f"run.py ended with {stop.code}: {sys.argv}") from stop
    log = (out / "train" / "metrics.jsonl").read_text().splitlines()
    return [loss for line in log for loss in json.loads(line)["losses"]]
