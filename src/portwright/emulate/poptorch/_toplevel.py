"""Functions of the package `poptorch` itself that belong to no other module: hardware, log, custom arguments."""

from __future__ import annotations

import abc
from typing import Any, Optional, Type, Union

from portwright.emulate.poptorch import _logging, _utils, poptorch_core
from portwright.emulate.poptorch._errors import AssertedError, refuse
from portwright.emulate.poptorch._impl import createPoptorchError
from portwright.emulate.poptorch._refused import accepted


@accepted("there is no binding to shut down.")
def poptorchAtExit(): ...


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """Whether there are that many IPUs: never under the emulator, which needs none."""
    return poptorch_core.ipuHardwareVersion(num_ipus) != 0


def ipuHardwareVersion() -> int:
    """The version of the IPUs; refused without any, as by the real one."""
    version = poptorch_core.ipuHardwareVersion()
    if version == 0:
        raise refuse("there is no IPU: PopTorch is emulated on the CPU.", AssertedError)
    return version


def setLogLevel(level: Union[str, int]):
    """Sets how much is logged: TRACE, DEBUG, INFO, WARN, ERR or OFF."""
    _logging.setLogLevel(level)


class ICustomArgParser(abc.ABC):
    """Takes a type of argument apart into tensors and puts it together again, for registerCustomArgParser()."""

    @abc.abstractmethod
    def yieldTensors(self, struct) -> None:
        """Yields the tensors, always in the same order."""

    @abc.abstractmethod
    def reconstruct(self, original_structure, tensor_iterator) -> Any:
        """Makes a new one like the original, with the next tensors of the iterator in the same order."""


def registerCustomArgParser(arg_data_type: Type, arg_parser: Optional[ICustomArgParser]):  # type: ignore[type-arg]
    """Lets models take arguments of a type; None takes that back."""
    if arg_parser is None:
        _utils.custom_arg_parsers.pop(arg_data_type, None)
        return
    if not isinstance(arg_parser, ICustomArgParser):
        raise createPoptorchError(
            f"a parser of arguments is a poptorch.ICustomArgParser, not {arg_parser!r}."
        )
    _utils.custom_arg_parsers[arg_data_type] = arg_parser


@accepted("poptorch_geometric is not there, and the real one does nothing then, either.")
def registerGeometricCustomArgParsers(): ...
