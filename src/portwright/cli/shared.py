"""What the commands share: the option --json, completion of models' names, and how an answer is printed."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from portwright.errors import ExitStatus

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


def complete_models(incomplete: str) -> list[str]:
    from portwright.job.model_list import complete_models

    return complete_models(incomplete)


def print_json(document: Any) -> None:
    print(json.dumps(document, indent=2))


def print_answer(as_json: bool, document: Any, text: str) -> None:
    """The document with --json, else the text for a person."""
    print(json.dumps(document, indent=2) if as_json else text)


def end_with_findings(found: bool) -> None:
    """Ends the command with the status of findings where there are any."""
    if found:
        raise typer.Exit(int(ExitStatus.FINDINGS))
