"""The commands `portwright data ...`: parse, call, print, exit status; no logic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from portwright.errors import ExitStatus

data_app = typer.Typer(
    name="data",
    help="Check data that a training run reads, and measure how quickly they come.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


@data_app.command(short_help="Verify all checksums of a store.")
def check(
    folder: Annotated[Path, typer.Argument(help="The folder of a store, with its manifest.json.")],
    as_json: Json = False,
) -> None:
    """Verify the manifest, the sizes and all checksums of a store; status 1 when a record is damaged."""
    from portwright.data.check import check_store

    report = check_store(folder)
    if as_json:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        print("\n".join(report.lines()))
    if report.problems:
        raise typer.Exit(int(ExitStatus.FINDINGS))
