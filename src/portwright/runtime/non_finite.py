"""Finding where a NaN or an infinity came from: the batch, a weight, a layer, or the loss."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from portwright.base_model import LossModule, split_loss
from portwright.errors import ExitStatus, NonFiniteError
from portwright.watching.random_states import untouched_rng
from portwright.watching.trees import walk_tensors

LAYER_CURE = "Look at that layer's input range; lower the learning rate or use bf16 instead of fp16."


def is_finite(tensor: torch.Tensor) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    return bool(torch.isfinite(tensor).all())


def explain_non_finite(
    module: LossModule, batch: Any, *, step: int, batch_name: str, loss: float, device: torch.device
) -> NonFiniteError:
    """Replays the forward pass of the offending batch and names the first tensor that is not finite.

    Where the first batch of a run is to blame, nothing was trained yet, and the run ends with the status of bad input.
    """
    where, cure = find_non_finite(module, batch, device)
    error = NonFiniteError(f"the loss is {loss} at step {step}, {batch_name}: {where}.", cure)
    if step == 1 and where.startswith("batch"):
        error.status = ExitStatus.USAGE
    return error


def find_in_batch(batch: Any) -> tuple[str, str] | None:
    """The first tensor of a batch that is not finite, and the cure."""
    for path, tensor in walk_tensors(batch):
        if not is_finite(tensor):
            bad = ~torch.isfinite(tensor)
            first = bad.nonzero()[0].tolist()
            return (
                f"{path} holds {int(bad.sum())} non-finite value(s), the first at {first} (sample {first[0] if first else 0})",
                "Clean the data set, or mask such values in data.py.",
            )
    return None


def find_in_weights(named: Iterable[tuple[str, torch.Tensor]]) -> tuple[str, str] | None:
    """The first weight that is not finite, and the cure."""
    for name, weight in named:
        if not is_finite(weight):
            return (
                f"the weight '{name}' {list(weight.shape)} is not finite, so the update before it overflowed",
                "Lower optimizer.learning_rate, or set optimizer.max_gradient_norm.",
            )
    return None


def find_non_finite(module: LossModule, batch: Any, device: torch.device) -> tuple[str, str]:
    """Where a value that is not finite comes from, and the cure."""
    at_rest = find_in_batch(batch) or find_in_weights(module.net.named_parameters())
    if at_rest is not None:
        return at_rest
    found: list[str] = []

    def watch(name: str) -> Any:
        def hook(submodule: nn.Module, _inputs: Any, output: Any) -> None:
            if found:
                return
            for path, tensor in walk_tensors(output, "output"):
                if not is_finite(tensor):
                    found.append(
                        f"'{name or 'model'}' ({type(submodule).__name__}) gives the first non-finite {path} {list(tensor.shape)}"
                    )
                    return

        return hook

    handles = [sub.register_forward_hook(watch(name)) for name, sub in module.net.named_modules()]
    try:
        with torch.no_grad(), untouched_rng(device):
            loss, _ = split_loss(module(batch))
    finally:
        for handle in handles:
            handle.remove()
    if found:
        return f"layer {found[0]}", LAYER_CURE
    if not is_finite(loss):
        return (
            "every layer's output is finite, so the loss function itself made it",
            "Look for log(0), a division by zero or an empty mask in the loss.",
        )
    return (
        "the replayed batch gives a finite loss, so the value came from a random draw such as dropout or from half precision",
        "Run again with runconfig.precision: fp32 to tell them apart.",
    )
