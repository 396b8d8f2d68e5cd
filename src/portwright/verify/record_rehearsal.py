"""Calls a module once before its first real call, for the shapes of its lazy parts and the order of its calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from portwright.verify.record_names import is_lazy_kind, is_shapeless


def rehearse(root: nn.Module, call: Callable[[], Any]) -> str | None:
    """Calls it without gradients and undoes what that left in it; why it failed, if it did.

    Attributes that the call replaced are put back, buffers get their values again.
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
        torch.clear_autocast_cache()  # weights that were cast here have no gradient to pass on
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
