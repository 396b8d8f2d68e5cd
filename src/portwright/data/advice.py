"""Advice on a user's loader: steps that it certainly does in the wrong order or slowly, and what to do instead.

The advice comes from the stages of pipelines that name them (torch's data pipes, WebDataset, HuggingFace's iterable
data sets) and from a data set's attributes. No code is analysed and no sample is read.
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
from portwright.data.gather import FileDataset, GatherDataset, RecordDataset

Kind = Literal["batch", "shuffle", "map", "cache", "repeat", "shard", "take"]
ORDER = "shard, interleave, cache, shuffle, repeat, batch, map, prefetch"

_SMALL_BUFFER = 1000  # samples; a smaller shuffle buffer is reported, unless it holds the whole data set
_MIN_ROWS_TO_GATHER = 1000
_LINKS = ("datapipe", "_datapipe", "source_datapipe", "ex_iterable")  # hold the stage that a stage reads
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
    name: str  # as its library calls it
    buffer_size: int | None = None


def advise(data: Any, *, is_training: bool) -> Iterator[str]:
    """Yields one line for each change that would help."""
    if not isinstance(data, DataLoader):
        return
    inner: Any = data.dataset
    cores = len(os.sched_getaffinity(0))
    if data.num_workers > cores:
        yield (
            f"num_workers is {data.num_workers}, and this process may use {cores} cores: workers that wait for each other "
            f"slow the training down. Set it to {cores} or less."
        )
    if isinstance(inner, IterableDataset):
        yield from _about_order(read_stages(inner), data, is_training)
    for dataset in inside(inner):
        yield from _about_dataset(dataset, data)


def read_stages(dataset: Any) -> list[Stage]:
    """The stages of a pipeline, first one first; empty for a data set whose stages are not known."""
    pipeline = getattr(dataset, "pipeline", None)
    found = _of_webdataset(pipeline) if isinstance(pipeline, list) else _of_chain(dataset)
    stages = []
    for name, buffer_size in found:
        kind = _KINDS.get(name)
        if kind is not None:
            size = buffer_size if kind == "shuffle" and isinstance(buffer_size, int) else None
            shown = name.removesuffix("IterDataPipe").removesuffix("ExamplesIterable").strip("_")
            stages.append(Stage(kind, shown, size))
    return stages


def _of_webdataset(pipeline: list[Any]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for each in pipeline:
        function = getattr(each, "f", None) or getattr(each, "func", each)
        name = getattr(function, "__name__", "")
        if "tar" in name:  # what comes before is about files, not samples
            found = [stage for stage in found if _KINDS.get(stage[0]) != "shuffle"]
        arguments = getattr(each, "args", ())
        found.append((name, next((argument for argument in arguments if type(argument) is int), None)))
    return found


def _of_chain(dataset: Any) -> list[tuple[str, Any]]:
    """Follows each stage to the stage that it reads from; of several attributes of a kind, the first counts."""
    found: list[tuple[str, Any]] = []
    node = getattr(dataset, "_ex_iterable", dataset)
    while node is not None and len(found) < 1000:
        function = getattr(getattr(node, "function", None), "__name__", "")
        name = _HUGGINGFACE_BATCH if function == _HUGGINGFACE_BATCH else type(node).__name__
        found.insert(0, (name, getattr(node, "buffer_size", None)))
        links = (getattr(node, link, None) for link in _LINKS)
        several = getattr(node, "ex_iterables", None)
        alike = several[0] if isinstance(several, list) and several else None
        node = next((link for link in links if link is not None), alike)
    return found


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
        # Shuffling before sharding is right in torch (all workers share the order) and in WebDataset (it shuffles the
        # names of archives).
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
    if isinstance(dataset, RecordDataset):
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
        and _is_users_own(dataset)
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
        return bool(value.shape[0] == len(dataset) >= _MIN_ROWS_TO_GATHER)
    except (TypeError, NotImplementedError):
        return False


def _is_users_own(dataset: Any) -> bool:
    """Whether the user wrote the data set's class; torch's own need no advice."""
    return not type(dataset).__module__.startswith(("torch.", "torchvision."))
