"""Loops and branches on the device, several convolutions as one, and names of ops (names as in `poptorch.ops`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, List, Union

import torch

from portwright.emulate.poptorch import _active, _impl, enums
from portwright.emulate.poptorch._expect import asserted, told
from portwright.emulate.poptorch._refused import accepted
from portwright.graph.tables import base_name

if TYPE_CHECKING:
    from portwright.emulate import poptorch

_TUNES = "it tunes the plan of the convolutions on an IPU; the results are the same."


def _refuse_training(name: str) -> None:
    watch = _active.current()
    if watch is not None and watch.training:
        raise watch.refuse_here(
            f"poptorch.{name}() is only supported in inference. Write the training model without it: a Python "
            f"{'loop' if name == 'for_loop' else 'if, or torch.where'}"
        )


def _call(body: Any, inputs: list[torch.Tensor]) -> list[Any]:
    outputs = body(*inputs)
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def for_loop(
    count: int,
    body: Callable[[List["torch.Tensor"]], List["torch.Tensor"]],
    inputs: List["torch.Tensor"],
) -> List["torch.Tensor"]:
    """Calls `body` so many times on the device, each time with what it gave before.

    Outside of a model it does the same, where the real one calls the body once.
    """
    if not isinstance(inputs, list):
        raise ValueError(
            f"the inputs of for_loop are a list of tensors, not {type(inputs).__name__} (Object is not list)."
        )
    for number, tensor in enumerate(inputs):
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(
                f"the inputs of for_loop are a list of tensors, and the object contained in list at index {number} is not "
                f"torch.tensor but {type(tensor).__name__}."
            )
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise _impl.createPoptorchError(
            f"the count of for_loop is a number that is known when the model is compiled, not {told(count)}."
        )
    _refuse_training("for_loop")
    values = [tensor.clone() for tensor in inputs]
    for _ in range(count):
        values = _call(body, values)
        _check_alike("for_loop's body", inputs, values)
    return values


def _check_alike(name: str, before: list[Any], after: list[Any]) -> None:
    if len(before) != len(after):
        raise _impl.createPoptorchError(
            f"{name} takes {len(before)} tensors and gives {len(after)}. Both must be the same number."
        )
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        if not isinstance(new, torch.Tensor):
            raise _impl.createPoptorchError(f"{name} gives {type(new).__name__} instead of a tensor.")
        if old.shape != new.shape or old.dtype != new.dtype:
            raise _impl.createPoptorchError(
                f"{name} turns tensor {number} of {old.dtype} {list(old.shape)} into {new.dtype} {list(new.shape)}. Shape and type "
                "must stay."
            )


def cond(
    condition: "torch.Tensor",
    then_body: Callable[[List["torch.Tensor"]], List["torch.Tensor"]],
    then_inps: List["torch.Tensor"],
    else_body: Callable[[List["torch.Tensor"]], List["torch.Tensor"]],
    else_inps: List["torch.Tensor"],
) -> List["torch.Tensor"]:
    """One of two branches, chosen on the device by a tensor; only for inference.

    Inside of a model both branches are computed here, and the result is chosen.
    """
    if not isinstance(then_inps, list) or not isinstance(else_inps, list):
        raise ValueError("then_inps and else_inps of cond are lists of tensors (Object is not list).")
    if _active.current() is None:
        return _call(then_body, then_inps) if condition else _call(else_body, else_inps)
    _refuse_training("cond")
    if not isinstance(condition, torch.Tensor) or condition.numel() != 1:
        raise _impl.createPoptorchError(
            f"the condition of cond is a tensor with one element, not {told(condition)}."
        )
    then_outputs = _call(then_body, [tensor.clone() for tensor in then_inps])
    else_outputs = _call(else_body, [tensor.clone() for tensor in else_inps])
    if len(then_outputs) != len(else_outputs):
        raise _impl.createPoptorchError(
            f"the branches of cond give {len(then_outputs)} and {len(else_outputs)} tensors. Both must be the same number."
        )
    chosen = []
    with _active.trusted():
        for number, (one, other) in enumerate(zip(then_outputs, else_outputs, strict=True)):
            if one.numel() != other.numel() or one.dtype != other.dtype:
                raise _impl.createPoptorchError(
                    f"the branches of cond give {one.dtype} {list(one.shape)} and {other.dtype} {list(other.shape)} as output "
                    f"{number}. Both must be the same."
                )
            chosen.append(torch.where(condition.reshape(()).bool(), one, other.reshape(one.shape)))
    return chosen


class MultiConv:
    """The convolutions called inside of `with MultiConv()` run side by side; none may need another's result."""

    def __init__(self):
        self._available_memory_proportions: Any = None
        self._partials_types: Any = None
        self._plan_type: Any = None
        self._per_conv_reserved_tiles: Any = None
        self._cycle_back_off: Any = None
        self._enable_conv_ditherings: Any = None

    @accepted(_TUNES)
    def availableMemoryProportions(self, value: Union[float, List[float]]) -> "poptorch.MultiConv":
        values = _one_or_many(value)
        if value is not None and (not values or not all(isinstance(v, float) for v in values)):
            raise asserted(
                f"the available memory of a convolution is a float or a list of them, not {value!r}."
            )
        self._available_memory_proportions = values
        return self

    @accepted(_TUNES)
    def partialsTypes(self, value: Union[torch.dtype, List[torch.dtype]]) -> "poptorch.MultiConv":
        values = _one_or_many(value)
        for dtype in values or ():
            if dtype not in (torch.float32, torch.float16):
                raise ValueError(
                    f"partials are torch.float or torch.half, not {dtype!r}. Invalid partials types."
                )
        self._partials_types = values
        return self

    @accepted(_TUNES)
    def enableConvDithering(self, value: Union[bool, List[bool]]) -> "poptorch.MultiConv":
        values = _one_or_many(value)
        if any(not isinstance(v, bool) for v in values or ()):
            raise ValueError(f"enableConvDithering takes a bool or a list of bools, not {value!r}.")
        self._enable_conv_ditherings = values
        return self

    @accepted(_TUNES)
    def planType(self, value: "poptorch.MultiConvPlanType") -> "poptorch.MultiConv":
        if value is not None and not isinstance(value, enums.MultiConvPlanType):
            raise asserted(f"planType takes a poptorch.MultiConvPlanType, not {value!r}. Invalid plan type!")
        self._plan_type = value
        return self

    @accepted(_TUNES)
    def perConvReservedTiles(self, value: int) -> "poptorch.MultiConv":
        if not isinstance(value, int):
            raise asserted(f"perConvReservedTiles takes an int, not {value!r}.")
        self._per_conv_reserved_tiles = value
        return self

    @accepted(_TUNES)
    def cycleBackOff(self, value: float) -> "poptorch.MultiConv":
        if not isinstance(value, float):
            raise asserted(f"cycleBackOff takes a float, not {value!r}.")
        self._cycle_back_off = value
        return self

    def __enter__(self):
        watch = _active.current()
        if watch is None:
            return
        if watch.multi_conv is not None:
            raise watch.refuse_here("a poptorch.MultiConv inside of another. Close the outer one first")
        watch.multi_conv = len(watch.tape.nodes)

    def __exit__(self, type, value, traceback):
        watch = _active.current()
        if watch is None or watch.multi_conv is None:
            return
        first, watch.multi_conv = watch.multi_conv, None
        if type is None:
            self._check(watch, watch.tape.nodes[first:])

    def _check(self, watch: Any, nodes: Any) -> None:
        convolutions = [
            node for node in nodes if base_name(node.op) in ("aten.convolution", "aten._convolution")
        ]
        if not convolutions:
            raise watch.refuse_here(
                "a poptorch.MultiConv without a convolution. Call the layers inside of it"
            )
        derived: set[int] = set()
        for node in nodes:
            reads = derived.intersection(node.inputs)
            if reads and node in convolutions:
                raise watch.refuse(
                    "a convolution in a poptorch.MultiConv needs the result of another one in it. Those in it run side by side: move "
                    "it behind",
                    node.place,
                    node.module,
                )
            if reads or node in convolutions:
                derived.update(node.outputs)
        for name in ("_available_memory_proportions", "_partials_types", "_enable_conv_ditherings"):
            given = getattr(self, name)
            if given is not None and len(given) not in (1, len(convolutions)):
                raise watch.refuse_here(
                    f"a poptorch.MultiConv of {len(convolutions)} convolutions was given {len(given)} values of {name.strip('_')}. Give "
                    "one, or one for each"
                )


def _one_or_many(value: Any) -> tuple[Any, ...] | None:
    if value is None:
        return None
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


class NameScope:
    """Names given to ops, as profiles of the real one show them; here they change nothing."""

    def __init__(self, name: str):
        if not isinstance(name, str):
            raise asserted(f"the name of a NameScope is a string, not {name!r}.")
        self.name = name

    def __enter__(self):
        watch = _active.current()
        if watch is not None:
            watch.scopes.append(self.name)

    def __exit__(self, type, value, traceback):
        watch = _active.current()
        if watch is not None:
            watch.scopes.pop()
