"""How one call's tensors are cut into micro-batches: device iterations, then accumulation, then replicas fastest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from portwright.emulate.poptorch import enums
from portwright.emulate.poptorch._errors import AssertedError, refuse


@dataclass(frozen=True)
class Batching:
    """The three counts that multiply a micro-batch, and which replicas share their input."""

    device_iterations: int = 1
    accumulation: int = 1
    replicas: int = 1
    group_size: int = 1
    orthogonal: bool = False

    @classmethod
    def of(cls, options: Any) -> Batching:
        """Reads the counts of a poptorch.Options and refuses those below one."""
        counts = {
            "Options.deviceIterations": options.device_iterations,
            "Options.Training.gradientAccumulation": options.Training.gradient_accumulation,
            "Options.replicationFactor": options.replication_factor,
            "Options.inputReplicaGrouping": options.input_group_size,
        }
        for name, value in counts.items():
            if value < 1:
                raise refuse(f"{name} must be at least 1, not {value}.")
        if options.replication_factor % options.input_group_size:
            raise refuse(
                f"Options.replicationFactor ({options.replication_factor}) must be a multiple of the group size of "
                f"Options.inputReplicaGrouping ({options.input_group_size})."
            )
        iterations, accumulation, replicas, group_size = counts.values()
        orthogonal = options.input_cgt == enums.CommGroupType.Orthogonal
        return cls(iterations, accumulation, replicas, group_size, orthogonal)

    @property
    def runs_per_replica(self) -> int:
        return self.device_iterations * self.accumulation

    @property
    def micro_batches(self) -> int:
        """How many micro-batches one call's input holds."""
        return self.runs_per_replica * (self.replicas // self.group_size)

    def micro_batch_size(self, tensor: torch.Tensor, name: str) -> int:
        """The size of dim 0 that the model sees; a size that cannot be cut is refused."""
        size = tensor.shape[0] if tensor.dim() else 1
        if size % self.micro_batches:
            raise refuse(
                f"Invalid batch dimension: {name} of shape {list(tensor.shape)} has {size} in its first dimension, which "
                f"cannot be cut into Options.deviceIterations({self.device_iterations}) * "
                f"(Options.replicationFactor({self.replicas}) / input_group_size({self.group_size})) * "
                f"Options.Training.gradientAccumulation({self.accumulation}) = {self.micro_batches} equal parts. "
                "Use poptorch.DataLoader, which multiplies batch_size by these, and drops an incomplete last batch.",
                AssertedError,
            )
        return size // self.micro_batches

    def first(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """The micro-batch that a program is compiled for."""
        size = self.micro_batch_size(tensor, name)
        return tensor.narrow(0, 0, size) if tensor.dim() else tensor

    def micro_batch(self, tensor: torch.Tensor, run: int, replica: int) -> torch.Tensor:
        """The part of a call's tensor that `replica` reads in its `run`-th forward pass of this call."""
        if not tensor.dim():
            return tensor
        # The host answers the replicas' requests one after the other, and gives each group's part out once a member:
        # for groups of one that is the order in memory.
        request = run * self.replicas + replica
        reader, place = divmod(request, self.runs_per_replica)
        groups = self.replicas // self.group_size
        group = reader % groups if self.orthogonal else reader // self.group_size
        size = tensor.shape[0] // self.micro_batches
        return tensor.narrow(0, (group * self.runs_per_replica + place) * size, size)
