"""The log of a job: its last lines, the part of one step, and new lines as they come."""

from __future__ import annotations

import codecs
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from portwright.errors import UserError, suggest
from portwright.launch.local import read_manifest, read_state
from portwright.launch.registry import Entry, ask_state
from portwright.launch.slurm import ENDED, NoAnswerError, SlurmState

_BEGINS = re.compile(r"portwright: (\S+) begins at ")
_POLL_SECONDS = 0.5
_ASK_SECONDS = {"slurm": 10.0}  # the controller serves all users of a site
_BLOCK_BYTES = 1 << 16


class LogReader:
    """Reads lines as they come; the file need not exist yet, and an incomplete line is kept until its end comes."""

    def __init__(self, path: Path, step: str | None = None) -> None:
        self._path, self._step = path, step
        self._position = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""
        self._current: str | None = None

    def lines(self, *, is_last: bool = False) -> Iterator[str]:
        """New lines, without line ends; with `is_last`, an incomplete last line too."""
        for text in self._read():
            self._rest += text
            *whole, self._rest = self._rest.split("\n")
            yield from self._chosen(whole)
        if is_last and self._rest:
            yield from self._chosen([self._rest])
            self._rest = ""

    def _read(self) -> Iterator[str]:
        try:
            with self._path.open("rb") as file:
                file.seek(0, 2)
                if file.tell() < self._position:  # the file was written anew
                    self._position, self._rest = 0, ""
                file.seek(self._position)
                while block := file.read(_BLOCK_BYTES):
                    self._position += len(block)
                    yield self._decoder.decode(block)
        except FileNotFoundError:
            return

    def _chosen(self, lines: list[str]) -> Iterator[str]:
        if self._step is None:
            yield from lines
            return
        for line in lines:
            if found := _BEGINS.match(line):
                self._current = found[1]
            if self._current == self._step:
                yield line


def last_lines(path: Path, count: int | None, step: str | None = None) -> list[str]:
    """The last lines of a log, or all of them."""
    reader = LogReader(path, step)
    return list(deque(reader.lines(is_last=True), maxlen=count))


def follow_log(
    entry: Entry,
    write: Callable[[str], None],
    note: Callable[[str], None],
    *,
    count: int | None = None,
    step: str | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> SlurmState:
    """Writes the log until the job has ended, across requeues; `note` gets the state of a waiting job."""
    reader = LogReader(entry.folder / "log.txt", step)
    for line in deque(reader.lines(), maxlen=count):
        write(line)
    told, next_ask, state = "", 0.0, SlurmState("unknown")
    unknown_since: float | None = None
    while True:
        now = time.monotonic()
        said_end = read_state(entry.folder).get("state") in ENDED
        if now >= next_ask:
            wait = _ASK_SECONDS.get(entry.scheduler, 1.0)
            next_ask = now + (1.0 if said_end else wait)
            try:
                state = ask_state(entry)
                saying = describe_waiting(entry, state)
            except NoAnswerError as error:
                saying = f"{error} Asking again."
            if saying != told and saying:
                note(saying)
            told = saying
        for line in reader.lines():
            write(line)
        unknown_since = None if state.state != "unknown" else unknown_since or now
        is_lost = unknown_since is not None and now - unknown_since > 3 * _ASK_SECONDS.get(
            entry.scheduler, 1.0
        )
        # Between two attempts SLURM may call a job failed for a moment: the job's own state file decides.
        is_over = state.is_ended and (said_end or state.word != "FAILED" or state.ended_seconds > 30)
        if is_over or is_lost:
            for line in reader.lines(is_last=True):
                write(line)
            return state
        sleep(_POLL_SECONDS)


def describe_waiting(entry: Entry, state: SlurmState) -> str:
    """A waiting job's state in the queue, in one line; empty for a job that runs or has ended."""
    if state.state != "pending":
        return ""
    words = [f"{entry.name} waits in the queue"]
    if state.queue_position is not None:
        words.append(f"at place {state.queue_position}")
    if state.reason:
        words.append(f"({state.reason})")
    if state.start_estimate:
        words.append(f"and is expected to begin at {state.start_estimate}")
    return " ".join(words) + "."


def check_step(entry: Entry, step: str | None) -> None:
    """Refuses a step that the job does not have."""
    try:
        names = [str(each["name"]) for each in read_manifest(entry.folder)["steps"]]
    except (KeyError, TypeError):  # a manifest without steps allows any name
        return
    if step is not None and step not in names:
        raise UserError(f"the job {entry.name} has no step '{step}'.", suggest(step, names))
