"""Our weight streaming, a contestant of benchmarks/streaming.py: its engine by itself, with a plain loop around it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from streaming_gpt import ADAMW, Shape, fill_weights, group_weights, make_empty
from torch import Tensor

from portwright.job.execution import StreamingSection
from portwright.runtime.streaming.engine import Streaming

LANES = {"cpu update": "update"}  # what the engine calls a lane, and what a trace does


class Engine:
    """`begin_step`, `begin_pass`, forward and backward, `end_pass`, and the optimizer of what is not streamed."""

    def __init__(self, shape: Shape, device: str, options: dict[str, Any]) -> None:
        self._device, self._is_cuda = device, device == "cuda"
        self.notes: list[str] = []
        net = make_empty(shape, "cpu")
        fill_weights(net.named_parameters(), shape, device)
        section = StreamingSection(**options.get("streaming", {}))
        half = torch.bfloat16 if self._is_cuda else None
        self._net = net
        self.engine = Streaming(net, torch.device(device), section, self._note, half=half)
        optimizer = torch.optim.AdamW(group_weights(net), fused=True, **ADAMW)
        self._rest = self.engine.train_with(optimizer)
        self._num_steps = 0

    def _note(self, line: str) -> None:
        self.notes.append(line)
        print(line, file=sys.stderr, flush=True)

    def step(self, ids: Tensor, labels: Tensor) -> Tensor:
        engine = self.engine
        self._num_steps += 1
        engine.begin_step(self._num_steps)
        engine.begin_pass()
        with torch.autocast(self._device, torch.bfloat16, enabled=self._is_cuda, cache_enabled=False):
            loss: Tensor = self._net(ids, labels)
        engine.tell_loss(loss)
        loss.backward()  # type: ignore[no-untyped-call]
        engine.end_pass()
        engine.set_rates(self._rest)
        self._rest.step()
        self._rest.zero_grad(set_to_none=True)
        return loss.detach()

    def settle(self) -> None:
        self.engine.wait()

    def close(self) -> dict[str, Any]:
        told: dict[str, Any] = {"notes": self.notes, "device_bytes": self.engine.device_bytes}
        self.engine.close()
        return told

    def begin_spans(self) -> Callable[[], list[tuple[str, tuple[float, float, str]]]]:
        """Notes what the host's threads do from now on; the function it gives returns that, by the wall clock."""
        return watch(self.engine, self._is_cuda)


def watch(engine: Streaming, is_cuda: bool) -> Callable[[], list[tuple[str, tuple[float, float, str]]]]:
    """Of the engine's own threads, and of the training's thread while it waits for a layer."""
    offset = time.time() - time.perf_counter()
    updates: list[tuple[str, str, float, float]] = []
    others: list[tuple[str, str, float, float]] = []
    assert engine._updates is not None
    engine._updates.spans = updates

    def timed(owner: Any, name: str, lane: str) -> None:
        inner = getattr(owner, name)

        def outer(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            result = inner(*args, **kwargs)
            others.append((lane, "", begin, time.perf_counter()))
            return result

        setattr(owner, name, outer)

    timed(engine, "_bring", "waits")
    if not is_cuda:  # a GPU's copies and kernels are in its own trace
        timed(engine._staging, "up", "up")
        timed(engine._staging, "down", "down")

    def spans() -> list[tuple[str, tuple[float, float, str]]]:
        return [
            (LANES.get(lane, lane), (begin + offset, end + offset, label))
            for lane, label, begin, end in [*updates, *others]
        ]

    return spans
