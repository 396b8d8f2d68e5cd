"""Compares a few samples of two processes, to find out whether both number their samples alike.

A data set that is ordered by a set of strings, or by an unsorted directory listing, has another order in each process: batches
ordered by index would then silently repeat some samples and lose others. Correct data must never be refused. So parts are
ignored that differ from one reading to the next (random numbers, a clock), are alike in all samples, or differ by rounding.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import combinations, islice
from typing import Any

import numpy as np
import torch

from portwright.data.failures import Failure
from portwright.data.seeding import RandomStream, untouched_cuda_rng
from portwright.stream.progress import tell_progress

Reading = list[dict[str, list[Any]]]  # for each sample read its parts by name, as JSON

_NUM_READINGS = 3  # readings of the coordinator, to leave out what changes
_NUM_RECHECKS = 20  # further readings where samples differ: some parts change by chance
_MAX_PARTS = 16  # compared in a sample
_NUM_MEANS = 8  # that stand for an array
_LONG_SIZE = 16  # numbers or letters: a part this long identifies its sample, a label does not
_ROUNDING, _EXACT_ROUNDING = 1e-3, 1e-9  # relative; processors and decoders round differently


class Probe:
    """The first, the middle and the last sample of a data set, as this process sees them."""

    def __init__(self, read: Callable[[int], Any], num_samples: int) -> None:
        self._read = read
        self._places = sorted({0, num_samples // 2, num_samples - 1}) if num_samples > 1 else []

    def tell(self) -> Reading | None:
        """The parts to compare with another process's; None where nothing can be compared."""
        return self._told

    @cached_property
    def _told(self) -> Reading | None:
        told = self._read_samples()
        for _ in range(1, _NUM_READINGS):
            told = _keep_unchanged(told, self._read_samples())
        return told if told and told[0] else None

    def contradicts(self, told: Reading | None) -> bool:
        """Whether these samples certainly differ from those that another process told."""
        mine = self._read_samples() if told else None
        for _ in range(_NUM_RECHECKS):
            if not self._differs(mine, told):
                return False
            mine = _keep_unchanged(mine, self._read_samples())
        return self._differs(mine, told)

    def _read_samples(self) -> Reading | None:
        reading: Reading = []
        try:
            for place in self._places:
                tell_progress()
                # A new stream for each sample: transforms then draw the same numbers in all processes.
                with RandomStream(0, spotless=True), untouched_cuda_rng():
                    sample = self._read(place)
                if type(sample) is Failure:
                    return None
                reading.append(dict(islice(_parts(sample), _MAX_PARTS)))
        except Exception:  # an error in the data is reported when a batch is made
            return None
        return reading

    def _differs(self, mine: Reading | None, told: Reading | None) -> bool:
        if not mine or not told or len(mine) != len(told):
            return False
        common = set[str].intersection(*(set(sample) for sample in (*mine, *told)))
        distinct = [
            name
            for name in common
            if _differs_in_each(mine, name)
            and _differs_in_each(told, name)
            and not all(
                _numbers_in(reading, name) == self._places for reading in (mine, told)
            )  # the index itself
        ]
        long = [name for name in distinct if all(math.prod(sample[name][1]) >= _LONG_SIZE for sample in told)]
        return any(
            not any(_is_same(one[name], other[name]) for name in long or distinct)
            for one, other in zip(mine, told, strict=True)
            if distinct
        )


def _differs_in_each(reading: Reading, name: str) -> bool:
    """Whether a part has a different value in each sample."""
    return not any(_is_same(one[name], other[name]) for one, other in combinations(reading, 2))


def _keep_unchanged(reading: Reading | None, again: Reading | None) -> Reading | None:
    """Keeps the parts that another reading found unchanged."""
    if not reading or not again:
        return None
    pairs = list(zip(reading, again, strict=True))
    steady = [
        name
        for name in reading[0]
        if all(name in one and name in other and _is_same(one[name], other[name]) for one, other in pairs)
    ]
    return [{name: sample[name] for name in steady} for sample in reading]


def _parts(value: Any, where: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Yields the texts and arrays in a sample; other values are skipped."""
    if isinstance(value, Mapping):
        for key in value:
            yield from _parts(value[key], f"{where}/{key}")
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            yield from _parts(item, f"{where}/{place}")
    elif isinstance(value, (str, bytes)):
        text = value if isinstance(value, bytes) else value.rsplit("/", 1)[-1].encode(errors="replace")
        digest = hashlib.blake2b(text, digest_size=8).hexdigest()  # of a path only the file's name
        yield where, ["text", [len(text)], digest]
    elif isinstance(value, torch.Tensor):
        plain = value.detach().cpu()
        yield from _array(plain.float() if plain.is_floating_point() else plain, where)
    elif isinstance(value, (bool, int, float, np.generic, np.ndarray)):
        yield from _array(value, where)


def _array(value: Any, where: str) -> Iterator[tuple[str, list[Any]]]:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        return
    pieces = np.array_split(array.reshape(-1), min(_NUM_MEANS, array.size) or 1)
    with np.errstate(all="ignore"):
        means = [float(piece.mean(dtype=np.float64)) if piece.size else 0.0 for piece in pieces]
        size = max(float(np.abs(piece, dtype=np.float64).mean()) if piece.size else 0.0 for piece in pieces)
    is_exact = array.dtype.kind in "iu" and array.dtype.itemsize > 1
    margin = size * (_EXACT_ROUNDING if is_exact else _ROUNDING)
    numbers = [number if math.isfinite(number) else 0.0 for number in (margin, *means)]
    yield where, ["numbers", list(array.shape), *numbers]


def _is_same(one: list[Any], other: list[Any]) -> bool:
    if one[0] == "text" or one[:2] != other[:2]:
        return one == other
    margin = max(one[2], other[2])
    return all(abs(a - b) <= margin for a, b in zip(one[3:], other[3:], strict=True))


def _numbers_in(reading: Reading, name: str) -> list[float | None]:
    """A part of each sample, where it is a single number."""
    parts = [sample[name] for sample in reading]
    return [part[3] if part[0] == "numbers" and math.prod(part[1]) == 1 else None for part in parts]
