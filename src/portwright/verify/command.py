"""Parses a user's command: a script or module with its arguments, as a shell would start it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from portwright.errors import UserError

_PYTHON = re.compile(r"(.*/)?python(3(\.\d+)?)?(\.exe)?")
_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_SWITCHES = re.compile(r"-[uBOqsSbdvEI]+")  # options of python itself that take no value
_LAUNCHERS = {
    "torchrun",
    "accelerate",
    "deepspeed",
    "srun",
    "mpirun",
    "mpiexec",
    "horovodrun",
    "bash",
    "sh",
    "make",
}


@dataclass(frozen=True)
class Command:
    """A parsed command; `words` are a script with its arguments, or `-m`, a module and its arguments."""

    words: tuple[str, ...]
    shown: str
    environment: Mapping[str, str]
    python_flags: tuple[str, ...] = ()


def parse_command(command: str | Sequence[str], folder: Path) -> Command:
    """Takes "train.py --epochs 1", "python train.py", "-m package.train", and variables in front of them."""
    if isinstance(command, str):
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise UserError(
                f"The command {command!r} cannot be split: {error}.", "Look at its quotes."
            ) from error
    else:
        words = [str(word) for word in command]
    shown = shlex.join(words)
    environment: dict[str, str] = {}
    while words and _ASSIGNED.match(words[0]):
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    flags: list[str] = []
    if words and _PYTHON.fullmatch(words[0]):
        words.pop(0)
        while words and words[0] != "-m" and words[0].startswith("-"):
            if words[0] in ("-W", "-X") and len(words) > 1:
                flags += [words.pop(0), words.pop(0)]
            elif _SWITCHES.fullmatch(words[0]) or re.match("-[WX].", words[0]):
                flags.append(words.pop(0))
            else:
                raise UserError(
                    f"'{shown}' gives python the flag {words[0]}, which cannot be recorded.",
                    "Give a script, or -m and a module.",
                )
    if not words:
        raise UserError("The command is empty.", 'Give one such as "train.py --epochs 1".')
    if words[0] == "-m":
        if len(words) < 2:
            raise UserError(f"'{shown}' names no module behind -m.", 'Give one such as "-m package.train".')
        if words[1].startswith("torch.distributed"):
            raise _several(shown)
        return Command(tuple(words), shown, environment, tuple(flags))
    if Path(words[0]).name in _LAUNCHERS:
        raise _several(shown)
    script = Path(folder, words[0])
    if script.is_dir() and (script / "__main__.py").is_file():
        return Command(tuple(words), shown, environment, tuple(flags))
    if not script.is_file():
        raise UserError(
            f"There is no script {words[0]} in {folder}.",
            "Give the command as you would behind 'python', relative to the folder that you stand in.",
        )
    if script.suffix == ".ipynb":
        raise UserError(
            f"{words[0]} is a notebook, and python runs scripts.",
            f"Export it (jupyter nbconvert --to script {words[0]}), and give the script.",
        )
    return Command(tuple(words), shown, environment, tuple(flags))


def _several(shown: str) -> UserError:
    return UserError(
        f"'{shown}' goes through a launcher, and what several processes or a shell do cannot be recorded.",
        "Give the training script itself, to run as one process.",
    )
