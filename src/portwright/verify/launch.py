"""Runs a training script under the recorder in its own process, and reads the recording; the runs behind a verdict are each made once, when first needed."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Literal, NamedTuple, NoReturn

import portwright
from portwright.errors import UserError
from portwright.verify.command import Command, parse_command
from portwright.verify.recording import Recording, load

MARK = "CannotRecord: "  # `launch` reads the reason after it


def refuse(message: str, cure: str) -> NoReturn:
    sys.stdout.flush()
    print(f"{MARK}{message} | {cure}", file=sys.stderr, flush=True)
    os._exit(3)


PROGRESS = "progress"  # in the recording's folder: how many steps there are, as text
FAILED_AT = "failed_at"  # also there: the line of the user's code that failed
_TAIL_LINES = 25
_TAIL_CHARS = 4000
_POLL_SECONDS = 0.05
_START_SECONDS = 300.0
# Starts the recorder without the user's folder on sys.path while it is imported.
_START = "import sys; sys.path[:1] = []; from portwright.verify.record import main; main()"


@dataclass(frozen=True)
class Recorder:
    """What to record and how; both scripts share all of it but `against`, `perturb` and `emulate`."""

    steps: int = 20
    seed: int = 0
    dropout: Literal["drawn", "off"] = "drawn"
    perturb: float = 0.0  # relative size of noise on the initial weights
    against: Path | None = None  # folder of the original's recording, when this is a port
    timeout_seconds: float = 600  # longest wait for the next step
    python: Path | None = None
    dtype: Literal["as written", "float64"] = "as written"
    emulate: str = ""  # the target whose package is emulated for the script


class ScriptFailed(UserError):
    """The script crashed, hung, or never trained; `num_steps` were recorded before, and `tail` is the end of its output.

    `line` is the file:line of the user's code, where one is known. `is_refused` means that the script cannot be
    recorded, whether or not it is correct.
    """

    def __init__(
        self, message: str, cure: str, tail: str, num_steps: int, line: str = "", is_refused: bool = False
    ) -> None:
        super().__init__(message, cure, {"tail": tail, "steps": num_steps})
        self.tail = tail
        self.num_steps = num_steps
        self.line = line
        self.is_refused = is_refused


def record(
    command: str | Sequence[str], into: Path, options: Recorder, folder: Path | None = None
) -> Recording:
    """Runs the command from `folder` (default: here) unmodified, and leaves its recording in `into`.

    A script that ends by itself after fewer steps is no failure: `Recording.ended` says so.
    """
    if options.steps < 1:
        raise UserError(f"{options.steps} steps cannot be recorded.", "Ask for at least 1.")
    folder = Path.cwd() if folder is None else folder
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder} to run in.", "Give one that exists.")
    parsed = parse_command(command, folder)
    into = into.resolve()
    into.mkdir(parents=True, exist_ok=True)
    for name in ("recording.json", "arrays.safetensors", "initial.safetensors", PROGRESS, FAILED_AT):
        (into / name).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="portwright-verify-") as scratch:
        outcome = _watch(parsed, into, options, folder, Path(scratch))
    if (into / "recording.json").exists():
        recording = load(into)
        if (not outcome.hung and outcome.status == 0) or recording.run["rest"]:
            return recording  # the steps are whole even if the process failed after them
    raise _explain(outcome, parsed, into)


class _Outcome(NamedTuple):
    """How a recorded process ended, and the end of what it printed."""

    status: int
    tail: str
    hung: bool  # it made no step for too long, and was ended


def _watch(command: Command, into: Path, options: Recorder, folder: Path, scratch: Path) -> _Outcome:
    python = options.python if options.python is not None else Path(sys.executable)
    words = [str(python), *command.python_flags, "-c", _START, "--into", str(into), "--scratch", str(scratch)]
    words += ["--steps", str(options.steps), "--seed", str(options.seed), "--dropout", options.dropout]
    words += ["--perturb", repr(options.perturb), "--dtype", options.dtype]
    if options.against is not None:
        words += ["--against", str(options.against.resolve())]
    if options.emulate:
        words += ["--emulate", options.emulate]
    words += ["--", *command.words]
    with _terminal_at_its_end() as stdin:
        try:
            process = subprocess.Popen(
                words,
                cwd=folder,
                env=_make_env(command, python),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            reason = error.strerror or error
            raise UserError(f"Cannot start {python}: {reason}.", "Give another python.") from error
        return _follow(process, into, options.timeout_seconds)


def _follow(process: subprocess.Popen[bytes], into: Path, timeout_seconds: float) -> _Outcome:
    assert process.stdout is not None
    tail = _Tail(process.stdout)
    try:
        hung = not _wait(process, into / PROGRESS, timeout_seconds)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(
                process.pid, signal.SIGKILL
            )  # with the processes that it started, which share its session
        process.wait()
    return _Outcome(process.returncode, tail.text(), hung)


@contextmanager
def _terminal_at_its_end() -> Iterator[int]:
    """A terminal of 80 columns as stdin: scripts can ask its size, and reads meet the end of input."""
    try:
        ours, theirs = os.openpty()
    except OSError:
        yield subprocess.DEVNULL
        return
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        os.write(ours, b"\x04" * 64)
        yield theirs
    finally:
        os.close(ours)
        os.close(theirs)


def _make_env(command: Command, python: Path) -> dict[str, str]:
    env = {**os.environ, **command.environment}
    env["PYTHONHASHSEED"] = "0"  # the order of a set may decide the order of random draws
    env.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    env["PYTHONUNBUFFERED"] = "1"  # keeps the output of a killed script
    if python.absolute() != Path(sys.executable).absolute():
        source = str(Path(portwright.__file__).resolve().parents[1])
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (source, env.get("PYTHONPATH", ""))))
    return env


def _wait(process: subprocess.Popen[bytes], progress: Path, timeout_seconds: float) -> bool:
    """Waits until the process ends; False when the next step took too long.

    The wait for the first progress is longer, since torch is imported before.
    """
    last, since = b"", time.monotonic()
    while True:
        try:
            process.wait(_POLL_SECONDS)
            return True
        except subprocess.TimeoutExpired:
            now = progress.read_bytes() if progress.exists() else b""
            if now != last:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > (
                timeout_seconds if last else max(timeout_seconds, _START_SECONDS)
            ):
                return False


class _Tail:
    """Reads all that a script prints, and keeps the end."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._chunks: deque[bytes] = deque(maxlen=64)
        self._stream = stream
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._stream:
            while chunk := self._stream.read1(8192) if hasattr(self._stream, "read1") else b"":
                self._chunks.append(chunk)

    def text(self) -> str:
        self._thread.join(5)
        text = b"".join(self._chunks).decode("utf-8", "replace").replace("\r", "\n")
        return "\n".join(text.rstrip().splitlines()[-_TAIL_LINES:])[-_TAIL_CHARS:]


def _last_words(tail: str) -> str:
    """The error line of the last traceback, or else the last line."""
    lines = [line for line in tail.splitlines() if line.strip()]
    starts = [n for n, line in enumerate(lines) if line.startswith("Traceback ")]
    for line in lines[starts[-1] + 1 :] if starts else ():
        if not line.startswith((" ", "\t")):
            return line
    return lines[-1] if lines else "it printed nothing"


def _explain(outcome: _Outcome, command: Command, into: Path) -> ScriptFailed:
    progress = into / PROGRESS
    num_steps = int(progress.read_text() or 0) if progress.exists() else 0
    where = f"after {num_steps} recorded step(s)" if num_steps else "before its first step"
    failed_at = into / FAILED_AT
    line = failed_at.read_text(encoding="utf-8") if failed_at.exists() else ""
    last = _last_words(outcome.tail)
    shown = command.shown
    is_refused = False
    if outcome.hung:
        message = f"'{shown}' made no step for too long, {where}; the last it said: {last}"
        cure = "Give a longer --timeout, or a command that trains at once on little data."
    elif outcome.status < 0:
        name = signal.Signals(-outcome.status).name
        message = f"'{shown}' was ended by {name} {where}; the last it said: {last}"
        cure = "Run it alone; SIGKILL most often means that memory ran out: take a smaller model or batch."
    elif "EOFError" in last:
        message = f"'{shown}' asks for input, and a recording has none to give: {last}"
        cure = "Give it its answers on the command line."
    elif outcome.tail.rpartition("\n")[2].startswith(MARK):
        is_refused = True
        said, _, cure = outcome.tail.rpartition("\n")[2].removeprefix(MARK).partition(" | ")
        message = f"'{shown}' cannot be recorded: {said}"
    elif outcome.status == 0:
        message = f"'{shown}' ended without a single step of training by PyTorch."
        cure = "Give the command that trains: a step is an optimizer's step, or a backward where weights are set by hand."
    else:
        at = f" at {line}" if line else ""
        message = f"'{shown}' failed {where}{at}, with exit status {outcome.status}: {last}"
        cure = "Run it alone from the same folder, and mend it first."
    tail = outcome.tail.rpartition("\n")[0] if is_refused else outcome.tail
    return ScriptFailed(message, cure, tail, num_steps, line, is_refused)


Dropout = Literal["drawn", "off"]
Dtype = Literal["as written", "float64"]
Report = Callable[[str, int, int], None]  # what runs, steps done, steps asked for
_REPORT_SECONDS = 0.2


@dataclass
class Runs:
    """Runs both commands with one seed, and keeps the recordings in `scratch`."""

    original_command: str | Sequence[str]
    ported_command: str | Sequence[str]
    scratch: Path
    options: Recorder
    report: Report | None = None
    folder: Path | None = None
    label: str = "port"
    emulate: str = ""  # the target whose package is emulated for the port
    _originals: dict[tuple[Dropout, Dtype, float], Recording] = field(default_factory=dict)
    _ports: dict[tuple[Dropout, Dtype], Recording] = field(default_factory=dict)
    # ports may be judged side by side
    _originals_lock: threading.RLock = field(default_factory=threading.RLock)

    def of_another_port(self, command: str | Sequence[str], label: str) -> Runs:
        """Runs of another port, which share those of the original."""
        return replace(self, ported_command=command, label=label, _ports={})

    def original(self, dropout: Dropout, dtype: Dtype = "as written", perturb: float = 0.0) -> Recording:
        key = (dropout, dtype, perturb)
        with self._originals_lock:
            if key not in self._originals:
                words = "original, weights off by a rounding" if perturb else "original"
                options = replace(self.options, dropout=dropout, dtype=dtype, perturb=perturb)
                folder = self._original_folder(dropout, dtype, perturb)
                self._originals[key] = self._record(words, self.original_command, folder, options)
            return self._originals[key]

    def ported(self, dropout: Dropout, dtype: Dtype = "as written") -> Recording:
        key = (dropout, dtype)
        if key not in self._ports:
            self.original(dropout, dtype)
            against = self._original_folder(dropout, dtype, 0.0)
            options = replace(
                self.options, dropout=dropout, dtype=dtype, against=against, emulate=self.emulate
            )
            folder = self.scratch / f"{self.label}-{dropout}-{dtype.replace(' ', '-')}"
            self._ports[key] = self._record(self.label, self.ported_command, folder, options)
        return self._ports[key]

    def _original_folder(self, dropout: Dropout, dtype: Dtype, perturb: float) -> Path:
        return self.scratch / f"original-{dropout}-{dtype.replace(' ', '-')}{'-perturbed' if perturb else ''}"

    def _record(self, words: str, command: str | Sequence[str], into: Path, options: Recorder) -> Recording:
        how = [words]
        how += ["in float64"] if options.dtype == "float64" else []
        how += ["dropout off"] if options.dropout == "off" else []
        with _followed(into / PROGRESS, ", ".join(how), options.steps, self.report):
            return record(command, into, options, self.folder)


@contextmanager
def _followed(progress: Path, words: str, steps: int, report: Report | None) -> Iterator[None]:
    """Reports the progress of a run in the block."""
    if report is None:
        yield
        return
    is_over = threading.Event()
    progress.unlink(missing_ok=True)

    def follow(tell: Report = report) -> None:
        while not is_over.wait(_REPORT_SECONDS):
            try:
                tell(words, int(progress.read_text() or 0), steps)
            except (OSError, ValueError):  # not there yet, or half written
                continue

    report(words, 0, steps)
    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextmanager
def progress_on_stderr() -> Iterator[Report]:
    """Shows progress: a bar on a terminal, one line a run elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        said: set[str] = set()

        def tell(words: str, done: int, total: int) -> None:
            if words not in said:
                said.add(words)
                print(f"running the {words}, {total} steps", file=sys.stderr)

        yield tell
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, object] = {}

        def report(words: str, done: int, total: int) -> None:
            if words not in tasks:
                tasks[words] = bars.add_task(words, total=total)
            bars.update(tasks[words], completed=done)  # type: ignore[arg-type]

        yield report
