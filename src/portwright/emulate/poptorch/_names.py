"""What the emulator does with each name of PopTorch: the table in docs/emulated-poptorch.md is made from this.

What carries no mark is emulated. Names that next to no public program uses are not written out: they are made, with their signatures,
from poptorch_api.json beside this package, which holds facts of the real PopTorch 3.4 (module, name, signature).
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
from collections.abc import Callable, Mapping
from importlib import resources
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from portwright.emulate.poptorch._errors import refuse
from portwright.emulate.poptorch._logging import logger
from portwright.emulate.poptorch.poptorch_core import Error

Marked = TypeVar("Marked", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)
_MARK = "__portwright_mark__"
_WHY = "next to no public program uses it."
_TIMES = "there is no IPU, and this machine's times say nothing about one."
_SAVED = (
    "a program for an IPU cannot be saved here. Save the state_dict() of the model, and wrap the model anew."
)
_OVERLAPS = "it changes speed on hardware, not results. Leave it out."
_INSTEAD = {
    "CPU": "call the function outside of the model.",
    "cond": "compute both branches, and choose with torch.where().",
    "for_loop": "write a loop of Python: it is unrolled when the model is compiled.",
    "ipu_print_tensor": "return the tensor from forward(), or name it in Options.anchorTensor().",
    "set_overlap_for_input": _OVERLAPS,
    "set_overlap_for_output": _OVERLAPS,
    "load": _SAVED,
    "loadExecutable": _SAVED,
    "save": _SAVED,
    "loadFromFile": "call the methods of poptorch.Options.",
    "inputReplicaGrouping": "give every replica an input of its own.",
    "ICustomArgParser": "give tensors, or lists, tuples and dicts of tensors, to the model.",
    "registerCustomArgParser": "give tensors, or lists, tuples and dicts of tensors, to the model.",
    **dict.fromkeys(
        (
            "compilationTime",
            "cycleCount",
            "getPerfCounters",
            "getHostIpuLatency",
            "getComputeLatency",
            "getIpuHostLatency",
            "getLatency",
            "Channel",
        ),
        _TIMES,
    ),
}
"""Why a name that is made from the table is refused, where there is more to say than that it is rare."""


class Mark(NamedTuple):
    """`status` is emulated, partly (see `why`), accepted (no effect here) or refused."""

    status: str
    why: str


def accepted(why: str) -> Callable[[Marked], Marked]:
    """Says that a call is taken, and changes nothing here: it tunes the speed or memory of real hardware."""
    return lambda function: _mark(function, Mark("accepted", _sentence(why)))


def partly(why: str) -> Callable[[Marked], Marked]:
    """Says which part of what the function can do is not emulated; the function itself raises for that part."""
    return lambda function: _mark(function, Mark("partly", _sentence(why)))


def not_emulated(name: str, why: str) -> Error:
    """The error for a call that exists in PopTorch and not here."""
    return refuse(f"{name} is not emulated by Portwright: {why}")


def mark_of(thing: Any) -> Mark:
    """What the emulator does with a function, property or class."""
    if isinstance(thing, property):
        thing = thing.fget
    if isinstance(thing, (staticmethod, classmethod)):
        thing = thing.__func__
    # Of a class its own, not that of a base class.
    holder = vars(thing) if isinstance(thing, type) else getattr(thing, "__dict__", {})
    found = holder.get(_MARK, Mark("emulated", ""))
    assert isinstance(found, Mark)
    return found


@functools.cache
def read_table() -> dict[str, dict[str, Any]]:
    """By module and name: the signature of a function, or the bases and members of a class."""
    text = resources.files("portwright.emulate").joinpath("poptorch_api.json").read_text()
    table: dict[str, dict[str, Any]] = json.loads(text)
    return table


def refused_of(*modules: str) -> Callable[[str], Any]:
    """A `__getattr__`: what these modules of the real package have, and ours do not define, is refused when it is called."""

    def find(name: str) -> Any:
        for module in modules:
            if name in read_table()[module]:
                return _make(module, name)
        raise AttributeError(f"module 'poptorch' has no attribute {name!r}")

    return find


@functools.cache
def _make(module: str, name: str) -> Any:
    what = read_table()[module][name]
    if isinstance(what, str):
        return _refused(name, what)
    constructor = what
    while (
        "__init__" not in constructor["members"] and set(constructor["bases"]) & read_table()[module].keys()
    ):
        constructor = read_table()[module][constructor["bases"][0]]
    return type(name, (), {"__init__": _refused(name, constructor["members"].get("__init__", "(self)"))})


def with_others(
    no_effect: Mapping[str, str] = MappingProxyType({}), *, warned: Mapping[str, str] = MappingProxyType({})
) -> Callable[[_Class], _Class]:
    """Gives a class the members of the real one that it does not define itself, which are refused when they are called.

    `no_effect` has the reasons of those that are accepted, since they change no result; `warned` those of which the log says that
    they are accepted without an effect.
    """

    def complete(cls: _Class) -> _Class:
        (members,) = (
            table[cls.__name__]["members"] for table in read_table().values() if cls.__name__ in table
        )
        reasons = {**no_effect, **warned}
        if unknown := reasons.keys() - members.keys():
            raise KeyError(f"{cls.__name__} has no {', '.join(unknown)}.")
        for name, signature in members.items():
            if hasattr(cls, name):
                continue
            qualname = f"{cls.__name__}.{name}"
            if signature == "property":
                setattr(cls, name, property(_refused(qualname, "(self)")))
            elif name in reasons:
                setattr(cls, name, _accepted(qualname, signature, reasons[name], is_told=name in warned))
            else:
                setattr(cls, name, _refused(qualname, signature))
        return cls

    return complete


def is_made(thing: Any) -> bool:
    """Whether a function, property or class was made here."""
    return getattr(thing.fget if isinstance(thing, property) else thing, "__module__", None) == __name__


def _refused(qualname: str, signature: str) -> Any:
    why = _INSTEAD.get(qualname.rpartition(".")[2], _WHY)

    def act(_: Any) -> None:
        raise not_emulated(qualname, why)

    return _mark(_function(qualname, signature, act), Mark("refused", why))


def _accepted(qualname: str, signature: str, why: str, *, is_told: bool) -> Any:
    """A setter, which gives the object back."""

    def act(given: inspect.BoundArguments) -> Any:
        if is_told and list(given.arguments.values())[1:] != [False]:
            logger.warning("%s has no effect: %s", qualname, why.rstrip("."))
        return given.args[0]

    return _mark(_function(qualname, signature, act), Mark("accepted", _sentence(why)))


def _function(qualname: str, text: str, act: Callable[[inspect.BoundArguments], Any]) -> Callable[..., Any]:
    """A function of that signature, which checks it and then acts."""
    arguments = ast.parse(f"def f{text}: ...").body[0].args  # type: ignore[attr-defined]
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    signature = inspect.signature(
        eval(f"lambda {ast.unparse(arguments)}: ...", {"__builtins__": {}}, _Texts())
    )

    def function(*args: Any, **kwargs: Any) -> Any:
        return act(signature.bind(*args, **kwargs))

    function.__qualname__, function.__name__ = qualname, qualname.rpartition(".")[2]
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


class _Texts(dict[str, Any]):
    """Stands for the names in defaults, such as `SharingStrategy.ForkServer`."""

    def __missing__(self, name: str) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        return self


def _sentence(text: str) -> str:
    return f"{text.rstrip('.')}."


def _mark(function: Any, mark: Mark) -> Any:
    setattr(function, _MARK, mark)
    return function
