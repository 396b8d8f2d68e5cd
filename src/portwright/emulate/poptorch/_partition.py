"""The part of a dataset that each process of a distributed job gets (a name of the package `poptorch` itself)."""

from __future__ import annotations

from typing import Any

import torch

from portwright.emulate.poptorch._errors import AssertedError, refuse
from portwright.emulate.poptorch._impl import createPoptorchError


class _SubDataset:
    """The part of a dataset that one process of a distributed job sees: as many whole steps as every other one."""

    def __init__(self, dataset, opts, step, drop_last):
        total, processes, process = len(dataset), opts.Distributed.numProcesses, opts.Distributed.processId
        if drop_last:
            self._length = step * (total // (step * processes))
            if not self._length:
                raise createPoptorchError(
                    f"a dataset of {total} elements has no whole batch of {step} for each of {processes} processes."
                )
            self._offset = process * self._length
            self._leftovers = total % self._length
        else:
            parts = [total // processes + (total % processes > other) for other in range(processes)]
            self._length, self._offset, self._leftovers = parts[process], sum(parts[:process]), 0
        self._base_offset = self._offset
        self._dataset = dataset
        self._seed = opts.random_seed if opts.exists("random_seed") else None
        self._shuffling_generator_state: torch.Tensor | None = None
        self._shuffled_global_indices: torch.Tensor | None = None

    def shuffle_global_indices(self):
        """A new order of the whole dataset, the same in every process since it follows from the options' seed."""
        generator = torch.Generator()
        if self._shuffling_generator_state is not None:
            generator.set_state(self._shuffling_generator_state)
        elif self._seed is None:
            raise refuse("shuffling needs options.randomSeed(), the same in every process.", AssertedError)
        else:
            generator.manual_seed(self._seed)
        shuffled = torch.randperm(len(self._dataset), generator=generator)
        if self._shuffled_global_indices is None:
            self._shuffled_global_indices = (
                shuffled.share_memory_()
            )  # worker processes see the next order, too
        else:
            self._shuffled_global_indices.copy_(shuffled)
        self._shuffling_generator_state = generator.get_state()

    def swap_range(self):
        """Moves between the first and the last possible part, so that elements left over are seen every other time."""
        at_base = self._offset == self._base_offset
        self._offset = self._base_offset + self._leftovers if at_base else self._base_offset

    def __len__(self) -> int:
        return int(self._length)

    def __getitem__(self, index: int) -> Any:
        place: Any = index + self._offset
        if self._shuffled_global_indices is not None:
            place = self._shuffled_global_indices[place]
        return self._dataset[place]
