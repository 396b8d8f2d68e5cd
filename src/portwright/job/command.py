"""What every command around a run needs, in any framework: standard output, signals, errors, the exit status."""

from __future__ import annotations

import itertools
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from portwright.discover import peek_target
from portwright.errors import ExitStatus, PortwrightError, UserError
from portwright.job.atomic import atomic_write_text
from portwright.job.blame import blame
from portwright.job.logs import Console
from portwright.job.outcome import Outcome
from portwright.job.signals import StopSignals
from portwright.job.stdout import stdout_to_stderr
from portwright.job.vendor_env import command_words, hand_over_if_elsewhere

Work = Callable[[Console, StopSignals], Outcome]
END_NOTE = "PORTWRIGHT_END_NOTE"  # the file that tells a job that a step's program has reached its end


def run_and_report(
    argv: Sequence[str], work: Work, explain: Callable[[Exception], PortwrightError] = blame
) -> dict[str, Any]:
    """Does the work of a command line, prints the outcome, and ends the process where that is a failure.

    `explain` makes an error of one line from any other exception.
    """
    as_json = "--json" in argv
    with stdout_to_stderr() if as_json else nullcontext():
        document, lines, is_shown = _attempt(argv, work, explain)
    if is_shown and process_number() == 0:
        _print_result([json.dumps(document, indent=2, default=str, allow_nan=False)] if as_json else lines)
    if document["status"] != ExitStatus.OK:
        raise SystemExit(document["status"])
    return document


def continue_in_target_environment(argv: Sequence[str]) -> None:
    """Goes on in the target's own environment, if it has one; errors of the command line are told there."""
    target, words = peek_target(argv), command_words(argv)
    if target is None or words is None:
        return

    def note(line: str) -> None:
        with suppress(UserError):  # an unknown --logging
            Console(level=_level(argv)).note(line)

    try:
        hand_over_if_elsewhere(target.environment, words, note)
    except PortwrightError as error:
        Console().error(str(error))
        raise SystemExit(int(error.status)) from error


def process_number() -> int:
    """This process's number among those of torchrun or srun, without loading a framework."""
    name = "RANK" if "RANK" in os.environ else "SLURM_PROCID" if "SLURM_STEP_ID" in os.environ else ""
    number = os.environ.get(name, "0")
    return int(number) if number.isdecimal() else 0


def _attempt(
    argv: Sequence[str], work: Work, explain: Callable[[Exception], PortwrightError]
) -> tuple[dict[str, Any], list[str], bool]:
    """The outcome as JSON, as lines for a person, and whether this process shows it; a failure is one too, and goes to stderr."""
    debug, console = "--debug" in argv, Console()
    end_note = os.environ.pop(END_NOTE, None)  # removed, so that child processes do not see it
    try:
        console = Console(level=_level(argv))
        if process_number() > 0:
            console = Console("ERROR", prefix=f"process {process_number()}: ")
        with StopSignals(console.note) as signals:
            outcome = work(console, signals)
            if end_note is not None and outcome.status == ExitStatus.OK and process_number() == 0:
                atomic_write_text(Path(end_note), f"step {outcome.step}\n")
            return outcome.as_json(), outcome.lines, outcome.is_shown
    except PortwrightError as error:
        failure = error
    except KeyboardInterrupt:
        failure = PortwrightError(
            "interrupted.", "What is in model_dir is whole; the same command goes on from there."
        )
        failure.status = ExitStatus.INTERRUPTED
    except Exception as error:
        failure = explain(error)
        failure.__cause__ = error
    if debug:
        traceback.print_exception(failure)
    console.error(str(failure))
    told = {"status": int(failure.status), "error": failure.message, "cure": failure.cure}
    return {**failure.details, **told}, [], True


def _print_result(lines: Sequence[str]) -> None:
    try:
        for line in lines:
            print(line)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _level(argv: Sequence[str]) -> str:
    """The level is needed before the command line is parsed, to report what is wrong with it."""
    words = [
        part for word in argv for part in (word.split("=", 1) if word.startswith("--logging=") else [word])
    ]
    given = [level for flag, level in itertools.pairwise(words) if flag == "--logging"]
    return (given or ["INFO"])[0].upper()
