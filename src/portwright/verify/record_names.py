"""Finds the tensors that a script trains, and names them by their path in the outermost module."""

from __future__ import annotations

import gc
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

_WRAPPERS = {
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "OptimizedModule": "_orig_mod",
    "LossModule": "net",  # of our own run()
}


@dataclass
class Named:
    """A parameter or buffer that is watched. Its module may replace it, so `tensor` looks it up each time."""

    name: str
    kind: str  # parameter or buffer
    owner: nn.Module | None
    attribute: str
    latest: torch.Tensor
    aliases: list[str] = field(default_factory=list)
    root: int | None = None  # number of the root that holds it

    @property
    def tensor(self) -> torch.Tensor:
        if self.owner is not None:
            tensors = self.owner._parameters if self.kind == "parameter" else self.owner._buffers
            now = tensors.get(self.attribute)
            if now is not None:
                return now
        return self.latest

    def is_or_was(self, tensor: torch.Tensor) -> bool:
        return tensor is self.latest or tensor is self.tensor


class Names:
    """All modules made so far, and the names of those tensors whose root has been called or is optimised."""

    def __init__(self) -> None:
        self._made: list[weakref.ref[nn.Module]] = []
        self._known: set[int] = set()  # of modules under a named root
        self.roots: list[tuple[str, nn.Module]] = []
        self.tensors: dict[str, Named] = {}
        self._by_id: dict[int, str] = {}
        self._module_names: dict[int, str] = {}
        self._num_loose = 0

    def made(self, module: nn.Module) -> None:
        self._made.append(weakref.ref(module))

    def knows(self, module: nn.Module) -> bool:
        return id(module) in self._known

    def name_of(self, tensor: torch.Tensor) -> str | None:
        name = self._by_id.get(id(tensor))
        # A new tensor may have the id of a deleted one.
        return name if name is not None and self.tensors[name].is_or_was(tensor) else None

    def name_of_module(self, module: nn.Module) -> str:
        """Its path in its root; its class in <> if it is in no named root, such as a loss module."""
        return self._module_names.get(id(module), f"<{type(module).__name__}>")

    def find_roots(self, called: nn.Module | None, trained: Iterable[torch.Tensor]) -> list[nn.Module]:
        """Outermost modules that hold weights and are called now or optimised, in the order in which they were made."""
        live = [module for ref in self._made if (module := ref()) is not None]
        if called is not None and not any(module is called for module in live):
            live.append(called)  # a copy, whose __init__ was not called
        parents: dict[int, list[nn.Module]] = {}
        for module in live:
            for child in module._modules.values():
                if child is not None:
                    parents.setdefault(id(child), []).append(module)
        roots: dict[int, nn.Module] = {}

        def climb(module: nn.Module, seen: frozenset[int]) -> None:
            above = [p for p in parents.get(id(module), ()) if id(p) not in seen]
            if not above:
                roots.setdefault(id(module), module)
            for parent in above[:1]:
                climb(parent, seen | {id(module)})

        wanted = {id(tensor) for tensor in trained}
        for module in live:
            if module is called or any(id(p) in wanted for p in module._parameters.values() if p is not None):
                climb(module, frozenset())
        order = {id(module): number for number, module in enumerate(live)}
        found = [root for root in roots.values() if not self.knows(root) and _holds_weights(root)]
        return sorted(found, key=lambda root: order.get(id(root), len(live)))

    def add_roots(self, modules: list[nn.Module]) -> list[Named]:
        """Names the tensors of further roots; returns the new ones."""
        several = len(self.roots) + len(modules) > 1
        fresh: list[Named] = []
        for module in modules:
            prefix = ""
            if several:
                taken = {name for name, _ in self.roots}
                prefix = _variable_name(module)
                if not prefix or prefix in taken:
                    prefix = str(len(self.roots))
            self.roots.append((prefix, module))
            self._known.update(id(part) for part in module.modules())
            fresh += self._add(prefix, _unwrap(module), len(self.roots) - 1)
        return fresh

    def add_late(self) -> list[Named]:
        """Names tensors that were added to the roots since."""
        fresh = []
        for number, (prefix, module) in enumerate(self.roots):
            self._known.update(id(part) for part in module.modules())
            fresh += self._add(prefix, _unwrap(module), number)
        return fresh

    def add_loose(self, tensor: torch.Tensor) -> Named:
        """Names a trained tensor that no module holds."""
        name = _variable_name(tensor)
        if not name or name in self.tensors:
            name = f"parameter.{self._num_loose}"
        self._num_loose += 1
        named = Named(name, "parameter", None, "", tensor)
        self._by_id[id(tensor)] = name
        self.tensors[name] = named
        return named

    def replace_loose(self, tensor: torch.Tensor) -> bool:
        """Replaces a tensor by a new one of the same name, as after `w = w - rate * w.grad`."""
        known = self.tensors.get(_variable_name(tensor))
        if known is None or known.owner is not None or known.latest.shape != tensor.shape:
            return False
        known.latest = tensor
        self._by_id[id(tensor)] = known.name
        return True

    def _add(self, prefix: str, root: nn.Module, number: int) -> list[Named]:
        fresh = []
        for path, module in root.named_modules(remove_duplicate=False):
            name = f"{prefix}.{path}" if prefix and path else prefix or path
            self._known.add(id(module))
            self._module_names.setdefault(id(module), name)
            for kind, attribute, tensor in _own_tensors(module):
                full = f"{name}.{attribute}" if name else attribute
                known = self.name_of(tensor)
                if known is not None:
                    if known != full and full not in self.tensors[known].aliases:
                        self.tensors[known].aliases.append(full)
                    continue
                if full in self.tensors:
                    full = f"{number}.{full}"
                self._by_id[id(tensor)] = full
                named = Named(full, kind, module, attribute, tensor, root=number)
                self.tensors[full] = named
                fresh.append(named)
        return fresh


def _unwrap(root: nn.Module) -> nn.Module:
    """The model inside its wrappers."""
    attribute = _WRAPPERS.get(type(root).__name__)
    inner = root._modules.get(attribute) if attribute else None
    return root if inner is None or root._parameters else _unwrap(inner)


def _own_tensors(module: nn.Module) -> Iterator[tuple[str, str, torch.Tensor]]:
    for attribute, parameter in module._parameters.items():
        if _has_values(parameter):
            yield "parameter", attribute, parameter
    for attribute, buffer in module._buffers.items():
        if _has_values(buffer) and attribute not in module._non_persistent_buffers_set:
            yield "buffer", attribute, buffer


def is_shapeless(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, UninitializedParameter | UninitializedBuffer)


def _has_values(tensor: torch.Tensor | None) -> TypeGuard[torch.Tensor]:
    return tensor is not None and not is_shapeless(tensor) and tensor.device.type != "meta"


def is_lazy(module: nn.Module) -> bool:
    return any(is_shapeless(p) for p in module.parameters())


def is_lazy_kind(module: nn.Module) -> bool:
    """Whether it is or was a lazy module, which takes its shape from its first input."""
    return isinstance(module, LazyModuleMixin) or hasattr(module, "_lazy_load_hook")


def _holds_weights(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _variable_name(thing: Any) -> str:
    """The name in the user's code: a local variable on the stack, an attribute, or a global."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not _is_ours_or_torchs(file):
            for name, value in frame.f_locals.items():
                if value is thing and name != "self" and not name.startswith("_"):
                    return name
            holder = frame.f_locals.get("self")
            for name, value in getattr(holder, "__dict__", {}).items():
                if value is thing:
                    return str(name)
        frame = frame.f_back
    for name, value in vars(sys.modules["__main__"]).items():
        if value is thing and not name.startswith("_"):
            return str(name)
    for holder in gc.get_referrers(thing) if isinstance(thing, nn.Module) else ():
        if isinstance(holder, dict) and "__name__" not in holder:
            for name, value in holder.items():
                if value is thing and isinstance(name, str) and name.isidentifier() and name != "self":
                    return name
    return ""


def _is_ours_or_torchs(file: str) -> bool:
    place = file.replace("\\", "/")
    ours = ("verify/", "runtime/", "patched.py")
    return "/torch/" in place or any(f"/portwright/{part}" in place for part in ours)


def rehearse(root: nn.Module, call: Callable[[], Any]) -> str | None:
    """Calls the module without gradients, undoes the changes to its state, and returns the error if it failed.

    Attributes and buffers get their values back.
    """
    modules = list(root.modules())
    attributes = [dict(module.__dict__) for module in modules]
    kept = {name: buffer.clone() for name, buffer in root.named_buffers() if not is_shapeless(buffer)}
    failure = None
    try:
        with torch.no_grad():
            call()
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    finally:
        torch.clear_autocast_cache()  # weights that autocast cached here would pass on no gradient
        _restore_buffers(root, kept)
        for module, before in zip(modules, attributes, strict=True):
            if not is_lazy_kind(module):
                for name, value in before.items():
                    if module.__dict__.get(name) is not value:
                        module.__dict__[name] = value
    return failure


def _restore_buffers(root: nn.Module, kept: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, buffer in root.named_buffers():
            if is_shapeless(buffer):
                continue
            if name in kept and kept[name].shape == buffer.shape:
                buffer.copy_(kept[name])
            elif name.endswith("running_var"):
                buffer.fill_(1)
            elif name.endswith(("running_mean", "num_batches_tracked")):
                buffer.zero_()
