"""A Python that has imported torch (or TensorFlow) already and forks for each script: importing takes most of a short run's time.

Nothing of Portwright and nothing of the script is imported before the fork. Run as a script, this file is that Python:
it imports what `sys.argv[2:]` names, listens on the socket of descriptor `sys.argv[1]`, and each connection starts one process.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

IMPORTS = (
    "torch", "torch._dynamo", "torch._inductor.config", "torch.utils.tensorboard",
    "sklearn.datasets", "pydantic", "rich.console", "yaml",
)  # fmt: skip


class WarmProcess:
    """One process of a warm Python, with what of a Popen is used here."""

    def __init__(self, connection: socket.socket, command: list[str], stdout: IO[bytes] | None) -> None:
        self._connection, self._command = connection, command
        self.stdout = stdout
        self.pid = int(self._read(300.0))  # of which the first waits for torch
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self.returncode = int(self._read(timeout))
            self._connection.close()
        return self.returncode

    def _read(self, timeout: float | None) -> bytes:
        self._connection.settimeout(timeout)
        try:
            line = self._connection.recv(16)
        except TimeoutError:
            raise subprocess.TimeoutExpired(self._command, timeout or 0.0) from None
        if not line:
            raise RuntimeError("the warm Python died")
        return line


class WarmPython:
    """Starts on its first script, with `env` beside this process's; ends with `close`."""

    def __init__(self, imports: Sequence[str] = IMPORTS, **env: str) -> None:
        self._imports = imports
        self._env = {**os.environ, **env}
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def can_run(self, env: dict[str, str]) -> bool:
        """Whether the environment asks for nothing that Python and the linker read at their start alone."""
        names = {name for name in {*env, *self._env} if name.startswith(("PYTHON", "LD_"))}
        return all(env.get(name) == self._env.get(name) for name in names)

    def run(
        self,
        arguments: tuple[str, ...],
        folder: Path,
        env: dict[str, str],
        timeout: float,
        what: tuple[str, ...] = ("run.py",),
    ) -> subprocess.CompletedProcess[str]:
        """What `python run.py arguments` in the folder does, in a process of its own; `what` stands for run.py."""
        return self.run_together(arguments, folder, [env], timeout, what)[0]

    def run_together(
        self,
        arguments: tuple[str, ...],
        folder: Path,
        envs: list[dict[str, str]],
        timeout: float,
        what: tuple[str, ...] = ("run.py",),
    ) -> list[subprocess.CompletedProcess[str]]:
        """The same with a process for each environment, at the same time."""
        command = [*what, *arguments]
        with contextlib.ExitStack() as opened:
            streams = [[opened.enter_context(tempfile.TemporaryFile()) for _ in range(2)] for _ in envs]
            nothing = opened.enter_context(open(os.devnull, "rb"))  # noqa: PTH123
            started = [
                self.start(command, folder, env, (nothing.fileno(), out.fileno(), err.fileno()))
                for env, (out, err) in zip(envs, streams, strict=True)
            ]
            try:
                statuses = [process.wait(timeout) for process in started]
            except subprocess.TimeoutExpired:
                for process in started:
                    if process.returncode is None:
                        os.kill(process.pid, signal.SIGKILL)
                        process.wait(60)
                raise
            ended = []
            for status, pair in zip(statuses, streams, strict=True):
                for stream in pair:
                    stream.seek(0)
                texts = [stream.read().decode().replace("\r\n", "\n").replace("\r", "\n") for stream in pair]
                ended.append(subprocess.CompletedProcess(command, status, *texts))
        return ended

    def start(
        self,
        command: list[str],
        folder: Path,
        env: dict[str, str],
        streams: tuple[int, int, int],
        stdout: IO[bytes] | None = None,
        is_session: bool = False,
    ) -> WarmProcess:
        """The command is what follows `python`: a script, -c code or -m module, and arguments."""
        if self._process is None:
            self._begin()
        assert self._folder is not None
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(f"{self._folder.name}/socket")
        start = {"command": command, "folder": str(folder), "env": env, "is_session": is_session}
        text = json.dumps(start).encode()
        socket.send_fds(connection, [b"%12d" % len(text)], streams)
        connection.sendall(text)
        return WarmProcess(connection, command, stdout)

    def popen(self, words: list[str], **options: Any) -> Any:
        """In place of the Popen with which a recording starts; what a fork cannot do is left to the real one."""
        env = options["env"]
        if words[0] != sys.executable or words[1] != "-c" or not self.can_run(env):
            return subprocess.Popen(words, **options)
        reading, writing = os.pipe()
        streams = (options["stdin"], writing, writing)
        try:
            pipe = os.fdopen(reading, "rb")
            return self.start(words[1:], options["cwd"], env, streams, pipe, options["start_new_session"])
        finally:
            os.close(writing)

    def close(self) -> None:
        if self._process is not None and self._folder is not None:
            self._process.terminate()
            self._process.wait(60)
            self._folder.cleanup()
            self._process = None

    def _begin(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="warm-")
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(f"{self._folder.name}/socket")
            listening.listen(16)
            number = listening.fileno()
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(number), *self._imports],
                env=self._env,
                stdin=subprocess.DEVNULL,
                pass_fds=[number],
            )


def serve(listening: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Forks for each connection, and returns in the fork alone: what it is to run, and its streams."""
    while True:
        connection = listening.accept()[0]
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if os.fork() == 0:
            break
        connection.close()
    listening.close()
    length, streams, _, _ = socket.recv_fds(connection, 12, 3)
    text = b""
    while len(text) < int(length):
        text += connection.recv(int(length) - len(text))
    pid = os.fork()
    if pid == 0:
        connection.close()
        return json.loads(text), streams
    for stream in (*streams, 1, 2):  # who reads them waits for the last to close them
        os.close(stream)
    connection.sendall(b"%-16d" % pid)
    connection.sendall(b"%-16d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def become(start: dict[str, Any], streams: list[int]) -> tuple[Any, dict[str, Any]]:
    """Makes this process look as if it had been started for the command; its code, and where that is to run."""
    if start["is_session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(start["env"])
    os.chdir(start["folder"])
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
        os.close(stream)
    random.seed()
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    script = Path(start["command"][0]).absolute()
    if start["command"][0] == "-c":
        sys.argv, sys.path[0] = ["-c", *start["command"][2:]], ""
        return compile(start["command"][1], "<string>", "exec"), main.__dict__
    if start["command"][0] == "-m":
        sys.path[0] = str(Path.cwd())
        spec: Any = importlib.util.find_spec(start["command"][1])
        if spec.submodule_search_locations is not None:  # a package runs by its __main__
            spec = importlib.util.find_spec(f"{spec.name}.__main__")
        sys.argv = [spec.origin, *start["command"][2:]]
        main.__spec__, main.__file__, main.__package__ = spec, spec.origin, spec.parent
        return spec.loader.get_code(spec.name), main.__dict__
    sys.argv, sys.path[0] = start["command"], str(script.parent)
    main.__file__ = str(script)
    return compile(script.read_bytes(), main.__file__, "exec"), main.__dict__


if __name__ == "__main__":
    for name in sys.argv[2:]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
    exec(*become(*serve(socket.socket(fileno=int(sys.argv[1])))))
