"""The chain of a job: which steps, and the command of each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from portwright.errors import UserError, suggest
from portwright.job.arguments import MODES
from portwright.launch.job import Step, Tasks
from portwright.launch.resolved import Subject
from portwright.launch.run_files import runconfig_of
from portwright.launch.site import Site
from portwright.target import Target

STEPS = ("validate", "compile", "train", "eval", "predict")
ON_THE_HOST = ("validate", "compile")  # these need no device where a vendor's compiler does them
_EXPANDED = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_JOB_LABELS = "--job_labels"  # a label for the vendor's own queue


def choose_steps(
    given: str | None, mode: str, target: Target, params: Mapping[str, Any], site: Site
) -> tuple[str, ...]:
    """The steps that --steps names, in the order of the chain; else the steps of the mode."""
    if mode not in MODES:
        raise UserError(f"--mode is '{mode}'.", suggest(mode, MODES))
    chosen = named_steps(given, STEPS) if given is not None else _steps_of_mode(mode, target, params)
    if target.name not in site.compile_only:
        return chosen
    possible = tuple(name for name in chosen if name in ON_THE_HOST)
    if not possible or (given is not None and possible != chosen):
        raise UserError(
            f"{site.name} validates and compiles for {target.name}, and has none to run on.",
            f"Give --steps validate,compile, or --target {' or '.join(sorted(set(site.targets) - {target.name}))}, or choose another site.",
        )
    return possible


def named_steps(given: str, known: Sequence[str]) -> tuple[str, ...]:
    """The steps that --steps names, in the order of the chain."""
    named = [part.strip() for part in given.split(",")]
    for name in named:
        if name not in known:
            raise UserError(f"--steps names '{name}'.", suggest(name, known))
    return tuple(name for name in known if name in named)


def _steps_of_mode(mode: str, target: Target, params: Mapping[str, Any]) -> tuple[str, ...]:
    if mode in ("eval", "eval_all"):
        return ("eval",)
    if mode == "predict":
        return ("predict",)
    # To compile is a vendor's compiler's work, or torch.compile's where params ask for it.
    compiles = compiles_on_the_host(target) or bool(runconfig_of(params).get("compile"))
    evaluates = mode == "train" and params.get("eval_input") is not None
    return ("validate", *["compile"] * compiles, "train", *["eval"] * evaluates)


def make_steps(
    names: Sequence[str],
    *,
    subject: Subject,
    target: Target,
    mode: str,
    params: Path,
    model_dir: Path,
    python: str,
    tasks: Tasks,
    ntasks: int,
    site: Site,
    job_name: str,
) -> tuple[Step, ...]:
    """The chain of these steps, each with its command."""
    takes_labels = subject.config is not None or any(_JOB_LABELS in flag.names for flag in target.flags)
    steps = []
    for name in names:
        if subject.config is not None:
            verb = "validate" if name == "eval" else "fit"
            words = ["cszoo", verb, str(params), "--target_device", target.name]
        else:
            words = [
                *subject.words(python),
                target.name,
                "--mode",
                _mode(mode, name),
                "--params",
                str(params),
            ]
        words += ["--model_dir", str(model_dir)]
        expanded: tuple[str, ...] = ()
        if name in ON_THE_HOST:
            words.append(f"--{name}_only")
        else:  # on the accelerator
            expanded = (*site.launch.prefix, *site.launch.run_flags)
            words = [*site.launch.prefix, *words, *site.launch.run_flags]
        is_spread = name == "train" and ntasks > 1
        if site.scheduler == "csctl" and takes_labels:
            words += [_JOB_LABELS, f"name={job_name}"]
        if is_spread and tasks == "stream":
            words.append("--stream_data")
        step = Step(
            name=name,
            ntasks=ntasks if is_spread else 1,
            words=tuple(words),
            tasks=tasks if is_spread else "single",
            tells_end=subject.config is None,
            literal=tuple(
                place for place, word in enumerate(words) if word in expanded and _EXPANDED.search(word)
            ),
        )
        steps.append(step)
    return tuple(steps)


def _mode(mode: str, step: str) -> str:
    """run.py's --mode for a step of a job of this mode."""
    variants = {"eval": ("eval", "eval_all"), "train": ("train", "train_and_eval")}
    fitting = variants.get(step, (step,) if step == "predict" else (mode,))
    return mode if mode in fitting else fitting[0]


def compiles_on_the_host(target: Target) -> bool:
    """Whether the target has a vendor's compiler, as one with its own environment has too."""
    return target.has_compiler or target.environment is not None
