"""Records each op of a step, as the dispatcher sees it below autograd."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode

from portwright.graph.capturing.guesses import Guesses, guess_shape
from portwright.graph.capturing.hosts import Hosts
from portwright.graph.capturing.tape import Tape

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


class CannotGoOnError(RuntimeError):
    """The trace ends here; a stop says why."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records each op into a tape; it lies above the mode that makes tensors fake."""

    supports_higher_order_operators = True

    def __init__(self, tape: Tape, hosts: Hosts) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tape, self._hosts = tape, hosts
        self._guesses = Guesses(tape)
        self._names: dict[Any, str] = {}

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
                    self._name(func),
                    "a tensor that was made on the host meets one of the device",
                )
        if func in _SAME:
            result = func(*args, **kwargs)
            tape.alias(result, args[0])
            return result
        if func in _READS:
            return self._read(func, args[0])
        if func in _COMPARES:
            tape.add_guess("host_read", self._name(func), "two tensors are compared on the host")
            return True
        guess = guess_shape(func, args, kwargs)
        if guess is not None:
            tape.add_guess(
                "dynamic_shape", self._name(func), "the size of the result depends on the values of a tensor"
            )
            result = guess(*args, **kwargs)
        else:
            result = self._run(func, args, kwargs)
        grad_node = torch._C._current_autograd_node() if tape.phase == "backward" else None
        tape.add_node(self._name(func), args, kwargs, tensors_in((result,)), grad_node)
        return result

    def _name(self, func: Any) -> str:
        name = self._names.get(func)
        if name is None:
            name = self._names[func] = str(func)
        return name

    def _read(self, func: Any, tensor: Tensor) -> Any:
        called = self._tape.call or self._tape.called
        by = f" by {called}" if called else ""
        self._tape.add_guess("host_read", self._name(func), f"the value of a tensor is read on the host{by}")
        return self._guesses.scalar(tensor)

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            result = func(*args, **kwargs)
        except DataDependentOutputException as error:
            self._tape.add_guess("host_read", self._name(func), "the values of a tensor are read on the host")
            raise CannotGoOnError(str(error)) from error
        except DynamicOutputShapeException as error:
            self._tape.add_guess(
                "dynamic_shape", self._name(func), "the size of the result depends on the values of a tensor"
            )
            raise CannotGoOnError(str(error)) from error
        except UnsupportedOperatorException as error:
            raise CannotGoOnError(
                f"{self._name(func)} does not say what shape it gives; register that with torch.library.register_fake"
            ) from error
        except Exception:
            self._tape.failed_op = self._name(func)
            raise
        if func is aten.lift_fresh.default and isinstance(result, FakeTensor):
            result.constant = None  # on the device its value is unknown
        return result


def tensors_in(values: Iterable[Any]) -> list[Tensor]:
    """The tensors among arguments or results, nested ones too."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += tensors_in(value)
    return found
