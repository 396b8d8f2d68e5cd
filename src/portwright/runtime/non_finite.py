"""Watching for values that are not finite, and finding where one came from: the batch, a weight, a layer, or the loss.

Losses are watched without making the device wait: kept where they are, read where they are logged or saved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from portwright.base_model import LossModule, split_loss
from portwright.errors import ExitStatus, NonFiniteError
from portwright.runtime.shards import local
from portwright.runtime.world import World
from portwright.watching.random_states import untouched_rng
from portwright.watching.trees import walk_tensors

MOST_UNREAD = 500  # steps after which losses are read even if none is logged

# Says why a batch's loss is not finite: (batch, step, loss).
Explain = Callable[[Any, int, float], NonFiniteError]


class LossWatch:
    """Takes the loss of every step and raises NonFiniteError, naming the step, when one is not finite.

    On a CPU a loss is read at once, which is free. On a device, or among several processes, that would be a wait: there
    losses are read together. Until then a fused optimizer is told on the device to hold the weights from the first
    bad loss on, so that they are still good when the host notices.
    """

    def __init__(
        self,
        device: torch.device,
        world: World,
        optimizer: torch.optim.Optimizer,
        *,
        checks: bool,
        scales: bool,
    ) -> None:
        self.reads_at_once = device.type == "cpu" and world.size == 1
        self.losses: list[float] = []  # since the last logged step
        self.checks = checks
        self._world = world
        self._unread: list[torch.Tensor] = []
        self._has_bad_loss: torch.Tensor | None = None
        self.settle: Callable[[], None] = lambda: None  # waits for updates that are still under way
        can_skip_updates = bool(getattr(optimizer, "_step_supports_amp_scaling", False))
        if checks and can_skip_updates and not self.reads_at_once and world.size == 1 and not scales:
            self._has_bad_loss = torch.zeros((), device=device)
            optimizer.found_inf = self._has_bad_loss  # type: ignore[attr-defined]

    def before_update(self, loss: torch.Tensor) -> None:
        """Tells the optimizer on the device whether a loss so far was not finite."""
        if self._has_bad_loss is not None:
            bad = (~torch.isfinite(loss)).to(self._has_bad_loss.dtype)
            self._has_bad_loss.copy_(torch.maximum(self._has_bad_loss, bad))

    def add(self, loss: Any) -> None:
        """Takes the loss of one update: a number where losses are read at once, else a tensor."""
        if self.reads_at_once:
            self.losses.append(loss)
        else:
            self._unread.append(loss)

    def read(self, step: int, recent: Callable[[int], Any | None], explain: Explain) -> None:
        """Brings the losses up to `step` to the host, averaged over the processes, and looks at them.

        `recent(n)` gives the batch of the n-th last update again.
        """
        if not self._unread:
            return
        own = torch.stack(self._unread).cpu().double()
        mean = self._world.reduce_sum(own.clone()) / self._world.size
        self._unread.clear()
        if self.checks and not bool(torch.isfinite(mean).all()):
            raise self._explain_late(step, mean, own, recent, explain)
        self.losses.extend(mean.tolist())

    def _explain_late(
        self,
        step: int,
        mean: torch.Tensor,
        own: torch.Tensor,
        recent: Callable[[int], Any | None],
        explain: Explain,
    ) -> NonFiniteError:
        index = int((~torch.isfinite(mean)).nonzero()[0])
        bad_step, value = step - len(mean) + index + 1, float(mean[index])
        guilty = [rank for rank, bad in enumerate(self._world.gather(not math.isfinite(own[index]))) if bad]
        batch = recent(len(mean) - index) if self._has_bad_loss is not None else None
        if batch is not None:
            return explain(batch, bad_step, value)
        ranks = f" (first on process {guilty[0]})" if guilty and self._world.size > 1 else ""
        return NonFiniteError(
            f"the loss is {value} at step {bad_step}{ranks}; later updates have used it, the last checkpoint has not.",
            "Resume with runconfig.log_steps: 1 in one process to have the tensor named.",
        )

    def check_weights(self, step: int, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Keeps weights that are not finite out of checkpoints: an update may overflow though its loss did not."""
        if not self.checks:
            return
        self.settle()
        parts = [(name, part) for name, weight in named if (part := local(weight.detach())).numel()]
        is_finite_of = dict(_finite(parts))
        bad = [name for name, _ in parts if not is_finite_of[name]]
        everywhere = [name for names in self._world.gather(bad) for name in names]
        if everywhere:
            raise NonFiniteError(
                f"the weight '{everywhere[0]}' is not finite after the update of step {step}, though the loss was.",
                "Lower optimizer.learning_rate, or set optimizer.max_gradient_norm; the last checkpoint is good.",
            )


def _finite(parts: Sequence[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, bool]]:
    """Whether each tensor is finite, with one wait for each device."""
    for device in {part.device for _, part in parts}:
        here = [(name, part) for name, part in parts if part.device == device]
        norms = torch._foreach_norm([part for _, part in here], math.inf)
        finite = torch.isfinite(torch.stack([norm.float() for norm in norms])).tolist()
        yield from zip((name for name, _ in here), finite, strict=True)


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
