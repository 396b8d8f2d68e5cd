"""The memory behind the tensors of a trace: who owns it, and whether its values are the same in every run."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from portwright.emulate.poptorch._program_graph import Given


@dataclass
class Memory:
    """One allocation, which several tensors may be views of."""

    number: int
    weak: StorageWeakRef  # as long as it is held, no other allocation has the same address
    is_fixed: bool  # holds the same values in every run, as they come from constants alone
    owners: list[Given] = field(default_factory=list)  # none where an op of the step has made it
    is_written: bool = False
    held: Tensor | None = None  # of an owner
    before: torch.UntypedStorage | None = None  # an owner's values before the trace wrote into them

    @property
    def num_bytes(self) -> int:
        return 0 if self.held is None else self.held.nbytes


class Memories:
    def __init__(self) -> None:
        self._by_address: dict[int, Memory] = {}
        self._num_copies = 0

    def find(self, tensor: Tensor) -> Memory | None:
        return self._by_address.get(tensor.untyped_storage()._cdata)

    def add(self, tensor: Tensor, *, is_fixed: bool) -> Memory:
        storage = tensor.untyped_storage()
        memory = Memory(len(self._by_address), StorageWeakRef(storage), is_fixed)
        self._by_address[storage._cdata] = memory
        return memory

    def number(self) -> int:
        """That of memory which no tensor of the trace is in: a copy that only the program makes."""
        self._num_copies += 1
        return -self._num_copies

    def own(self, tensor: Tensor, owner: Given, *, is_fixed: bool) -> Memory:
        memory = self.find(tensor) or self.add(tensor, is_fixed=is_fixed)
        memory.is_fixed = memory.is_fixed and is_fixed
        memory.owners.append(owner)
        memory.held = tensor
        return memory

    def write(self, memory: Memory, *, is_fixed: bool) -> None:
        """To be called before the write: what an owner has there is kept."""
        memory.is_fixed = memory.is_fixed and is_fixed
        memory.is_written = True
        if memory.held is not None and memory.before is None:
            with torch._C._DisableTorchDispatch():
                memory.before = memory.held.untyped_storage().clone()

    def written(self) -> dict[Given, Memory]:
        """The owners whose memory is written."""
        return {
            owner: memory
            for memory in self._by_address.values()
            if memory.is_written
            for owner in memory.owners
        }

    def undo(self) -> None:
        """Gives the owners back what they had."""
        with torch._C._DisableTorchDispatch():
            for memory in self._by_address.values():
                if memory.before is not None and memory.held is not None:
                    memory.held.untyped_storage().copy_(memory.before)
