"""Records each op of a step, as the dispatcher sees it below autograd, and guesses on where the step needs a value that the trace does not have.

Fake tensors have shapes and no values. Where the step asks for a value, or for a shape that follows from values, capture
notes a stop and goes on with a guess, so that the user's code runs further and one capture finds what else there is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from portwright.graph.capturing.hosts import Hosts, tensors_in
from portwright.graph.capturing.tape import Tape
from portwright.graph.graph import Ref
from portwright.watching.place import Place

aten = torch.ops.aten

_DEVICE = torch.ops.prim.device.default
# Ops that give another object of the same tensor, which autograd calls often; nothing is computed.
_SAME = {aten.detach.default, aten.alias.default, aten.lift.default}
_READS = {aten._local_scalar_dense.default, aten.item.default}
_COMPARES = {aten.equal.default, aten.allclose.default}
# Ops that take tensors of the host together with tensors of the device.
_MIXING = {
    aten.copy_.default,
    aten._to_copy.default,
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
    aten.lift_fresh.default,
    aten._pack_padded_sequence.default,  # its lengths belong on the host
}


_name = cache(str)  # of an op


class CannotGoOnError(RuntimeError):
    """The trace ends here; a stop says why."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records each op into a tape; it lies above the mode that makes tensors fake."""

    supports_higher_order_operators = True

    def __init__(self, tape: Tape, hosts: Hosts) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tape, self._hosts = tape, hosts
        self._guesses = Guesses(tape)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE:
            tensor = args[0]
            return tensor.fake_device if isinstance(tensor, FakeTensor) else func(*args)
        kwargs = kwargs or {}
        tape, hosts = self._tape, self._hosts
        if tape.phase == "forward":
            given = list(tensors_in(args))
            if kwargs:
                given += tensors_in(kwargs.values())
            # Outside of torch functions, compiled code calls the op, and names a device or not.
            names_device = not tape.call and kwargs.get("device") is not None
            if hosts.stays(func, given, names_device):
                return hosts.run(func, args, kwargs)
            if func not in _MIXING and any(t.ndim and hosts.has(t) for t in given):
                tape.add_stop(
                    "host_tensor",
                    _name(func),
                    "a tensor that was made on the host meets one of the device",
                )
        if func in _SAME:
            result = func(*args, **kwargs)
            tape.alias(result, args[0])
            return result
        if func in _READS:
            return self._read(func, args[0])
        if func in _COMPARES:
            tape.add_guess("host_read", _name(func), "two tensors are compared on the host")
            return True
        guess = guess_shape(func, args, kwargs)
        if guess is not None:
            tape.add_guess(
                "dynamic_shape", _name(func), "the size of the result depends on the values of a tensor"
            )
            result = guess(*args, **kwargs)
        else:
            result = self._run(func, args, kwargs)
        grad_node = torch._C._current_autograd_node() if tape.phase == "backward" else None
        tape.add_node(_name(func), args, kwargs, tensors_in((result,)), grad_node)
        return result

    def _read(self, func: Any, tensor: Tensor) -> Any:
        called = self._tape.call or self._tape.called
        by = f" by {called}" if called else ""
        self._tape.add_guess("host_read", _name(func), f"the value of a tensor is read on the host{by}")
        return self._guesses.scalar(tensor)

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            result = func(*args, **kwargs)
        except DataDependentOutputException as error:
            self._tape.add_guess("host_read", _name(func), "the values of a tensor are read on the host")
            raise CannotGoOnError(str(error)) from error
        except DynamicOutputShapeException as error:
            self._tape.add_guess(
                "dynamic_shape", _name(func), "the size of the result depends on the values of a tensor"
            )
            raise CannotGoOnError(str(error)) from error
        except UnsupportedOperatorException as error:
            raise CannotGoOnError(
                f"{_name(func)} does not say what shape it gives; register that with torch.library.register_fake"
            ) from error
        except Exception:
            self._tape.failed_op = _name(func)
            raise
        if func is aten.lift_fresh.default and isinstance(result, FakeTensor):
            result.constant = None  # on the device its value is unknown
        return result


# A loop that waits for a value would never end, so a guess changes to the other truth value after so many reads at one
# line, and back after as many more.
_MOST_EQUAL_GUESSES = 8
_MOST_GUESSES = 2000


class EndlessLoopError(RuntimeError):
    """The step reads a value at one line again and again."""


class Guesses:
    """Guesses for values that are not known."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._asked: Counter[Place | None] = Counter()

    def scalar(self, tensor: Tensor) -> bool | int | float | complex:
        """The guess for one value that is read: false for a condition (true where all() made it), and one for a number."""
        place, _ = self._tape.place()
        self._asked[place] += 1
        if self._asked[place] > _MOST_GUESSES:
            raise EndlessLoopError(f"a value is read more than {_MOST_GUESSES} times at this line")
        is_turned = _MOST_EQUAL_GUESSES < self._asked[place] <= 2 * _MOST_EQUAL_GUESSES
        if tensor.dtype is torch.bool:
            return self._condition(self._tape.index(tensor)) != is_turned
        number = 0 if is_turned else 1
        if tensor.dtype.is_complex:
            return complex(number)
        return float(number) if tensor.dtype.is_floating_point else number

    def _condition(self, value: int) -> bool:
        made_by = self._tape.makers.get(value)
        if made_by is None:
            return False
        node = self._tape.nodes[made_by]
        name = node.op.split(".")[1]
        if name in ("all", "isclose", "isfinite"):
            return True
        if name in ("logical_not", "bitwise_not") and isinstance(node.args[0], Ref):
            return not self._condition(node.args[0].value)
        return False


def _like(source: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    return source.new_empty(shape, dtype=dtype)


def _index(x: Tensor, indices: list[Tensor | None]) -> Any:
    selected: list[Tensor | None] = []
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            selected += [_like(index, index.numel(), dtype=torch.int64) for _ in range(index.ndim)]
        else:
            selected.append(index)
    return aten.index.Tensor(x, selected)


def _counts(x: Tensor, length: int, wanted: bool) -> Tensor:
    return _like(x, length if wanted else 0, dtype=torch.int64)


def _unique2(
    x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    inverse = _like(x, *(x.shape if return_inverse else (0,)), dtype=torch.int64)
    return _like(x, x.numel()), inverse, _counts(x, x.numel(), return_counts)


def _unique_dim(
    x: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    length = x.shape[dim]
    return x.clone(), _counts(x, length, return_inverse), _counts(x, length, return_counts)


def _unique_consecutive(
    x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    if dim is not None:
        return _unique_dim(x, dim, True, return_inverse, return_counts)
    return _unique2(x, True, return_inverse, return_counts)


def _bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Any:
    dtype = (
        torch.int64 if weights is None else (weights.dtype if weights.is_floating_point() else torch.float64)
    )
    return _like(x, max(minlength, 1), dtype=dtype)


def _repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Any:
    return _like(repeats, repeats.numel() if output_size is None else output_size, dtype=torch.int64)


def _ctc_loss(log_probs: Tensor, targets: Tensor, *options: Any) -> Any:
    steps, batch = log_probs.shape[0], log_probs.shape[1]
    longest = targets.shape[1] if targets.ndim == 2 else max(1, targets.shape[0] // max(1, batch))
    return _like(log_probs, batch), _like(log_probs, batch, steps, 2 * longest + 1)


def _pack_padded(x: Tensor, lengths: Tensor, batch_first: bool) -> Any:
    batch, longest = (x.shape[0], x.shape[1]) if batch_first else (x.shape[1], x.shape[0])
    with _disable_current_modes():
        # Both live on the host, and recurrent layers read them there.
        known = torch.full((batch,), longest) if isinstance(lengths, FakeTensor) else lengths
        sizes = torch.tensor([int((known > step).sum()) for step in range(int(known.max()))])
    return _like(x, int(sizes.sum()), *x.shape[2:]), sizes


def _lstsq(a: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None) -> Any:
    is_vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    columns = () if is_vector else (b.shape[-1],)
    empty = [_like(a, 0), _like(a, 0, dtype=torch.int64), _like(a, 0)]
    return (_like(a, *a.shape[:-2], a.shape[-1], *columns), *empty)


DYNAMIC: dict[Any, Callable[..., Any]] = {
    aten.nonzero.default: lambda x: _like(x, x.numel(), x.ndim, dtype=torch.int64),
    aten.masked_select.default: lambda x, mask: _like(x, (x.bool() & mask).numel()),
    aten._unique2.default: _unique2,
    aten._unique.default: lambda x, *options: _unique2(x, *options)[:2],
    aten.unique_dim.default: _unique_dim,
    aten.unique_consecutive.default: _unique_consecutive,
    aten.unique_dim_consecutive.default: lambda x, dim, *options: _unique_dim(x, dim, True, *options),
    aten.bincount.default: _bincount,
    aten.repeat_interleave.Tensor: _repeat_interleave,
    aten._ctc_loss.default: _ctc_loss,
    aten._ctc_loss.Tensor: _ctc_loss,
    aten.linalg_lstsq.default: _lstsq,
    aten._pack_padded_sequence.default: _pack_padded,
}


def guess_shape(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
    """How to guess the result of an op whose shape depends on values; None where it does not."""
    if func is aten.index.Tensor:
        has_mask = any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
        return _index if has_mask else None
    if func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is not None:
        return None
    return DYNAMIC.get(func)
