"""A trained network from a model folder: the class its run.py names, with the weights and the params of a checkpoint."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from portwright.base_model import make_model
from portwright.discover import FRAMEWORKS
from portwright.errors import PortwrightError, UserError
from portwright.graph.plans.request import Request, find_script, framework_of
from portwright.job.arguments import parse_arguments
from portwright.job.run_params import default_model_dir, load_run_params
from portwright.patched import patched
from portwright.runtime.asked_script import ask_script
from portwright.runtime.checkpoint import (
    list_checkpoints,
    locate_checkpoint,
    match_names,
    read_checkpoint,
)

_DEFAULT_PARAMS = Path("configs") / "params.yaml"
_RUN_PARAMS = Path("train") / "params_train.yaml"  # written by a run into its model_dir


@dataclass(frozen=True)
class TrainedNetwork:
    """A network with its weights, and where they came from."""

    network: nn.Module
    params: dict[str, Any]
    params_file: Path
    checkpoint: Path
    step: int
    folder: Path  # of the model's files


def load_trained(
    name: str,
    checkpoint: Path | None,
    params_file: Path | None,
    overrides: Sequence[str],
    device: torch.device,
    note: Callable[[str], None],
) -> TrainedNetwork:
    """Makes the network of a model folder or reference model and fills it.

    `checkpoint` is a checkpoint or a folder with some; by default the params' model_dir. Without a params file the
    params are those saved by the checkpoint's run, else the folder's own.
    """
    script = find_script(name)
    if script is None:
        raise UserError(
            f"'{name}' is not a model folder.", "Give a folder with a run.py, or a reference model."
        )
    if framework_of(Request(name)) != FRAMEWORKS[0]:
        raise UserError(
            f"'{name}' is a model of TensorFlow, and text is generated with those of PyTorch.",
            "Take the PyTorch model of that name, or another.",
        )
    own_params = params_file if params_file is not None else script.parent / _DEFAULT_PARAMS
    arguments = [str(script), "CPU", "--mode", "eval", "--params", str(own_params)]
    with patched(sys, "argv", arguments):  # as when run.py is run
        parts = ask_script(script)
    params: dict[str, Any] | None = None
    if checkpoint is None:
        params = _read_params(parts, script, own_params, overrides)
        given_dir = params.get("runconfig", {}).get("model_dir")
        model_dir = Path(given_dir).expanduser() if given_dir else default_model_dir(script.parent)
        if not list_checkpoints(model_dir):
            raise UserError(
                f"'{name}' has no checkpoint in {model_dir}.",
                f"Train it (portwright run {name} CPU --mode train), or give one with --checkpoint.",
            )
        checkpoint = model_dir
    found = _choose_checkpoint(checkpoint, note)
    kept = found.parent / _RUN_PARAMS
    if params_file is None and kept.is_file():
        own_params, params = kept, None
    if params is None:
        try:
            params = _read_params(parts, script, own_params, overrides)
        except PortwrightError as error:
            if own_params == kept:
                error.cure += f" These are the params of the run that made {found}: is it one of '{name}'?"
            raise
    network = make_model(parts["model_fn"], copy.deepcopy(params), "cpu").net
    step = _fill(network, found, note)
    return TrainedNetwork(network.to(device).eval(), params, own_params, found, step, script.parent)


def _read_params(
    parts: dict[str, Any], script: Path, params_file: Path, overrides: Sequence[str]
) -> dict[str, Any]:
    if not params_file.is_file():
        raise UserError(f"there is no params file '{params_file}'.", "Give one with --params.")
    changed = [word for text in overrides for word in ("-D", text)]
    words = ["CPU", "--mode", "eval", "--params", str(params_file.resolve()), *changed]
    with patched(sys, "argv", [str(script), *words]):
        arguments = parse_arguments(words, parts["extra_args_parser_fn"])
        return load_run_params(arguments, parts["default_params_fn"]).values


def _choose_checkpoint(path: Path, note: Callable[[str], None]) -> Path:
    path = path.expanduser()
    if not path.exists():
        raise UserError(
            f"There is no checkpoint {path}.",
            "Give --checkpoint a checkpoint, a model_dir or a .safetensors file.",
        )
    return locate_checkpoint(path, note) or path  # the reader of checkpoints will say what is wrong with it


def _fill(network: nn.Module, checkpoint: Path, note: Callable[[str], None]) -> int:
    loaded = read_checkpoint(checkpoint, weights_only=True)
    own = network.state_dict(keep_vars=True)
    with torch.no_grad():
        for shard in match_names(loaded.shards, own, note):
            target = own.get(shard.name.removeprefix("model/"))
            if target is not None:
                target.copy_(shard.tensor)
    return loaded.step
