"""Errors that a person can act on, and the exit status each one ends with."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any


class ExitStatus(IntEnum):
    """What a Portwright process ends with; scripts and schedulers rely on these numbers."""

    OK = 0
    FINDINGS = 1  # findings, unproven or unsupported
    USAGE = 2  # usage or bad input
    NON_FINITE = 3  # stopped on a non-finite loss
    REQUEUE = 85  # saved, and wants to be requeued
    INTERRUPTED = 130


class PortwrightError(Exception):
    """One line that says what happened and was received, and one that says what to do."""

    status: ExitStatus = ExitStatus.USAGE

    def __init__(self, message: str, cure: str = "", details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.cure = cure
        self.details: dict[str, Any] = dict(details or {})  # for --json, beside message and cure

    def __str__(self) -> str:
        message = self.message.rstrip()
        ended = message if message.endswith((".", ":", "!", "?")) else f"{message}."
        return f"{ended} {self.cure}" if self.cure else message


class UserError(PortwrightError):
    """Bad usage or bad input."""


class UnsupportedError(PortwrightError):
    """The target, or this machine, cannot do what was asked."""

    status = ExitStatus.FINDINGS


class NonFiniteError(PortwrightError):
    """The loss became NaN or infinite."""

    status = ExitStatus.NON_FINITE


def suggest(received: str, valid: Iterable[str]) -> str:
    """Says the nearest valid name first, then all of them."""
    names = sorted(set(valid))
    nearest = difflib.get_close_matches(received, names, n=1, cutoff=0.5)
    listed = f"Valid: {', '.join(names)}." if names else "None is valid here."
    return f"Did you mean '{nearest[0]}'? {listed}" if nearest else listed
