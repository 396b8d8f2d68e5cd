"""What the vendor's compiled binding offers to Python, as far as a CPU can say it."""

from __future__ import annotations


class Error(Exception):
    """What PopTorch raises for a program or a call it cannot run; `message` is the sentence without its context."""

    message: str = ""
    type: str = ""
    location: str = ""


class RecoverableError(Error):
    """A fault of the hardware that goes away with `recovery_action`; an emulated IPU has none, so it is never raised here."""

    recovery_action: str = ""


class UnrecoverableError(Error):
    """A fault of the hardware that stays; an emulated IPU has none, so it is never raised here."""
