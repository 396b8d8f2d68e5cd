"""Which batches of which loaders a step is fed from."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch

from portwright.verify.record_digest import walk

_MOST_AHEAD = 4  # batches that a loader may be ahead of the step


@dataclass(eq=False)
class _Batch:
    number: int
    tensors: list[torch.Tensor]
    iterator: weakref.ref[Any]
    is_evaluated: bool = False  # some module saw it without being trained by it


class Batches:
    """The last batches of every loader that no step has taken yet."""

    def __init__(self) -> None:
        self._pending: dict[int, list[_Batch]] = {}  # by iterator
        self._num_loaded = 0

    def loaded(self, iterator: object, batch: Any) -> None:
        if not torch.is_grad_enabled():
            return  # an evaluation's
        kept = self._pending.setdefault(id(iterator), [])
        kept[:] = [batch for batch in kept if batch.iterator() is iterator]  # not of one that had its number
        kept.append(_Batch(self._num_loaded, list(walk(batch)), weakref.ref(iterator)))
        self._num_loaded += 1
        del kept[:-_MOST_AHEAD]

    def exhausted(self, iterator: object) -> None:
        """What a loader gave and no step took was not for training."""
        self._pending.pop(id(iterator), None)

    def evaluated(self) -> None:
        """A module was called without being trained: an evaluation, or a teacher that sees the batch first."""
        for batches in self._pending.values():
            for batch in batches:
                batch.is_evaluated = True

    def take(self, fed: list[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors of the batches that a training call is fed from.

        Those that share memory with what is fed, else each loader's last one, else the last that a teacher has seen.
        """
        self._drop_looks()
        pointers = {_memory_of(tensor) for tensor in fed} - {0}
        chosen: list[_Batch] = []
        for batches in self._pending.values():
            sharing = [b for b in batches if not pointers.isdisjoint({_memory_of(t) for t in b.tensors})]
            fresh = [b for b in batches if not b.is_evaluated]
            if sharing:
                chosen += [
                    b for b in batches if b.number <= sharing[-1].number and (b in sharing or b in fresh)
                ]
            else:
                chosen += fresh[-1:]
        if not chosen:
            rest = [batch for batches in self._pending.values() for batch in batches]
            chosen = sorted(rest, key=lambda batch: batch.number)[-1:]
        self._forget(chosen)
        return [
            tensor for batch in sorted(chosen, key=lambda batch: batch.number) for tensor in batch.tensors
        ]

    def _drop_looks(self) -> None:
        """A loader of which one batch was looked at and whose iterator is gone fed nothing, if another one can have."""
        living = [key for key, batches in self._pending.items() if batches[-1].iterator() is not None]
        if living:
            self._pending = {key: self._pending[key] for key in living}

    def _forget(self, taken: list[_Batch]) -> None:
        for key, batches in list(self._pending.items()):
            last = max((batch.number for batch in taken if batch in batches), default=-1)
            left = [batch for batch in batches if batch.number > last and not batch.is_evaluated]
            if left:
                self._pending[key] = left
            else:
                del self._pending[key]


def _memory_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided and tensor.numel() else 0
