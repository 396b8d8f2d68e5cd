"""Batches for the SDK, made by a plain function: on a cluster a worker process calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from portwright.data.loader import ResumableLoader
from portwright.errors import UnsupportedError
from portwright.runtime.inputs import find_data_fn


@dataclass(frozen=True)
class Feed:
    """The description from which a loader is made; it can be sent to another machine."""

    data_fn: Callable[[Any], Any]
    values: dict[str, Any]  # the params
    name: str  # train_input or eval_input
    seed: int
    position: Mapping[str, Any] | None = None
    num_merged: int = 1  # batches that become one
    channel: Any = None  # to other tasks that read data; only if the SDK's loader stays here

    def loader(self) -> ResumableLoader:
        trains = self.name == "train_input"
        loader = ResumableLoader(
            self.data_fn(self.values), name=self.name, seed=self.seed, repeat=trains, channel=self.channel
        )
        if trains and self.position is not None:
            loader.seek(dict(self.position))
        return loader


def make_batches(feed: Feed) -> Any:
    """The function that the SDK's loader calls."""
    loader = feed.loader()
    return loader if feed.num_merged == 1 else _Merged(loader, feed.num_merged)


class _Merged:
    """Joins batches: the gradient of the joined mean is the mean of theirs, and the compiler may split the batch again."""

    def __init__(self, loader: ResumableLoader, count: int) -> None:
        self._loader, self._count = loader, count
        self.batch_size = (loader.batch_size or 0) * count or None

    def __iter__(self) -> Iterator[Any]:
        import torch
        from torch.utils._pytree import tree_map

        batches = iter(self._loader)
        while group := list(islice(batches, self._count)):
            yield tree_map(lambda *parts: torch.cat(parts), *group)


def make_feed(
    job: Any,
    name: str,
    position: Mapping[str, Any] | None = None,
    num_merged: int = 1,
    channel: Any = None,
) -> Feed:
    return Feed(
        find_data_fn(job, name),
        job.params.values,
        name,
        job.params.runconfig.seed,
        position,
        num_merged,
        channel,
    )


def advance(position: Mapping[str, Any], num_done: int, num_batches: int | None) -> dict[str, Any]:
    """The position after `num_done` batches; the loader's own position is further, since the SDK fetches ahead."""
    if num_batches is None:
        raise UnsupportedError(
            "CSX needs training data whose length is known.",
            "Return a DataLoader over a data set with a length.",
        )
    epoch, batch = divmod(position["epoch"] * num_batches + position["batch"] + num_done, num_batches)
    return {
        **position,
        "epoch": epoch,
        "batch": batch,
        "samples": position["samples"] + num_done * (position["batch_size"] or 0),
    }
