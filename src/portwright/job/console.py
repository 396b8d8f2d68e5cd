"""Messages for a person, on stderr: one line each, and a bar that they do not break."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import weakref
from typing import TYPE_CHECKING, TextIO

from portwright.errors import UserError, suggest

if TYPE_CHECKING:
    import rich.console
    from rich.live import Live

LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40}
_NOTE = 25  # above info, below warning

# Each refresh takes the interpreter from the training thread for a fifth of a millisecond.
REFRESHES_PER_SECOND = 2

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LINE_BREAK = re.compile(r"\s*[\n\r\v\f\x85\u2028\u2029]\s*")


class Console:
    """Prints messages on stderr (or `stream`), coloured only on a terminal and without NO_COLOR.

    `level` is the least that is shown. `prefix` starts each line, for instance with the number of the process. A
    stream whose reader has gone (a closed terminal, a broken pipe) loses the messages, not the run.
    """

    def __init__(self, level: str = "INFO", *, prefix: str = "", stream: TextIO | None = None) -> None:
        if not isinstance(level, str) or level.upper() not in LEVELS:
            raise UserError(f"Logging level {level!r} is not known.", suggest(str(level).upper(), LEVELS))
        self._least, self._prefix = LEVELS[level.upper()], prefix
        self._stream = _UnfailingStream(sys.stderr if stream is None else stream)
        self.is_terminal: bool = self._stream.isatty()
        # Rich costs a fifth of a millisecond a line, which a run without a terminal need not pay.
        self._rich: rich.console.Console | None = _make_rich(self._stream) if self.is_terminal else None
        self._pinned: list[rich.console.RenderableType] = []
        self._live: Live | None = None
        self._unredirected: tuple[TextIO, TextIO] | None = None
        _CONSOLES.add(self)

    @property
    def shows_info(self) -> bool:
        """Whether messages of level INFO, and so progress too, are shown."""
        return self._least <= LEVELS["INFO"]

    def debug(self, message: str) -> None:
        self._print(LEVELS["DEBUG"], "debug: ", "dim", message)

    def info(self, message: str) -> None:
        """Prints a message, which may have several lines."""
        for line in message.split("\n"):
            self._print(LEVELS["INFO"], "", "", line)

    def note(self, message: str) -> None:
        """Prints something worth knowing that needs no action."""
        self._print(_NOTE, "note: ", "cyan", message)

    def warning(self, message: str) -> None:
        self._print(LEVELS["WARNING"], "warning: ", "yellow", message)

    def error(self, error: BaseException | str) -> None:
        """Prints an error on one line; of a PortwrightError that is what happened and the cure."""
        message = str(error) or type(error).__name__
        self._print(LEVELS["ERROR"], "error: ", "bold red", message)

    def pin(self, renderable: rich.console.RenderableType) -> None:
        """Keeps something drawn at the bottom of the terminal, under the messages and what was pinned before."""
        from rich.console import Group
        from rich.live import Live

        self._pinned.append(renderable)
        if self._live is not None or self._rich is None:
            return
        self._unredirected = (sys.stdout, sys.stderr)
        self._live = Live(
            get_renderable=lambda: Group(*self._pinned),
            console=self._rich,
            refresh_per_second=REFRESHES_PER_SECOND,
            transient=True,
            # A print of the user's would tear the bar, so it goes above it; but what is piped stays in its pipe.
            redirect_stdout=_is_terminal(sys.stdout),
            redirect_stderr=_is_terminal(sys.stderr),
        )
        self._live.start()
        self._rich.show_cursor(True)  # hidden, it would stay so after a kill -9

    def unpin(self, renderable: rich.console.RenderableType) -> None:
        """Lets go of something pinned; its last state stays on the terminal, as a line like others."""
        self._pinned.remove(renderable)
        if not self._pinned and self._live is not None:
            self._live.stop()
            self._live = None
        if self._rich is not None:
            self._rich.print(renderable)

    def _print(self, level: int, label: str, style: str, message: str) -> None:
        if level < self._least:
            return
        line = _CONTROL.sub(lambda found: repr(found[0])[1:-1], _LINE_BREAK.sub(" ", message))
        if self._rich is None:
            self._stream.write(f"{self._prefix}{label}{line}\n")
            self._stream.flush()
            return
        from rich.text import Text

        self._rich.print(Text.assemble(self._prefix, (label, style), line), soft_wrap=True, highlight=False)

    def _forget_in_child(self) -> None:
        # The thread that draws does not live on in a forked worker, but a lock that it held would stay locked.
        if self._unredirected is not None and self._live is not None:
            sys.stdout, sys.stderr = self._unredirected
        self._rich = _make_rich(self._stream) if self.is_terminal else None
        self._pinned, self._live = [], None


class _UnfailingStream:
    """A text stream whose write errors are dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):  # ValueError: it is closed
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def isatty(self) -> bool:
        return _is_terminal(self._stream)

    def fileno(self) -> int:
        return self._stream.fileno()


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM", "") != "dumb"
    except (AttributeError, ValueError):  # None under pythonw, or closed
        return False


def _make_rich(stream: _UnfailingStream) -> rich.console.Console:
    from rich.console import Console as RichConsole

    # Told and not guessed, since FORCE_COLOR and the like would have rich draw into log files.
    return RichConsole(file=stream, force_terminal=True, force_interactive=True, force_jupyter=False)  # type: ignore[arg-type]


_CONSOLES: weakref.WeakSet[Console] = weakref.WeakSet()


def _forget_in_child() -> None:
    for console in _CONSOLES:
        console._forget_in_child()


os.register_at_fork(after_in_child=_forget_in_child)
