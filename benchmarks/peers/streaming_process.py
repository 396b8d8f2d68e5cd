"""Starts the contestants of benchmarks/streaming.py, each in a process of its own, and keeps the time they may take."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from streaming_gpt import Shape

WORKER = Path(__file__).parent / "streaming_worker.py"
FIRST_GUESS_SECONDS = 60.0  # of a contestant that has not run yet


class Course:
    """Where the contestants run, and until when."""

    def __init__(
        self, device: str, budget_seconds: float, streaming: dict[str, Any] | None = None, warm: int = 2
    ) -> None:
        self.device, self._streaming, self._warm = device, streaming or {}, warm
        self._end = time.monotonic() + budget_seconds
        self._walls: dict[str, float] = {}

    @property
    def seconds_left(self) -> float:
        return self._end - time.monotonic()

    def has_time_for(self, name: str) -> bool:
        guess = self._walls.get(name, FIRST_GUESS_SECONDS if self.device == "cuda" else 0.0)
        return self.seconds_left > 1.15 * guess

    def run(self, name: str, shape: Shape, steps: dict[int, int], **more: Any) -> dict[str, Any]:
        """Figures of a contestant, or {"failed": why}. `steps` are the timed ones for each number of tokens."""
        if not self.has_time_for(name):
            return {"failed": "no time was left for it"}
        options = {"shape": asdict(shape), "device": self.device, "tokens": list(steps), "warm": self._warm,
                   "steps": {str(tokens): count for tokens, count in steps.items()}, "port": _free_port(), **more}  # fmt: skip
        options["streaming"] = {**more.get("streaming", {}), **self._streaming}
        begun = time.monotonic()
        figures = self._start(name, options)
        self._walls[name] = figures["wall_seconds"] = time.monotonic() - begun
        told = figures.get("failed", f"set up in {figures.get('setup_seconds', 0):.0f} s")
        print(f"{name}: {figures['wall_seconds']:.0f} s in all; {told}", file=sys.stderr, flush=True)
        return figures

    def _start(self, name: str, options: dict[str, Any]) -> dict[str, Any]:
        environment = os.environ | {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
        process = subprocess.Popen(
            [sys.executable, str(WORKER), name, json.dumps(options)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=max(1.0, self.seconds_left))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # compilers that it started as well
            process.communicate()
            return {"failed": "it had not ended when the time was up"}
        lines = output.strip().splitlines()
        try:
            figures: dict[str, Any] = json.loads(lines[-1])
        except (IndexError, ValueError):
            how = (
                f"signal {-process.returncode}" if process.returncode < 0 else f"status {process.returncode}"
            )
            return {"failed": f"its process ended with {how} and no figures"}
        return figures


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
