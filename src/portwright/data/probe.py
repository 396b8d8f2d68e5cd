"""Whether two processes see the same samples at the same places, judged by a few of them.

A data set whose order comes of a set of strings, or of a directory that nobody sorted, has another order in every process: orders
for its samples would repeat some and lose others, in silence. A run whose data are in order must never be refused, so that what
differs from one reading to the next (an own generator, a clock), in all samples alike (a host's name) or by rounding says nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations, islice
from typing import Any

import numpy as np
import torch

from portwright.data.failures import Failure
from portwright.data.seeding import RandomStream, untouched_cuda_rng
from portwright.stream.progress import tell_progress

Look = list[dict[str, list[Any]]]  # what there is to each sample that is looked at, as JSON

_NUM_LOOKS = 3  # that the coordinator takes before it tells anything
_NUM_DOUBTS = 20  # looks of a worker that sees something else: chance, such as a flip now and then, shows itself meanwhile
_MAX_PARTS = 16  # of a sample
_NUM_MEANS = 8  # of an array
_RICH_SIZE = 16  # numbers or letters: what is as long stands for its sample, and a label does not
_ROUNDING, _EXACT_ROUNDING = 1e-3, 1e-9  # processors differ in their rounding, decoders by a bit


class Probe:
    """The first, the middle and the last sample of a data set, as this process sees them."""

    def __init__(self, read: Callable[[int], Any], num_samples: int) -> None:
        self._read = read
        self._places = sorted({0, num_samples // 2, num_samples - 1}) if num_samples > 1 else []
        self._told: Look | None = None
        self._has_told = False

    def tell(self) -> Look | None:
        """What others may compare theirs with; None where that would say nothing."""
        if not self._has_told:
            self._has_told = True
            self._told = self._look()
            for _ in range(1, _NUM_LOOKS):
                self._told = _without_chance(self._told, self._look())
            if not self._told or not self._told[0]:
                self._told = None
        return self._told

    def contradicts(self, told: Look | None) -> bool:
        """Whether these are certainly other samples than those that another process told of."""
        mine = self._look() if told else None
        for _ in range(_NUM_DOUBTS):
            if not self._differs(mine, told):
                return False
            mine = _without_chance(mine, self._look())
        return self._differs(mine, told)

    def _look(self) -> Look | None:
        look: Look = []
        try:
            for place in self._places:
                tell_progress()
                # Anew for each: a transform that draws from the process's generators draws the same in all processes.
                with RandomStream(0, spotless=True), untouched_cuda_rng():
                    sample = self._read(place)
                if type(sample) is Failure:
                    return None
                look.append(dict(islice(_parts(sample), _MAX_PARTS)))
        except Exception:  # whatever is wrong with the data comes up, and is told, when a batch is made
            return None
        return look

    def _differs(self, mine: Look | None, told: Look | None) -> bool:
        if not mine or not told or len(mine) != len(told):
            return False
        common = set[str].intersection(*(set(sample) for sample in (*mine, *told)))
        telling = [
            name
            for name in common
            if _tells_apart(mine, name)
            and _tells_apart(told, name)
            and not (self._is_index(mine, name) and self._is_index(told, name))
        ]
        rich = [name for name in telling if all(_is_rich(sample[name]) for sample in told)]
        return any(
            not any(_is_same(one[name], other[name]) for name in rich or telling)
            for one, other in zip(mine, told, strict=True)
            if telling
        )

    def _is_index(self, look: Look, name: str) -> bool:
        """Whether a part of the samples is just the number that they were asked for by."""
        numbers = [_as_number(sample[name]) for sample in look]
        return numbers == self._places


def _tells_apart(look: Look, name: str) -> bool:
    """Whether a part of the samples is another in each of them."""
    return not any(_is_same(one[name], other[name]) for one, other in combinations(look, 2))


def _without_chance(look: Look | None, again: Look | None) -> Look | None:
    """Leaves out the parts that were not the same in another look."""
    if not look or not again:
        return None
    pairs = list(zip(look, again, strict=True))
    steady = [
        name
        for name in look[0]
        if all(name in one and name in other and _is_same(one[name], other[name]) for one, other in pairs)
    ]
    return [{name: sample[name] for name in steady} for sample in look]


def _parts(value: Any, where: str = "") -> Iterator[tuple[str, list[Any]]]:
    """The texts and arrays that a sample consists of; other things are passed over."""
    if isinstance(value, Mapping):
        for key in value:
            yield from _parts(value[key], f"{where}/{key}")
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            yield from _parts(item, f"{where}/{place}")
    elif isinstance(value, (str, bytes)):
        text = value if isinstance(value, bytes) else value.rsplit("/", 1)[-1].encode(errors="replace")
        digest = hashlib.blake2b(text, digest_size=8).hexdigest()  # of a path without its folders
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


def _is_rich(part: list[Any]) -> bool:
    return bool(math.prod(part[1]) >= _RICH_SIZE)


def _as_number(part: list[Any]) -> float | None:
    return part[3] if part[0] == "numbers" and math.prod(part[1]) == 1 else None
