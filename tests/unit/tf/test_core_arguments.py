"""User functions are given the arguments that they name, however they are wrapped."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from portwright.tensorflow.arguments import argument_names, call_with


def plain(features: Any, labels: Any, mode: str, params: Any = None) -> Any: ...


class Callable_:
    def __call__(self, features: Any, mode: str) -> Any: ...

    def method(self, params: Any) -> Any: ...

    @classmethod
    def of_class(cls, params: Any) -> Any: ...

    @staticmethod
    def static(config: Any) -> Any: ...


@functools.wraps(plain)
def passing_on(*args: Any, **kwargs: Any) -> Any:
    return plain(*args, **kwargs)


@functools.wraps(plain)
def narrowing(features: Any) -> Any:
    return plain(features, None, "train")


def keyword_only(features: Any, *, mode: str, **rest: Any) -> Any: ...


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (plain, ("features", "labels", "mode", "params")),
        (functools.partial(plain, params=3), ("features", "labels", "mode")),
        (functools.partial(plain, 1, labels=2), ("mode", "params")),
        (functools.partial(functools.partial(plain, 1), mode=2), ("labels", "params")),
        (Callable_(), ("features", "mode")),
        (functools.partial(Callable_(), mode=1), ("features",)),
        (Callable_().method, ("params",)),
        (Callable_.of_class, ("params",)),
        (Callable_.static, ("config",)),
        (lambda: None, ()),
        (lambda mode: mode, ("mode",)),
        (passing_on, ("features", "labels", "mode", "params")),
        (narrowing, ("features",)),
        (keyword_only, ("features", "mode")),
    ],
)
def test_names(function: Callable[..., Any], names: tuple[str, ...]) -> None:
    assert argument_names(function) == names


def test_what_is_bound_already_is_not_overridden() -> None:
    def input_fn(params: int, mode: str = "") -> tuple[int, str]:
        return params, mode

    assert call_with(functools.partial(input_fn, params=1), {"params": 2, "mode": "train"}) == (1, "train")
    assert call_with(functools.partial(input_fn, 1), {"params": 2, "mode": "train"}) == (1, "train")
    assert call_with(input_fn, {"params": 2, "config": 3}) == (2, "")
