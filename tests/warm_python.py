"""A Python that has imported torch already and forks for each script: importing takes most of a short run's time.

Nothing of Portwright and nothing of a model folder is imported before the fork. Run as a script, this file is that
Python: it reads what to start, a line at a time, on its input and answers on descriptor `--answers`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

IMPORTS = (
    "torch",
    "torch._dynamo",
    "torch.utils.tensorboard",
    "sklearn.datasets",
    "pydantic",
    "rich.console",
    "yaml",
)


class WarmPython:
    """Starts on its first script; ends with `close`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: Any = None

    def run(
        self, arguments: tuple[str, ...], folder: Path, env: dict[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """What `python run.py arguments` in the folder does, in a process of its own."""
        return self.run_together(arguments, folder, [env], timeout)[0]

    def run_together(
        self, arguments: tuple[str, ...], folder: Path, envs: list[dict[str, str]], timeout: float
    ) -> list[subprocess.CompletedProcess[str]]:
        """The same with a process for each environment, at the same time."""
        process = self._process or self._start()
        assert process.stdin is not None
        command = ["run.py", *arguments]
        with contextlib.ExitStack() as opened:
            streams = [opened.enter_context(tempfile.TemporaryFile()) for _ in range(2 * len(envs))]
            names = [f"/proc/{os.getpid()}/fd/{stream.fileno()}" for stream in streams]
            starts = [
                {"argv": command, "folder": str(folder), "env": env, "files": names[2 * n : 2 * n + 2]}
                for n, env in enumerate(envs)
            ]
            process.stdin.write(json.dumps(starts).encode() + b"\n")
            process.stdin.flush()
            pids = self._answer(60.0)
            try:
                statuses = self._answer(timeout)
            except TimeoutError:
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
                self._answer(60.0)
                raise subprocess.TimeoutExpired(command, timeout) from None
            texts = []
            for stream in streams:
                stream.seek(0)
                texts.append(stream.read().decode().replace("\r\n", "\n").replace("\r", "\n"))
        return [
            subprocess.CompletedProcess(command, status, texts[2 * n], texts[2 * n + 1])
            for n, status in enumerate(statuses)
        ]

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(60)
            self._answers.close()
            self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        reading, writing = os.pipe()
        words = [sys.executable, __file__, "--answers", str(writing)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, pass_fds=[writing])
        os.close(writing)
        self._answers = os.fdopen(reading, "rb", buffering=0)
        assert self._answer(300.0) == []
        return self._process

    def _answer(self, timeout: float) -> list[int]:
        if not select.select([self._answers], [], [], timeout)[0]:
            raise TimeoutError(f"no answer in {timeout} seconds")
        line: bytes = self._answers.readline()
        if not line:
            raise RuntimeError("the warm Python died")
        return [int(word) for word in line.split()]


def serve(answers: int) -> dict[str, Any] | None:
    """Forks for each request: in a child what it is to run, and None at the end in the parent."""
    os.write(answers, b"\n")
    for line in iter(sys.stdin.readline, ""):
        pids = []
        for start in json.loads(line):
            pids.append(os.fork())
            if pids[-1] == 0:
                os.close(answers)
                return dict(start)
        os.write(answers, " ".join(map(str, pids)).encode() + b"\n")
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        os.write(answers, " ".join(map(str, statuses)).encode() + b"\n")
    return None


def become(start: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Makes this process look as if it had been started for the script; its code, and where that is to run."""
    os.environ.clear()
    os.environ.update(start["env"])
    os.chdir(start["folder"])
    for descriptor, name in enumerate(("/dev/null", *start["files"])):
        opened = os.open(name, os.O_RDWR)
        os.dup2(opened, descriptor)
        os.close(opened)
    random.seed()
    script = Path(start["argv"][0])
    sys.argv = start["argv"]
    sys.path[0] = str(script.absolute().parent)
    main = types.ModuleType("__main__")
    main.__file__ = str(script.absolute())
    sys.modules["__main__"] = main
    return compile(script.read_bytes(), main.__file__, "exec"), main.__dict__


if __name__ == "__main__":
    for name in IMPORTS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
    asked = serve(int(sys.argv[2]))
    if asked is not None:
        exec(*become(asked))
