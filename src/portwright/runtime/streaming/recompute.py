"""Saves what a layer's forward can see and change besides its weights, so that backward can repeat it exactly."""

from __future__ import annotations

import copy
import random
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from portwright.errors import UserError

Place = tuple[nn.Module, str]  # a buffer
Key = int | str  # an argument, by position or name

# Buffers up to this size are copied before each call; of larger ones only those that the first call changed.
_SMALL_ELEMENTS = 1 << 16
_OF_EVERY_MODULE = frozenset(nn.Module().__dict__) - {"training"} | {"forward"}
_CONTAINERS = (list, dict, set, deque, tuple)
_CURE = "Leave it out of runconfig.streaming.layers, or use runconfig.execution: resident."


class Memory:
    """What is known about a layer's calls."""

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name, self._modules = name, list(module.modules())
        self.changing: set[Place] | None = None  # large buffers that calls change, once known
        self.written: set[Key] | None = None  # arguments that calls write into, once known

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Scene:
        """Comes before a call."""
        return Scene(self, self._modules, args, kwargs)


class Scene:
    """One call's surroundings: attributes of its modules, buffers, arguments, the random numbers of Python and NumPy."""

    def __init__(
        self, memory: Memory, modules: list[nn.Module], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._memory, self._modules = memory, modules
        nested: list[Tensor] = []
        seen: dict[int, Any] = {}
        self._args = {
            key: value if isinstance(value, Tensor) else copied(value, seen, nested)
            for key, value in _named(args, kwargs)
        }
        self._nested = [(tensor, tensor._version) for tensor in nested]
        self._tensors = [(key, value) for key, value in self._args.items() if isinstance(value, Tensor)]
        first_of: dict[int, Key] = {}
        self._same_as = {key: first_of.setdefault(id(value), key) for key, value in self._tensors}
        self._needs_grad = {key: value.requires_grad for key, value in self._tensors}
        self._copies = {} if memory.written is not None else _clones(self._tensors)
        self._watched: list[tuple[weakref.ref[Tensor], int]] = []
        self._attributes: list[tuple[nn.Module, dict[str, Any]]] = []
        self._buffers: dict[Place, Tensor] = {}
        self._random: Any = None
        self._numpy: Any = None

    def to_keep(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments as backward keeps them: only their values, and copies of those that the call writes to."""
        written = self._memory.written
        kept: dict[Key, Any] = {key: None for key, _ in _named(args, kwargs)}
        for key, value in self._tensors:
            if written is None:
                # with its own version counter: what a call writes to is known only after it
                kept[key] = value.data
            else:
                kept[key] = value.detach().clone() if key in written else value.detach()
        for key in self._same_as:
            self._args[key] = None  # who keeps it may move it elsewhere
        return [kept[index] for index in range(len(args))], {key: kept[key] for key in kwargs}

    @contextmanager
    def seen(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        """Wraps the first run with these arguments: saves what it changes."""
        memory = self._memory
        given = [
            (key, value, value._version) for key, value in _named(args, kwargs) if isinstance(value, Tensor)
        ]
        attributes = [(module, _own_attributes(module)) for module in self._modules]
        kept = [(module, {k: copied(v) for k, v in own.items()}) for module, own in attributes]
        buffers = {
            (module, name): buffer
            for module in self._modules
            for name, buffer in module._buffers.items()
            if buffer is not None
        }
        copies = {
            place: buffer.clone() for place, buffer in buffers.items() if self._may_change(place, buffer)
        }
        versions = {place: buffer._version for place, buffer in buffers.items()}
        python, numpy = random.getstate(), np.random.get_state()
        yield
        self._attributes = [
            (module, before)
            for (module, own), (_, before) in zip(attributes, kept, strict=True)
            if _differs(own, before, _own_attributes(module))
        ]
        if random.getstate() != python:
            self._random = python
        if not _same_numpy(numpy, np.random.get_state()):
            self._numpy = numpy
        for place, buffer in buffers.items():
            is_changed = place[0]._buffers.get(place[1]) is not buffer or buffer._version != versions[place]
            if place not in copies:
                if is_changed:
                    raise UserError(
                        f"the layer '{memory.name}' changed its buffer '{place[1]}', and did not in its first call.",
                        _CURE,
                    )
            elif is_changed or memory.changing is not None or not copies[place].equal(buffer):
                # BatchNorm's statistics change without a new version.
                self._buffers[place] = copies[place]
        if memory.changing is None:
            memory.changing = set(self._buffers)
        is_first = memory.written is None  # nothing else notices later writes to them
        self._note_written({key for key, value, version in given if value._version != version})
        self._watched = [(weakref.ref(value), value._version) for _, value, _ in given if is_first]

    def _note_written(self, written: set[Key]) -> None:
        memory = self._memory
        if memory.written is None:
            memory.written = written
            self._copies = {key: copy for key, copy in self._copies.items() if key in written}
        elif written - memory.written:
            raise UserError(
                f"the layer '{memory.name}' wrote into its argument {min(map(str, written - memory.written))}, "
                "and did not in its first call.",
                _CURE,
            )
        self._tensors = []

    def _may_change(self, place: Place, buffer: Tensor) -> bool:
        changing = self._memory.changing
        return buffer.numel() <= _SMALL_ELEMENTS or changing is None or place in changing

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of the first run: tensors from `args` and `kwargs`, which kept them, the rest restored."""
        watched = [(ref(), version) for ref, version in self._watched]
        if any(
            tensor is not None and tensor._version != version for tensor, version in watched + self._nested
        ):
            raise UserError(
                f"an argument of the layer '{self._memory.name}' was written to after the call.", _CURE
            )
        again = dict(self._args)
        for key, value in _named(args, kwargs):
            if key not in self._same_as:
                continue
            if self._same_as[key] != key:
                again[key] = again[self._same_as[key]]
                continue
            tensor = self._copies.get(key, value).detach().requires_grad_(self._needs_grad[key])
            again[key] = tensor.clone() if key in (self._memory.written or ()) else tensor
        return [again[index] for index in range(len(args))], {key: again[key] for key in kwargs}

    @contextmanager
    def again(self) -> Iterator[None]:
        """Wraps the second run: restores the surroundings of the first, and undoes the run's changes afterwards."""
        now = [(module, _own_attributes(module)) for module, _ in self._attributes]
        buffers = {(module, name): module._buffers[name] for module, name in self._buffers}
        python = None if self._random is None else random.getstate()
        numpy = None if self._numpy is None else np.random.get_state()
        _set_attributes(self._attributes)
        for (module, name), value in self._buffers.items():
            module._buffers[name] = value.clone()
        if python is not None:
            random.setstate(self._random)
        if numpy is not None:
            np.random.set_state(self._numpy)
        try:
            yield
        finally:
            _set_attributes(now)
            for (module, name), buffer in buffers.items():
                module._buffers[name] = buffer
            if python is not None:
                random.setstate(python)
            if numpy is not None:
                np.random.set_state(numpy)


def refuse_kept_graph(name: str, num_runs: int) -> None:
    """Gradients of gradients would read weights from slots that hold others' by then."""
    is_kept = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)  # came after torch 2.4
    if num_runs > 1 or (is_kept is not None and is_kept()):
        raise UserError(
            f"a gradient through the streamed layer '{name}' is taken with create_graph or retain_graph.",
            "Gradients of gradients need runconfig.execution: resident.",
        )


def copied(value: Any, seen: dict[int, Any] | None = None, tensors: list[Tensor] | None = None) -> Any:
    """Containers and, where `seen` is given, plain objects copied with all that is in them; tensors and the rest themselves."""
    kind = type(value)
    if value is None or kind in (int, float, bool, str):
        return value
    if isinstance(value, Tensor):
        if tensors is not None:
            tensors.append(value)
        return value
    if seen is not None and id(value) in seen:
        return seen[id(value)]
    made: Any
    if kind is tuple:
        return tuple(copied(part, seen, tensors) for part in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*(copied(part, seen, tensors) for part in value))
    if kind in (list, dict) or isinstance(value, dict | deque | set):
        made = copy.copy(value)
    elif seen is not None and _is_plain_object(value):
        made = object.__new__(kind)
        made.__dict__.update(value.__dict__)
    else:
        return value
    if seen is not None:
        seen[id(value)] = made
    if isinstance(made, dict):
        for key, part in list(dict.items(value)):
            dict.__setitem__(made, key, copied(part, seen, tensors))
    elif kind is list:
        made[:] = [copied(part, seen, tensors) for part in value]
    if seen is not None and hasattr(made, "__dict__"):
        made.__dict__.update({key: copied(part, seen, tensors) for key, part in value.__dict__.items()})
    return made


def without(storage: Tensor, result: Any) -> Any:
    """The result of a call, with copies in place of tensors that lie in a slot, which will soon hold another layer's weights."""
    pointer = storage.untyped_storage().data_ptr()
    found: list[Tensor] = []
    copied(result, {}, found)
    lying = [t for t in found if t.layout is torch.strided and t.untyped_storage().data_ptr() == pointer]
    if not lying:
        return result
    copies: dict[int, Any] = {id(tensor): tensor.clone() for tensor in lying}
    return _with(result, copies)


def _with(value: Any, replacements: Mapping[int, Any]) -> Any:
    """The value with some of its tensors replaced."""
    if id(value) in replacements:
        return replacements[id(value)]
    if isinstance(value, Tensor) or value is None:
        return value
    if isinstance(value, tuple):
        parts = [_with(part, replacements) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    made = copied(value, {})
    if isinstance(made, dict):
        for key in made:
            dict.__setitem__(made, key, _with(dict.__getitem__(made, key), replacements))
    elif isinstance(made, list):
        made[:] = [_with(part, replacements) for part in made]
    if made is not value and hasattr(made, "__dict__"):
        made.__dict__.update({key: _with(part, replacements) for key, part in made.__dict__.items()})
    return made


def _is_plain_object(value: Any) -> bool:
    """Whether all that it is lies in its attributes."""
    kind: Any = type(value)
    if isinstance(value, nn.Module | type) or callable(value) or not hasattr(value, "__dict__"):
        return False
    return kind.__new__ is object.__new__ and kind.__reduce_ex__ is object.__reduce_ex__


def _own_attributes(module: nn.Module) -> dict[str, Any]:
    return {key: value for key, value in module.__dict__.items() if key not in _OF_EVERY_MODULE}


def _set_attributes(values: list[tuple[nn.Module, dict[str, Any]]]) -> None:
    for module, wanted in values:
        for key in [key for key in module.__dict__ if key not in _OF_EVERY_MODULE and key not in wanted]:
            del module.__dict__[key]
        module.__dict__.update(wanted)


def _differs(before: dict[str, Any], copies: dict[str, Any], now: dict[str, Any]) -> bool:
    if before.keys() != now.keys():
        return True
    return any(now[key] is not before[key] or not _alike(copies[key], now[key]) for key in now)


def _alike(old: Any, now: Any) -> bool:
    """Whether a container holds what its copy was made of."""
    if old is now:
        return True
    if type(old) is not type(now) or not isinstance(old, _CONTAINERS) or len(old) != len(now):
        return False
    if isinstance(old, dict):
        return list(old) == list(now) and all(_alike(old[key], now[key]) for key in old)
    if isinstance(old, set):
        return bool(old == now)
    return all(map(_alike, old, now))


def _same_numpy(a: Any, b: Any) -> bool:
    return bool(a[2:] == b[2:] and np.array_equal(a[1], b[1]))


def _named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[Key, Any]]:
    return [*enumerate(args), *kwargs.items()]


def _clones(tensors: list[tuple[Key, Tensor]]) -> dict[Key, Tensor]:
    return {key: tensor.detach().clone() for key, tensor in tensors}
