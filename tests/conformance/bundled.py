"""A session that takes four batches a call, as a device with its own loop does: the host sees nothing in between.

It exists to keep the seam honest: nothing in the trainer may need a look at every step.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from portwright.runtime.backend import TorchBackend
from portwright.runtime.session import TorchSession
from portwright.target import Event, JobSpec, Stretch

STEPS_PER_CALL = 4


class BundledSession(TorchSession):
    """Feeds four batches into one opaque call, which gives back the four losses."""

    @property
    def steps_per_call(self) -> int:
        return STEPS_PER_CALL

    def train(self, stretch: Stretch) -> Iterator[Event]:
        assert self._train_loader is not None
        if self._batches is None:
            self._batches = iter(self._train_loader)
        self._module.train()
        step, losses = stretch.first_step, []
        while step < stretch.last_step:
            batches = [next(self._batches) for _ in range(STEPS_PER_CALL)]
            losses += self._call(batches, step).tolist()
            step += STEPS_PER_CALL
            stopping = stretch.should_stop()
            if stretch.is_logged(step) or stopping:
                yield Event("log", step, {"loss": losses[-1]}, tuple(losses))
                losses = []
            if stretch.is_boundary(step) or stopping:
                yield Event("boundary", step)
            if stopping:
                return

    def _call(self, batches: list[object], step: int) -> torch.Tensor:
        """The opaque part: the device's own loop over its four batches."""
        results = []
        for offset, batch in enumerate(batches):
            self._set_learning_rate(step + offset)
            loss = self._module(batch)
            loss.backward()
            assert self._optimizer is not None
            self._optimizer.step()
            self._optimizer.zero_grad()
            results.append(loss.detach())
        return torch.stack(results)


def open_bundled(job: JobSpec) -> BundledSession:
    backend = TorchBackend("cpu", {}, print)
    return BundledSession(job, backend.device, backend.world, print)
