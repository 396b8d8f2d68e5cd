"""legalise(model, target): replaces every refused module and call of a model in place, and reports them."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

from portwright.errors import UserError
from portwright.layers.legal.calls import CallLog, Swap
from portwright.layers.legal.redirects import LAYERS
from portwright.legal_forms import FORMS, check_target

__all__ = ["Legalised", "legalise"]


@dataclass(frozen=True)
class Legalised:
    """A model whose refused parts have been replaced. Modules are swapped at once, calls when the forward runs, so that
    `swaps` may grow."""

    model: nn.Module
    target: str
    _log: CallLog = field(repr=False, compare=False)

    @property
    def swaps(self) -> tuple[Swap, ...]:
        return self._log.swaps

    def redirecting(self) -> AbstractContextManager[None]:
        """Redirects calls outside of the model's forward too, such as those of the user's loss."""
        return self._log.redirecting(self.model)

    def as_json(self) -> str:
        return json.dumps({"target": self.target, "swaps": [asdict(swap) for swap in self.swaps]}, indent=2)

    def report(self) -> str:
        """One line a swap."""
        if not self.swaps:
            return f"Nothing to make legal for {self.target} so far."
        lines = [f"{len(self.swaps)} made legal for {self.target}:"]
        for swap in self.swaps:
            place = f" at {swap.file}:{swap.line}" if swap.line else ""
            lines.append(
                f"  {swap.module or '(model)'}: {swap.what} -> {swap.form}{place}, because {swap.reason}"
            )
        return "\n".join(lines)


def legalise(model: nn.Module, target: str | None = None) -> Legalised:
    """Makes the model acceptable to the target (without one, the only one that has forms), in place: parameters, buffers, hooks and state_dict names stay what they are.

    Torch's own modules take the class of their legal form; a subclass of the user's keeps its forward, and its calls of
    refused functions are redirected while the model's forward runs.
    """
    name = check_target(target)
    if not isinstance(model, nn.Module):
        raise UserError(f"legalise takes an nn.Module, not {type(model).__name__}.", "Pass the model itself.")
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise UserError(
            "a scripted module cannot be made legal: its calls are fixed.", "Legalise it before scripting."
        )
    compiled = getattr(model, "_orig_mod", None)  # inside torch.compile's wrapper
    inner = compiled if isinstance(compiled, nn.Module) else model
    log = inner.__dict__.get("_legal_calls")
    if not isinstance(log, CallLog):
        log = CallLog(name)
    for path, module in inner.named_modules():
        for swap in _swap(module, path):
            log.add(swap)
        part = module.__dict__.get("_legal_calls")
        if isinstance(part, CallLog) and part is not log:  # this submodule was legalised before
            for swap in part.swaps:
                log.add(dataclasses.replace(swap, module=f"{path}.{swap.module}".strip(".")))
            module.__dict__["_legal_calls"] = log
    if "_legal_calls" not in inner.__dict__ and type(inner) not in _LEGAL_CLASSES:
        inner.__dict__["_legal_calls"] = log
        own: Any = type(inner)  # Any: lru_cache's types refuse an unhashable class
        inner.__class__ = _redirecting_class(own)
    return Legalised(model, name, log)


def _swap(module: nn.Module, path: str) -> Iterator[Swap]:
    own = type(module)
    entry = LAYERS.get(own)
    if entry is not None:
        legal, refused = entry
        if refused is None or refused(module):
            module.__class__ = legal
            yield _swap_of(path, own, legal)
        return
    if issubclass(own, _LEGAL_CLASSES):
        return
    # The SDK's wrappers reach a fused recurrent layer before its calls can be redirected. So the user's class gets the legal
    # class as its parent: its own forward stays, and the parent's methods that it calls are legal.
    for base in _FUSED:
        if issubclass(own, base):
            mixed: Any = (own, LAYERS[base][0])
            module.__class__ = _mixed_class(*mixed)
            yield _swap_of(path, base, LAYERS[base][0])


def _swap_of(path: str, own: type, legal: type) -> Swap:
    what = f"nn.{own.__name__}"
    form = next(form for form in FORMS if what in form.replaces)
    return Swap(path, what, f"legal.{legal.__name__}", form.why)


@functools.cache
def _redirecting_class(own: type[nn.Module]) -> type[nn.Module]:
    """A subclass of the same name whose forward runs with refused calls redirected.

    Dynamo cannot follow the redirection and compiles torch's own calls, which are equal; use export's non-strict mode to see
    the legal ones.
    """

    def redirected(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_dynamo_compiling():
                return method(self, *args, **kwargs)
            with self.__dict__["_legal_calls"].redirecting(self):
                return method(self, *args, **kwargs)

        return run

    # __call__ too, which calls a forward that was set on the instance
    return _subclass(
        _redirecting_class, own, forward=redirected(own.forward), __call__=redirected(own.__call__)
    )


@functools.cache
def _mixed_class(own: type[nn.Module], legal: type[nn.Module]) -> type[nn.Module]:
    return _subclass(_mixed_class, own, legal)


def _subclass(make: Callable[..., Any], own: type, *others: type, **methods: Any) -> type[nn.Module]:
    """A class of the same name, whose instances are pickled as what `make` makes of its bases."""

    def reduce(self: Any, protocol: Any) -> Any:
        return _revive, (make, (own, *others)), self.__dict__

    names = {"__module__": own.__module__, "__qualname__": own.__qualname__, "__doc__": own.__doc__}
    return type(own.__name__, (own, *others), {**names, **methods, "__reduce_ex__": reduce})


def _revive(make_class: Callable[..., type[nn.Module]], classes: tuple[type, ...]) -> nn.Module:
    made = make_class(*classes)
    return made.__new__(made)


_FUSED = (nn.LSTM, nn.GRU, nn.RNN, nn.LSTMCell, nn.GRUCell)
_LEGAL_CLASSES = tuple(legal for legal, _ in LAYERS.values())
