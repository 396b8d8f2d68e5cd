"""Runs a layer that is repeated twice, and copies its ops for every further time.

A deep model is the same layer over and over. From the third equal call on, the ops are written from a template, which was
recorded apart, forward and backward; autograd sees one function. Equal means: same class, sizes, settings and weights' kinds in
the whole subtree, same arguments, same line of the caller; the two real calls must have recorded the same ops as the template.
What cannot be shown to be equal is run.
"""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from portwright.graph.capturing.tape import Tape
from portwright.graph.capturing.template import Copy, NotEqualError, Template, layout_of, make_like

_FEWEST_OPS = 4  # of a call that is worth it
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_OWN = set(vars(nn.Module()))  # what every module has; hooks are looked at apart
_HOOKS = [name for name in sorted(_OWN) if name.endswith("_hooks")]


@dataclass
class _Seen:
    """What is known of calls with one key."""

    ops: tuple[Any, ...] | None  # None: not to be folded
    num_real: int = 1
    template: Template | None = None


class Folder:
    """Takes the calls of modules that stand in a list."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._seen: dict[Any, _Seen] = {}
        self._is_busy = False
        self.num_copies = 0  # calls that were not run

    def call(self, module: nn.Module, path: str, args: Any, kwargs: Any) -> Any:
        key = self._key(module, path, args, kwargs)
        if key is None:
            return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        seen = self._seen.get(key)
        if seen is None or (seen.ops is not None and seen.num_real < 2):
            result, ops = self._run(module, path, args, kwargs)
            if seen is None:
                self._seen[key] = _Seen(ops)
            else:
                seen.num_real, seen.ops = 2, ops if ops == seen.ops else None
            return result
        if seen.ops is not None and seen.template is None:
            self._prepare(seen, module, path, args, kwargs)
        if seen.template is None:
            return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        given = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        given += _held(module)
        self.num_copies += 1
        copy = Copy(seen.template, self._tape, path, [self._tape.index(tensor) for tensor in given])
        return _Folded.apply(copy, *given)  # type: ignore[no-untyped-call]

    def _run(
        self, module: nn.Module, path: str, args: Any, kwargs: Any
    ) -> tuple[Any, tuple[Any, ...] | None]:
        tape = self._tape
        first, num_stops = len(tape.nodes), len(tape.stops)
        result = module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        can_fold = (
            isinstance(result, FakeTensor)
            and len(tape.stops) == num_stops
            and len(tape.nodes) - first >= _FEWEST_OPS
        )
        return result, _ops(tape, first, path) if can_fold else None

    def _prepare(self, seen: _Seen, module: nn.Module, path: str, args: Any, kwargs: Any) -> None:
        """Records the template, or learns that there can be none."""
        self._is_busy = True
        try:
            before = _settings(module)
            self._refuse_leaks(module, path, args, kwargs)
            template = self._record(module, path, args, kwargs)
            if _settings(module) != before:
                raise NotEqualError("it changes itself")
            if _ops_of(template.nodes, template.values, path) != seen.ops:
                raise NotEqualError("apart from the rest it does something else")
            if torch.is_grad_enabled():
                template.pull(self._tape, template.layout)
            seen.template = template
        except Exception:
            # Whatever stands against it: the layer is run, and an error of the user's shows itself there.
            seen.ops = None
        finally:
            self._is_busy = False

    def _record(self, module: nn.Module, path: str, args: Any, kwargs: Any) -> Template:
        leaves, structure = tree_flatten((args, kwargs))
        with self._tape.paused():
            leaves = [_alike(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        own_args, own_kwargs = tree_unflatten(leaves, structure)
        given = [leaf for leaf in leaves if isinstance(leaf, Tensor)] + _held(module)

        def run() -> Any:
            return module._call_impl(*own_args, **own_kwargs)  # type: ignore[no-untyped-call]

        return Template(self._tape, path, given, run)

    def _refuse_leaks(self, module: nn.Module, path: str, args: Any, kwargs: Any) -> None:
        """A tensor that outlives the call and its gradients is held by something that a copy would not feed."""
        template = self._record(module, path, args, kwargs)
        made = template.made
        del template
        if any(ref() is not None for ref in made):
            gc.collect()
            if any(ref() is not None for ref in made):
                raise NotEqualError("a tensor of it is kept elsewhere")

    def _key(self, module: nn.Module, path: str, args: Any, kwargs: Any) -> Any:
        if torch.is_autocast_enabled("cpu"):
            return None  # it keeps the weights that it has cast once, and so the calls are not equal
        if _is_recomputed():
            return (
                None  # a checkpoint counts what its function saves, and wants the same once more in backward
            )
        if self._is_busy or self._tape.phase != "forward" or not path.rpartition(".")[2].isdigit():
            return None
        parts = list(module.modules())
        if len(parts) < 2 or any(getattr(part, name) for part in parts for name in _HOOKS):
            return None
        leaves, structure = tree_flatten((args, kwargs))
        storages: set[int] = set()
        described: list[Any] = []
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                if (
                    not isinstance(leaf, FakeTensor)
                    or leaf.layout is not torch.strided
                    or leaf._backward_hooks
                ):
                    return None
                storage = leaf.untyped_storage()._cdata
                if storage in storages or leaf.storage_offset():
                    return None
                storages.add(storage)
                described.append((layout_of(leaf), leaf.requires_grad))
            elif isinstance(leaf, _PLAIN):
                described.append((type(leaf), leaf))
            else:
                return None
        place, _ = self._tape.place()
        return (
            _settings(module),
            tuple(described),
            repr(structure),  # torch 2.4 cannot hash it
            place,
            self._tape.called,
            torch.is_grad_enabled(),
        )


def _is_recomputed() -> bool:
    """Whether the call is made by torch.utils.checkpoint."""
    if "torch.utils.checkpoint" not in sys.modules:
        return False
    name = sys.modules["torch.utils.checkpoint"].__file__
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == name:
            return True
        frame = frame.f_back
    return False


class _Folded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, copy: Copy, *given: Tensor) -> Tensor:
        ctx.copy, ctx.is_many_ops = copy, True
        return copy.write_forward()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return (None, *ctx.copy.write_backward(grads[0]))


def _alike(tensor: Tensor) -> Tensor:
    return make_like(layout_of(tensor)).requires_grad_(tensor.requires_grad)


def _held(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _settings(module: nn.Module) -> tuple[Any, ...]:
    """All that a module and those inside of it hold, by value where it is plain and by identity where it is not."""
    numbers: dict[int, int] = {}
    described: list[Any] = []
    for path, part in module.named_modules(remove_duplicate=False):
        tensors = [
            (
                name,
                None
                if tensor is None
                else (layout_of(tensor), tensor.requires_grad, numbers.setdefault(id(tensor), len(numbers))),
            )
            for held in (part._parameters, part._buffers)
            for name, tensor in held.items()
        ]
        others = [
            (name, _described(value))
            for name, value in vars(part).items()
            if name not in _OWN or name == "training"
        ]
        described.append((path, type(part), tuple(tensors), tuple(others)))
    return tuple(described)


def _described(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return type(value), value
    if type(value) in (list, tuple):
        return type(value), tuple([_described(part) for part in value])
    if type(value) is dict:
        return tuple([(_described(name), _described(part)) for name, part in value.items()])
    return id(value)


def _ops(tape: Tape, first: int, path: str) -> tuple[Any, ...]:
    return _ops_of(tape.nodes[first:], tape.values, path)


def _ops_of(nodes: Any, values: Any, path: str) -> tuple[Any, ...]:
    return tuple(
        (
            node.op,
            node.module[len(path) :],
            node.place,
            node.call,
            tuple(values[v].shape for v in node.outputs),
        )
        for node in nodes
    )
