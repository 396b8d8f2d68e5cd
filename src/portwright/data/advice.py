"""What a user's loader does in the wrong order or slowly, where that can be seen for certain, and what to do instead.

Only what is known is told: the stages of pipelines that say what they are (torch's data pipes, WebDataset, HuggingFace's
iterable data sets), and what lies in a data set's attributes. Code is not guessed at, and no sample is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from portwright.data.fetch import inside
from portwright.data.file_dataset import FileDataset
from portwright.data.gather import ArrayDataset, GatherDataset
from portwright.data.store_dataset import StoreDataset

Kind = Literal["batch", "shuffle", "map", "cache", "repeat", "shard", "take"]
ORDER = "shard, interleave, cache, shuffle, repeat, batch, map, prefetch"

_SMALL_BUFFER = 1000  # samples; smaller ones are told of unless they hold the whole data set
_MANY_ROWS = 1000
_HUGGINGFACE_BATCH = "_batch_fn"  # what IterableDataset.batch maps
_KINDS: dict[str, Kind] = {
    _HUGGINGFACE_BATCH: "batch",
    # torch.utils.data.datapipes and torchdata, by class
    "BatcherIterDataPipe": "batch", "ShufflerIterDataPipe": "shuffle", "MapperIterDataPipe": "map",
    "InMemoryCacheHolderIterDataPipe": "cache", "CyclerIterDataPipe": "repeat", "RepeaterIterDataPipe": "repeat",
    "ShardingFilterIterDataPipe": "shard", "HeaderIterDataPipe": "take",
    # HuggingFace datasets, by class of what an IterableDataset wraps
    "BufferShuffledExamplesIterable": "shuffle", "MappedExamplesIterable": "map", "TakeExamplesIterable": "take",
    "RepeatExamplesIterable": "repeat",
    # WebDataset, by function
    "_shuffle": "shuffle", "shuffle": "shuffle", "_batched": "batch", "batched": "batch", "_map": "map", "map": "map",
    "_decode": "map", "_map_tuple": "map", "_map_dict": "map", "split_by_node": "shard", "split_by_worker": "shard",
    "_slice": "take", "slice": "take",
}  # fmt: skip


@dataclass(frozen=True)
class Stage:
    kind: Kind
    name: str  # as its maker calls it
    buffer_size: int | None = None


def advise(data: Any, *, is_training: bool) -> Iterator[str]:
    """One line for each thing to change, with its cure."""
    if not isinstance(data, DataLoader):
        return
    inner: Any = data.dataset
    yield from _about_workers(data)
    if isinstance(inner, IterableDataset):
        yield from _about_order(read_stages(inner), data, is_training)
    for dataset in inside(inner):
        yield from _about_dataset(dataset, data)


def _about_workers(loader: DataLoader[Any]) -> Iterator[str]:
    cores = len(os.sched_getaffinity(0))
    if loader.num_workers > cores:
        yield (
            f"num_workers is {loader.num_workers}, and this process may use {cores} cores: workers that wait for each other "
            f"slow the training down. Set it to {cores} or less."
        )


def read_stages(dataset: Any) -> list[Stage]:
    """The stages of a pipeline that says what they are, from the first on; none where it does not."""
    stages: list[Stage] = []
    webdataset = getattr(dataset, "pipeline", None)
    if isinstance(webdataset, list):
        for each in webdataset:
            function = getattr(each, "f", None) or getattr(each, "func", each)
            name = getattr(function, "__name__", "")
            if "tar" in name:  # what comes before is about files, not samples
                stages = [stage for stage in stages if stage.kind != "shuffle"]
            _add(stages, name, _first_number(getattr(each, "args", ())))
        return stages
    below: list[Any] = []
    node = getattr(dataset, "_ex_iterable", dataset)
    while node is not None and len(below) < 1000:
        below.append(node)
        node = _below(node)
    for each in reversed(below):
        name = type(each).__name__
        if getattr(getattr(each, "function", None), "__name__", "") == _HUGGINGFACE_BATCH:
            name = _HUGGINGFACE_BATCH
        _add(stages, name, getattr(each, "buffer_size", None))
    return stages


def _below(node: Any) -> Any:
    """What a stage reads from; of several alike, the first."""
    for link in ("datapipe", "_datapipe", "source_datapipe", "ex_iterable"):
        if (found := getattr(node, link, None)) is not None:
            return found
    several = getattr(node, "ex_iterables", None)
    return several[0] if isinstance(several, list) and several else None


def _add(stages: list[Stage], name: str, buffer_size: Any) -> None:
    kind = _KINDS.get(name)
    if kind is not None:
        size = buffer_size if kind == "shuffle" and isinstance(buffer_size, int) else None
        stages.append(
            Stage(kind, name.removesuffix("IterDataPipe").removesuffix("ExamplesIterable").strip("_"), size)
        )


def _first_number(arguments: Any) -> int | None:
    return next((each for each in arguments if type(each) is int), None)


def _about_order(stages: list[Stage], loader: DataLoader[Any], is_training: bool) -> Iterator[str]:
    places = {
        kind: [n for n, stage in enumerate(stages) if stage.kind == kind] for kind in set(_KINDS.values())
    }
    chain = " -> ".join(stage.kind for stage in stages)

    def comes_before(first: Kind, second: Kind) -> bool:
        return bool(places[first] and places[second]) and min(places[first]) < max(places[second])

    if comes_before("batch", "shuffle"):
        yield (
            f"{chain}: it shuffles batches, whose samples stay together in every epoch. Shuffle before batching; the order "
            f"that serves most: {ORDER}."
        )
    if comes_before("repeat", "shuffle"):
        yield (
            f"{chain}: it repeats before it shuffles, so that samples of two epochs mix and some come twice before others "
            "come once. Shuffle, then repeat; a run repeats by itself."
        )
    for kind, verb in (("shard", "shards"), ("take", "takes a part")):
        if comes_before("batch", kind):  # type: ignore[arg-type]
            yield f"{chain}: it {verb} after batching, so that whole batches are read to be thrown away. Do it first."
    if comes_before("map", "cache"):
        yield (
            f"{chain}: it caches what the map made, so that random changes of a sample are the same in every epoch, and the "
            "cache holds decoded samples. Cache first, unless the map is costly and draws nothing."
        )
    last_shard = max((place for place, stage in enumerate(stages) if stage.kind == "shard"), default=-1)
    for place, stage in enumerate(stages):
        # Shuffling before sharding is what torch (all workers share the order) and WebDataset (it shuffles names of
        # archives there) ask for.
        if stage.kind == "shuffle" and place > last_shard and is_training and stage.buffer_size is not None:
            least = max(_SMALL_BUFFER, 4 * (loader.batch_size or 1))
            if stage.buffer_size < least:
                yield (
                    f"{stage.name} has a buffer of {stage.buffer_size} samples: each sample stays near its place in the file. "
                    f"Use {least} or more, or a map-style data set with shuffle=True, which shuffles all."
                )


def _about_dataset(dataset: Any, loader: DataLoader[Any]) -> Iterator[str]:
    name = type(dataset).__name__
    if isinstance(dataset, FileDataset) and dataset.columns.is_slow:
        yield (
            f"{dataset.columns.where} is stored in chunks and too large for memory: every batch reads whole chunks for single "
            "records. Pack it once (`portwright data pack`), or write it contiguously."
        )
    if isinstance(dataset, ArrayDataset | StoreDataset | FileDataset):
        if loader.num_workers and dataset.transform is None:
            yield (
                f"{name} gathers a batch at once, which is quicker than handing it over from a worker. Set num_workers to 0."
            )
        return
    held = vars(dataset) if hasattr(dataset, "__dict__") else {}
    handle = next((key for key, value in held.items() if _is_open_hdf5(value)), None)
    if handle is not None and loader.num_workers and loader.multiprocessing_context is None:
        yield (
            f"{name}.{handle} is an HDF5 handle that was opened before the workers were forked: they share its position in "
            "the file and may read wrong data. Open it on first use in each worker, or use portwright.data.FileDataset."
        )
    if isinstance(dataset, GatherDataset | IterableDataset) or hasattr(dataset, "__getitems__"):
        return
    rows = [key for key, value in held.items() if _is_rows(value, dataset)]
    if (
        rows
        and (loader.batch_size or 0) > 1
        and loader.collate_fn is default_collate
        and _wants_more(dataset)
    ):
        yield (
            f"{name} reads its samples one at a time. Where a sample is no more than its row of {', '.join(rows)}, "
            "portwright.data.ArrayDataset gathers whole batches, ten times as quick and more."
        )


def _is_open_hdf5(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "h5py" and type(value).__name__ in (
        "File",
        "Group",
        "Dataset",
    )


def _is_rows(value: Any, dataset: Any) -> bool:
    is_array = isinstance(value, np.ndarray | torch.Tensor) or (
        _is_open_hdf5(value) and hasattr(value, "shape")
    )
    if not is_array or not len(value.shape):
        return False
    try:
        return bool(value.shape[0] == len(dataset) >= _MANY_ROWS)
    except (TypeError, NotImplementedError):
        return False


def _wants_more(dataset: Any) -> bool:
    """Whether it is the user's own: torch's are gathered by the loader, or decode."""
    return not type(dataset).__module__.startswith(("torch.", "torchvision."))
