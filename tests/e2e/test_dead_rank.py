"""A process that dies or fails is named by every other one, and none is left waiting for it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest
from warm_python import WarmProcess, WarmPython

from portwright.runtime.checkpoint import list_checkpoints

TIMEOUT = 120.0  # a collective alone would wait for ten minutes
ENDLESS = (
    "CPU", "--mode", "train", "--params", "configs/params.yaml", "--max_steps", "1000000",
    "-D", "runconfig.log_steps=5", "-D", "runconfig.checkpoint_steps=0",
)  # fmt: skip
FEW = ("--max_steps", "12", "-D", "runconfig.log_steps=4", "-D", "runconfig.checkpoint_steps=4")
# What one process does at its eleventh batch.
MISHAP = """
        self.num_calls = getattr(self, "num_calls", 0) + 1
        if self.num_calls == 11:
            import os, signal, time
            from portwright import UserError
            exec(os.environ.get(f"MISHAP_{os.environ.get('RANK')}", ""))
"""


class Ranks:
    """The processes of one run, started as torchrun would start them."""

    def __init__(
        self, warm: WarmPython, folder: Path, num: int, arguments: tuple[str, ...], **env: str
    ) -> None:
        with socket.create_server(("localhost", 0)) as listening:
            port = listening.getsockname()[1]
        self._files: list[tuple[IO[bytes], IO[bytes]]] = []
        self._processes: list[WarmProcess] = []
        common = {**os.environ, "NO_COLOR": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), **env}
        for rank in range(num):
            streams = tuple((folder / f"{name}{rank}").open("w+b") for name in ("out", "err"))
            self._files.append(streams)  # type: ignore[arg-type]
            whole = {
                **common,
                "WORLD_SIZE": str(num),
                "LOCAL_WORLD_SIZE": str(num),
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
            }
            with open(os.devnull, "rb") as nothing:  # noqa: PTH123
                numbers = (nothing.fileno(), streams[0].fileno(), streams[1].fileno())
                self._processes.append(warm.start(["run.py", *arguments], folder, whole, numbers))

    def send(self, rank: int, number: signal.Signals) -> int:
        pid = self._processes[rank].pid
        os.kill(pid, number)
        return pid

    def said(self, rank: int) -> str:
        return "".join(Path(stream.name).read_text() for stream in self._files[rank])

    def errors(self, rank: int) -> list[str]:
        return [line for line in self.said(rank).splitlines() if "error: " in line]

    def wait(self, *ranks: int) -> list[int]:
        return [self._processes[rank].wait(TIMEOUT) for rank in ranks or range(len(self._processes))]

    def wait_for_step(self, at_least: int = 0) -> int:
        """Waits until the first process has logged a step beyond this one."""
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            steps = re.findall(r"^train step (\d+)/", self.said(0), re.MULTILINE)
            if steps and (last := int(steps[-1])) > at_least:
                return last
            time.sleep(0.05)
        raise AssertionError(f"no step beyond {at_least}: {self.said(0)}")

    def kill(self) -> None:
        for process, files in zip(self._processes, self._files, strict=True):
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
                process.wait(60)
            for file in files:
                file.close()


Start = Callable[..., Ranks]


@pytest.fixture
def start(warm_python: WarmPython, model_folder: Path) -> Iterator[Start]:
    started: list[Ranks] = []

    def begin(num: int, *arguments: str, **env: str) -> Ranks:
        started.append(Ranks(warm_python, model_folder, num, (*ENDLESS, *arguments), **env))
        return started[-1]

    yield begin
    for ranks in started:
        ranks.kill()


@pytest.fixture
def mishaps(model_folder: Path) -> None:
    path = model_folder / "model.py"
    text = path.read_text().replace(
        "        images, labels = data\n", MISHAP + "        images, labels = data\n", 1
    )
    assert MISHAP in text
    path.write_text(text)


@pytest.mark.parametrize(
    ("num", "victim", "arguments"),
    [
        (2, 1, ("-D", "runconfig.distributed=fsdp", "-D", "runconfig.checkpoint_steps=5")),
        (2, 1, ("-D", "runconfig.execution=pipelined")),
        (2, 0, ("-D", "runconfig.execution=streaming")),
        (3, 0, ("-D", "train_input.num_workers=1")),  # whose process is a copy, connections included
    ],
)
def test_a_killed_process_is_named_by_all_others(
    start: Start, model_folder: Path, num: int, victim: int, arguments: tuple[str, ...]
) -> None:
    ranks = start(num, *arguments)
    ranks.wait_for_step(5)
    pid = ranks.send(victim, signal.SIGKILL)
    others = [rank for rank in range(num) if rank != victim]
    assert ranks.wait(*others) == [2] * len(others), [ranks.said(rank)[-2000:] for rank in others]
    for rank in others:
        (line,) = ranks.errors(rank)
        prefix = f"process {rank}: error: " if rank else "error: "
        assert line.startswith(
            f"{prefix}process {victim} (host {socket.gethostname()}, pid {pid}) has died"
        ), line
        assert " at step " in line, line
    assert ranks.wait(victim) == [-signal.SIGKILL]
    found = list_checkpoints(model_folder / "model_dir")
    assert all(info.complete for info in found)
    assert bool(found) == ("runconfig.checkpoint_steps=5" in arguments)


def test_a_process_that_is_stopped_is_not_dead(start: Start) -> None:
    ranks = start(2)
    before = ranks.wait_for_step(5)
    ranks.send(1, signal.SIGSTOP)
    time.sleep(1.0)
    assert not ranks.errors(0)
    ranks.send(1, signal.SIGCONT)
    ranks.wait_for_step(before + 20)
    ranks.send(0, signal.SIGTERM)
    assert ranks.wait() == [130, 130]  # and not 85: nothing is saved here
    assert not ranks.errors(0), ranks.errors(1)


@pytest.mark.usefixtures("mishaps")
def test_an_error_in_one_process_is_told_as_that_error(start: Start) -> None:
    ranks = start(3, MISHAP_1="raise UserError('the tea is cold.', 'Boil more.')")
    assert ranks.wait() == [2, 2, 2], [ranks.said(rank)[-2000:] for rank in range(3)]
    said = [ranks.errors(rank) for rank in range(3)]
    told = "process 1 failed: the tea is cold. Boil more."
    assert said == [
        [f"error: {told}"],
        ["process 1: error: the tea is cold. Boil more."],
        [f"process 2: error: {told}"],
    ]


def test_a_model_that_one_process_cannot_make_is_no_wait(start: Start, model_folder: Path) -> None:
    """The others are in the constructor of DDP meanwhile."""
    path = model_folder / "model.py"
    refusal = (
        "        import os\n        if os.environ['RANK'] == '1':\n            raise ValueError('no room')\n"
    )
    mark = '        self.model = MLP(params["model"])\n'
    path.write_text(path.read_text().replace(mark, refusal + mark, 1))
    ranks = start(2)
    assert ranks.wait() == [2, 2]
    assert "no room" in ranks.errors(1)[0]
    assert "process 1 failed: " in ranks.errors(0)[0]
    assert "no room" in ranks.errors(0)[0]


def test_a_run_without_a_death_says_nothing(start: Start) -> None:
    ranks = start(3, "--mode", "train_and_eval", *FEW)
    assert ranks.wait() == [0, 0, 0], ranks.errors(0)
    assert not ranks.said(1)
    assert not ranks.said(2)
    assert "died" not in ranks.said(0)


@pytest.mark.usefixtures("mishaps")
def test_torchrun_starts_the_processes_again(model_folder: Path) -> None:
    mishap = "os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and os.kill(os.getpid(), signal.SIGKILL)"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--max-restarts=1",
               "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "run.py", *ENDLESS, *FEW]  # fmt: skip
    done = subprocess.run(
        command, cwd=model_folder, env={**os.environ, "NO_COLOR": "1", "MISHAP_1": mishap},
        capture_output=True, text=True, timeout=TIMEOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "error: process 1 (host " in done.stderr
    assert "resuming from" in done.stderr
    assert (model_folder / "model_dir" / "checkpoint_12").is_dir()
