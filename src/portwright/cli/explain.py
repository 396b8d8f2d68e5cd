"""`portwright explain-log`: parse and call; the work is done in portwright.launch.explain."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from portwright.cli.launch import complete_jobs
from portwright.errors import ExitStatus, UserError


def explain_log(
    log: Annotated[
        str,
        typer.Argument(
            metavar="LOG",
            help="A log file, - for stdin, or a job: its name, id or folder.",
            autocompletion=complete_jobs,
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Say why a job failed, from its log: the first cause, its line, what it means and what to do.

    Status 1 when an error was explained, 0 when nothing known was found or the job ended well.

    portwright explain-log slurm-633.out
    """
    from portwright.job.stdout import printing
    from portwright.launch.explain import find_log, read_log, scan_log, write_report

    if log == "-":
        if sys.stdin is None:
            raise UserError("standard input is closed.", "Send a log into it, or name a file.")
        report, name = scan_log(sys.stdin.buffer), "stdin"
    else:
        path = find_log(log)
        report, name = read_log(path), str(path)
    if as_json:
        page = json.dumps({"log": name, **report.as_dict()}, indent=2)
    else:
        page = write_report(report, Path(name).name)
    with printing():
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        # a log has signs of any kind
        print(page.encode(encoding, errors="backslashreplace").decode(encoding))
    raise typer.Exit(ExitStatus.FINDINGS if report.has_errors else ExitStatus.OK)
