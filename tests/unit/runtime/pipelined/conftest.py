"""Scenarios in several processes, started from one Python that has torch already."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

WORKER = Path(__file__).with_name("rank_worker.py")
Play = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def _worker() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, str(WORKER)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as worker:
        yield worker
        assert worker.stdin is not None
        worker.stdin.close()


@pytest.fixture(scope="session")
def play(_worker: subprocess.Popen[str]) -> Play:
    """Runs a scenario of rank_worker.py; the results of its processes, none of which may have crashed."""

    known: dict[str, list[dict[str, Any]]] = {}

    def run(model: str, size: int = 1, **scenario: Any) -> list[dict[str, Any]]:
        assert _worker.stdin is not None
        assert _worker.stdout is not None
        line = json.dumps({"model": model, "size": size, **scenario})
        if line in known:  # one process with the whole model, which many tests compare with
            return known[line]
        _worker.stdin.write(line + "\n")
        _worker.stdin.flush()
        results: list[dict[str, Any]] = json.loads(_worker.stdout.readline())
        crashes = [result["crash"] for result in results if "crash" in result]
        assert not crashes, "\n".join(crashes)
        if not scenario.keys() & {"save", "load"}:
            known[line] = results
        return results

    return run
