"""Recordings made by hand: a network of two layers that is computed here, so that every number is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from portwright.verify.launch import Recorder, Runs, ScriptFailed
from portwright.verify.recording import (
    Draw,
    Group,
    Match,
    ModuleOutput,
    Recording,
    Step,
    Tensor,
    TensorDigest,
)

SHAPES = {"first.weight": (8, 6), "first.bias": (8,), "last.weight": (4, 8), "last.bias": (4,)}
OPTIONS: dict[str, Any] = {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "foreach": None}
SKETCH = np.random.default_rng(5).standard_normal((64, 64)) / 8


def sketch(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    flat = values.reshape(-1)
    return np.asarray(SKETCH[:, : flat.size] @ flat)


def make(
    steps: int = 6,
    *,
    lr: float = 0.1,
    decay: float = 0.0,
    factor: float = 1.0,
    keeps_gradient: bool = False,
    frozen: str = "",
    noise: float = 0.0,
    shift: int = 0,
    draws: tuple[Draw, ...] = (),
    says_lr: bool = True,
) -> Recording:
    """Gradients are functions of the weights, so that a difference of weights shows in the step after."""
    random = np.random.default_rng(0)
    weights = {n: random.standard_normal(s) for n, s in SHAPES.items()}
    disturb = np.random.default_rng(99)
    weights = {n: w * (1 + noise * disturb.standard_normal(w.shape)) for n, w in weights.items()}
    targets = {n: random.standard_normal(s) for n, s in SHAPES.items()}
    arrays = {f"initial/{n}": sketch(w) for n, w in weights.items()}
    tensors = [
        Tensor(n, w.shape, "float32", "parameter", float(w.mean()), float(w.std()))
        for n, w in weights.items()
    ]
    recorded, before = [], {n: np.zeros(s) for n, s in SHAPES.items()}
    for index in range(1, steps + 1):
        batch_number = index + shift
        pull = 1 + 0.8 * np.cos(batch_number)
        loss = float(sum(((w - pull * targets[n]) ** 2).sum() for n, w in weights.items()))
        for name in SHAPES:
            gradient = factor * 0.2 * (weights[name] - pull * targets[name])
            gradient = gradient + before[name] if keeps_gradient else gradient
            if name != frozen:
                arrays[f"gradient/{index}/{name}"] = sketch(gradient)
                weights[name] = weights[name] - lr * gradient - lr * decay * weights[name]
                before[name] = gradient
            arrays[f"weight/{index}/{name}"] = sketch(weights[name])
        recorded.append(
            Step(
                index=index,
                optimizer="SGD",
                optimizer_number=0,
                losses=(loss,),
                loss_dtype="float32",
                batch=(
                    TensorDigest(
                        (4, 6), "float32", float(batch_number), 30.0 + batch_number, f"batch {batch_number}"
                    ),
                ),
                groups=(Group(tuple(SHAPES), {**OPTIONS, "lr": lr if says_lr else 0.1}),),
                outputs=(
                    ModuleOutput("first", "Linear", 32, loss / 3, loss, "net.py:5"),
                    ModuleOutput("last", "Linear", 16, loss / 2, loss, "net.py:6"),
                ),
                draws=draws,
                devices=("cpu",),
            )
        )
    recording = Recording(["train.py"], ".", 0, steps, {"torch": "2.13"}, tensors, recorded, arrays=arrays)
    recording.matches = [Match(n, (n,), "same", "name", "identical") for n in SHAPES]
    recording.perturbed = noise
    return recording


def with_step(recording: Recording, index: int, **changes: Any) -> Recording:
    """The recording with one step changed."""
    steps = [replace(s, **changes) if s.index == index else s for s in recording.steps]
    return replace(recording, steps=steps)


class Made(Runs):
    """Runs that are looked up instead of made; `asked` has each in order."""

    def __init__(self, folder: Path, **recordings: Recording | ScriptFailed) -> None:
        (folder / "a.py").write_text("original")
        (folder / "b.py").write_text("port")
        super().__init__("a.py", "b.py", folder, Recorder(steps=6), folder=folder)
        self.recordings, self.asked = recordings, list[str]()

    def original(self, dropout="drawn", dtype="as written", perturb=0.0):  # type: ignore[no-untyped-def,override]
        return self._get("original", dropout, dtype, "noise" if perturb else "")

    def ported(self, dropout="drawn", dtype="as written"):  # type: ignore[no-untyped-def,override]
        return self._get("ported", dropout, dtype, "")

    def _get(self, *words: str) -> Recording:
        short = {"drawn": "", "as written": "", "float64": "64"}
        name = "_".join(w for w in (short.get(word, word) for word in words) if w)
        if name not in self.asked:
            self.asked.append(name)
        found = self.recordings[name]
        if isinstance(found, ScriptFailed):
            raise found
        return found
