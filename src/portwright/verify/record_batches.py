"""Finds which batches of which loaders a step is fed from."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch

from portwright.data.split import count_samples
from portwright.verify.record_digest import sample_sums, sums, walk

_MOST_AHEAD = 4  # batches that a loader may be ahead of the step


@dataclass(eq=False)
class Pass:
    """One iteration over a loader: an evaluation if a model sees its batches and no step trains on them."""

    loader: Any
    has_trained: bool = False
    is_over: bool = False
    seeded: bytes = b""  # state of the random generator when it began
    after_step: int = 0
    num_loaded: int = 0
    num_evaluated: int = 0
    samples: int = 0
    # sums of all evaluated values and of their squares, which do not depend on order or batch size
    total: float = 0.0
    square: float = 0.0
    linked: float = 0.0  # squares of each sample's total: shows which label belongs to which input
    output: tuple[int, float] = (0, 0.0)  # of the model: number of values, and the sum of their squares

    def evaluate(self, batch: Any, num_steps: int) -> None:
        if not self.num_evaluated:
            self.after_step = num_steps
        self.num_evaluated += 1
        num_samples = count_samples(batch) or 0
        self.samples += num_samples
        self.linked += sample_sums([t for t in walk(batch) if t.dim() and t.shape[0] == num_samples])
        for tensor in walk(batch):
            total, square = sums(tensor)
            self.total += total
            self.square += square

    def as_dict(self, training: Any) -> dict[str, Any]:
        row = {
            "after_step": self.after_step,
            "samples": self.samples,
            "total": self.total,
            "square": self.square,
            "linked": self.linked,
        }
        of_training = (
            training is not None and self.loader is not None and self.loader.dataset is training.dataset
        )
        return {**row, "output": self.output, "is_training_data": of_training, "by_hand": self.loader is None}


@dataclass(eq=False)
class _Batch:
    number: int
    whole: Any
    tensors: list[torch.Tensor]
    iterator: weakref.ref[Any]
    origin: Pass
    is_evaluated: bool = False  # a module saw it without training on it


class Batches:
    """The last batches of each loader that no step has taken yet."""

    def __init__(self) -> None:
        self._pending: dict[int, list[_Batch]] = {}  # by iterator
        self._num_loaded = 0
        self.passes: list[Pass] = []  # evaluations
        self._latest: Pass | None = None  # the last evaluation
        self._without_gradient: tuple[Pass, Any] | None = None  # a batch that was loaded under no_grad
        self.first_fed_by: Any = None  # the loader of the first step
        self.num_epochs = 0  # ended epochs of that loader
        self.seeds: list[bytes] = []  # states of the random generator when its epochs began

    def loaded(self, iterator: Any, batch: Any) -> None:
        iterator.recorded_pass.num_loaded += 1
        if not torch.is_grad_enabled():
            self._without_gradient = iterator.recorded_pass, batch
            return
        kept = self._pending.setdefault(id(iterator), [])
        kept[:] = [batch for batch in kept if batch.iterator() is iterator]  # ids may be reused
        tensors, origin = list(walk(batch)), iterator.recorded_pass
        kept.append(_Batch(self._num_loaded, batch, tensors, weakref.ref(iterator), origin))
        self._num_loaded += 1
        del kept[:-_MOST_AHEAD]

    def exhausted(self, iterator: Any) -> None:
        """A loader has ended: its batches that no step took were not for training."""
        self._pending.pop(id(iterator), None)
        origin = iterator.recorded_pass
        origin.is_over = True
        self.num_epochs += origin.has_trained and origin.loader is self.first_fed_by

    def evaluated(self, has_weights: bool, num_steps: int, fed: Any) -> None:
        """A module was called without being trained: an evaluation, or a teacher that sees the batch first.

        Without batches from a loader, the inputs of the module count as the evaluated batch.
        """
        seen = [(b.origin, b.whole) for bs in self._pending.values() for b in bs if not b.is_evaluated]
        if self._without_gradient is not None:
            seen.append(self._without_gradient)
        for batches in self._pending.values():
            for batch in batches:
                batch.is_evaluated = True
        if has_weights:
            if not seen and (self._latest is None or self._latest.loader is None):
                whole = self._latest or Pass(None)
                whole.num_loaded += 1
                seen.append((whole, fed))
            self._without_gradient = None
            for origin, batch in seen:
                self._latest = origin
                if not origin.num_evaluated:
                    self.passes.append(origin)
                origin.evaluate(batch, num_steps)

    def note_output(self, output: torch.Tensor) -> None:
        """Adds a model's output for the batch that was evaluated last."""
        if self._latest is not None:
            size, square = self._latest.output
            self._latest.output = size + output.numel(), square + sums(output)[1]

    def step_done(self) -> None:
        """Evaluations before a step are complete."""
        for one in self.passes:
            one.is_over = True
        self._latest = None

    def take(self, fed: list[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors of the batches that a training call is fed from.

        Those that share memory with what is fed, else each loader's newest, else the last batch that was evaluated.
        """
        # An iterator that is deleted was only inspected, unless no other is left.
        living = [key for key, batches in self._pending.items() if batches[-1].iterator() is not None]
        if living:
            self._pending = {key: self._pending[key] for key in living}
        pointers = {_memory_of(tensor) for tensor in fed} - {0}
        chosen: list[_Batch] = []
        shared: list[_Batch] = []
        for batches in self._pending.values():
            sharing = [b for b in batches if not pointers.isdisjoint({_memory_of(t) for t in b.tensors})]
            fresh = [b for b in batches if not b.is_evaluated]
            shared += sharing
            if sharing:
                chosen += [
                    b for b in batches if b.number <= sharing[-1].number and (b in sharing or b in fresh)
                ]
            else:
                chosen += fresh[-1:]
        if not chosen:
            rest = [batch for batches in self._pending.values() for batch in batches]
            chosen = sorted(rest, key=lambda batch: batch.number)[-1:]
        for batch in chosen:
            batch.origin.has_trained = True
        if chosen and self.first_fed_by is None:
            latest = max(chosen, key=lambda b: b.number)  # earlier ones were only inspected
            self.first_fed_by = (shared[0] if shared else latest).origin.loader
        for batch in chosen:
            if batch.origin.loader is self.first_fed_by and batch.origin.seeded:
                self.seeds.append(batch.origin.seeded)
                batch.origin.seeded = b""
        for key, batches in list(self._pending.items()):
            last = max((batch.number for batch in chosen if batch in batches), default=-1)
            self._pending[key] = [b for b in batches if b.number > last and not b.is_evaluated]
        self._pending = {key: batches for key, batches in self._pending.items() if batches}
        return [
            tensor for batch in sorted(chosen, key=lambda batch: batch.number) for tensor in batch.tensors
        ]


def _memory_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided and tensor.numel() else 0
