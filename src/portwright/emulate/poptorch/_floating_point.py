"""Options.Precision.enableFloatingPointExceptions: a run stops at the op that divides by zero, overflows or makes a nan.

An IPU looks at each instruction, we at each op: its result has an infinity or a nan that nothing it was given has. So an infinity
that the model fills in on purpose (a mask of -inf) passes, as it does there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from portwright.emulate.poptorch._errors import StateError, refuse

SETTING = "enableFloatingPointChecks"
"""PopART's name of the option."""
_WHAT = "Options.Precision.enableFloatingPointExceptions"
_UNWRITTEN = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "empty_permuted")


def is_checked(options: Any) -> bool:
    return bool(options._Popart.options.get(SETTING, False))


@contextmanager
def exceptions(enabled: bool) -> Iterator[None]:
    """Inside, an op of a program that makes an infinity or a nan raises FloatingPointError, to which the program adds its line."""
    if not enabled:
        yield
        return
    with _Checks():
        yield


def check_given(inputs: Sequence[Tensor]) -> None:
    """Refuses inputs with a nan, of which the first comparison is an exception; they may have infinities."""
    for number, tensor in enumerate(inputs):
        if tensor.is_floating_point() and tensor.isnan().any():
            raise _refuse(f"input {number} of the model", "nan")


def check_updated(weights: Mapping[str, Tensor], names: Iterable[str]) -> None:
    """Refuses weights that an update has made infinite, or nan."""
    for name in names:
        if (kind := _kind([weights[name]])) is not None:
            raise _refuse(f"the updated weight {name}", kind)


def _refuse(what: str, kind: str) -> Exception:
    return refuse(f"floating-point exception ({_WHAT}): {what} has {kind}.", StateError)


class _Checks(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tree_leaves((args, kwargs)) if func._schema.is_mutable else None
        before = None if given is None else _kind(given)  # what it writes into is not there afterwards
        result = func(*args, **kwargs)
        kind = _kind(tree_leaves(result))
        if kind is None or func._schema.name.removeprefix("aten::") in _UNWRITTEN:
            return result
        if given is None:
            before = _kind(tree_leaves((args, kwargs)))
        # An infinity may come of one that was given, a nan of nothing but a nan.
        if before is None or (kind == "nan" and before == "inf"):
            raise FloatingPointError(f"floating-point exception ({_WHAT}): the result has {kind}")
        return result


def _kind(values: Iterable[Any]) -> str | None:
    """The worst among tensors and numbers: nan, inf or nothing."""
    worst = None
    for value in values:
        if isinstance(value, float):
            if math.isnan(value):
                return "nan"
            worst = "inf" if math.isinf(value) else worst
        elif isinstance(value, Tensor) and value.is_floating_point() and not value.isfinite().all():
            if value.isnan().any():
                return "nan"
            worst = "inf"
    return worst
