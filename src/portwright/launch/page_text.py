"""Lines of a page: styled pieces that become coloured text on a terminal and plain text elsewhere."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.text import Text

Piece = tuple[str, str]  # text, style as rich names it
Line = tuple[Piece, ...]

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True)
class Marks:
    """The signs that a page draws with."""

    done: str
    running: str
    failed: str
    waiting: str
    bar: str
    bar_rest: str
    dash: str
    ellipsis: str


UNICODE = Marks("✓", "▶", "✗", "·", "━", "─", "—", "…")
ASCII = Marks("ok", ">", "FAILED", ".", "=", "-", "-", "...")


def choose_marks(stream: TextIO, environ: Mapping[str, str] = os.environ) -> Marks:
    """Unicode's signs where the stream and the locale have them."""
    named = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or ""
    if environ.get("LANG") in ("C", "POSIX") and not environ.get("LC_ALL") and named == "C.UTF-8":
        named = "C"  # Python itself put LC_CTYPE there: PEP 538
    if named and "utf" not in named.lower():
        return ASCII
    try:
        "".join(astuple(UNICODE)).encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeError, LookupError):
        return ASCII
    return UNICODE


def clean(text: str) -> str:
    """A line of a program's output without codes that move the cursor or set colours."""
    text = _ESCAPES.sub("", text.rstrip("\r\n"))
    text = text[text.rfind("\r") + 1 :]  # the last state of a line that was overwritten
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text.expandtabs())


def width_of(text: str) -> int:
    """Columns that a terminal takes for it."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def wrap(text: str, width: int) -> list[str]:
    """Breaks between words; a word that is too long, such as a path, stays whole."""
    lines, line = [], ""
    for word in text.split(" "):
        if line and width_of(line) + 1 + width_of(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line]


def cut(text: str, width: int, ellipsis: str = "…") -> str:
    """At most so many columns; what is cut off is marked."""
    if width_of(text) <= width:
        return text
    while text and width_of(text) + width_of(ellipsis) > width:
        text = text[:-1]
    return text + ellipsis


def pad(text: str, width: int) -> str:
    return text + " " * max(0, width - width_of(text))


def as_plain_text(lines: Iterable[Line]) -> str:
    return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in lines)


def as_rich(lines: Sequence[Line]) -> Text:
    from rich.text import Text

    pieces = [piece for line in lines for piece in (("\n", ""), *line)]
    return Text.assemble(*pieces[1:], no_wrap=False, overflow="fold")


def make_console(stream: TextIO) -> Any:
    """A rich console for a terminal; colours only there and without NO_COLOR."""
    from rich.console import Console

    return Console(file=stream, highlight=False, soft_wrap=True)


def is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def page_width(stream: TextIO) -> int:
    """The terminal's width, or COLUMNS, within what a page is made for."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given) > 0:
        return min(200, max(40, int(given)))
    try:
        columns = os.get_terminal_size(stream.fileno()).columns if is_terminal(stream) else 100
    except (OSError, ValueError):
        columns = 100
    return min(200, max(40, columns or 100))


def print_lines(lines: Sequence[Line], stream: TextIO | None = None) -> None:
    """Prints a page: coloured on a terminal, else as plain text."""
    stream = sys.stdout if stream is None else stream
    if is_terminal(stream) and os.environ.get("TERM") != "dumb":
        make_console(stream).print(as_rich(lines))
    else:
        stream.write(as_plain_text(lines))
        stream.flush()
