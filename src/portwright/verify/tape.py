"""Records what a training script computes on the CPU, whatever device it names, from the batch to the tensor that it calls backward on.

Each call of a module is one entry, and so is each torch function outside modules; so a loss written as arithmetic is
recorded like a loss module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils.weak import WeakTensorKeyDictionary

from portwright.verify.tensor_trees import follow_number, iter_read_numbers, iter_tensors, replace_tensors
from portwright.watching.place import Place
from portwright.watching.places import PlaceFinder

_TO = (Tensor.to, Tensor.type)


def on_the_cpu(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Changes CUDA to CPU in a call's arguments; the caller replaces Tensor.cuda."""
    device = kwargs.get("device")
    if _is_cuda(device):
        kwargs = {**kwargs, "device": "cpu"}
    if func in _TO:
        args = tuple("cpu" if _is_cuda(arg) else arg for arg in args)
    return args, kwargs


def _is_cuda(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))


class NoAccelerator:
    """Stands in for torch.accelerator on versions of torch without it, and answers that there is none."""

    @staticmethod
    def is_available() -> bool:
        return False

    @staticmethod
    def device_count() -> int:
        return 0

    @staticmethod
    def current_accelerator(check_available: bool = False) -> None:
        return None


class OnDevice(TorchFunctionMode):
    """Inside a step: replaces CPU and GPU, as the script names them, by the device of the step."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._is_host(kwargs.get("device")):
            kwargs = {**kwargs, "device": self._device}
        if func in _TO and len(args) > 1 and self._is_host(args[1]):
            args = (args[0], self._device, *args[2:])
        if func is Tensor.cuda:
            return args[0].to(self._device)
        return func(*args, **kwargs)

    @staticmethod
    def _is_host(value: Any) -> bool:
        is_cpu = (
            value.type == "cpu"
            if isinstance(value, torch.device)
            else isinstance(value, str) and value == "cpu"
        )
        return is_cpu or _is_cuda(value)


_READS = frozenset(
    {"item", "tolist", "numpy", "__float__", "__int__", "__bool__", "__index__"}
    | {"__repr__", "__format__", "__array__", "__contains__"}
)
# Entries kept while nothing is trained yet, such as those of an evaluation before the loop.
_MOST_UNTRAINED = 4000


@dataclass(frozen=True, eq=False)
class Entry:
    """One call: of a module, or of a function of torch outside of every module."""

    call: Callable[..., Any]
    name: str  # the class of a module, or the dotted name by which a torch function is looked up
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: tuple[Tensor, ...]
    written: tuple[Tensor, ...]  # arguments that it changed in place
    with_grad: bool
    place: Place | None
    training: tuple[tuple[nn.Module, bool], ...] = ()  # training mode of a module and its parts at the call

    @property
    def module(self) -> nn.Module | None:
        return self.call if isinstance(self.call, nn.Module) else None

    @property
    def inputs(self) -> list[Tensor]:
        """Tensors among the arguments, and those from which numbers among them were read."""
        given = (self.args, dict(self.kwargs))
        return [*iter_tensors(given), *(number.source for number in iter_read_numbers(given))]


@dataclass(frozen=True, eq=False)
class Backward:
    """One call of backward, or of autograd.grad in its place."""

    tensors: tuple[Tensor, ...]
    grad_tensors: tuple[Tensor | None, ...]
    num_entries: int  # on the tape when it was called
    place: Place | None
    wanted: tuple[Tensor, ...] = ()  # of autograd.grad


@dataclass(frozen=True)
class HostRead:
    """A value that depends on the model and was read by Python outside of every module."""

    name: str
    place: Place | None
    before_backward: bool


class Tape(TorchFunctionMode):
    """Records calls of torch functions while entered; its driver (`StepWatch`) reports batches and calls of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Entry] = []
        self.backwards: list[Backward] = []
        self.reads: list[HostRead] = []
        self.modules: list[nn.Module] = []  # called outside other modules, in the order of first calls
        self.fetched: dict[int, Tensor] = {}
        self.carried = WeakTensorKeyDictionary()  # made in an earlier step
        self.host_made = WeakTensorKeyDictionary()  # share memory with numpy
        self.autocasts = False
        self.is_over = False
        # called with tensors that were written to after a backward pass, outside modules
        self.on_write: Callable[[tuple[Tensor, ...]], None] | None = None
        # tensors with a gradient that no entry made: parameters of the script
        self.trained: dict[int, Tensor] = {}
        self._made: dict[int, Tensor] = {}
        self._depth = 0
        self._trains = False
        self._finder = PlaceFinder()

    # -- called by the driver ------------------------------------------------------------------------------

    def fetch(self, batch: Any) -> None:
        """A loader gave a batch; entries before it that train nothing are dropped."""
        if not self._trains:
            self._forget()
        self.fetched.update((id(tensor), tensor) for tensor in iter_tensors(batch))

    @property
    def is_inside(self) -> bool:
        """Whether a call that is one entry is running."""
        return self._depth > 0

    @contextmanager
    def not_recording(self) -> Iterator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def begin_step(self) -> None:
        """Starts a new step after an update; tensors made before it count as carried over."""
        for tensor in self._made.values():
            self.carried[tensor] = True
        self._forget()

    def _forget(self) -> None:
        self.entries, self.backwards, self.reads = [], [], []
        self._made, self.fetched, self._trains = {}, {}, False

    def call_module(self, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._depth:
            return forward(*args, **kwargs)
        if not any(module is known for known in self.modules):
            self.modules.append(module)
        self.autocasts |= any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda"))
        training = tuple((part, part.training) for part in module.modules())
        return self._note(
            module, type(module).__name__, lambda: forward(*args, **kwargs), args, kwargs, training
        )

    def call_function(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Records a call that a TorchFunctionMode does not see, such as a Function's apply."""
        if self._depth:
            return function(*args, **kwargs)
        return self._note(function, name, lambda: function(*args, **kwargs), args, kwargs)

    def call_backward(
        self,
        run: Callable[[], Any],
        tensors: Sequence[Tensor],
        grad_tensors: Sequence[Tensor | None] | None,
        wanted: Sequence[Tensor] = (),
    ) -> Any:
        if not self._depth:
            given = tuple(grad_tensors or ()) or (None,) * len(tensors)
            place = self._place()
            self.backwards.append(Backward(tuple(tensors), given, len(self.entries), place, tuple(wanted)))
        with self.not_recording():
            return run()

    # -- called by torch -----------------------------------------------------------------------------------

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.is_over:
            return func(*args, **(kwargs or {}))
        args, kwargs = on_the_cpu(func, args, kwargs or {})
        if self._depth:
            result = func(*args, **kwargs)
            self.note_host_made(func, args, kwargs, result)
            return result
        short = getattr(func, "__name__", "")
        if func is Tensor.backward:
            return func(*args, **kwargs)  # type: ignore[no-untyped-call]  # it calls the driver's torch.autograd.backward
        name = resolve_name(func) or ""
        result = self._note(func, name, lambda: func(*args, **kwargs), args, kwargs)
        return self._note_read(short, args, result) if short in _READS else result

    def _note(
        self,
        call: Callable[..., Any],
        name: str,
        run: Callable[[], Any],
        args: Any,
        kwargs: Any,
        training: tuple[tuple[nn.Module, bool], ...] = (),
    ) -> Any:
        inputs = list(iter_tensors((args, kwargs)))
        # Copies, since the script may change a list or dictionary later.
        kept_args = replace_tensors(tuple(args), lambda tensor: tensor)
        kept_kwargs = replace_tensors(dict(kwargs), lambda tensor: tensor)
        versions = [_version(tensor) for tensor in inputs]
        with_grad = torch.is_grad_enabled()
        with self.not_recording():
            result = run()
        self.note_host_made(call, args, kwargs, result)
        outputs = tuple(iter_tensors(result))
        written = tuple(t for t, version in zip(inputs, versions, strict=True) if _version(t) != version)
        if written and self.backwards and self.on_write is not None:
            self.on_write(written)
        is_setter = getattr(call, "__name__", "") == "__set__"
        if not (outputs or written or is_setter):
            return result
        # A leaf is no result: making a parameter trains nothing yet.
        trains = any(_is_result(output) for output in outputs)
        is_module = isinstance(call, nn.Module)
        if not (trains or is_module or self._trains or any(self._is_followed(tensor) for tensor in inputs)):
            return result
        self._trains |= trains and is_module
        self.entries.append(
            Entry(call, name, kept_args, kept_kwargs, outputs, written, with_grad, self._place(), training)
        )
        for tensor in inputs:
            if tensor.requires_grad and not _is_result(tensor) and id(tensor) not in self._made:
                self.trained[id(tensor)] = tensor
        for tensor in (*outputs, *written):
            if id(tensor) not in self.trained:
                self._made[id(tensor)] = tensor
        if not self._trains and len(self.entries) > _MOST_UNTRAINED:
            self.entries = self.entries[_MOST_UNTRAINED // 2 :]
            kept = (t for entry in self.entries for t in (*entry.outputs, *entry.written))
            self._made = {id(tensor): tensor for tensor in kept if id(tensor) not in self.trained}
        return result

    def _is_followed(self, tensor: Tensor) -> bool:
        return id(tensor) in self._made or id(tensor) in self.fetched or tensor in self.carried

    def _note_read(self, name: str, args: Any, result: Any) -> Any:
        source = next((t for t in iter_tensors(args) if id(t) in self._made), None)
        if source is None:
            return result
        place = self._place()
        self.reads.append(HostRead(name, place, not self.backwards))
        # Follows the number, in case it goes back into the step.
        return follow_number(result, source, place) if name == "item" else result

    def note_host_made(self, call: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> None:
        """Marks results that share memory with numpy; a move to a named device ends that."""
        if not isinstance(result, Tensor) or not any(t in self.host_made for t in iter_tensors(args)):
            return
        is_moved = "device" in kwargs or any(isinstance(arg, torch.device | str) for arg in args)
        if not (is_moved and getattr(call, "__name__", "") in ("to", "cuda")):
            self.host_made[result] = True

    def _place(self) -> Place | None:
        return self._finder.find(sys._getframe(2), ())[0]


def _is_result(tensor: Tensor) -> bool:
    """Whether a tensor has a graph behind it; False where torch refuses to say (a view made under no_grad and then written to)."""
    try:
        return tensor.requires_grad and not tensor.is_leaf
    except RuntimeError:
        return False


def state_of(modules: Iterable[nn.Module]) -> dict[int, Tensor]:
    """Parameters and buffers of modules, by identity."""
    found: dict[int, Tensor] = {}
    for module in modules:
        for tensor in (*module.parameters(), *module.buffers()):
            found[id(tensor)] = tensor
    return found


def memory_of(tensor: Tensor) -> int:
    """An id of a tensor's memory, which a parameter shares with its data."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # sparse: it has no storage
        return id(tensor)


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version
