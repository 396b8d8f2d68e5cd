"""Worker processes for the tests of the stream, and a coordinator that is a process. Run as a script, it is one of them.

A worker does what an order says, as JSON: {"first": 0, "last": 100} gives these numbers; "sleep", "megabytes", "fail" more.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from portwright.errors import UserError
from portwright.stream import progress, worker
from portwright.stream.pool import Order, Pool
from portwright.stream.progress import busy, tell_progress
from portwright.stream.wire import Packed, pack

KEY = "a key of the tests"


def order(first: int, last: int, lane: int | None = None, **more: Any) -> Order:
    return Order(json.dumps({"first": first, "last": last, **more}).encode(), lane)


def orders(total: int, size: int = 1, **more: Any) -> Iterator[Order]:
    return (order(first, min(first + size, total), **more) for first in range(0, total, size))


def handle(body: bytes, name: str = "here") -> Any:
    asked = json.loads(body)
    time.sleep(asked.get("sleep", 0))
    for _ in range(asked.get("busy", 0)):  # twentieths of a second, of which each gets on
        tell_progress()
        time.sleep(0.05)
    if "opens" in asked:
        with busy(asked["opens"]):
            time.sleep(2.5)
    fail = asked.get("fail")
    if fail == "user":
        raise UserError("File ü.bin is short.", "Copy it again.")
    if fail == "bug":
        raise ZeroDivisionError("one by zero")
    if fail == "exit":
        os._exit(7)
    if fail == "parts":
        return [np.zeros((4, 4))[:, 1].data]
    if fail == "none":
        return None
    if fail == "empty":
        return []
    if fail == "floats":
        return [np.arange(3.0).data, b"", bytearray(b"x")]
    numbers = np.arange(asked["first"], asked["last"])
    batch = {"numbers": numbers}
    if "megabytes" in asked:
        batch["large"] = np.full(asked["megabytes"] * 125_000, asked["first"], np.int64)
    packed: Packed = pack(batch, samples=len(numbers), name=name)
    return packed


class Fleet:
    """Worker processes, ended with the test."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def start(self, *names: str, key: str = KEY, wait_seconds: float = 20) -> None:
        for name in names:
            self.processes[name] = start_process("work", self.address, key, name, str(wait_seconds))

    def send(self, name: str, number: signal.Signals) -> None:
        self.processes[name].send_signal(number)

    def kill(self, name: str) -> None:
        self.send(name, signal.SIGKILL)
        self.processes[name].wait()

    def ending(self, name: str) -> tuple[int, str, str]:
        """The status, stdout and stderr of a worker that ends by itself."""
        out, err = self.processes[name].communicate(timeout=30)
        return self.processes[name].returncode, out, err

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.communicate()


def start_process(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", __file__, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_until(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout
    for each in process.stdout:
        if line in each:
            return
    raise AssertionError(f"{line!r} never came; status {process.wait()}")


def wait_for_workers(pool: Pool, number: int) -> None:
    give_up = time.monotonic() + 30
    while sum(count.alive for count in pool.counts()) != number:
        assert time.monotonic() < give_up, pool.counts()
        time.sleep(0.01)


def run_worker(address: str, key: str, name: str, wait_seconds: str) -> None:
    worker.RETURN_SECONDS = 0.5
    progress._EVERY_SECONDS = 0.05
    try:
        ending = worker.work(
            address,
            key,
            name,
            lambda body: handle(body, name),
            note=lambda line: print(line, flush=True),
            wait_seconds=float(wait_seconds),
        )
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")
    print(ending)


def run_coordinator(behaviour: str) -> None:
    """Prints its address, who comes, and a line a batch; ends as `behaviour` says."""
    if behaviour == "term":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(85))
    pool = Pool("127.0.0.1:0", KEY, expected=1, note=lambda line: print(line, flush=True))
    print(pool.address, flush=True)
    if behaviour == "early":
        return
    for _ in pool.map((order(n, n + 1, sleep=0.05) for n in range(1000)), 4, None):
        print("batch", flush=True)
        if behaviour == "return":
            return
        if behaviour == "raise":
            raise UserError("Enough.")
        if behaviour == "fork":
            if (child := os.fork()) == 0:
                os._exit(0)
            os.waitpid(child, 0)
            subprocess.run(["true"], check=True)
            return
        if behaviour == "term":
            list(pool.map(iter([order(0, 1, sleep=60)]), 1, None))


if __name__ == "__main__":
    {"work": run_worker, "coordinate": run_coordinator}[sys.argv[1]](*sys.argv[2:])
