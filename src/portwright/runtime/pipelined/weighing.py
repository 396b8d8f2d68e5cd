"""How much each micro-batch counts: measured on the first batches, since only the model knows what its loss divides by."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from portwright.base_model import LossModule
from portwright.errors import UserError
from portwright.patched import patched
from portwright.runtime.metrics import registered_metrics
from portwright.runtime.pipelined.user_code import Attributes
from portwright.runtime.world import World
from portwright.watching.random_states import untouched_rng

_TOLERANCE = {"fp64": 1e-5, "fp32": 1e-4}  # models in fp64 may compute their loss in fp32
_GROWTH = 1.5  # no mean of two micro-batches is so many times the larger one
_MOST_PROBES = 4  # batches
Verdict = Literal["mean", "sum", "uneven", "grows"]


class Probe(NamedTuple):
    """Losses of two micro-batches, of the first once more (with other random draws), and of both as one."""

    first: float
    second: float
    again: float
    both: float


def judge(probe: Probe, tolerance: float, *, is_exact: bool) -> Verdict | None:
    """How a loss combines its samples, as far as the probe tells; with random draws only a gross difference counts."""
    if not all(map(math.isfinite, probe)):
        return None
    first, second, again, both = probe
    scale = tolerance * max(abs(first), abs(second), abs(both), 1e-30)
    if abs(both - (first + second) / 2) <= scale:
        return "mean"
    is_exact = is_exact and first == again
    # Where one of them is next to nothing, such as a micro-batch without labels, a mean over labels looks like a sum.
    both_count = min(abs(first), abs(second)) > max(abs(first), abs(second)) / 100
    if is_exact and both_count and abs(both - first - second) <= scale:
        return "sum"
    if min(first, second) > 0 and both > _GROWTH * max(first, second):
        return "grows"
    return "uneven" if is_exact else None


class Weighing:
    """Whether micro-batches' losses are averaged or added up; an average unless the model's own loss adds up."""

    def __init__(self, module: LossModule, device: torch.device, precision: str) -> None:
        self._net, self._user_model = module.net, module.__dict__["user_model"]
        self._device = device
        self._changed: list[str] = []
        self._tolerance = _TOLERANCE.get(precision, 2e-2)
        self.is_settled, self._num_probes = False, 0
        self._adds_up = False

    def share(self, size: int, local: int, whole: int) -> float:
        """A micro-batch's share in the loss of the whole batch, of which this process has a part."""
        return (local if self._adds_up else size) / whole

    def settle(
        self,
        micro_batches: Sequence[Any],
        both: Any,
        forward: Callable[[Sequence[Any]], list[torch.Tensor]],
        world: World,
        note: Callable[[str], None],
        *,
        is_full: bool,
    ) -> None:
        """Probes a batch of several micro-batches; every process calls it, until `is_settled`."""
        probe: Probe | None = None
        if len(micro_batches) > 1:
            first, second = micro_batches[:2]
            with torch.no_grad(), untouched_rng(self._device), self._unchanged():
                losses = forward([first, second, first, both])
            if losses:
                probe = Probe(*(float(loss) for loss in losses))
        has_batchnorm = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self._net.modules())
        verdict = None if probe is None else judge(probe, self._tolerance, is_exact=not has_batchnorm)
        gathered = world.gather((verdict, probe, self._changed))  # each process knows of its own layers
        changed = list(dict.fromkeys(name for _, _, names in gathered for name in names))
        if changed:
            note(
                f"pipelined: {', '.join(changed[:3])}{', ...' if len(changed) > 3 else ''} changes in a step, and does so "
                "once for each micro-batch."
            )
        told = [(name, probe) for name, probe, _ in gathered if name is not None]
        verdicts = {name for name, _ in told}
        self._num_probes += is_full or bool(told)
        # Two micro-batches may have equally many unmasked tokens by chance: a mean is probed again.
        self.is_settled = self._num_probes == _MOST_PROBES or not verdicts <= {"mean"}
        if "grows" in verdicts or {"sum", "mean"} <= verdicts or {"sum", "uneven"} <= verdicts:
            raise UserError(
                f"the loss grows with the number of samples ({_shown(told)}), and is more than a sum over them, so that "
                "micro-batches cannot be weighed.",
                "Use reduction='mean', or divide by the number of samples; or use -D runconfig.execution=resident.",
            )
        self._adds_up = verdicts == {"sum"}
        if self._adds_up:
            note(
                "pipelined: the loss is a sum over samples, so the micro-batches' losses are added up (and averaged over "
                "replicas, as over data parallel processes)."
            )
        elif "uneven" in verdicts:
            note(
                f"pipelined: the loss is no mean over samples ({_shown(told)}): it divides by something else of the batch, or "
                "compares samples. What is trained is the mean of the micro-batches' losses; "
                "-D runconfig.execution=resident trains the batch's own."
            )

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Keeps buffers, frozen weights, attributes and metrics as they are; `_changed` gets the names of those that changed."""
        fixed = itertools.chain(
            self._net.named_buffers(),
            ((n, p) for n, p in self._net.named_parameters() if not p.requires_grad),
        )
        # On the host: a device may have no room for frozen weights twice.
        kept = [(name, tensor, tensor.to("cpu", copy=True)) for name, tensor in fixed if not tensor.is_meta]
        attributes = Attributes(self._net, self._user_model)
        try:
            with ExitStack() as stack:
                for metric in registered_metrics():
                    stack.enter_context(patched(metric, "update", lambda *args, **kwargs: None))
                yield
        finally:
            self._changed = [f"self.{name}" for names in attributes.restore({}).values() for name in names]
            for name, tensor, old in kept:
                if not torch.equal(tensor.cpu(), old):
                    self._changed.append(f"'{name}'")
                    tensor.copy_(old)


def _shown(told: Sequence[tuple[Any, Any]]) -> str:
    probe = next(probe for verdict, probe in told if verdict not in ("mean",))
    return f"two micro-batches give {probe.first:.5g} and {probe.second:.5g}, both as one {probe.both:.5g}"
