"""arg_scope of tf.contrib.framework: defaults for the arguments of layers, within a block."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from portwright.errors import UserError

Scope = dict[str, dict[str, Any]]
_stack: list[Scope] = [{}]
_keys: set[str] = set()


def arg_scope_func_key(op: Any) -> str:
    """The key of a function in a scope."""
    key = getattr(op, "_key_op", None)
    return str(key if key is not None else (f"{op.__module__}.{op.__name__}"))


def add_arg_scope(func: Callable[..., Any]) -> Callable[..., Any]:
    """Lets the arguments of a function be given by arg_scope."""
    key = arg_scope_func_key(func)

    @functools.wraps(func)
    def with_defaults(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **{**_stack[-1].get(key, {}), **kwargs})

    with_defaults._key_op = key  # type: ignore[attr-defined]
    _keys.add(key)
    return with_defaults


def has_arg_scope(func: Callable[..., Any]) -> bool:
    """Whether arg_scope can set a function's arguments."""
    return arg_scope_func_key(func) in _keys


@contextmanager
def arg_scope(list_ops_or_scope: Sequence[Any] | Mapping[str, Any], **kwargs: Any) -> Iterator[Scope]:
    """Sets defaults for the functions of a list, or again those of a scope kept from an earlier block."""
    if isinstance(list_ops_or_scope, Mapping):
        if kwargs:
            raise UserError(
                "arg_scope was given a scope and arguments.", "Give a list of functions, or no arguments."
            )
        scope = {key: dict(held) for key, held in list_ops_or_scope.items()}
    else:
        scope = {key: dict(held) for key, held in _stack[-1].items()}
        for op in list_ops_or_scope:
            if not has_arg_scope(op):
                raise UserError(
                    f"{op} does not take its arguments from arg_scope.", "Decorate it with add_arg_scope."
                )
            scope.setdefault(arg_scope_func_key(op), {}).update(kwargs)
    _stack.append(scope)
    try:
        yield scope
    finally:
        _stack.pop()
