"""Lending tf.estimator, tf.contrib and Cerebras's TensorFlow packages to a program, in the one process that asks for it."""

from __future__ import annotations

import collections
import collections.abc
import inspect
import sys
import time
from collections.abc import Callable
from typing import Any

from portwright.compat.estimator_names import make_finder
from portwright.compat.finder import AfterLoading
from portwright.compat.tensorflow_loaded import give_back_to_keras, give_back_to_tensorflow
from portwright.compat.tensorflow_views import ImportGate
from portwright.errors import UserError
from portwright.tensorflow import prepare

_ABCS = ("Mapping", "MutableMapping", "Sequence", "MutableSequence", "Iterable", "Iterator", "Callable", "Hashable", "Set",
         "MutableSet", "Sized", "Container", "KeysView", "ValuesView", "ItemsView", "Generator")  # fmt: skip

ArgSpec = collections.namedtuple("ArgSpec", "args varargs keywords defaults")


def getargspec(func: Any) -> ArgSpec:
    """inspect.getargspec as it was before Python 3.11; for a class it reads __new__ or __init__, as old code expects."""
    if isinstance(func, type):
        own = next((vars(c)["__new__"] for c in func.__mro__[:-1] if "__new__" in vars(c)), None)
        func = own.__func__ if isinstance(own, staticmethod) else func.__init__  # type: ignore[misc]
    full = inspect.getfullargspec(func)
    if full.kwonlyargs:
        raise ValueError("Function has keyword-only parameters, use inspect.signature() instead")
    return ArgSpec(full.args, full.varargs, full.varkw, full.defaults)


def give_back_old_names() -> None:
    """Adds names that Python has removed (in collections, inspect and time), where they are missing."""
    for name in _ABCS:
        if not hasattr(collections, name):
            setattr(collections, name, getattr(collections.abc, name))
    if not hasattr(inspect, "getargspec"):
        inspect.getargspec = getargspec  # type: ignore[attr-defined]
    if not hasattr(time, "clock"):
        time.clock = time.perf_counter  # type: ignore[attr-defined]


def give_back_to_numpy(numpy: Any) -> None:
    """Adds names that numpy has removed: for Python's own types, and for renamed functions."""
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


def lend_estimator(script: str) -> Callable[[], None]:
    """Installs the finders, and returns a function that removes them; TensorFlow is loaded when the program imports it."""
    if "keras" in sys.modules and "tensorflow" not in sys.modules:
        raise UserError(
            "Keras 3 was imported before --compat estimator could lend anything.",
            "Start the script with portwright run, without importing keras before.",
        )
    prepare()
    give_back_old_names()
    finder = make_finder()
    finder.install()
    loading = AfterLoading(
        {"tensorflow": give_back_to_tensorflow, "tf_keras": give_back_to_keras, "numpy": give_back_to_numpy}
    )
    loading.install()
    gate = ImportGate(script)
    gate.install()

    def take_back() -> None:
        gate.remove()
        loading.remove()
        finder.remove()

    return take_back


VERSION = "2.15.0"  # tensorflow_estimator's last release, whose names are lent


class TaskType:
    """The roles that TF_CONFIG may give a process."""

    MASTER = "master"
    PS = "ps"
    WORKER = "worker"
    CHIEF = "chief"
    EVALUATOR = "evaluator"


def keras_model_to_estimator(*args: Any, **kwargs: Any) -> Any:
    """tf.keras.estimator.model_to_estimator, which passes whether the optimizer is one of tf.keras' version 2."""
    from portwright.tensorflow.keras_model import model_to_estimator

    kwargs.pop("use_v2_estimator", None)
    return model_to_estimator(*args, **kwargs)
