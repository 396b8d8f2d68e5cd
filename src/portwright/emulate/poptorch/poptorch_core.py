"""What the vendor's compiled binding offers to Python, as far as a CPU can say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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


def ipuHardwareVersion(num_ipus: int = 1) -> int:
    """The version of the attached IPUs: 0, there are none under the emulator."""
    return 0


def _validateOptions(options: Mapping[str, Any]) -> None:
    """Refuses settings of PopART that do not exist, or hold what PopART cannot take."""
    from portwright.emulate.poptorch._popart_settings import check

    check(options)


def importPoptorchMetadataFromFile(filename: str) -> bytes:
    """Refused: a file of the emulator holds data, and nothing that Python would have to unpickle."""
    from portwright.emulate.poptorch._refused import not_emulated

    raise not_emulated("importPoptorchMetadataFromFile", "read a saved model with poptorch.load().")
