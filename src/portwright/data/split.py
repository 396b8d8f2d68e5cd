"""Each rank's part of a global batch, and the number of samples in one."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch

from portwright.errors import UserError

Counts = tuple[int, int]  # samples of a batch: on this rank, on all ranks

_CURE = (
    "Make every tensor of the batch start with the batch dimension, or shard the data yourself with a "
    "DistributedSampler."
)


def part_bounds(num_samples: int, rank: int, world_size: int) -> tuple[int, int]:
    """The bounds of a rank's contiguous part of a batch; parts differ by at most one sample."""
    base, extra = divmod(num_samples, world_size)
    start = rank * base + min(rank, extra)
    return start, start + base + (rank < extra)


def count_samples(batch: Any) -> int | None:
    """The number of samples in a collated batch; None where nothing in it has a first dimension."""
    sizes = set(_first_dimensions(batch))
    if len(sizes) == 1:
        return sizes.pop()
    # Sizes differ: the fields are lists with one entry a sample, such as images and boxes of detection.
    fields = list(batch.values()) if isinstance(batch, Mapping) else batch
    if isinstance(fields, (list, tuple)):
        lengths = {
            len(field)
            for field in fields
            if (isinstance(field, (list, tuple)) and _is_plain(field))
            or (isinstance(field, (torch.Tensor, np.ndarray)) and field.ndim > 0)
        }
        if len(lengths) == 1:
            return lengths.pop()
    return next(_first_dimensions(batch), None)


def _first_dimensions(node: Any) -> Iterator[int]:
    if isinstance(node, (torch.Tensor, np.ndarray)):
        if node.ndim:
            yield node.shape[0]
    elif isinstance(node, Mapping):
        for value in node.values():
            yield from _first_dimensions(value)
    elif isinstance(node, (list, tuple)):
        if node and _is_plain(node) and all(_is_scalar(item) for item in node):
            yield len(node)
        else:
            for item in node:
                yield from _first_dimensions(item)
    elif dataclasses.is_dataclass(node):
        for field in dataclasses.fields(node):
            yield from _first_dimensions(getattr(node, field.name))


def _is_scalar(node: Any) -> bool:
    if isinstance(node, (torch.Tensor, np.ndarray)):
        return node.ndim == 0
    return node is None or isinstance(node, (str, bytes, bool, int, float, complex, np.generic))


def _is_plain(node: Any) -> bool:
    """Whether a list or tuple may hold one entry a sample; a named tuple never does."""
    return not hasattr(node, "_fields")


class _SizesDisagree(Exception):
    def __init__(self, path: str, size: int) -> None:
        self.path = path
        self.size = size


class BatchSplitter:
    """Cuts one rank's part out of collated batches: tensors, arrays and lists, in any nesting."""

    def __init__(self, name: str, rank: int, world_size: int) -> None:
        self._name = name
        self._rank = rank
        self._world_size = world_size
        # By path: whether a list has one entry a sample, learned from a batch whose sizes left no doubt.
        self._lists_samples: dict[str, bool] = {}

    def split(self, batch: Any, num_samples: int | None) -> tuple[Any, int]:
        """This rank's part and its number of samples."""
        if num_samples is None:
            raise UserError(
                f"{self._name}: a batch of type {type(batch).__name__} holds no tensor with a batch dimension, so "
                f"it cannot be split among {self._world_size} processes.",
                _CURE,
            )
        start, stop = part_bounds(num_samples, self._rank, self._world_size)
        try:
            return self._cut(batch, start, stop, num_samples, ""), stop - start
        except _SizesDisagree as error:
            raise UserError(
                f"{self._name}: a batch of {num_samples} samples cannot be split among {self._world_size} "
                f"processes: batch{error.path} has {error.size} entries.",
                _CURE,
            ) from None

    def _cut(self, node: Any, start: int, stop: int, num_samples: int, path: str) -> Any:
        if _is_scalar(node):
            return node  # a value for the whole batch
        if isinstance(node, (torch.Tensor, np.ndarray)):
            if node.shape[0] != num_samples:
                raise _SizesDisagree(path, node.shape[0])
            return node[start:stop]
        if isinstance(node, Mapping):
            cut = {
                key: self._cut(value, start, stop, num_samples, f"{path}[{key!r}]")
                for key, value in node.items()
            }
            return _like_mapping(node, cut)
        if isinstance(node, (list, tuple)):
            return self._cut_sequence(node, start, stop, num_samples, path)
        if dataclasses.is_dataclass(node) and not isinstance(node, type):
            changes = {
                field.name: self._cut(
                    getattr(node, field.name), start, stop, num_samples, f"{path}.{field.name}"
                )
                for field in dataclasses.fields(node)
                if field.init
            }
            return dataclasses.replace(node, **changes)
        raise UserError(
            f"{self._name}: batch{path} is a {type(node).__name__}, which cannot be split among "
            f"{self._world_size} processes.",
            _CURE,
        )

    def _cut_sequence(self, node: Sequence[Any], start: int, stop: int, num_samples: int, path: str) -> Any:
        if _is_plain(node) and all(_is_scalar(item) for item in node):
            if len(node) != num_samples:
                raise _SizesDisagree(path, len(node))
            return node[start:stop]
        try:
            cut = [self._cut(item, start, stop, num_samples, f"{path}[{i}]") for i, item in enumerate(node)]
        except _SizesDisagree:
            if len(node) != num_samples or not _is_plain(node):
                raise
            self._lists_samples[path] = True
            return node[start:stop]
        # As many entries as samples: these may be fields or samples.
        if path and len(node) == num_samples and _is_plain(node):
            known = self._lists_samples.get(path)
            if known is None:
                raise UserError(
                    f"{self._name}: batch{path} holds {num_samples} tensors of first dimension {num_samples}; one "
                    f"cannot tell whether that is one a sample, so it cannot be split among {self._world_size} "
                    "processes.",
                    "Return such tensors under names, in a dict, or stacked into one tensor.",
                )
            if known:
                return node[start:stop]
        else:
            self._lists_samples[path] = False
        if isinstance(node, tuple) and hasattr(node, "_fields"):
            return type(node)(*cut)
        return tuple(cut) if isinstance(node, tuple) else cut


def _like_mapping(node: Mapping[Any, Any], items: dict[Any, Any]) -> Mapping[Any, Any]:
    if type(node) is dict:
        return items
    if isinstance(node, MutableMapping):
        clone = copy.copy(node)
        clone.update(items)
        return clone
    return items
