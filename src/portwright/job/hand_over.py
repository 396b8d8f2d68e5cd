"""Running the same command in the environment where a target's software lives.

This process becomes that one: standard streams, signals, exit status and process number are then the same by nature, and
nothing of ours stays between a scheduler and the run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from portwright.errors import UnsupportedError
from portwright.job.own_wheel import checkout_folder
from portwright.job.vendor_env import HANDED_OVER, Known, VendorEnvironment, find_known


def hand_over_if_elsewhere(
    environment: VendorEnvironment | None, words: Sequence[str], note: Callable[[str], None]
) -> None:
    """Goes on in the target's own environment, with `words` behind its interpreter; returns where there is no need, or none is known."""
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

    None where they are not: then this is a call inside another program, which must go on.
    """
    started = sys.orig_argv[1:]
    count = len(argv)
    return started if count and count < len(started) and started[-count:] == list(argv) else None


def make_env(environment: VendorEnvironment, former: Mapping[str, str]) -> dict[str, str]:
    """The environment variables of a process in the vendor's environment."""
    env = {name: value for name, value in former.items() if name not in ("PYTHONHOME", "VIRTUAL_ENV")}
    env[HANDED_OVER] = environment.name
    env.setdefault("OMP_NUM_THREADS", "1")  # its tracing is many small steps, which threads only slow down
    checkout = checkout_folder()
    if checkout is not None:
        # An installed portwright is not lent: beside it are packages that the SDK must not see.
        paths = [str(checkout / "src"), *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
        env["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    return env


def where(environment: VendorEnvironment) -> Known | None:
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
