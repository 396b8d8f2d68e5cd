"""Calling programs of a site: none waits for a keyboard, and what they say is text, whatever bytes it is made of."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def call_program(
    words: Sequence[str],
    timeout_seconds: float,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end; a failure is the caller's to tell."""
    return subprocess.run(
        list(words),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_seconds,
        stdin=subprocess.DEVNULL,
        check=False,
        cwd=cwd,
        env=env,
    )
