"""Results that nobody takes: a reader that left, a full disk, a closed stdout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = """
import sys
from portwright.errors import UserError
from portwright.job.stdout import printing, stdout_to_stderr
try:
    with stdout_to_stderr():
        print("noise")
    with printing():
        for number in range(3):
            print("line", number)
except UserError as error:
    sys.exit(f"told: {error}")
"""


def _run(stdout: int | None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _SCRIPT]
    if stdout is None:
        command = ["sh", "-c", 'exec "$0" -c "$1" >&-', sys.executable, _SCRIPT]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=120)


def test_lines_arrive() -> None:
    done = _run(subprocess.PIPE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "line 0\nline 1\nline 2\n", "noise\n")


def test_a_reader_that_left_is_no_failure() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = _run(writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "noise\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_told() -> None:
    with Path("/dev/full").open("w") as full:
        done = _run(full.fileno())
    assert done.returncode == 1
    assert done.stderr.startswith("noise\ntold: standard output cannot be written: no space left on device.")


def test_a_closed_stdout_is_told() -> None:
    done = _run(None)
    assert done.returncode == 1
    assert done.stderr.startswith("told: standard output is closed.")
