"""Environments of their own for vendors' software: where they are, what is known about each, and how a command goes on in one.

A vendor's SDK pins its own torch, so it cannot live beside ours. What `portwright env` makes or registers is kept in one
folder for all projects of a user; a JSON file, written last, marks a complete environment. Portwright is not installed there: this
portwright is put on its interpreter's PYTHONPATH. A command that needs the environment replaces its own process (exec),
so that standard streams, signals, exit status and process number stay the same.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portwright.errors import UnsupportedError, UserError
from portwright.job.atomic import atomic_write_text, explain_os_error

STAMP = ".installed"
HANDED_OVER = "PORTWRIGHT_HANDED_OVER"  # set in a process that was started in a vendor's environment


@dataclass(frozen=True)
class VendorEnvironment:
    """The environment that a target needs, as data."""

    target: str  # in small letters
    title: str  # for a person
    module: str  # must be importable there
    distribution: str  # its name for pip
    version: str
    python: tuple[int, int]
    machine: str
    requirements: Path  # for pip: the SDK with its pins, and portwright's own dependencies
    size: str  # for a person: download and disk space

    @property
    def name(self) -> str:
        return f"{self.target}-{self.version}"

    @property
    def folder(self) -> Path:
        """Where Portwright makes it; other pins give another folder, and the old one stays."""
        folder = envs_folder() / self.name
        stamp = _read_json(folder / STAMP)
        is_ours = stamp is None or stamp.get("requirements") == self.fingerprint()
        return folder if is_ours else envs_folder() / f"{self.name}-{self.fingerprint()[:8]}"

    @property
    def record(self) -> Path:
        """The file that registers the user's own interpreter."""
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
    is_registered: bool  # the user's own, not made by Portwright


def envs_folder() -> Path:
    """PORTWRIGHT_ENVS, else the user's cache."""
    chosen = os.environ.get("PORTWRIGHT_ENVS")
    if chosen:
        return Path(chosen).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser().absolute() / "portwright" / "envs"


def find_known(environment: VendorEnvironment) -> Known | None:
    """The environment to use: one that the user registered, else Portwright's; None where none is complete."""
    given = _read_json(environment.record)
    if given is not None and _is_program(given.get("python")):
        return Known(Path(given["python"]), str(given.get("sdk", "")), True)
    stamp = _read_json(environment.folder / STAMP)
    python = environment.folder / "bin" / "python"
    if stamp is None or stamp.get("requirements") != environment.fingerprint() or not _is_program(python):
        return None
    return Known(python, str(stamp.get("sdk", "")), False)


def explain_missing(environment: VendorEnvironment) -> str:
    """Why no environment is usable, where one is there but broken."""
    given = _read_json(environment.record)
    if given is not None:
        return f"{given.get('python')}, which was registered for it, is gone."
    folder = environment.folder
    if (folder / "bin").is_dir():
        return f"the one in {folder} is not whole."
    if folder.name != environment.name:
        return f"the one in {folder.with_name(environment.name)} belongs to another installation of Portwright, with other pins."
    return ""


def write_record(path: Path, values: Mapping[str, Any]) -> None:
    atomic_write_text(path, json.dumps(values, indent=2, sort_keys=True) + "\n")


def _read_json(path: Path) -> dict[str, Any] | None:
    """None where there is no such file or it has another form; an unreadable file is an error."""
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


def lent_folder() -> Path:
    """A folder for PYTHONPATH with nothing but this portwright."""
    package = Path(__file__).resolve().parents[1]
    if package.parent.name == "src" and (package.parents[1] / "pyproject.toml").is_file():
        return package.parent
    # site-packages has other packages too, which the vendor's software must not see.
    link = envs_folder() / "lent" / hashlib.sha256(bytes(package)).hexdigest()[:12] / "portwright"
    if not link.is_symlink():
        made = link.with_name(f"{link.name}.{os.getpid()}")
        try:
            link.parent.mkdir(parents=True, exist_ok=True)
            made.symlink_to(package)
            made.replace(link)
        except OSError as error:
            raise explain_os_error(error, link) from error
    return link.parent


def lend(variables: Mapping[str, str]) -> dict[str, str]:
    """Environment variables with which an interpreter imports this portwright, and what it would import besides."""
    paths = [str(lent_folder()), *filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))]
    return {**variables, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def hand_over_if_elsewhere(
    environment: VendorEnvironment | None, words: Sequence[str], note: Callable[[str], None]
) -> None:
    """Replaces this process by the environment's interpreter with `words`; returns where that is not needed, or none is known."""
    if environment is None or environment.is_here():
        return
    if os.environ.get(HANDED_OVER) == environment.name:
        raise UnsupportedError(
            f"{sys.executable} was to have {environment.title}, and cannot import {environment.module}.",
            f"Run 'portwright env {environment.target} --recreate'.",
        )
    known = find_known(environment)
    if known is None:
        return
    note(f"{environment.title} {known.sdk} has an environment of its own: going on in {known.python}.")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    try:
        os.execve(known.python, [str(known.python), *words], make_env(environment, os.environ))
    except OSError as error:
        raise UnsupportedError(
            f"cannot start {known.python}: {error.strerror or error}.",
            f"Run 'portwright env {environment.target} --recreate'.",
        ) from error


def command_words(argv: Sequence[str]) -> list[str] | None:
    """The words behind the interpreter that started this program, where `argv` are its arguments.

    None for a call inside another program, which must go on.
    """
    started = sys.orig_argv[1:]
    count = len(argv)
    return started if count and count < len(started) and started[-count:] == list(argv) else None


def make_env(environment: VendorEnvironment, former: Mapping[str, str]) -> dict[str, str]:
    """The environment variables of a process in the vendor's environment."""
    env = {name: value for name, value in former.items() if name not in ("PYTHONHOME", "VIRTUAL_ENV")}
    env[HANDED_OVER] = environment.name
    env.setdefault("OMP_NUM_THREADS", "1")  # its tracing is many small steps, which threads only slow down
    return lend(env)


def find_usable(environment: VendorEnvironment) -> Known | None:
    """Where the vendor's software can be used from here: this process, or an environment that is known."""
    if environment.is_here():
        return Known(Path(sys.executable), _version_here(environment), is_registered=False)
    return find_known(environment)


def _version_here(environment: VendorEnvironment) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(environment.distribution)
    except PackageNotFoundError:
        return ""
