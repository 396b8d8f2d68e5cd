"""Progress as a terminal shows it, and as a log file does."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import textwrap

import pytest

from portwright.job.console import Console
from portwright.job.progress import Progress, format_rate, format_seconds, format_value


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def _lines(console_stream: io.StringIO) -> list[str]:
    return console_stream.getvalue().splitlines()


def test_a_line_per_update_where_there_is_no_terminal() -> None:
    out, clock = io.StringIO(), Clock()
    with Progress("train", 1000, Console(stream=out), clock=clock) as progress:
        clock.now += 50  # compiling
        progress.update(0, {})
        clock.now += 1
        progress.update(100, {"learning_rate": 1e-3, "gradient_norm": 2.0, "loss": 0.43214})
    assert _lines(out)[-1] == (
        "train step 100/1000  loss 0.4321  lr 1.00e-03  gradient_norm 2.0000  100 steps/s  ETA 0:09"
    )


def test_given_rates_are_shown_and_the_estimate_is_measured() -> None:
    out, clock = io.StringIO(), Clock()
    progress = Progress("train", 40, Console(stream=out), start=10, clock=clock)
    clock.now += 2
    progress.update(20, {"loss": 1.0, "steps_per_second": 812.0, "samples_per_second": 52_000.0})
    assert _lines(out) == ["train step 20/40  loss 1.0000  812 steps/s  52.0k samples/s  ETA 0:04"]


def test_an_unknown_total_has_no_estimate() -> None:
    out, clock = io.StringIO(), Clock()
    progress = Progress("eval", None, Console(stream=out), clock=clock)
    clock.now += 1
    progress.update(7, {})
    assert _lines(out) == ["eval step 7  7.00 steps/s"]


def test_the_estimate_follows_recent_updates_and_forgets_the_start() -> None:
    out, clock = io.StringIO(), Clock()
    progress = Progress("train", 1_000, Console(stream=out), clock=clock)
    clock.now += 600
    progress.update(1, {})  # ten minutes of compiling
    for step in range(2, 11):
        clock.now += 0.5
        progress.update(step, {})
    assert _lines(out)[0] == "train step 1/1000  600 s/step  ETA 6d 22:30:00"
    assert _lines(out)[-1] == "train step 10/1000  2.00 steps/s  ETA 8:15"


@pytest.mark.parametrize("options", [{"shown": False}, {"lines": False}])
def test_nothing_is_shown_when_not_asked_for(options: dict[str, bool]) -> None:
    out = io.StringIO()
    with Progress("train", 10, Console(stream=out), **options) as progress:  # type: ignore[arg-type]
        progress.update(10, {"loss": 1.0})
    assert out.getvalue() == ""


def test_a_quiet_console_shows_no_progress() -> None:
    out = io.StringIO()
    with Progress("train", 10, Console("WARNING", stream=out)) as progress:
        progress.update(10, {"loss": 1.0})
    assert out.getvalue() == ""


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0:00"),
        (59.6, "1:00"),
        (754, "12:34"),
        (3723, "1:02:03"),
        (183845, "2d 3:04:05"),
        (float("inf"), "over 99d"),
        (1e18, "over 99d"),
    ],
)
def test_seconds(seconds: float, shown: str) -> None:
    assert format_seconds(seconds) == shown


@pytest.mark.parametrize(
    ("rate", "shown"),
    [
        (0.0, "0 steps/s"),
        (float("nan"), "0 steps/s"),
        (0.08, "12.5 s/step"),
        (0.42, "0.42 steps/s"),
        (9.999, "10.0 steps/s"),
        (99.96, "100 steps/s"),
        (812.4, "812 steps/s"),
        (999.9, "1.00k steps/s"),
        (52_000, "52.0k steps/s"),
        (1.5e9, "1.50G steps/s"),
    ],
)
def test_rates(rate: float, shown: str) -> None:
    assert format_rate(rate, "step") == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0.0000"),
        (0.43214, "0.4321"),
        (1e-5, "1.000e-05"),
        (-2e7, "-2.000e+07"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
    ],
)
def test_values(value: float, shown: str) -> None:
    assert format_value(value) == shown


# -- on a real terminal ------------------------------------------------------------------------------------------


def _run_on_terminal(script: str, *, columns: int, **environment: str) -> str:
    """All that a script writes to a terminal of that width, with its control sequences."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    setting = {**os.environ, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **environment}
    for name in ("NO_COLOR", "COLUMNS", "LINES", "FORCE_COLOR"):
        if name not in environment:
            setting.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=setting,
    )
    os.close(theirs)
    received = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        if not chunk:
            break
        received += chunk
    os.close(ours)
    assert process.wait() == 0, received.decode()
    return received.decode()


def _screen(received: str, columns: int) -> list[str]:
    """What the terminal shows in the end: enough of an emulator for what rich sends."""
    rows, row, column = [""], 0, 0
    for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]", received):
        if token == "\r":
            column = 0
        elif token == "\n":
            row += 1
        elif token.endswith("A") and token.startswith("\x1b"):
            row -= int(token[2:-1] or 1)
        elif token == "\x1b[2K":
            rows[row] = ""
        elif not token.startswith("\x1b"):
            if column == columns:
                row, column = row + 1, 0
            rows += [""] * (row + 1 - len(rows))
            rows[row] = rows[row][:column].ljust(column) + token + rows[row][column + 1 :]
            column += 1
        rows += [""] * (row + 1 - len(rows))
    return [line.rstrip() for line in rows if line.strip()]


SCRIPT = """
    import sys, time
    from portwright.job.console import Console
    from portwright.job.progress import Progress

    console = Console()
    with Progress("train", 30, console) as progress:
        for step in range(1, 31):
            time.sleep(0.03)
            if step % 10 == 0:
                progress.update(step, {"loss": 2.5, "learning_rate": 0.001, "samples_per_second": 52e3})
            if step == 10:
                console.warning("checkpoint_5 is damaged: " + "it goes on " * 10)
            if step == 15:
                print("a print of the user's")
                print("and one to stderr", file=sys.stderr)
                with Progress("eval", 2, console, lines=False) as evaluation:
                    for done in (1, 2):
                        evaluation.update(done, {})
                        time.sleep(0.3)
                console.info("eval at step 15: accuracy 0.97")
    print("the end")
"""


def test_a_terminal_sees_a_bar_and_whole_messages() -> None:
    received = _run_on_terminal(SCRIPT, columns=130)
    assert "\x1b[" in received
    assert len(re.findall("train [0-9]+/30 ", received)) >= 3  # it was drawn while it ran
    screen = _screen(received, 130)
    assert screen[0] == ("warning: checkpoint_5 is damaged: " + "it goes on " * 10)[:130].rstrip()
    assert screen[2:4] == ["a print of the user's", "and one to stderr"]
    assert re.fullmatch(r"eval 2/2 ━{40} .* steps/s in 0:0\d", screen[4])
    assert screen[5] == "eval at step 15: accuracy 0.97"
    assert re.fullmatch(r"train 30/30 ━{40} loss 2.5000 lr 1.00e-03 .*52.0k samples/s in 0:0\d", screen[6])
    assert screen[7:] == ["the end"]


@pytest.mark.parametrize("columns", [80, 40, 20, 8])
def test_a_narrow_terminal_does_not_wrap_the_bar(columns: int) -> None:
    received = _run_on_terminal(SCRIPT, columns=columns)
    screen = _screen(received, columns)
    drawn = [line for line in screen if line.startswith("train")]
    assert len(drawn) == 1, screen
    assert drawn[0].startswith("train 30/30"[: columns - 1])
    assert ("loss 2.5000" in drawn[0]) == (columns >= 40)
    assert screen[-1] == "the end"


def test_no_color_and_ascii_terminals_get_a_plain_bar() -> None:
    received = _run_on_terminal(SCRIPT, columns=100, NO_COLOR="1", PYTHONIOENCODING="ascii")
    assert "\x1b[3" not in received.replace("\x1b[2K", "")  # no colour set
    assert "━" not in received
    half_done = re.findall(r"train 10/30 (=+)( +)loss", received)
    assert half_done
    assert len(half_done[0][0]) * 2 == pytest.approx(len(half_done[0][1]), abs=3)


def test_a_dumb_terminal_gets_lines() -> None:
    received = _run_on_terminal(SCRIPT, columns=100, TERM="dumb")
    assert "\x1b" not in received
    assert received.count("train step") == 3


def test_what_is_piped_stays_in_its_pipe() -> None:
    piped = """
        import os, subprocess, sys, textwrap
        script = textwrap.dedent('''
            from portwright.job.console import Console
            from portwright.job.progress import Progress
            with Progress("train", 3, Console()):
                print("result")
        ''')
        done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE)
        assert done.stdout == b"result\\n", done.stdout
    """
    assert "train 0/3" in _run_on_terminal(piped, columns=80)


def test_a_worker_forked_under_the_bar_can_print() -> None:
    forking = """
        import os, sys, threading, time
        from portwright.job.console import Console
        from portwright.job.progress import Progress
        console = Console()
        with Progress("train", 3, console):
            held, forked = threading.Event(), threading.Event()
            def hold():  # as the drawing thread does for a moment, twice a second
                with console._rich._lock:
                    held.set()
                    forked.wait()
            thread = threading.Thread(target=hold)
            thread.start()
            held.wait()
            if (child := os.fork()) == 0:
                print("from the worker")
                console.warning("also from the worker")
                sys.stdout.flush()
                os._exit(0)
            forked.set()
            thread.join()
            for _ in range(100):
                pid, status = os.waitpid(child, os.WNOHANG)
                if pid:
                    break
                time.sleep(0.1)
            else:
                os.kill(child, 9)
                raise SystemExit("the worker hangs")
        sys.exit(os.waitstatus_to_exitcode(status))
    """
    received = _run_on_terminal(forking, columns=80)
    assert "from the worker" in received
    assert "also from the worker" in received


def test_a_run_outlives_its_terminal() -> None:
    script = """
        import contextlib, os, signal, sys, time
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        from portwright.job.console import Console
        from portwright.job.progress import Progress
        console = Console()
        with Progress("train", 3, console) as progress:
            progress.update(1, {"loss": 1.0})
            console.info("hello")
            with contextlib.suppress(OSError):
                sys.stdin.readline()  # ends when the terminal is gone
            for _ in range(3):
                console.warning("nobody reads this")
                progress.update(2, {"loss": 1.0})
                time.sleep(0.6)
        os._exit(0)
    """
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    while b"hello" not in os.read(ours, 4096):
        pass
    os.close(ours)
    assert process.wait(30) == 0
