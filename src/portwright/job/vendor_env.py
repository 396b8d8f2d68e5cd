"""Environments that a vendor's software needs for itself: where they are, and what is known about each.

A vendor's SDK pins its own torch, so it cannot live beside ours. What `portwright env` makes or registers is kept in one
folder for all projects of a user; a stamp in JSON, written last, says that an environment is whole.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portwright.errors import UserError
from portwright.job.atomic import atomic_write_text

STAMP = ".installed"
HANDED_OVER = "PORTWRIGHT_HANDED_OVER"  # set in a process that was started in a vendor's environment


@dataclass(frozen=True)
class VendorEnvironment:
    """What a target needs beside us, as data."""

    target: str  # in small letters
    title: str  # for a person
    module: str  # what must be importable there
    distribution: str  # its name for pip
    version: str
    python: tuple[int, int]
    machine: str
    requirements: Path  # for pip: the SDK with its pins, and what portwright needs beside it
    size: str  # for a person: what making it takes

    @property
    def name(self) -> str:
        return f"{self.target}-{self.version}"

    @property
    def folder(self) -> Path:
        return envs_folder() / self.name

    @property
    def record(self) -> Path:
        """Where an interpreter of the user's own is registered."""
        return envs_folder() / f"{self.target}.json"

    @property
    def cure(self) -> str:
        return (
            f"Make an environment for it with 'portwright env {self.target}' ({self.size}), or name one that has it: "
            f"portwright env {self.target} --python PATH."
        )

    def is_here(self) -> bool:
        """Whether this very process can import the vendor's software."""
        try:
            return importlib.util.find_spec(self.module) is not None
        except (ModuleNotFoundError, ValueError):
            return False

    def fingerprint(self) -> str:
        return hashlib.sha256(self.requirements.read_bytes()).hexdigest()


@dataclass(frozen=True)
class Known:
    """An environment that can be used."""

    python: Path
    sdk: str  # version of the vendor's software there
    is_registered: bool  # the user's own, not made by us
    portwright: str = ""  # version there, or "editable"


def envs_folder() -> Path:
    """PORTWRIGHT_ENVS, else the user's cache."""
    chosen = os.environ.get("PORTWRIGHT_ENVS")
    if chosen:
        return Path(chosen).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser().absolute() / "portwright" / "envs"


def find_known(environment: VendorEnvironment) -> Known | None:
    """The environment to use: one that the user registered goes before ours; None where there is none that is whole."""
    given = _read_json(environment.record)
    if given is not None and _is_program(given.get("python")):
        return Known(Path(given["python"]), str(given.get("sdk", "")), True, str(given.get("portwright", "")))
    stamp = _read_json(environment.folder / STAMP)
    python = environment.folder / "bin" / "python"
    if stamp is None or stamp.get("requirements") != environment.fingerprint() or not _is_program(python):
        return None
    return Known(python, str(stamp.get("sdk", "")), False, str(stamp.get("portwright", "")))


def explain_missing(environment: VendorEnvironment) -> str:
    """Why no environment is known, where there is more to say than that there is none."""
    given = _read_json(environment.record)
    if given is not None:
        return f"{given.get('python')}, which was registered for it, is gone."
    if not (environment.folder / "bin").is_dir():
        return ""
    if (environment.folder / STAMP).is_file():
        return f"the one in {environment.folder} was made by another version of Portwright."
    return f"the one in {environment.folder} is not whole."


def write_record(path: Path, values: Mapping[str, Any]) -> None:
    atomic_write_text(path, json.dumps(values, indent=2, sort_keys=True) + "\n")


def _read_json(path: Path) -> dict[str, Any] | None:
    """None where there is no such file or it is not ours; an unreadable one is told, not taken for missing."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}.", "Mend or remove that file.") from error
    try:
        values = json.loads(text)
    except ValueError:
        return None
    return values if isinstance(values, dict) else None


def _is_program(path: object) -> bool:
    return isinstance(path, (str, Path)) and os.access(path, os.X_OK) and Path(path).is_file()
