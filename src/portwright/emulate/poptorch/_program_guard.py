"""Ways out of a trace that no op sees: values read by Python or NumPy, and functions of torch that look into values themselves."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.checkpoint
import torch.utils.dlpack
from torch import Tensor
from torch.overrides import TorchFunctionMode

from portwright.emulate.poptorch._program_recorder import Recorder

_READS: dict[Any, str] = {
    getattr(Tensor, name): f"Tensor.{name}"
    for name in (
        "numpy",
        "tolist",
        "__array__",
        "__dlpack__",
        "__deepcopy__",
        "__reduce_ex__",
        "untyped_storage",
        "storage",
        "_typed_storage",
        "data_ptr",
        "share_memory_",
        "apply_",
        "map_",
        "map2_",
    )
}
_READS[torch.utils.dlpack.to_dlpack] = "torch.to_dlpack"  # type: ignore[attr-defined]
_PRINTS = {Tensor.__repr__, Tensor.__format__}  # happen once, when the model is compiled, as any print
_SPLITS = {torch.tensor_split, Tensor.tensor_split}
_SET_DATA = Tensor.data.__set__  # type: ignore[attr-defined]


class Guard(TorchFunctionMode):
    """Refuses, with the user's line, what the recorder could not see."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        recorder = self._recorder
        if recorder.is_paused():
            return func(*args, **kwargs)
        if func in _READS and not self._recorder.is_fixed(args[0]):
            raise recorder.refuse_value(_READS[func])
        if func in _PRINTS:
            with torch._C._DisableTorchDispatch():
                return func(*args, **kwargs)
        if func is torch._C._nn.one_hot:
            return self._one_hot(*args, **kwargs)
        if func in _SPLITS:
            split = args[1] if len(args) > 1 else kwargs.get("tensor_indices_or_sections")
            if isinstance(split, Tensor) and not self._recorder.is_fixed(split):
                raise recorder.refuse_value("tensor_split by a tensor of indices")
        if func == _SET_DATA:
            raise recorder.refuse(
                "x.data = y puts another tensor in the place of x, which a compiled step does not see",
                "Write into it: x.copy_(y) under torch.no_grad()",
            )
        return func(*args, **kwargs)

    def _one_hot(self, input: Tensor, num_classes: int = -1) -> Tensor:
        """torch's own looks at the values first, to check them."""
        if num_classes < 0:
            if self._recorder.is_fixed(input):
                return torch._C._nn.one_hot(input, num_classes)
            raise self._recorder.refuse_value("one_hot without num_classes")
        classes = torch.arange(num_classes, device=input.device, dtype=input.dtype)
        return (input.unsqueeze(-1) == classes).to(torch.int64)


class _Kept:
    """torch.utils.checkpoint(use_reentrant=True) that keeps everything."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        return function(*args)


def _keep(*args: Any, **kwargs: Any) -> Iterator[None]:
    """What torch.utils.checkpoint does around a function whose values are kept: nothing."""
    yield


@contextmanager
def guarding(recorder: Recorder) -> Iterator[None]:
    """Guards what runs inside, and has the states of torch's generator recorded that a model asks for and goes back to."""
    replaced: list[tuple[Any, str, Any]] = []

    def put(home: Any, name: str, new: Callable[..., Any]) -> None:
        if hasattr(home, name):  # parts of torch that are not public come and go
            replaced.append((home, name, getattr(home, name)))
            setattr(home, name, new)

    transformer = importlib.import_module("torch.nn.modules.transformer")
    look = getattr(transformer, "_detect_is_causal_mask", None)

    def detect_is_causal(mask: Any, is_causal: Any = None, size: Any = None) -> bool:
        # Only a hint that lets torch leave the mask out; it compares the mask's values, which may be known at each run only.
        if is_causal is None and isinstance(mask, Tensor) and not recorder.is_fixed(mask):
            return False
        return bool(look(mask, is_causal, size))  # type: ignore[misc]

    guard = Guard(recorder)
    if look is not None:
        put(transformer, "_detect_is_causal_mask", detect_is_causal)
    # Recomputation changes no result, and would run the user's Python again behind the forward pass, on the host's weights.
    put(torch.utils.checkpoint, "CheckpointFunction", _Kept)
    put(torch.utils.checkpoint, "_checkpoint_without_reentrant_generator", _keep)
    put(torch, "get_rng_state", recorder.record_get_state)
    put(torch, "set_rng_state", recorder.record_set_state)
    try:
        with guard:
            yield
    finally:
        for home, name, old in reversed(replaced):
            setattr(home, name, old)
