"""What every kind of input offers to the loader, and what they share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from portwright.data.split import BatchSplitter, Counts
from portwright.errors import UserError

Numbered = tuple[int, Any, Counts]  # a batch with its number in the epoch


@dataclass
class Shared:
    """What a source has to know of the run that it serves."""

    name: str  # train_input or eval_input
    seed: int
    rank: int
    world_size: int
    notes: list[str] = field(default_factory=list)
    keeps_small: bool = (
        False  # batches of fewer samples than ranks are given, whole, to all; the first one counts them
    )

    def note(self, text: str) -> None:
        line = f"{self.name}: {text}"
        if line not in self.notes:
            self.notes.append(line)

    def counts_of_small(self, num_samples: int) -> Counts | None:
        """Counts of a batch that has not a sample for every rank; None: it is left out.

        An evaluation must count every sample, yet each rank has to take the same number of steps.
        """
        if not self.keeps_small:
            self.note_dropped(num_samples)
            return None
        return (num_samples if self.rank == 0 else 0), num_samples

    def make_splitter(self) -> BatchSplitter | None:
        return BatchSplitter(self.name, self.rank, self.world_size) if self.world_size > 1 else None

    def count_replicas(self, *things: Any) -> int:
        """Gives over how many processes a sampler or data set of the user shards; 1: none does."""
        for thing in things:
            num_replicas, rank = getattr(thing, "num_replicas", None), getattr(thing, "rank", None)
            if not (isinstance(num_replicas, int) and isinstance(rank, int) and num_replicas > 1):
                continue
            if self.world_size > 1 and (num_replicas, rank) != (self.world_size, self.rank):
                raise UserError(
                    f"{self.name}: {type(thing).__name__} shards for process {rank} of {num_replicas}, and this is "
                    f"process {self.rank} of {self.world_size}.",
                    "Leave num_replicas and rank to torch.distributed, or do without: batches are shared out anyway.",
                )
            return num_replicas
        return 1

    def note_dropped(self, num_samples: int) -> None:
        self.note(
            f"batches of fewer samples than the {self.world_size} processes are left out (one has {num_samples})."
        )

    def check_batch_size(self, batch_size: int | None) -> None:
        if batch_size is not None and batch_size < self.world_size and not self.keeps_small:
            raise UserError(
                f"{self.name}: the batch size is {batch_size} and there are {self.world_size} processes to share it.",
                "Raise the batch size, which counts the samples of all processes together, or start fewer processes.",
            )

    def no_batch_error(self, what: str, num_dropped: int = 0) -> UserError:
        if num_dropped:
            return UserError(
                f"{self.name}: every batch of {what} has fewer samples than there are processes ({self.world_size}).",
                "Make larger batches or start fewer processes.",
            )
        return UserError(
            f"{self.name}: {what} gave no batch.",
            "Look at its paths and filters: it has to give at least one.",
        )


class Source(Protocol):
    """An input that can be read from any batch of any epoch."""

    batch_size: int | None  # samples of a full batch, of all ranks together; None: not known
    num_batches: int | None  # given in one epoch, as far as it is known
    num_samples_of_last: int | None  # in an epoch's last batch, of all ranks together
    batch_sizes_vary: bool  # True also where nothing is known of the sizes

    @property
    def is_ahead(
        self,
    ) -> bool: ...  # whether batches are made by workers or a thread, before they are asked for

    end: int | None  # number that follows the last batch of an epoch, where it is certain

    def read(self, epoch: int, start: int) -> Iterator[Numbered]:
        """Gives the rest of an epoch; a batch's number is the same for any number of ranks."""
        ...

    def state(self) -> dict[str, Any] | None:
        """Gives what it takes to continue here without reading again, as JSON; None: nothing does.

        `has_ended` in it says whether the epoch is known to have nothing more.
        """
        ...

    def load_state(self, state: dict[str, Any] | None) -> None: ...

    def reread(self, epoch: int, number: int) -> Any | None:
        """Gives a batch again, without moving; None: it cannot be had."""
        ...

    def explain(self, error: BaseException, epoch: int) -> UserError | None:
        """Tells what killed a worker, where that is what the error is about."""
        ...

    def close(self) -> None: ...
