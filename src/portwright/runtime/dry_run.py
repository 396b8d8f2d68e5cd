"""--validate_only and --compile_only: one real step, no weights written; and the folder where torch.compile keeps its output."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from portwright.errors import UnsupportedError, UserError
from portwright.job.arguments import Arguments
from portwright.job.atomic import atomic_write_text
from portwright.job.logs import Console
from portwright.job.outcome import Outcome
from portwright.target import CompilerSession, JobSpec, Session, Stretch
from portwright.watching.trees import walk_tensors


def validate(
    arguments: Arguments, job: JobSpec, session: Session, console: Console, outcome: Outcome
) -> None:
    """Params were checked before the session was opened; this checks shapes and dtypes, and runs one step."""
    trains = arguments.mode in ("train", "train_and_eval")
    described: dict[str, Any] = {"batches": {}}
    for name in (["train_input"] if trains else []) + (["eval_input"] if arguments.mode != "train" else []):
        described["batches"][name] = _describe_batches(session.sample_batches(name, 2), name, console)
    if isinstance(session, CompilerSession):
        lowered = session.lower(phases_of(arguments.mode))
        described |= lowered.details
        _say_batches(described, outcome)
        outcome.lines.extend(lowered.lines)
        outcome.more["validated"] = described
        return
    if trains:
        described["train_loss"] = _one_step(session)
    if arguments.mode in ("eval", "train_and_eval", "eval_all"):
        described["eval"] = session.evaluate(1)
    if arguments.mode == "predict":
        outputs = next(iter(session.predict(1)))
        described["predict"] = {name: list(tensor.shape) for name, tensor in outputs.items()}
    num_parameters = sum(s.tensor.numel() for s in session.state() if s.name.startswith("model/"))
    described["parameters"] = num_parameters
    _say_batches(described, outcome)
    outcome.lines.append(f"parameters and buffers: {num_parameters:,}")
    if "train_loss" in described:
        outcome.lines.append(f"one training step: loss {described['train_loss']:.6g}")
    outcome.lines.append(f"valid on {arguments.target.name}; no weights were written")
    outcome.more["validated"] = described


def phases_of(mode: str) -> tuple[str, ...]:
    return {"train": ("train",), "train_and_eval": ("train", "eval")}.get(mode, ("eval",))


def _say_batches(described: Mapping[str, Any], outcome: Outcome) -> None:
    for name, batch in described["batches"].items():
        outcome.lines.append(
            f"{name}: " + ", ".join(f"{path} {dtype}{shape}" for path, (dtype, shape) in batch.items())
        )


def _describe_batches(batches: list[Any], name: str, console: Console) -> dict[str, tuple[str, list[int]]]:
    described = [
        {path: (str(t.dtype).removeprefix("torch."), list(t.shape)) for path, t in walk_tensors(batch)}
        for batch in batches
    ]
    if not described[0]:
        raise UserError(
            f"a batch of {name} holds no tensor: {type(batches[0]).__name__}.",
            "Let the data function return tensors.",
        )
    for other in described[1:]:
        if other != described[0]:
            console.warning(
                f"{name}: batches differ in shape or dtype ({described[0]} and {other}); accelerators want one shape, "
                "so pad, or set drop_last=True."
            )
    for path, (dtype, _) in described[0].items():
        if dtype == "float64":
            console.warning(
                f"{name}: {path} is float64, which most accelerators refuse; convert it to float32 in data.py."
            )
    return described[0]


def _one_step(session: Session) -> float:
    stretch = Stretch(0, 1, log_steps=1, boundary_steps=0, should_stop=lambda: False)
    return next(event.values["loss"] for event in session.train(stretch) if event.kind == "log")


def compile_step(
    arguments: Arguments, job: JobSpec, session: Session, console: Console, outcome: Outcome
) -> None:
    """Compiles forward and backward by running one step, and records in the compiler's folder what it was compiled for."""
    folder = arguments.compile_dir or Path(outcome.model_dir) / "compile"
    if isinstance(session, CompilerSession):
        lowered = session.compile(folder, phases_of(arguments.mode))
        outcome.lines.extend(lowered.lines)
        outcome.more["compiled"] = dict(lowered.details)
        return
    folder.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    if arguments.mode in ("train", "train_and_eval"):
        _one_step(session)
    if arguments.mode != "train":
        session.evaluate(1)
    from torch._dynamo.utils import counters

    breaks: Counter[str] = counters["graph_break"]
    report: dict[str, Any] = {
        "torch": torch.__version__,
        "target": arguments.target.name,
        "mode": arguments.mode,
        "graphs": int(counters["stats"].get("unique_graphs", 0)),
        "graph_breaks": {" ".join(reason.split())[:300]: count for reason, count in breaks.items()},
        "seconds": time.perf_counter() - started,
    }
    atomic_write_text(folder / "manifest.json", json.dumps(report, indent=2) + "\n")
    for reason in report["graph_breaks"]:
        console.warning(f"the compiler left the graph: {reason}")
    outcome.lines.append(
        f"compiled {report['graphs']} graph(s) into {folder}; train with -D runconfig.compile=true to use them"
    )
    outcome.more["compiled"] = {**report, "compile_dir": str(folder)}


def prepare_compile(folder: Path, console: Console) -> None:
    """Points torch's compiler at the run's own folder; must come before its first use in the process."""
    if not torch.cuda.is_available() and not any(
        shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++")
    ):
        raise UnsupportedError(
            "torch.compile needs a C++ compiler on the CPU, and none is on PATH.",
            "Install g++ (Debian: apt-get install g++), or leave runconfig.compile out.",
        )
    # torch computes the checksums of precompiled headers with openssl, which small images lack.
    if shutil.which("openssl") is None:
        import torch._inductor.config as inductor

        if hasattr(inductor, "cpp_cache_precompile_headers"):
            inductor.cpp_cache_precompile_headers = False
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder.resolve() / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(folder.resolve() / "triton")
    os.environ["TORCHINDUCTOR_FX_GRAPH_CACHE"] = "1"
    if (folder / "manifest.json").is_file():
        console.info(f"using what was compiled into {folder}")
