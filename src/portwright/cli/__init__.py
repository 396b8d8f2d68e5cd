"""The command `portwright`: every module here parses, calls, prints and gives an exit status; none has logic of its own."""

from portwright.cli.commands import app, main

__all__ = ["app", "main"]
