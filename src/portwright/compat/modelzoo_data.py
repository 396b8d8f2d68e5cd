"""The functions of `modelzoo.common.pytorch.utils` and `input_utils` for data processors and models."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset, default_collate

from portwright.base_model import split_loss
from portwright.errors import UserError
from portwright.job.params import get_params as read_params_file


class BufferedShuffleDataset(IterableDataset[Any]):
    """A stream shuffled within a buffer, whose draws come from Python's `random`; its length is the stream's."""

    def __init__(self, dataset: Iterable[Any], buffer_size: int) -> None:
        super().__init__()
        if buffer_size < 1:
            raise UserError(f"buffer_size is {buffer_size}.", "Give at least 1; 1 does not shuffle.")
        self.dataset = dataset
        self.buffer_size = buffer_size

    def __iter__(self) -> Iterator[Any]:
        held: list[Any] = []
        for item in self.dataset:
            if len(held) < self.buffer_size:
                held.append(item)
                continue
            place = random.randrange(self.buffer_size)
            held[place], item = item, held[place]
            yield item
        random.shuffle(held)
        yield from held

    def __len__(self) -> int:
        if not isinstance(self.dataset, Sized):
            raise TypeError(f"{type(self.dataset).__name__} has no length")
        return len(self.dataset)


def bucketed_batch(
    data_iterator: Iterable[Any],
    batch_size: int,
    buckets: list[int] | None = None,
    element_length_fn: Callable[[Any], int] | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    drop_last: bool = False,
    seed: int | None = None,
) -> Iterator[Any]:
    """Batches samples of similar length together; `buckets` are the lengths at which a new group begins.

    What is left over at the end is shuffled, so that the last batches are not sorted by length.
    """
    if batch_size < 1:
        raise UserError(f"batch_size is {batch_size}.", "Give at least 1.")
    if buckets is not None:
        _check_buckets(buckets, element_length_fn)
    collate = collate_fn or default_collate
    waiting: list[list[Any]] = [[] for _ in range(len(buckets or ()) + 1)]
    for sample in data_iterator:
        group = waiting[
            bisect_right(buckets, element_length_fn(sample)) if buckets and element_length_fn else 0
        ]
        group.append(sample)
        if len(group) == batch_size:
            yield collate(group.copy())
            group.clear()
    if drop_last:
        return
    rest = [sample for group in waiting for sample in group]
    if buckets is not None:
        random.Random(seed).shuffle(rest)
    for start in range(0, len(rest), batch_size):
        yield collate(rest[start : start + batch_size])


def _check_buckets(buckets: list[int], element_length_fn: Callable[[Any], int] | None) -> None:
    is_list = isinstance(buckets, list) and buckets and all(type(edge) is int for edge in buckets)
    if not is_list or buckets != sorted(buckets) or buckets[0] < 1:
        raise UserError(f"buckets is {buckets!r}.", "Give a sorted list of whole numbers above 0, or None.")
    if element_length_fn is None:
        raise UserError(
            "buckets was given without element_length_fn.", "Give the function that measures a sample."
        )


def get_streaming_batch_size(effective_batch_size: int) -> int:
    """The batch size for a loader: that of the whole batch, since Portwright gives each process its part."""
    return effective_batch_size


def get_input_dtype(to_float16: bool) -> torch.dtype:
    """float16 if it is requested and there is a GPU, else float32."""
    return torch.float16 if to_float16 and torch.cuda.is_available() else torch.float32


def to_tensor(value: Any, device: torch.device | str | None = None) -> Any:
    """Numbers, also in lists and tuples, as int32 and float32 tensors; anything else stays."""
    if isinstance(value, list | tuple):
        return type(value)(to_tensor(item, device) for item in value)
    if isinstance(value, int | float):
        dtype = torch.int32 if isinstance(value, int) else torch.float32
        return torch.tensor(value, dtype=dtype, device=device)
    return value


def visit_structure(
    data_structure: Any,
    select_fn: Callable[[Any], bool],
    strict: bool = False,
    scope: Sequence[str] | None = None,
) -> Generator[tuple[list[str], Any], None, None]:
    """Gives (path, item) of each item of nested lists, tuples and dicts that `select_fn` accepts."""
    path = list(scope or ())
    if isinstance(data_structure, list | tuple):
        inner: Iterable[tuple[Any, Any]] = enumerate(data_structure)
    elif isinstance(data_structure, Mapping):
        inner = data_structure.items()
    elif select_fn(data_structure):
        yield path, data_structure
        return
    elif strict:
        raise ValueError(f"{'.'.join(path) or 'the structure'} holds a {type(data_structure).__name__}")
    else:
        return
    for key, item in inner:
        yield from visit_structure(item, select_fn, strict, [*path, str(key)])


def extract_loss(model_outputs: Any) -> torch.Tensor:
    """The loss in a model's result."""
    return split_loss(model_outputs)[0]


def get_params(params_file: str | Path, config: str | None = None) -> dict[str, Any]:
    """Reads a params file, or one top-level key of it, as a plain dict."""
    params = read_params_file(params_file)
    if config is None:
        return params
    if config not in params:
        raise UserError(f"{params_file} has no config '{config}'.", f"It has {', '.join(map(str, params))}.")
    chosen: dict[str, Any] = params[config]
    return chosen


def update_defaults(params: dict[str, Any], default_params: Mapping[str, Any]) -> dict[str, Any]:
    """Adds what is missing in `params`, section by section, in place."""
    for key, value in default_params.items():
        if isinstance(value, Mapping):
            params[key] = update_defaults(params.get(key, {}), value)
        else:
            params.setdefault(key, value)
    return params


def group_optimizer_params(
    trainable_params: Iterable[tuple[str, torch.nn.Parameter]], oparams: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Two groups of named parameters: those whose weights decay, and those that a part of their name exempts.

    As in release 1.6 the exemption goes by names alone; optimizers that params.yaml describes look at the layers.
    """
    parts = oparams.get("exclude_from_weight_decay") or ("bias", "LayerNorm.weight", "BatchNorm.weight")
    named = list(trainable_params)
    exempt = [parameter for name, parameter in named if any(part in name for part in parts)]
    decayed = [parameter for name, parameter in named if not any(part in name for part in parts)]
    return [
        {"params": decayed, "weight_decay": oparams.get("weight_decay_rate", 0.0)},
        {"params": exempt, "weight_decay": 0.0},
    ]
