"""legalise(model, target): every refused module and call of a model made legal, in place, and reported."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

from portwright.errors import UserError
from portwright.layers.legal import (
    conv,
    indexing,
    losses,
    norms,
    padding,
    pointwise,
    pooling,
    recurrent,
    recurrent_cells,
    resample,
    transformer,
    windows,
)
from portwright.layers.legal.calls import CallLog, Swap
from portwright.layers.legal.forms import FORMS, check_target


@dataclass(frozen=True)
class Legalised:
    """A model whose refused parts have been replaced. Modules are swapped at once; calls in a forward are redirected as it runs,
    so `swaps` may grow."""

    model: nn.Module
    target: str
    _log: CallLog = field(repr=False, compare=False)

    @property
    def swaps(self) -> tuple[Swap, ...]:
        return self._log.swaps

    def redirecting(self) -> AbstractContextManager[None]:
        """The same redirection for code outside the model's forward, such as a loss of the user's own."""
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


def legalise(model: nn.Module, target: str = "csx") -> Legalised:
    """Makes the model acceptable to the target, in place: parameters, buffers, hooks and state_dict names stay what they are.

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
    compiled = getattr(model, "_orig_mod", None)  # torch.compile's wrapper: what runs is inside
    inner = compiled if isinstance(compiled, nn.Module) else model
    log = inner.__dict__.get("_legal_calls")
    if not isinstance(log, CallLog):
        log = CallLog(name)
    for path, module in inner.named_modules():
        for swap in _swap(module, path):
            log.add(swap)
        part = module.__dict__.get("_legal_calls")
        if isinstance(part, CallLog) and part is not log:  # made legal by itself before
            for swap in part.swaps:
                log.add(dataclasses.replace(swap, module=f"{path}.{swap.module}".strip(".")))
            module.__dict__["_legal_calls"] = log
    if "_legal_calls" not in inner.__dict__ and type(inner) not in _LEGAL_CLASSES:
        inner.__dict__["_legal_calls"] = log
        own: Any = type(inner)  # lru_cache's types know no class of unhashable things
        inner.__class__ = _redirecting_class(own)
    return Legalised(model, name, log)


def _swap(module: nn.Module, path: str) -> Iterator[Swap]:
    own = type(module)
    entry = _MODULES.get(own)
    if entry is not None:
        legal, refused = entry
        if refused is None or refused(module):
            module.__class__ = legal
            yield _swap_of(path, own, legal)
        return
    if issubclass(own, _LEGAL_CLASSES):
        return
    # The SDK's wrappers reach a fused recurrent layer before any call of it can be redirected, so the user's class gets the
    # legal one for its parent: its own forward stays, and what it calls of its parent's is legal.
    for base in _FUSED:
        if issubclass(own, base):
            mixed: Any = (own, _MODULES[base][0])
            module.__class__ = _mixed_class(*mixed)
            yield _swap_of(path, base, _MODULES[base][0])


def _swap_of(path: str, own: type, legal: type) -> Swap:
    what = f"nn.{own.__name__}"
    form = next(form for form in FORMS if what in form.replaces)
    return Swap(path, what, f"legal.{legal.__name__}", form.why)


@functools.cache
def _redirecting_class(own: type[nn.Module]) -> type[nn.Module]:
    """A subclass whose forward runs with refused calls redirected. It goes by the same name, so that nobody stumbles over it.

    Dynamo cannot follow the redirection and compiles torch's own calls, which are equal; use export's non-strict mode to see
    the legal ones.
    """

    @functools.wraps(own.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return own.forward(self, *args, **kwargs)
        with self.__dict__["_legal_calls"].redirecting(self):
            return own.forward(self, *args, **kwargs)

    @functools.wraps(own.__call__)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Reaches a forward that was set on the instance too."""
        if torch.compiler.is_dynamo_compiling():
            return own.__call__(self, *args, **kwargs)
        with self.__dict__["_legal_calls"].redirecting(self):
            return own.__call__(self, *args, **kwargs)

    def reduce(self: Any, protocol: Any) -> Any:
        return _revive, (_redirecting_class, (own,)), self.__dict__

    return _subclass(own, (own,), {"forward": forward, "__call__": call, "__reduce_ex__": reduce})


@functools.cache
def _mixed_class(own: type[nn.Module], legal: type[nn.Module]) -> type[nn.Module]:
    def reduce(self: Any, protocol: Any) -> Any:
        return _revive, (_mixed_class, (own, legal)), self.__dict__

    return _subclass(own, (own, legal), {"__reduce_ex__": reduce})


def _subclass(own: type, bases: tuple[type, ...], content: dict[str, Any]) -> type[nn.Module]:
    names = {"__module__": own.__module__, "__qualname__": own.__qualname__, "__doc__": own.__doc__}
    made: type[nn.Module] = types.new_class(
        own.__name__, bases, {}, lambda body: body.update({**names, **content})
    )
    return made


def _revive(make_class: Callable[..., type[nn.Module]], classes: tuple[type, ...]) -> nn.Module:
    made = make_class(*classes)
    return made.__new__(made)


def _has_groups_or_mirrors(module: Any) -> bool:
    return module.groups != 1 or module.padding_mode in ("reflect", "replicate")


def _has_groups(module: Any) -> bool:
    return bool(module.groups != 1)


def _is_smooth_or_nearest(module: Any) -> bool:
    return bool(module.mode != "area")


def _gives_no_indices(module: Any) -> bool:
    return not module.return_indices


_MODULES: dict[type[nn.Module], tuple[type[nn.Module], Callable[[Any], bool] | None]] = {
    nn.Conv1d: (conv.Conv1d, None),
    nn.Conv2d: (conv.Conv2d, _has_groups_or_mirrors),
    nn.Conv3d: (conv.Conv3d, _has_groups_or_mirrors),
    nn.ConvTranspose1d: (conv.ConvTranspose1d, None),
    nn.ConvTranspose2d: (conv.ConvTranspose2d, _has_groups),
    nn.ConvTranspose3d: (conv.ConvTranspose3d, _has_groups),
    nn.LSTM: (recurrent.LSTM, None),
    nn.GRU: (recurrent.GRU, None),
    nn.RNN: (recurrent.RNN, None),
    nn.LSTMCell: (recurrent_cells.LSTMCell, None),
    nn.GRUCell: (recurrent_cells.GRUCell, None),
    nn.Upsample: (resample.Upsample, _is_smooth_or_nearest),
    nn.UpsamplingNearest2d: (resample.UpsamplingNearest2d, None),
    nn.UpsamplingBilinear2d: (resample.UpsamplingBilinear2d, None),
    nn.InstanceNorm1d: (norms.InstanceNorm1d, None),
    nn.InstanceNorm2d: (norms.InstanceNorm2d, None),
    nn.InstanceNorm3d: (norms.InstanceNorm3d, None),
    nn.ReflectionPad1d: (padding.ReflectionPad1d, None),
    nn.ReflectionPad2d: (padding.ReflectionPad2d, None),
    nn.ReflectionPad3d: (padding.ReflectionPad3d, None),
    nn.ReplicationPad1d: (padding.ReplicationPad1d, None),
    nn.ReplicationPad2d: (padding.ReplicationPad2d, None),
    nn.ReplicationPad3d: (padding.ReplicationPad3d, None),
    nn.AdaptiveMaxPool1d: (pooling.AdaptiveMaxPool1d, _gives_no_indices),
    nn.AdaptiveMaxPool2d: (pooling.AdaptiveMaxPool2d, _gives_no_indices),
    nn.AdaptiveMaxPool3d: (pooling.AdaptiveMaxPool3d, _gives_no_indices),
    nn.MaxUnpool2d: (pooling.MaxUnpool2d, None),
    nn.Unfold: (windows.Unfold, None),
    nn.Fold: (windows.Fold, None),
    nn.ChannelShuffle: (indexing.ChannelShuffle, None),
    nn.PReLU: (pointwise.PReLU, None),
    nn.SELU: (pointwise.SELU, None),
    nn.CELU: (pointwise.CELU, None),
    nn.Hardsigmoid: (pointwise.Hardsigmoid, None),
    nn.Softshrink: (pointwise.Softshrink, None),
    nn.Hardshrink: (pointwise.Hardshrink, None),
    nn.BCELoss: (losses.BCELoss, None),
    nn.SmoothL1Loss: (losses.SmoothL1Loss, None),
    nn.HuberLoss: (losses.HuberLoss, None),
    nn.SoftMarginLoss: (losses.SoftMarginLoss, None),
    nn.GaussianNLLLoss: (losses.GaussianNLLLoss, None),
    nn.MultiMarginLoss: (losses.MultiMarginLoss, None),
    nn.EmbeddingBag: (losses.EmbeddingBag, None),
    nn.TransformerEncoder: (transformer.TransformerEncoder, None),
    nn.TransformerDecoder: (transformer.TransformerDecoder, None),
}
_FUSED = (nn.LSTM, nn.GRU, nn.RNN, nn.LSTMCell, nn.GRUCell)
_LEGAL_CLASSES = tuple(legal for legal, _ in _MODULES.values())
