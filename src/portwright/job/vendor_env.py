"""Environments of their own for vendors' software: where they are, what is known about each, and how a command goes on in one.

A vendor's SDK pins its own torch, so it cannot live beside ours. What `portwright env` makes or registers is kept in one
folder for all projects of a user; a JSON file, written last, marks a complete environment. Portwright is not installed there: this
portwright is put on its interpreter's PYTHONPATH. A command that needs the environment replaces its own process (exec),
so that standard streams, signals, exit status and process number stay the same.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
        return Known(Path(sys.executable), installed_version(environment.distribution), is_registered=False)
    return find_known(environment)


def installed_version(distribution: str) -> str:
    """The version of a package here, from its metadata: importing torch would take seconds. Empty where it is not here."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


_SHOWN = re.compile(r"^\s*(Downloading (?P<file>\S+) \((?P<size>[^)]*[GM]B)\)|Installing collected packages)")
_WHICH_PYTHON = "import platform, sys, venv; print(platform.python_implementation(), *sys.version_info[:2])"
_PROBE = """
import importlib, importlib.metadata, json, platform, sys
found = {"version": list(sys.version_info[:3]), "machine": platform.machine(), "system": platform.system(),
         "implementation": platform.python_implementation(), "problems": []}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        found["problems"].append(f"{name}: {type(error).__name__}: {error}")
found["sdk"] = str(getattr(sys.modules.get(sys.argv[1]), "__version__", ""))
print("\\n" + json.dumps(found))
"""


def make_environment(
    environment: VendorEnvironment, say: Callable[[str], None], *, recreate: bool = False
) -> Known:
    """Makes the environment, mends a half-made one, or does nothing where it is whole; one process at a time."""
    with _lock(environment, say):
        known = find_known(environment)
        if known is not None and not recreate:
            return known
        if recreate:
            environment.record.unlink(missing_ok=True)
        folder = environment.folder
        stamp = folder / STAMP
        stamp.unlink(missing_ok=True)
        log = envs_folder() / f"{environment.name}.log"
        log.write_text("")
        base = find_base_python(environment)
        # pip can go on in a folder whose making was interrupted, if its interpreter works.
        said = _says(folder / "bin" / "python", "import sys, pip; print(*sys.version_info[:2])")
        if recreate or said != [str(part) for part in environment.python]:
            # `venv --clear` keeps the folder itself, so a link to a roomier disk stays.
            say(f"making {folder} with {base} ...")
            _run([str(base), "-m", "venv", "--clear", str(folder)], log, say, "make the environment")
        else:
            say(f"completing {folder} ...")
        python = folder / "bin" / "python"
        say(f"installing {environment.distribution} {environment.version} ({environment.size}) ...")
        pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
        pip += ["--progress-bar", "off"]
        _run([*pip, "-r", str(environment.requirements)], log, say, f"install {environment.distribution}")
        say("trying it ...")
        found = _probe(python, environment)
        write_record(
            stamp,
            {
                "requirements": environment.fingerprint(),
                "sdk": found["sdk"] or environment.version,
                "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            },
        )
        made = find_known(environment)
        assert made is not None
        return made


def register_python(environment: VendorEnvironment, python: Path) -> Known:
    """Registers the user's own interpreter for this target, after a check that it can import the vendor's software."""
    # Not resolved: a venv's interpreter is a link, and what it links to is another environment.
    python = python.expanduser().absolute()
    if python.is_dir():
        python = next((p for p in (python / "bin" / "python", python / "python") if p.is_file()), python)
    if not python.is_file() or not os.access(python, os.X_OK):
        raise UserError(
            f"'{python}' is not a Python interpreter.", "Give the path of one, such as /opt/csx/bin/python."
        )
    found = _probe(python, environment)
    with _lock(environment, lambda line: None):
        write_record(environment.record, {"python": str(python), "sdk": found["sdk"]})
    return Known(python, found["sdk"], True)


def find_base_python(environment: VendorEnvironment) -> Path:
    """A CPython of the version that the SDK is built for: this one, or the first that works on PATH."""
    major, minor = environment.python
    wanted = f"CPython {major}.{minor} on Linux, {environment.machine}"
    if platform.system() != "Linux" or platform.machine() != environment.machine:
        raise UnsupportedError(
            f"{environment.title} needs {wanted}; this machine is {platform.system()}, {platform.machine()}.",
            "Use a machine of that kind.",
        )
    name = f"python{major}.{minor}"
    paths = [Path(folder) / name for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    tried = []
    for path in dict.fromkeys([Path(sys.executable), *paths]):
        if _says(path, _WHICH_PYTHON) == ["CPython", str(major), str(minor)]:
            return path
        if os.access(path, os.X_OK):
            tried.append(str(path))
    raise UnsupportedError(
        f"{environment.title} needs {wanted}, and {name} is not on PATH"
        + (f" (tried {', '.join(tried)})." if tried else "."),
        f"Install {name} from your system, pyenv, conda or uv, put it on PATH, and run this again.",
    )


def _says(python: Path, code: str) -> list[str]:
    """The words that an interpreter prints; none where it cannot be run, or fails."""
    if not python.is_file() or not os.access(python, os.X_OK):
        return []
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.split() if done.returncode == 0 else []


@contextmanager
def _lock(environment: VendorEnvironment, say: Callable[[str], None]) -> Iterator[None]:
    path = envs_folder() / f"{environment.name}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise explain_os_error(error, path) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is making {environment.name}; waiting for it ...")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(command: Sequence[str], log: Path, say: Callable[[str], None], aim: str) -> None:
    """Runs a step whose whole output goes to the log; what takes long is shown as it goes."""
    lines: list[str] = []
    with log.open("a", encoding="utf-8") as kept:
        kept.write(f"$ {' '.join(command)}\n")
        kept.flush()
        # Its own PYTHONPATH would let pip find packages that are not in the environment.
        env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
        env["PYTHONUNBUFFERED"] = "1"
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, encoding="utf-8", errors="replace", env=env,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    kept.write(line)
                    lines.append(line.strip())
                    shown = _SHOWN.match(line)
                    if shown:
                        say(f"  {shown['file']} ({shown['size']})" if shown["file"] else "  unpacking ...")
            except BaseException:  # such as Ctrl-C: ends pip too
                process.kill()
                raise
        status = process.returncode
    if status == 0:
        return
    told = [line for line in lines if line.lower().startswith(("error", "fatal"))] or [
        line for line in lines if line
    ]
    raise UnsupportedError(
        f"could not {aim}: {' '.join(told[-2:]) or f'status {status}'}.",
        f"All of it is in {log}; the same command goes on where this one stopped.",
    )


def _probe(python: Path, environment: VendorEnvironment) -> dict[str, Any]:
    env = lend({k: v for k, v in os.environ.items() if k not in ("PYTHONHOME", "PYTHONPATH")})
    done = subprocess.run(
        [str(python), "-c", _PROBE, environment.module, "portwright.runtime.run"],
        capture_output=True, text=True, env=env, check=False,
    )  # fmt: skip
    try:
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        words = " ".join((done.stderr or done.stdout).split())[-300:]
        raise UserError(
            f"'{python}' did not answer as a Python interpreter: {words or f'status {done.returncode}'}.",
            "Give the path of the interpreter of an environment.",
        ) from None
    if found["problems"]:
        version = ".".join(map(str, found["version"]))
        raise UnsupportedError(
            f"{python} (Python {version}) cannot import {found['problems'][0]}.",
            f"Install it there: {environment.distribution}=={environment.version}, and what {environment.requirements} lists; or leave --python out.",
        )
    return found
