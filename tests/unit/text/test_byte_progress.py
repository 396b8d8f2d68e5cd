from __future__ import annotations

import io
import itertools

from portwright.text.progress import ByteProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_for_every_tenth_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    with ByteProgress(stream=stream, clock=itertools.count().__next__) as progress:
        for done in range(0, 1001):
            progress("preparing", done, 1000)
        progress("preparing", 1000, 1000)
        progress("looking", 0, 0)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 11
    assert lines[0].startswith("preparing: 100 B of 1.00 kB")
    assert lines[-1] == "looking: 0 B of 0 B"


def test_what_is_quickly_done_has_no_lines() -> None:
    stream = io.StringIO()
    with ByteProgress(stream=stream, clock=lambda: 5.0) as progress:
        for done in range(0, 1001):
            progress("preparing", done, 1000)
    assert stream.getvalue() == ""


def test_a_bar_on_a_terminal() -> None:
    stream = Terminal()
    with ByteProgress(stream=stream) as progress:
        progress("preparing", 500, 1000)
        progress("preparing", 1000, 1000)
    assert "preparing" in stream.getvalue()
