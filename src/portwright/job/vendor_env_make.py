"""Making a vendor's environment, or registering one that the user has."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from portwright.errors import UnsupportedError, UserError
from portwright.job.atomic import explain_os_error
from portwright.job.vendor_env import (
    STAMP,
    Known,
    VendorEnvironment,
    envs_folder,
    find_known,
    lend,
    write_record,
)

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
        if recreate or not _is_usable(folder, environment):
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


def _is_usable(folder: Path, environment: VendorEnvironment) -> bool:
    """Whether pip can go on in a folder whose making was interrupted."""
    said = _says(folder / "bin" / "python", "import sys, pip; print(*sys.version_info[:2])")
    return said == [str(part) for part in environment.python]


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
