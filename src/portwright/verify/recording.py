"""The data of a recording: what a training script computed in its first steps.

A recording is a folder: `recording.json` (everything but arrays), `arrays.safetensors` (sketches, keys as below) and
`initial.safetensors` (each parameter and buffer before the first step, by the recording's own names). This module does not import torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from portwright.errors import UserError
from portwright.job.atomic import atomic_write_bytes, atomic_write_text

FORMAT = 1
SKETCH_SIZE = 64

# How a tensor of the port was matched, the most certain way first.
MatchedBy = Literal["name", "values", "shape", "order"]


@dataclass(frozen=True)
class TensorDigest:
    """An input of the step; tensors with equal digests hold the same values, in any order."""

    shape: tuple[int, ...]
    dtype: str
    total: float
    square: float  # sum of squares
    values: str  # hash of the sorted values as float64, or "" where only the sums can be compared


@dataclass(frozen=True)
class ModuleOutput:
    """One call of a module inside a step, in the order of the calls; sums do not depend on layout."""

    module: str  # its name in the root module, "" for the root
    kind: str  # its class
    size: int
    total: float
    square: float
    line: str = ""  # file:line of the user's code that called it


@dataclass(frozen=True)
class Draw:
    """A random function called in a step, such as dropout."""

    function: str
    rate: float
    size: int


@dataclass(frozen=True)
class Group:
    """One group of an optimizer's parameters at an update."""

    parameters: tuple[str, ...]
    # lr, weight_decay, momentum, betas, ...
    options: Mapping[str, float | bool | str | tuple[float, ...] | None]


@dataclass(frozen=True)
class Step:
    """One update of the weights (or one backward where a script updates by hand)."""

    index: int  # from 1
    optimizer: str  # class, "" where the script updates by hand
    optimizer_number: int  # which optimizer of the script, from 0
    losses: tuple[float, ...]  # of each backward since the last update
    loss_dtype: str
    batch: tuple[TensorDigest, ...]  # from the loader, or else what the modules were fed
    groups: tuple[Group, ...]
    outputs: tuple[ModuleOutput, ...] = ()
    draws: tuple[Draw, ...] = ()
    no_gradient: tuple[str, ...] = ()  # parameters whose gradient was None
    zeroed: bool = True  # gradients were cleared before the first backward of this step
    devices: tuple[str, ...] = ()  # where the parameters and the loss were


@dataclass(frozen=True)
class Tensor:
    """A parameter or buffer of the script, before the first step."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: Literal["parameter", "buffer"]
    mean: float
    deviation: float
    trained: bool = True
    owner: str = ""  # class of the module that holds it, "" where none does
    aliases: tuple[str, ...] = ()  # its other names, where weights are tied
    called: int = -1  # place of that module in the order of first calls; -1: never called


@dataclass(frozen=True)
class Match:
    """Which tensors of the port are one of the original's, and how they are laid out there.

    `layout` in words: "same", "permuted 1 0", "rows 0-64 of", "joined along 0", "reshaped".
    """

    original: str
    ported: tuple[str, ...]
    layout: str
    by: MatchedBy
    # copied: the port had drawn other values and was given the original's
    initial: Literal["identical", "copied"]


@dataclass
class Recording:
    """The steps of one script. A port's sketches have the original's names where tensors were matched."""

    command: list[str]
    folder: str
    seed: int
    asked_steps: int
    versions: dict[str, str]  # python, torch, numpy, portwright
    tensors: list[Tensor]
    steps: list[Step]
    matches: list[Match] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)  # tensors of the port that the original lacks
    missing: list[str] = field(default_factory=list)  # tensors of the original that the port lacks
    target: str = ""  # named on the command line of a run.py: CPU, GPU, CSX, ...
    ran_on: dict[str, Any] = field(default_factory=dict)  # devices, vendor calls seen, ...
    dropout: Literal["drawn", "off"] = "drawn"
    dtype: Literal["as written", "float64"] = "as written"
    perturbed: float = 0.0  # relative size of the noise added to the initial weights
    sources: list[str] = field(default_factory=list)  # checksums of the project's files that were run, sorted
    # the run outside its steps, as `record_run` describes it
    run: dict[str, Any] = field(default_factory=dict)
    ended: str = "steps"  # why the recording ended: "steps", "script ended", or an error
    notes: list[str] = field(default_factory=list)
    arrays: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict, repr=False)

    # Keys: "gradient/<step>/<name>", "weight/<step>/<name>" (after the update; buffers too), "initial/<name>".
    def sketch(self, what: str, step: int, name: str) -> npt.NDArray[np.float64] | None:
        return self.arrays.get(f"{what}/{step}/{name}" if step else f"initial/{name}")

    def save(self, folder: Path) -> None:
        from safetensors.numpy import save

        folder.mkdir(parents=True, exist_ok=True)
        atomic_write_bytes(folder / "arrays.safetensors", save(self.arrays))
        document = {k: v for k, v in asdict(self).items() if k != "arrays"}
        atomic_write_text(folder / "recording.json", json.dumps({"format": FORMAT, **document}))


def load(folder: Path) -> Recording:
    """Reads a recording; an incomplete one or another format is a UserError."""
    from safetensors.numpy import load_file

    try:
        document = json.loads((folder / "recording.json").read_text(encoding="utf-8"))
        found = document.pop("format")
        if found != FORMAT:
            raise UserError(
                f"{folder} is a recording of format {found}; this version reads {FORMAT}.", "Record it again."
            )
        document["tensors"] = [
            Tensor(**{**t, "shape": tuple(t["shape"]), "aliases": tuple(t.get("aliases", ()))})
            for t in document["tensors"]
        ]
        document["steps"] = [_step(s) for s in document["steps"]]
        document["matches"] = [Match(**{**m, "ported": tuple(m["ported"])}) for m in document["matches"]]
        return Recording(**document, arrays=load_file(folder / "arrays.safetensors"))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder} is no whole recording: {error}.", "Record it again.") from error


def _step(row: dict[str, Any]) -> Step:
    digests = tuple(TensorDigest(**{**d, "shape": tuple(d["shape"])}) for d in row.pop("batch"))
    groups = tuple(
        Group(
            tuple(g["parameters"]),
            {k: tuple(v) if isinstance(v, list) else v for k, v in g["options"].items()},
        )
        for g in row.pop("groups")
    )
    outputs = tuple(ModuleOutput(**o) for o in row.pop("outputs"))
    draws = tuple(Draw(**d) for d in row.pop("draws"))
    lists: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
    return Step(batch=digests, groups=groups, outputs=outputs, draws=draws, **lists)
