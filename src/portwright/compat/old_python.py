"""Names of Python and numpy that were common when Estimators were, and are gone."""

from __future__ import annotations

import collections
import collections.abc
import inspect
import time
from typing import Any

_ABCS = ("Mapping", "MutableMapping", "Sequence", "MutableSequence", "Iterable", "Iterator", "Callable", "Hashable", "Set",
         "MutableSet", "Sized", "Container", "KeysView", "ValuesView", "ItemsView", "Generator")  # fmt: skip

ArgSpec = collections.namedtuple("ArgSpec", "args varargs keywords defaults")


def getargspec(func: Any) -> ArgSpec:
    """As inspect had it until Python 3.11; a class stands for its __new__ or __init__, which old code relied on."""
    if isinstance(func, type):
        own = next((vars(c)["__new__"] for c in func.__mro__[:-1] if "__new__" in vars(c)), None)
        func = own.__func__ if isinstance(own, staticmethod) else func.__init__  # type: ignore[misc]
    full = inspect.getfullargspec(func)
    if full.kwonlyargs:
        raise ValueError("Function has keyword-only parameters, use inspect.signature() instead")
    return ArgSpec(full.args, full.varargs, full.varkw, full.defaults)


def give_back_old_names() -> None:
    """Adds what is missing, and changes nothing that is there."""
    for name in _ABCS:
        if not hasattr(collections, name):
            setattr(collections, name, getattr(collections.abc, name))
    if not hasattr(inspect, "getargspec"):
        inspect.getargspec = getargspec  # type: ignore[attr-defined]
    if not hasattr(time, "clock"):
        time.clock = time.perf_counter  # type: ignore[attr-defined]


def give_back_to_numpy(numpy: Any) -> None:
    """numpy's names for Python's own types, and for functions that it renamed."""
    names: dict[str, Any] = {
        "int": int, "float": float, "bool": bool, "object": object, "str": str, "complex": complex, "long": int,
        "unicode": str, "float_": numpy.float64, "complex_": numpy.complex128, "string_": numpy.bytes_,
        "unicode_": numpy.str_, "Inf": numpy.inf, "Infinity": numpy.inf, "NaN": numpy.nan, "NAN": numpy.nan,
        "PINF": numpy.inf, "NINF": -numpy.inf, "infty": numpy.inf, "product": numpy.prod, "cumproduct": numpy.cumprod,
        "sometrue": numpy.any, "alltrue": numpy.all, "round_": numpy.round, "in1d": numpy.isin,
        "row_stack": numpy.vstack, "asscalar": lambda a: a.item(),
    }  # fmt: skip
    for name, value in names.items():
        if name not in vars(numpy):
            setattr(numpy, name, value)
