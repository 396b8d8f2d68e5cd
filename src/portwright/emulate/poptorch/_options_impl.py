"""Options that know their names and types, can be frozen, and the numbering of blocks into stages."""

from __future__ import annotations

import abc
import copy
import datetime
import time
from typing import Any

from portwright.emulate.poptorch._errors import AssertedError, refuse
from portwright.emulate.poptorch._logging import logger
from portwright.errors import suggest

default_source_location_excludes = ["install/poptorch", "site-packages/torch", "site-packages/poptorch"]

FROZEN = "these options can't be changed: a model or a data loader has them. Change a copy: options.clone()."


class ProgressBar:
    """Hears how far a compilation is, and keeps how long it took in `compilation_time`."""

    def __init__(self):
        self.compilation_time: datetime.timedelta | None = None
        self._started: float | None = None

    def __call__(self, progress: int, total: int):
        if self._started is None:
            self._started = time.monotonic()
        self.compilation_time = datetime.timedelta(seconds=time.monotonic() - self._started)
        logger.info("Graph compilation: %d of %d", progress, total)
        if progress >= total:
            self._started = None


class OptionsDict:
    """Options with fixed names and types, read as attributes; frozen once a model or data loader has them."""

    def __init__(self, **default_values):
        self._warnings: dict[str, str] = {}
        self._warnings_disabled: set[str] = set()
        self._is_frozen = False
        self._values: dict[str, Any] = default_values  # last: from here on, no new private attributes

    def set(self, **kwargs):
        self.checkIsFrozen()
        for option, value in kwargs.items():
            if not self.exists(option):
                raise wrong(f"{type(self).__name__} has no option '{option}'. {self._suggest(option)}")
            expected = type(self._values[option])
            if not isinstance(value, expected):
                raise refuse(f"the option {option} takes {article(expected)}, not {value!r}.", AssertedError)
            self._values[option] = value

    def createOrSet(self, **kwargs):
        self.checkIsFrozen()
        for option, value in kwargs.items():
            if self.exists(option):
                self.set(**{option: value})
            else:
                self._values[option] = value

    def exists(self, option):
        return option in self.__dict__.get("_values", {})

    def deleteIfExists(self, option):
        self.checkIsFrozen()
        self._values.pop(option, None)

    def checkIsFrozen(self, option=None):
        if option != "_is_frozen" and self.__dict__.get("_is_frozen"):
            raise AttributeError(FROZEN)

    def update(self, other):
        """Adds these options to a dictionary, which must not have them yet."""
        for about, warning in self._warnings.items():
            if about not in self._warnings_disabled:
                logger.warning(warning)
        twice = sorted(set(other) & set(self._values))
        if twice:
            raise refuse(f"set more than once: {', '.join(twice)}.", AssertedError)
        other.update(self._values)
        return other

    def toDict(self):
        return self.update({})

    def __call__(self, option):
        return getattr(self, option)

    def _freeze(self) -> None:
        self._changeFreezeState(True)

    def _unfreeze(self) -> None:
        self._changeFreezeState(False)

    def _changeFreezeState(self, new_state: bool) -> None:
        self._is_frozen = new_state
        for part in self.__dict__.values():
            if "_is_frozen" in getattr(part, "__dict__", {}):
                part._is_frozen = new_state

    def __deepcopy__(self, memory: dict[int, Any]) -> Any:
        copied = type(self).__new__(type(self))
        memory[id(self)] = copied
        for name, value in self.__dict__.items():
            copied.__dict__[name] = False if name == "_is_frozen" else copy.deepcopy(value, memory)
        return copied

    def __setattr__(self, option: str, value: Any) -> None:
        self.checkIsFrozen(option)
        if not option.startswith("_"):
            self.set(**{option: value})
        elif option == "__class__" or "_values" not in self.__dict__ or option in self.__dict__:
            super().__setattr__(option, value)
        else:
            raise AttributeError(f"{type(self).__name__} has no private attribute '{option}'.")

    def __getattr__(self, option: str) -> Any:
        if self.exists(option):
            return self.__dict__["_values"][option]
        raise AttributeError(f"{type(self).__name__} has no option '{option}'. {self._suggest(option)}")

    def _suggest(self, option: str) -> str:
        if callable(getattr(type(self), option, None)):
            return f"It is a method: {option}(...)."
        methods = [name for name in dir(type(self)) if not name.startswith("_")]
        return suggest(option, [*self.__dict__.get("_values", {}), *methods])

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"
        )


def wrong(message: str) -> Exception:
    """The error of a value that the real package refuses by an assertion."""
    return refuse(message, AssertedError)


def article(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'aeiou' else 'a'} {kind.__name__}"


class IStageManager(abc.ABC):
    """Gives the blocks of a model their stage, phase and IPU, in the order in which the model enters them."""

    def __init__(self):
        self._next_auto_id = 0
        self._current_ipu: int | None = None
        self._debug_messages: list[str] = []

    def clearDebug(self):
        self._debug_messages = []

    def printDebug(self):
        for message in self._debug_messages:
            logger.debug(message)

    def nextAutoId(self):
        self._next_auto_id += 1
        return str(self._next_auto_id - 1)

    @abc.abstractmethod
    def getStage(self, block_id):
        """The Stage that a block belongs to."""

    def beginStage(self, user_id, ipu_id_from_block):
        """Gives (stage, phase, IPU) of the block that starts; a stage's own IPU goes before the block's."""
        self._current_ipu = ipu_id_from_block
        block = user_id or self.nextAutoId()
        stage = self.getStage(block)
        number, phase = stage._stage_id, stage._phase_id
        ipu = next(place for place in (stage._ipu, ipu_id_from_block, number) if place is not None)
        self._debug_messages.append(f"block {block}: stage {number}, phase {phase}, IPU {ipu}")
        return number, phase, ipu

    def resetAutoId(self):
        self._next_auto_id = 0
