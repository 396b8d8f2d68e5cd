"""A written layout tried out: its run.py checks one step, in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import portwright

_SECONDS = 300
_NOT_HERE = re.compile(
    r"ModuleNotFoundError.*?: No module named '([\w.]+)'|FileNotFoundError|does not exist|URLError|ConnectionError"
)


@dataclass(frozen=True)
class Trial:
    """`outcome` is "ran", "failed" or "not tried"; `words` tell what came of it, or why there is none."""

    outcome: str
    words: str


def try_layout(folder: Path, framework: str, root: Path, *, evaluates: bool) -> Trial:
    """Runs --validate_only on the CPU from where the user stands, since data may be named relative to that."""
    if importlib.util.find_spec(framework) is None:
        return Trial("not tried", f"{framework} is not installed beside Portwright")
    package = str(Path(portwright.__file__).parents[1])
    environment = {
        **os.environ, "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])]),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            sys.executable, str(folder / "run.py"), "CPU", "--mode", "train_and_eval" if evaluates else "train",
            "--params", str(folder / "configs" / "params.yaml"), "--model_dir", scratch, "--validate_only", "--json",
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Trial("not tried", f"one step was not done after {_SECONDS} s")
    if done.returncode == 0:
        return Trial("ran", _loss_of(done.stdout))
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    last = next(
        (line for line in reversed(lines) if line.startswith("error:")), (lines or ["it said nothing"])[-1]
    )
    last = last.removeprefix("error: ").removesuffix(" Run again with --debug to see the traceback.")
    missing = _NOT_HERE.search(last)
    if missing is not None and not (missing[1] and _is_of_project(missing[1], root)):
        return Trial("not tried", last)
    return Trial("failed", last)


def _is_of_project(module: str, root: Path) -> bool:
    """Whether the script's own folder has a module, which the layout then should have."""
    name = module.partition(".")[0]
    return (root / name).is_dir() or (root / f"{name}.py").exists()


def _loss_of(stdout: str) -> str:
    """What a run said of its one step; user code may print before."""
    start = stdout.find('{\n  "mode"')
    try:
        told = json.JSONDecoder().raw_decode(stdout[start:])[0]["validated"] if start >= 0 else {}
    except (ValueError, KeyError):
        told = {}
    return (
        f"loss {told['train_loss']:.6g}"
        if isinstance(told.get("train_loss"), float)
        else "its loss was not told"
    )
