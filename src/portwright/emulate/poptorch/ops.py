"""PopTorch's functions for use inside of models; each has the signature of the real one.

Each is computed with torch's ops, so that it has a gradient and is a part of the frozen program.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple, Union

import torch

from portwright.emulate.poptorch import enums
from portwright.emulate.poptorch._errors import asserted, refuse, told
from portwright.emulate.poptorch._names import accepted, partly, refused_of, with_others
from portwright.emulate.poptorch._watch import current, trusted
from portwright.errors import UserError

if TYPE_CHECKING:
    from portwright.emulate import poptorch

__getattr__ = refused_of("ops")
_TUNES = "it tunes the memory and speed of the op on an IPU; the result is the same."


def _expect_tensor(name: str, value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        raise refuse(f"{name} must be a torch.Tensor, not {type(value).__name__}.")


def _expect_int(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise refuse(
            f"{name} must be an integer that is known when the model is compiled, not {told(value)}."
        )


def identity_loss(x: "torch.Tensor", reduction: "str") -> "torch.Tensor":
    """Marks the loss that gradients start from; `reduction` is sum, mean or none."""
    if reduction not in ("sum", "mean", "none"):
        raise asserted(f"identity_loss has the reductions 'sum', 'mean' and 'none', not {reduction!r}.")
    _expect_tensor("the loss given to identity_loss", x)
    watch = current()
    if watch is not None and not x.is_floating_point():
        raise watch.refuse_here(
            f"identity_loss of a tensor of {x.dtype}, which has no gradient. Give it a floating-point loss"
        )
    with trusted():
        result = x.sum() if reduction == "sum" else x.mean() if reduction == "mean" else x.clone()
    if watch is not None:
        watch.mark_loss(result, "poptorch.identity_loss")
    return result


def nop(tensor: "torch.Tensor") -> "torch.Tensor":
    """The same values, by an op that is never optimised away."""
    _expect_tensor("what is given to nop", tensor)
    with trusted():
        return tensor.clone()


def dynamic_slice(
    tensor: "torch.Tensor", dim: int, start: "torch.Tensor", size: int, step: int
) -> "torch.Tensor":
    """`tensor[start : start + size : step]` along a dimension, where only the start may differ from run to run.

    Inside of a model, a slice that goes beyond the end goes on at the beginning, as on an IPU.
    """
    _expect_tensor("the tensor given to dynamic_slice", tensor)
    for name, value in (("dim", dim), ("size", size), ("step", step)):
        _expect_int(f"the {name} of dynamic_slice", value)
    with trusted():
        return tensor.index_select(dim, _positions("dynamic_slice", tensor, dim, start, size, step))


def dynamic_update(
    input: "torch.Tensor", src: "torch.Tensor", dim: int, start: "torch.Tensor", size: int
) -> "torch.Tensor":
    """`input` with `src` put in at `start` along a dimension."""
    _expect_tensor("the input of dynamic_update", input)
    _expect_int("the dim of dynamic_update", dim)
    _expect_tensor("the src of dynamic_update", src)
    _expect_int("the size of dynamic_update", size)
    if input.dim() != src.dim():
        raise refuse(
            f"dynamic_update puts a tensor of {src.dim()} dimensions into one of {input.dim()}. Both must have the same number."
        )
    if input.dtype != src.dtype:
        raise refuse(f"dynamic_update puts {src.dtype} into {input.dtype}. Both must have the same type.")
    with trusted():
        positions = _positions("dynamic_update", input, dim, start, size, 1)
        expected = [size if n == dim % input.dim() else length for n, length in enumerate(input.shape)]
        if list(src.shape) != expected:
            raise refuse(
                f"dynamic_update of {size} along dimension {dim} needs a src of shape {expected}, not {list(src.shape)}."
            )
        return input.index_copy(dim, positions, src)


def _positions(name: str, tensor: Any, dim: int, start: Any, size: int, step: int) -> torch.Tensor:
    _expect_tensor(f"the start of {name}", start)
    if start.dtype not in (torch.int16, torch.int32, torch.int64) or start.numel() != 1:
        raise refuse(
            f"the start of {name} must be one integer in a tensor, not {start.dtype} of shape {list(start.shape)}."
        )
    if not -tensor.dim() <= dim < tensor.dim():
        raise refuse(f"{name} along dimension {dim} of a tensor with {tensor.dim()}.")
    length = tensor.shape[dim]
    if step < 1 or not 1 <= size <= length:
        raise refuse(
            f"{name} of size {size} and step {step} along a dimension of {length}: the start and the end must differ, the size "
            "fit, and the step be positive."
        )
    if name == "dynamic_slice" and length % size and current() is not None:
        raise refuse(
            f"dynamic_slice of size {size} along a dimension of {length}, which is no multiple of it."
        )
    positions: torch.Tensor = start.reshape(1).to(torch.int64) + torch.arange(0, size, step, device="cpu")
    if current() is not None:
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
    watch = current()
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
    if mode is not enums.MatMulSerializationMode.Disabled and current() is not None:
        lengths = {
            enums.MatMulSerializationMode.InputChannels: lhs.shape[-2] if lhs.dim() > 1 else 1,
            enums.MatMulSerializationMode.ReducingDim: lhs.shape[-1],
            enums.MatMulSerializationMode.OutputChannels: rhs.shape[-1] if rhs.dim() > 1 else 1,
        }
        if factor < 1 or lengths[mode] % factor:
            raise refuse(
                f"serializedMatMul splits {mode.name}, which is {lengths[mode]} long, into {factor} pieces. The factor must divide it."
            )
    return torch.matmul(lhs, rhs)


@accepted(_TUNES)
def set_available_memory(tensor: "torch.Tensor", available_memory_proportion: float) -> "torch.Tensor":
    """Says how much of a tile's memory the op behind a tensor may use for itself."""
    _expect_tensor("what set_available_memory is given", tensor)
    is_number = isinstance(available_memory_proportion, (int, float))
    if not is_number or not 0 <= available_memory_proportion <= 1:
        raise refuse(
            f"the available memory is a proportion from 0 to 1, not {told(available_memory_proportion)}."
        )
    return tensor


class Block(torch.nn.Module):
    """What runs inside of `with Block(...)` is one block; behind it there is none, until the next starts."""

    _stages_manager: Any = None  # of the execution strategy, while a model is traced

    @staticmethod
    def useAutoId():
        """Numbers blocks without a name from 0 again: to be called first in forward()."""
        if Block._stages_manager is not None:
            Block._stages_manager.resetAutoId()

    @staticmethod
    def start(user_id: Optional[str] = None, ipu_id: Optional[int] = None):
        """Starts a block that lasts until the next one starts."""
        _start(user_id, ipu_id)

    def __init__(self, user_id: Optional[str] = None, ipu_id: Optional[int] = None):
        super().__init__()
        _check_ipu(ipu_id)
        self._user_id = user_id
        self._ipu_id = ipu_id

    def __enter__(self):
        Block.start(self._user_id, self._ipu_id)
        watch = current()
        if watch is not None:
            watch.blocks.open()

    def __exit__(self, type, value, traceback):
        watch = current()
        if watch is not None:
            watch.blocks.end()


def _start(user_id: Any, ipu_id: Any) -> None:
    watch, manager = current(), Block._stages_manager
    if watch is None or manager is None:
        return
    _check_ipu(ipu_id)
    block = user_id or manager.nextAutoId()
    watch.blocks.begin(str(block), *manager.beginStage(block, ipu_id))


def _check_ipu(ipu_id: Any) -> None:
    if ipu_id is not None and (not isinstance(ipu_id, int) or isinstance(ipu_id, bool) or ipu_id < 0):
        raise refuse(f"the ipu_id of a block is a number from 0, not {ipu_id!r}.")


@with_others(
    dict.fromkeys(
        (
            "availableMemoryProportions",
            "partialsTypes",
            "enableConvDithering",
            "planType",
            "perConvReservedTiles",
            "cycleBackOff",
        ),
        _TUNES,
    )
)
@accepted("convolutions inside of it are computed one after another: the results are the same.")
class MultiConv:
    """Has an IPU compute convolutions side by side."""

    def __enter__(self):
        pass

    def __exit__(self, type, value, traceback):
        pass


class LegacyBeginBlockFn(torch.nn.Module):
    """A function with which a block begins."""

    def __init__(self, layer_to_call, user_id=None, ipu_id=None):
        super().__init__()
        self._user_id = user_id
        self._layer_to_call = layer_to_call
        self._ipu_id = ipu_id

    def __call__(self, *input, **kwargs):
        self._user_id = _begin(self._user_id, self._ipu_id)
        return self._layer_to_call(*input, **kwargs)


class _BlockHook:
    """Called before a module: a block begins, and keeps its number from then on."""

    def __init__(self, user_id, ipu_id):
        self._user_id = user_id
        self._ipu_id = ipu_id

    def __call__(self, module, input):
        self._user_id = _begin(self._user_id, self._ipu_id)

    def __repr__(self) -> str:
        return f"BeginBlock(user_id={self._user_id}, ipu_id={self._ipu_id})"


def _begin(user_id: Any, ipu_id: Any) -> Any:
    manager = Block._stages_manager
    if manager is not None:
        user_id = manager.nextAutoId() if user_id is None else user_id
        _start(user_id, ipu_id)
    return user_id


def removeBlocks(module):
    """Takes back what BeginBlock did to a module and to those inside of it."""
    if not isinstance(module, torch.nn.Module):
        raise asserted(f"removeBlocks takes a torch.nn.Module, not {module!r}.")
    for part in module.modules():
        for number in _block_hooks(part):
            del part._forward_pre_hooks[number]


def _block_hooks(module: torch.nn.Module) -> list[int]:
    return [number for number, hook in module._forward_pre_hooks.items() if isinstance(hook, _BlockHook)]


def BeginBlock(
    layer_to_call: torch.nn.Module,
    user_id: str = None,  # type: ignore[assignment]
    ipu_id: int = None,  # type: ignore[assignment]
) -> torch.nn.Module:
    """Has a block begin when the module is called, which lasts until the next begins; gives the same module back."""
    given = type(layer_to_call).__name__
    _check_ipu(ipu_id)
    if isinstance(layer_to_call, torch.nn.Module):
        if _block_hooks(layer_to_call):
            raise refuse(
                f"a block begins with this {given} already. Take that back first: poptorch.removeBlocks(module)."
            )
        layer_to_call.register_forward_pre_hook(_BlockHook(user_id, ipu_id))
        return layer_to_call
    if not callable(layer_to_call):
        raise refuse(f"BeginBlock takes a torch.nn.Module or a function, not {given}.")
    return LegacyBeginBlockFn(layer_to_call, user_id, ipu_id)


def BlockFunction(user_id: Optional[str] = None, ipu_id: Optional[int] = None):
    """A decorator: the function's body is a block."""
    _check_ipu(ipu_id)

    def mark(body: Any) -> Any:
        @functools.wraps(body)
        def block(*args: Any, **kwargs: Any) -> Any:
            with Block(user_id, ipu_id):
                return body(*args, **kwargs)

        return block

    return mark


_stand_ins: dict[tuple[str, str], Callable[..., Any]] = {}


def register_stand_in(name: str, domain: str, function: Callable[..., Any]) -> None:
    """Has custom_op(name, domain) compute `function(*inputs, **attributes)`, with torch's ops so that it has a gradient.

    PopTorch has no such function: its custom operations are C++ for an IPU.
    """
    if not callable(function):
        raise UserError(
            f"the stand-in of {domain}.{name} is {type(function).__name__}.", "Give a function of tensors."
        )
    _stand_ins[name, domain] = function


@partly(
    "operations of C++ are refused; a stand-in in Python can be given by ops.register_stand_in(name, domain, function)."
)
def custom_op(
    inputs: Tuple["torch.Tensor"],
    name: str,
    domain: str,
    domain_version: int,
    example_outputs: Tuple["torch.Tensor"],
    attributes: Optional[Dict[str, Union[float, int, str, list, tuple]]] = None,  # type: ignore[type-arg]
) -> List["torch.Tensor"]:
    """An operation that users wrote in C++ for the IPU, or its stand-in."""
    function = _stand_ins.get((name, domain))
    if function is None:
        known = ", ".join(sorted(f"{there}.{one}" for one, there in _stand_ins))
        raise refuse(
            f"custom_op {domain}.{name} is not emulated by Portwright: it is compiled C++ for an IPU. Say what it computes with "
            f"portwright.emulate.poptorch.ops.register_stand_in({name!r}, {domain!r}, function)."
            + (f" Registered: {known}." if known else "")
        )
    with trusted():
        given = function(*inputs, **(attributes or {}))
    outputs = list(given) if isinstance(given, (list, tuple)) else [given]
    if len(outputs) != len(example_outputs):
        raise refuse(
            f"the stand-in of {domain}.{name} gives {len(outputs)} tensors, and the model expects {len(example_outputs)}."
        )
    for number, (output, example) in enumerate(zip(outputs, example_outputs, strict=True)):
        if output.shape != example.shape or output.dtype != example.dtype:
            raise refuse(
                f"the stand-in of {domain}.{name} gives {output.dtype} {list(output.shape)} as output {number}, and the model expects "
                f"{example.dtype} {list(example.shape)}."
            )
    return outputs
