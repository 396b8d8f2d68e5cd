"""Functions on tensors that a model may call beside torch's own (names as in `poptorch.ops`).

Each is computed with torch's ops, so that it has a gradient and is a part of the frozen program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, List

import torch

from portwright.emulate.poptorch import _active, _impl, enums
from portwright.emulate.poptorch._expect import asserted, expect_int, expect_tensor, told
from portwright.emulate.poptorch._refused import accepted

if TYPE_CHECKING:
    from portwright.emulate import poptorch

_TUNES = "it tunes the memory and speed of the op on an IPU; the result is the same."


def identity_loss(x: "torch.Tensor", reduction: "str") -> "torch.Tensor":
    """Marks the loss that gradients start from; `reduction` is sum, mean or none."""
    if reduction not in ("sum", "mean", "none"):
        raise asserted(f"identity_loss has the reductions 'sum', 'mean' and 'none', not {reduction!r}.")
    expect_tensor("the loss given to identity_loss", x)
    watch = _active.current()
    if watch is not None and not x.is_floating_point():
        raise watch.refuse_here(
            f"identity_loss of a tensor of {x.dtype}, which has no gradient. Give it a floating-point loss"
        )
    with _active.trusted():
        result = x.sum() if reduction == "sum" else x.mean() if reduction == "mean" else x.clone()
    if watch is not None:
        watch.mark_loss(result, "poptorch.identity_loss")
    return result


def nop(tensor: "torch.Tensor") -> "torch.Tensor":
    """The same values, by an op that is never optimised away."""
    expect_tensor("what is given to nop", tensor)
    with _active.trusted():
        return tensor.clone()


def dynamic_slice(
    tensor: "torch.Tensor", dim: int, start: "torch.Tensor", size: int, step: int
) -> "torch.Tensor":
    """`tensor[start : start + size : step]` along a dimension, where only the start may differ from run to run.

    Inside of a model, a slice that goes beyond the end goes on at the beginning, as on an IPU.
    """
    expect_tensor("the tensor given to dynamic_slice", tensor)
    expect_int("the dim of dynamic_slice", dim)
    expect_int("the size of dynamic_slice", size)
    expect_int("the step of dynamic_slice", step)
    with _active.trusted():
        return tensor.index_select(dim, _positions("dynamic_slice", tensor, dim, start, size, step))


def dynamic_update(
    input: "torch.Tensor", src: "torch.Tensor", dim: int, start: "torch.Tensor", size: int
) -> "torch.Tensor":
    """`input` with `src` put in at `start` along a dimension."""
    expect_tensor("the input of dynamic_update", input)
    expect_int("the dim of dynamic_update", dim)
    expect_tensor("the src of dynamic_update", src)
    expect_int("the size of dynamic_update", size)
    if input.dim() != src.dim():
        raise _impl.createPoptorchError(
            f"dynamic_update puts a tensor of {src.dim()} dimensions into one of {input.dim()}. Both must have the same number."
        )
    if input.dtype != src.dtype:
        raise _impl.createPoptorchError(
            f"dynamic_update puts {src.dtype} into {input.dtype}. Both must have the same type."
        )
    with _active.trusted():
        positions = _positions("dynamic_update", input, dim, start, size, 1)
        expected = [size if n == dim % input.dim() else length for n, length in enumerate(input.shape)]
        if list(src.shape) != expected:
            raise _impl.createPoptorchError(
                f"dynamic_update of {size} along dimension {dim} needs a src of shape {expected}, not {list(src.shape)}."
            )
        return input.index_copy(dim, positions, src)


def _positions(name: str, tensor: Any, dim: int, start: Any, size: int, step: int) -> torch.Tensor:
    expect_tensor(f"the start of {name}", start)
    if start.dtype not in (torch.int16, torch.int32, torch.int64) or start.numel() != 1:
        raise _impl.createPoptorchError(
            f"the start of {name} must be one integer in a tensor, not {start.dtype} of shape {list(start.shape)}."
        )
    if not -tensor.dim() <= dim < tensor.dim():
        raise _impl.createPoptorchError(f"{name} along dimension {dim} of a tensor with {tensor.dim()}.")
    length = tensor.shape[dim]
    if step < 1 or not 1 <= size <= length:
        raise _impl.createPoptorchError(
            f"{name} of size {size} and step {step} along a dimension of {length}: the start and the end must differ, the size "
            "fit, and the step be positive."
        )
    if name == "dynamic_slice" and length % size and _active.current() is not None:
        raise _impl.createPoptorchError(
            f"dynamic_slice of size {size} along a dimension of {length}, which is no multiple of it."
        )
    positions: torch.Tensor = start.reshape(1).to(torch.int64) + torch.arange(0, size, step, device="cpu")
    if _active.current() is not None:
        wrapped: torch.Tensor = positions % length
        return wrapped
    return positions[positions < length] if name == "dynamic_slice" else positions


def recomputationCheckpoint(*tensors: List["torch.Tensor"]) -> List["torch.Tensor"]:
    """Keeps tensors from the forward to the backward pass where a pipeline computes activations again."""
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        given: Any = tensors[0]
        kept: Any = recomputationCheckpoint(*given)
        same: Any = type(given)(kept if isinstance(kept, tuple) else (kept,))
        return same  # type: ignore[no-any-return]
    watch = _active.current()
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"recomputationCheckpoint takes tensors, not {type(tensor).__name__}.")
        if watch is not None:
            watch.checkpoints.add(watch.index(tensor))
    return tensors[0] if len(tensors) == 1 else tensors  # type: ignore[return-value]


def serializedMatMul(
    lhs: "torch.Tensor",
    rhs: "torch.Tensor",
    mode: "poptorch.MatMulSerializationMode",
    factor: int = 0,
    keep_precision: bool = False,
) -> "torch.Tensor":
    """A matrix product that an IPU does in `factor` pieces; the result is that of torch.matmul."""
    if not isinstance(keep_precision, bool):
        raise asserted(f"keep_precision is a bool, not {keep_precision!r}.")
    if not isinstance(factor, int) or isinstance(factor, bool):
        raise asserted(f"the factor of serializedMatMul is an int, not {told(factor)}.")
    if not isinstance(mode, enums.MatMulSerializationMode):
        raise asserted(f"the mode of serializedMatMul is a poptorch.MatMulSerializationMode, not {mode!r}.")
    if mode is not enums.MatMulSerializationMode.Disabled and _active.current() is not None:
        lengths = {
            enums.MatMulSerializationMode.InputChannels: lhs.shape[-2] if lhs.dim() > 1 else 1,
            enums.MatMulSerializationMode.ReducingDim: lhs.shape[-1],
            enums.MatMulSerializationMode.OutputChannels: rhs.shape[-1] if rhs.dim() > 1 else 1,
        }
        if factor < 1 or lengths[mode] % factor:
            raise _impl.createPoptorchError(
                f"serializedMatMul splits {mode.name}, which is {lengths[mode]} long, into {factor} pieces. The factor must divide it."
            )
    return torch.matmul(lhs, rhs)


@accepted(_TUNES)
def set_available_memory(tensor: "torch.Tensor", available_memory_proportion: float) -> "torch.Tensor":
    """Says how much of a tile's memory the op behind a tensor may use for itself."""
    expect_tensor("what set_available_memory is given", tensor)
    is_number = isinstance(available_memory_proportion, (int, float))
    if not is_number or not 0 <= available_memory_proportion <= 1:
        raise _impl.createPoptorchError(
            f"the available memory is a proportion from 0 to 1, not {told(available_memory_proportion)}."
        )
    return tensor


def set_overlap_for_input(input_tensors, mode: "poptorch.OverlapMode"):
    """Has an IPU copy these inputs while it computes; must be the only use of each."""
    return _overlap("input", input_tensors, mode)


def set_overlap_for_output(output_tensors, mode: "poptorch.OverlapMode"):
    """Has an IPU copy these outputs while it computes; they must be returned, once."""
    return _overlap("output", output_tensors, mode)


def _overlap(kind: str, tensors: Any, mode: Any) -> Any:
    if not isinstance(mode, enums.OverlapMode):
        raise _impl.createPoptorchError(f"set_overlap_for_{kind} takes a poptorch.OverlapMode, not {mode!r}.")
    watch = _active.current()

    def set_one(tensor: Any) -> Any:
        expect_tensor(f"what set_overlap_for_{kind} is given", tensor)
        if watch is None:
            return tensor
        with _active.trusted():
            marked = tensor.clone()
        watch.overlaps.add(kind, mode, watch.index(tensor), watch.index(marked), watch.tape.place()[0])
        return marked

    return _map(set_one, tensors)


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    """Goes through lists, tuples and dictionaries."""
    if isinstance(value, dict):
        return type(value)((key, _map(function, part)) for key, part in value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map(function, part) for part in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_map(function, part) for part in value)
    return function(value)
