"""Messages: one line each, whatever they hold and wherever they go."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from portwright.errors import UserError
from portwright.job.logs import Console


def _say_all(console: Console) -> None:
    console.debug("d")
    console.info("i")
    console.note("n")
    console.warning("w")
    console.error("e")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"level": "DEBUG"}, ["debug: d", "i", "note: n", "warning: w", "error: e"]),
        ({}, ["i", "note: n", "warning: w", "error: e"]),
        ({"level": "warning"}, ["warning: w", "error: e"]),
        ({"level": "ERROR"}, ["error: e"]),
        ({"level": "WARNING", "prefix": "[1] "}, ["[1] warning: w", "[1] error: e"]),
    ],
)
def test_levels(options: dict[str, object], expected: list[str]) -> None:
    out = io.StringIO()
    _say_all(Console(stream=out, **options))  # type: ignore[arg-type]
    assert out.getvalue().splitlines() == expected


@pytest.mark.parametrize("level", ["INFOO", "", 20, None])
def test_an_unknown_level_lists_the_valid_ones(level: object) -> None:
    with pytest.raises(UserError, match="Valid: DEBUG, ERROR, INFO, WARNING"):
        Console(level)  # type: ignore[arg-type]


def test_an_error_is_one_line_with_its_cure() -> None:
    out = io.StringIO()
    Console(stream=out).error(UserError("Cannot read\n  /data: no such file.", "Check the path."))
    assert out.getvalue() == "error: Cannot read /data: no such file. Check the path.\n"


def test_an_error_without_words_says_its_kind() -> None:
    out = io.StringIO()
    Console(stream=out).error(KeyboardInterrupt())
    assert out.getvalue() == "error: KeyboardInterrupt\n"


def test_control_characters_are_shown_not_obeyed() -> None:
    out = io.StringIO()
    Console(stream=out).warning("file '\x1b[2Jx\x07\rname' [bold]é 漢 :smile:")
    assert out.getvalue() == "warning: file '\\x1b[2Jx\\x07 name' [bold]é 漢 :smile:\n"


def test_long_messages_are_not_broken() -> None:
    out = io.StringIO()
    Console(stream=out).info("x" * 500 + "\nsecond line")
    assert out.getvalue() == "x" * 500 + "\nsecond line\n"


def test_it_writes_to_stderr_and_loads_nothing_heavy() -> None:
    script = (
        "import sys; from portwright.job.logs import Console; Console().info('hello')\n"
        "heavy = {'torch', 'tensorflow', 'tensorboard', 'rich', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("", "hello\n", 0)


def test_forced_colour_does_not_reach_a_log_file() -> None:
    script = "from portwright.job.logs import Console; Console().warning('w')"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={"FORCE_COLOR": "1"}
    )
    assert done.stderr == "warning: w\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_name_can_be_said_in_any_encoding(encoding: str) -> None:
    script = "from portwright.job.logs import Console; Console().warning('漢 \\udcff é')"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        env={"PYTHONIOENCODING": f"{encoding}:backslashreplace"},
    )
    assert done.returncode == 0
    assert done.stderr.startswith(b"warning: ")
    assert done.stderr.count(b"\n") == 1


def test_a_reader_that_goes_away_does_not_end_the_run() -> None:
    script = (
        "import sys, time; from portwright.job.logs import Console; console = Console()\n"
        "for _ in range(50): console.info('x' * 100); time.sleep(0.01)\n"
        "print('finished')"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stderr is not None
    assert process.stdout is not None
    process.stderr.read(10)
    process.stderr.close()
    assert process.stdout.read() == b"finished\n"
    process.stdout.close()
    assert process.wait() == 0
