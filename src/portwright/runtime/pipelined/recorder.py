"""Watching a micro-batch without computing it: tensors without data go through the user's code, and each call is kept."""

from __future__ import annotations

import enum
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from portwright.errors import UserError
from portwright.runtime.base_model import LossModule, split_loss
from portwright.runtime.batches import map_tensors, walk_tensors
from portwright.runtime.metrics import registered_metrics
from portwright.runtime.pipelined.costs import Costs
from portwright.runtime.pipelined.tape import Call, Ref, Span, Tape, Value
from portwright.runtime.rng import untouched_rng

_TORCH_FOLDER = str(Path(torch.__file__).parent)
_OWN_FOLDER = str(Path(__file__).parent)
_MOST_KNOWN = 1 << 24  # elements of a constant whose values are kept, since Python may ask for them
_RANDOM_WORDS = ("rand", "normal", "bernoulli", "multinomial", "dropout", "uniform_", "exponential_", "poisson", "rrelu",
                 "cauchy_", "geometric_", "gumbel", "scaled_dot_product")  # fmt: skip
_ALONE = "Use -D runconfig.execution=resident, or write it with torch's own functions."


class StandIns:
    """Tensors without data for a model's parameters and buffers, which outlive the weights that a process drops."""

    def __init__(self, net: nn.Module, device: torch.device) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._net, self._device = net, device
        self._of: dict[str, torch.Tensor] = {}
        for name, tensor in named_weights(net):
            with self.mode:
                stand_in = torch.empty_strided(
                    tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device
                )
            stand_in.requires_grad_(tensor.requires_grad)
            self._of[name] = stand_in

    def by_identity(self) -> dict[int, tuple[str, torch.Tensor]]:
        """The stand-in of each tensor that the model holds now."""
        return {id(tensor): (name, self._of[name]) for name, tensor in named_weights(self._net)}


def named_weights(net: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers, saved or not, each once under its first name."""
    yield from net.named_parameters()
    yield from net.named_buffers()


def record(
    module: LossModule,
    micro_batch: Any,
    stand_ins: StandIns,
    autocast: Callable[[], Any] | None,
    device: torch.device,
) -> Tape:
    """The tape of one micro-batch, in the mode (train or eval) and with the gradients that are on now."""
    with untouched_rng(device):
        before = _host_draws()
        tape = _Recorder(module, stand_ins, device).run(micro_batch, autocast)
        drawn = next((name for name, state in _host_draws().items() if state != before[name]), None)
    if drawn:
        raise UserError(
            f"the model draws from {drawn} in a step, and a pipelined model's Python runs once for all steps.",
            "Draw with torch instead, or use -D runconfig.execution=resident.",
        )
    tape.finish()
    return tape


def _host_draws() -> dict[str, Any]:
    """States of the generators that only Python code draws from."""
    _, keys, position, *_ = np.random.get_state(legacy=True)
    return {"Python's random": random.getstate(), "numpy.random": (keys.tobytes(), position)}  # type: ignore[union-attr]


class _Recorder(TorchFunctionMode):
    def __init__(self, module: LossModule, stand_ins: StandIns, device: torch.device) -> None:
        super().__init__()
        self._module, self._device, self._fake_mode = module, device, stand_ins.mode
        self._weights = stand_ins.by_identity()
        self.tape = Tape()
        self._index: dict[int, int] = {}  # of a tensor, by its identity
        self._alive: list[Any] = []  # so that no identity comes twice
        self._known: dict[int, torch.Tensor] = {}  # values of what depends on neither batch nor weights
        self._opaque = 0
        self._touched: list[int] = []
        self._checkpoints = 0
        self._paths = {id(sub): path for path, sub in module.net.named_modules()}
        self._num_calls: Counter[str] = Counter()
        self._costs = Costs(device)
        self._outer_autocast: tuple[bool, torch.dtype] = (False, torch.float32)

    # -- running -------------------------------------------------------------------------------------------

    def run(self, micro_batch: Any, autocast: Callable[[], Any] | None) -> Tape:
        numbers = iter(range(1 << 30))

        def stand_in(tensor: torch.Tensor) -> torch.Tensor:
            with self._fake_mode:
                fake = torch.empty_strided(
                    tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self._device
                )
            self._add(fake, Value("batch", -1, *_looks(fake), can_remake=True, number=next(numbers)))
            return fake

        batch = map_tensors(micro_batch, stand_in)
        user = self._module.__dict__["user_model"]
        holders: dict[str, Any] = dict(self._module.net.named_modules())
        if not isinstance(user, nn.Module):
            holders[_USER] = user
        before = {path: _attributes(holder) for path, holder in holders.items()}
        try:
            with ExitStack() as stack:
                stack.enter_context(self._fake_mode)
                stack.enter_context(nullcontext() if autocast is None else autocast())
                self._outer_autocast = self._autocast_now()
                stack.enter_context(self._costs)
                stack.enter_context(self._watching_modules())
                stack.enter_context(self)
                loss, _ = split_loss(self._module.call(batch))
                self.tape.loss = self._find(loss)
        finally:
            for path, holder in holders.items():
                self._restore(path, holder, before[path])
        return self.tape

    def _restore(self, path: str, holder: Any, before: dict[str, Any]) -> None:
        """Takes back what the code set while tensors had no data, and remembers what that was."""
        changed = []
        for name, old in before.items():
            if name in _REGISTRIES and isinstance(holder.__dict__[name], dict):
                own = holder.__dict__[name]
                for key in [key for key, value in own.items() if old.get(key) is not value]:
                    # `self.count += 1` puts a buffer in its own place again, which is no change of what is there.
                    weight = self._weights.get(id(old.get(key)))
                    if weight is None or own[key] is not weight[1]:
                        changed.append(key)
                if any(own.get(key) is not value for key, value in old.items()) or len(own) != len(old):
                    own.clear()
                    own.update(old)
            elif holder.__dict__.get(name) is not old and _differs(holder.__dict__.get(name), old):
                changed.append(name)
                holder.__dict__[name] = old
        for name in [name for name in holder.__dict__ if name not in before]:
            changed.append(name)
            del holder.__dict__[name]
        if changed:
            self.tape.changed[path] = changed

    # -- torch calls ---------------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs or {}))
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        if self._opaque:  # what was made in there is unknown, and stays so
            places = [p for p in places if id(leaves[p]) in self._index or id(leaves[p]) in self._weights]
        indices = [self._find(leaves[place]) for place in places]
        for place, index in zip(places, indices, strict=True):
            if self.tape.values[index].kind == "weight":
                leaves[place] = self._weight_of[index]
        if self._opaque:
            self._touched += indices
            args, kwargs = pytree.tree_unflatten(leaves, spec)
            return func(*args, **kwargs)
        if func in (torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward):
            raise UserError(f"{user_line()} takes gradients inside the model, which ends at a stage.", _ALONE)
        is_random = any(word in getattr(func, "__name__", "") for word in _RANDOM_WORDS)
        known = self._compute_known(func, leaves, spec, places, indices, is_random)
        if known is not _UNKNOWN and not _tensors(known):
            return known
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        versions = [leaves[place]._version for place in places]
        self._costs.work = 0.0
        try:
            result = func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            name = getattr(func, "__name__", str(func))
            raise UserError(
                f"{user_line()}: {name} needs the value of a tensor that is computed in the step, and a model that is cut "
                "into stages has its Python run once for all steps.",
                "Write it with torch.where or a mask, or use -D runconfig.execution=resident.",
            ) from error
        if not _tensors(result) and all(
            leaves[place]._version == version for place, version in zip(places, versions, strict=True)
        ):
            return result
        writes = [
            index
            for place, index, version in zip(places, indices, versions, strict=True)
            if leaves[place]._version != version
        ]
        self._keep(func, leaves, spec, places, indices, result, writes, is_random, known)
        return result

    def _compute_known(
        self, func: Any, leaves: list[Any], spec: Any, places: list[int], indices: list[int], is_random: bool
    ) -> Any:
        """The values of what Python made itself, such as a mask: code may ask for them, as it may for any number."""
        if is_random or any(index not in self._known for index in indices):
            return _UNKNOWN
        real = list(leaves)
        for place, index in zip(places, indices, strict=True):
            real[place] = self._known[index]
        args, kwargs = pytree.tree_unflatten(real, spec)
        with unset_fake_temporarily(), self._costs.paused(), torch.random.fork_rng(devices=[]):
            return func(*args, **kwargs)

    def _keep(
        self,
        target: Any,
        leaves: list[Any],
        spec: Any,
        places: list[int],
        indices: list[int],
        result: Any,
        writes: list[int],
        is_random: bool,
        known: Any,
    ) -> None:
        position = len(self.tape.calls)
        template = list(leaves)
        for place, index in zip(places, indices, strict=True):
            template[place] = Ref(index)
        args, kwargs = pytree.tree_unflatten(template, spec)
        values = self.tape.values
        remade = not is_random and not writes and all(values[index].can_remake for index in indices)
        outputs = []
        known_tensors = dict(_tensors(known)) if known is not _UNKNOWN else {}
        for leaf, tensor in _tensors(result):
            index = self._index.get(id(tensor), -1)
            if index < 0:
                can_remake = remade and not tensor.requires_grad
                index = self._add(tensor, Value("made", position, *_looks(tensor), can_remake=can_remake))
                if leaf in known_tensors and tensor.numel() <= _MOST_KNOWN:
                    self._known[index] = known_tensors[leaf]
            else:
                values[index].requires_grad = tensor.requires_grad
            outputs.append((leaf, index))
        for index in writes:
            # Written once, a value is no longer what its call made; and if the writer is not known, nor are its aliases.
            for other, value in enumerate(values):
                if value.storage == values[index].storage:
                    value.can_remake = False
                    value.requires_grad = value.requires_grad or self._alive[other].requires_grad
                    if known is _UNKNOWN:
                        self._known.pop(other, None)
        self.tape.calls.append(
            Call(
                target,
                args,
                kwargs,
                tuple(dict.fromkeys((*indices, *self._touched))),
                tuple(outputs),
                tuple(dict.fromkeys(writes)),
                user_line(),
                torch.is_grad_enabled(),
                self._autocast_here(),
                is_random,
                self._costs.work,
            )
        )
        self._touched = []

    def _find(self, tensor: torch.Tensor) -> int:
        found = self._index.get(id(tensor))
        if found is not None:
            return found
        if id(tensor) in self._weights:
            name, stand_in = self._weights[id(tensor)]
            index = self._index.get(id(stand_in))
            if index is None:
                index = self._add(
                    stand_in, Value("weight", -1, *_looks(stand_in), can_remake=False, name=name)
                )
                self._weight_of[index] = stand_in
            self._index[id(tensor)] = index
            return index
        if isinstance(tensor, FakeTensor):
            raise UserError(
                f"{user_line()} uses a tensor that came from a call which a pipeline cannot follow "
                f"(shape {list(tensor.shape)}).",
                _ALONE,
            )
        index = self._add(tensor, Value("constant", -1, *_looks(tensor), can_remake=True, constant=tensor))
        if tensor.numel() <= _MOST_KNOWN:
            self._known[index] = tensor
        return index

    @property
    def _weight_of(self) -> dict[int, torch.Tensor]:
        return self.__dict__.setdefault("_weights_seen", {})  # type: ignore[no-any-return]

    def _add(self, tensor: torch.Tensor, value: Value) -> int:
        self.tape.values.append(value)
        self._alive.append(tensor)
        self._index[id(tensor)] = len(self.tape.values) - 1
        return len(self.tape.values) - 1

    def _autocast_now(self) -> tuple[bool, torch.dtype]:
        kind = self._device.type
        return torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

    def _autocast_here(self) -> tuple[bool, torch.dtype] | None:
        now = self._autocast_now()
        return None if now == self._outer_autocast else now

    # -- modules, custom functions, metrics ----------------------------------------------------------------

    @contextmanager
    def _watching_modules(self) -> Iterator[None]:
        call_module, apply = nn.Module.__call__, torch.autograd.Function.__dict__["apply"]
        checkpoint = torch.utils.checkpoint
        generator = checkpoint._checkpoint_without_reentrant_generator
        recorder = self

        def watched(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            path = recorder._paths.get(id(module))
            if recorder._opaque:
                return call_module(module, *args, **kwargs)
            if isinstance(module, torch.jit.ScriptModule):
                return recorder._run_opaque(
                    module, args, kwargs, lambda *given, **named: call_module(module, *given, **named)
                )
            if path is None:
                return call_module(module, *args, **kwargs)
            return recorder._run_span(path, module, args, kwargs, call_module)

        def applied(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder._opaque:
                return apply.__func__(cls, *args, **kwargs)
            if cls is checkpoint.CheckpointFunction:
                recorder._checkpoints += 1
                try:
                    return args[0](*args[2:])
                finally:
                    recorder._checkpoints -= 1
            return recorder._run_opaque(
                _Apply(cls), args, kwargs, lambda *given, **named: apply.__func__(cls, *given, **named)
            )

        def checkpointed(*args: Any, **kwargs: Any) -> Iterator[None]:
            recorder._checkpoints += 1
            try:
                yield
            finally:
                recorder._checkpoints -= 1

        nn.Module.__call__ = watched  # type: ignore[method-assign]
        torch.autograd.Function.apply = classmethod(applied)  # type: ignore[method-assign, assignment]
        checkpoint._checkpoint_without_reentrant_generator = checkpointed
        metrics = registered_metrics()
        for metric in metrics:
            metric.__dict__["update"] = self._note_metric(metric)
        try:
            yield
        finally:
            nn.Module.__call__ = call_module  # type: ignore[method-assign]
            torch.autograd.Function.apply = apply  # type: ignore[method-assign]
            checkpoint._checkpoint_without_reentrant_generator = generator
            for metric in metrics:
                del metric.__dict__["update"]

    def _run_span(
        self, path: str, module: nn.Module, args: Any, kwargs: Any, call_module: Callable[..., Any]
    ) -> Any:
        (template_args, template_kwargs), arguments = self._refer((args, kwargs))
        span = Span(
            path,
            self._num_calls[path],
            module,
            len(self.tape.calls),
            template_args,
            template_kwargs,
            frozenset(arguments),
            torch.is_grad_enabled(),
            self._autocast_here(),
            self._checkpoints > 0,
            all(isinstance(leaf, _PLAIN) for leaf in pytree.tree_leaves((args, kwargs))),
        )
        self._num_calls[path] += 1
        self.tape.spans.append(span)
        outside, self._checkpoints = self._checkpoints, 0
        try:
            result = call_module(module, *args, **kwargs)
        finally:
            self._checkpoints = outside
        span.last = len(self.tape.calls)
        span.outputs = tuple((leaf, self._find(tensor)) for leaf, tensor in _tensors(result))
        return result

    def _run_opaque(self, target: Any, args: Any, kwargs: Any, run: Callable[..., Any]) -> Any:
        """A call whose inside is its own: kept whole, with the weights that it touches."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        indices = [self._find(leaves[place]) for place in places]
        for place, index in zip(places, indices, strict=True):
            if self.tape.values[index].kind == "weight":
                leaves[place] = self._weight_of[
                    index
                ]  # a real one among tensors without data ends the process
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        self._opaque += 1
        self._costs.work = 0.0
        try:
            result = run(*args, **kwargs)
        finally:
            self._opaque -= 1
        values = self.tape.values
        self._touched = [index for index in self._touched if values[index].kind == "weight"]
        self._keep(target, leaves, spec, places, indices, result, [], True, _UNKNOWN)
        return result

    def _note_metric(self, metric: Any) -> Callable[..., None]:
        def update(*args: Any, **kwargs: Any) -> None:
            leaves, spec = pytree.tree_flatten((args, kwargs))
            places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
            indices = [self._find(leaves[place]) for place in places]
            self._costs.work = 0.0
            self._keep(metric, leaves, spec, places, indices, None, [], False, _UNKNOWN)

        return update

    def _refer(self, tree: Any) -> tuple[Any, list[int]]:
        found: list[int] = []

        def refer(tensor: torch.Tensor) -> Ref:
            found.append(self._find(tensor))
            return Ref(found[-1])

        return pytree.tree_map_only(torch.Tensor, refer, tree), found


class _Apply:
    """A user's autograd function, looked up again when it is called for real."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.__name__ = function.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function.apply(*args, **kwargs)


_UNKNOWN = object()
_REGISTRIES = ("_buffers", "_parameters", "_modules")
# Arguments that are the same in every step; an object of another kind may keep tensors of the traced step inside.
_PLAIN = (
    bool, int, float, complex, str, bytes, torch.Tensor, torch.dtype, torch.device, torch.layout, torch.memory_format,
    slice, range, type, type(None), type(...), enum.Enum, nn.Module, Ref,
)  # fmt: skip
_USER = "<model>"


def _looks(tensor: torch.Tensor) -> tuple[tuple[int, ...], torch.dtype, bool, int]:
    with torch._C.DisableTorchFunction():  # to look is no call of the model's
        return tuple(tensor.shape), tensor.dtype, tensor.requires_grad, tensor.untyped_storage()._cdata


def _tensors(result: Any) -> list[tuple[int, torch.Tensor]]:
    if isinstance(result, torch.Tensor):
        return [(0, result)]
    leaves = pytree.tree_leaves(result)
    return [(leaf, item) for leaf, item in enumerate(leaves) if isinstance(item, torch.Tensor)]


def _attributes(holder: Any) -> dict[str, Any]:
    own = dict(vars(holder))
    for name in _REGISTRIES:
        if isinstance(own.get(name), dict):
            own[name] = dict(own[name])
    return own


def _differs(new: Any, old: Any) -> bool:
    if isinstance(new, torch.Tensor) or isinstance(old, torch.Tensor):
        return True
    try:
        return type(new) is not type(old) or bool(new != old)
    except Exception:  # whatever a user's __ne__ does
        return True


def user_line() -> str:
    """The line of the user's code that is running, as `model.py:31`."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_TORCH_FOLDER, _OWN_FOLDER)) and "runtime/base_model.py" not in name:
            return f"{Path(name).name}:{frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "the model"


def signature_of(batch: Any) -> tuple[Any, ...]:
    """What a trace depends on: shapes, types and whatever is no tensor."""
    tensors = tuple((path, tuple(t.shape), t.stride(), t.dtype) for path, t in walk_tensors(batch))
    leaves = [leaf for leaf in pytree.tree_leaves(batch) if not isinstance(leaf, torch.Tensor)]
    return tensors, tuple(repr(leaf) for leaf in leaves)
