"""Searches over sequences and points that torch has no op for (names as in `poptorch.ops`)."""

from __future__ import annotations

import itertools
import math
from typing import Any, List, Optional, Union

import torch
from torch import Tensor

from portwright.emulate.poptorch import _active, _impl
from portwright.emulate.poptorch._expect import expect_int, expect_tensor, told

_library = torch.library.Library("poptorch", "FRAGMENT")
_library.define(
    "ctc_beam_search_decoder(Tensor probs, Tensor lengths, int blank, int beam_width, int top_paths) -> (Tensor, Tensor, Tensor)"
)
_library.define("fps(Tensor src, int[] ptr, float ratio, bool random_start) -> Tensor")
_library.define("nearest(Tensor x, Tensor y, Tensor batch_x, Tensor batch_y) -> Tensor")

_NEVER = float("-inf")


def ctc_beam_search_decoder(
    probs: "torch.Tensor",
    lengths: "torch.Tensor",
    blank: int = 0,
    beam_width: int = 100,
    top_paths: int = 1,
) -> List["torch.Tensor"]:
    """The likeliest labellings of sequences of logarithmic probabilities [time, batch, classes].

    Gives their logarithmic probabilities [batch, paths], lengths [batch, paths] and labels [batch, paths, time]. Outside of a
    model it decodes as well, where the real one gives zeros.
    """
    expect_tensor("the probs of ctc_beam_search_decoder", probs)
    expect_tensor("the lengths of ctc_beam_search_decoder", lengths)
    for name, value in (("blank", blank), ("beam_width", beam_width), ("top_paths", top_paths)):
        expect_int(f"the {name} of ctc_beam_search_decoder", value)
    if probs.dim() != 3:
        raise _impl.createPoptorchError(
            f"ctc_beam_search_decoder takes probs of [time, batch, classes], not of shape {list(probs.shape)}."
        )
    if list(lengths.shape) != [probs.shape[1]]:
        raise _impl.createPoptorchError(
            f"ctc_beam_search_decoder takes a length for each of {probs.shape[1]} sequences, not {list(lengths.shape)}."
        )
    if not 0 <= blank < probs.shape[2] or not 1 <= top_paths <= beam_width:
        raise _impl.createPoptorchError(
            f"ctc_beam_search_decoder: blank={blank} of {probs.shape[2]} classes, top_paths={top_paths}, beam_width={beam_width}. "
            "The blank must be a class, and the beam as wide as the number of paths."
        )
    return torch.ops.poptorch.ctc_beam_search_decoder(  # type: ignore[no-any-return]
        probs.detach(), lengths.detach(), blank, beam_width, top_paths
    )


def _decode(probs: Tensor, lengths: Tensor, blank: int, beam_width: int, top_paths: int) -> Any:
    time, batch, _ = probs.shape
    scores = probs.new_full((batch, top_paths), _NEVER)
    path_lengths = torch.zeros((batch, top_paths), dtype=torch.int32)
    paths = torch.full((batch, top_paths, time), blank, dtype=torch.int32)
    table, ends = probs.float().tolist(), lengths.tolist()
    for sequence in range(batch):
        steps = [table[step][sequence] for step in range(min(time, int(ends[sequence])))]
        for rank, (labels, score) in enumerate(_search(steps, blank, beam_width)[:top_paths]):
            scores[sequence, rank] = score
            path_lengths[sequence, rank] = len(labels)
            paths[sequence, rank, : len(labels)] = torch.tensor(labels, dtype=torch.int32)
    return scores, path_lengths, paths


def _search(steps: list[list[float]], blank: int, width: int) -> list[tuple[tuple[int, ...], float]]:
    """Prefix beam search: of each labelling, how likely it is ending in a blank, and not."""
    beams: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, _NEVER)}
    for step in steps:
        following: dict[tuple[int, ...], tuple[float, float]] = {}

        def add(
            labels: tuple[int, ...],
            in_blank: float,
            in_label: float,
            into: dict[Any, tuple[float, float]] = following,
        ) -> None:
            old = into.get(labels, (_NEVER, _NEVER))
            into[labels] = _log_add(old[0], in_blank), _log_add(old[1], in_label)

        for labels, (in_blank, in_label) in beams.items():
            total = _log_add(in_blank, in_label)
            for kind, score in enumerate(step):
                if kind == blank:
                    add(labels, total + score, _NEVER)
                elif labels and labels[-1] == kind:
                    add(labels, _NEVER, in_label + score)  # the same label goes on
                    add((*labels, kind), _NEVER, in_blank + score)
                else:
                    add((*labels, kind), _NEVER, total + score)
        best = sorted(following.items(), key=lambda item: -_log_add(*item[1]))[:width]
        beams = dict(best)
    return sorted(((labels, _log_add(*score)) for labels, score in beams.items()), key=lambda item: -item[1])


def _log_add(one: float, other: float) -> float:
    high, low = max(one, other), min(one, other)
    return high if low == _NEVER else high + math.log1p(math.exp(low - high))


def fps(
    src: "torch.Tensor", ptr: List[int], ratio: float = 0.5, random_start: bool = False
) -> "torch.Tensor":
    """Indices of points that lie far from each other: of each range in `ptr` the given ratio, each time the farthest."""
    expect_tensor("the points given to fps", src)
    if not isinstance(ptr, list) or not all(isinstance(position, int) for position in ptr):
        raise _impl.createPoptorchError(f"the ptr of fps is a list of integers, not {told(ptr)}.")
    if len(ptr) < 2:
        raise _impl.createPoptorchError(f"the ptr of fps has at least 2 elements, not {ptr!r}.")
    if not isinstance(ratio, float):
        raise _impl.createPoptorchError(f"the ratio of fps is a float, not {told(ratio)}.")
    if not isinstance(random_start, bool):
        raise _impl.createPoptorchError(f"random_start of fps is a bool, not {told(random_start)}.")
    if ptr != sorted(ptr) or ptr[0] < 0 or ptr[-1] > src.shape[0] or not 0 < ratio <= 1:
        raise _impl.createPoptorchError(
            f"fps of {src.shape[0]} points with ptr={ptr} and ratio={ratio}: ptr must go up within the points, and the ratio be in (0, 1]."
        )
    chosen: Tensor = torch.ops.poptorch.fps(src.detach(), ptr, ratio, random_start)
    return chosen


def _fps(src: Tensor, ptr: list[int], ratio: float, random_start: bool) -> Tensor:
    points = src.reshape(src.shape[0], -1).float()
    chosen: list[Tensor] = []
    for start, end in itertools.pairwise(ptr):
        count = math.ceil((end - start) * ratio)
        if not count:
            continue
        part = points[start:end]
        current = torch.randint(end - start, (1,))[0] if random_start else torch.zeros((), dtype=torch.int64)
        distance = torch.full((end - start,), float("inf"))
        for _ in range(count):
            chosen.append(current + start)
            distance = torch.minimum(distance, (part - part[current]).square().sum(1))
            current = distance.argmax()
    return torch.stack(chosen).to(torch.int32) if chosen else torch.zeros(0, dtype=torch.int32)


def nearest(
    x: "torch.Tensor",
    y: "torch.Tensor",
    batch_x: Optional[Union[List[int], "torch.Tensor"]] = None,
    batch_y: Optional[Union[List[int], "torch.Tensor"]] = None,
):
    """Of each point in `x`, the index of the nearest one in `y` that belongs to the same sample."""
    expect_tensor("the x of nearest", x)
    expect_tensor("the y of nearest", y)
    samples = []
    for name, points, given in (("batch_x", x, batch_x), ("batch_y", y, batch_y)):
        if given is None or (isinstance(given, list) and not given):
            given = [0] * points.shape[0]
        if not isinstance(given, (list, Tensor)):
            raise _impl.createPoptorchError(
                f"the {name} of nearest is a tensor or a list, not {type(given).__name__}."
            )
        with _active.trusted():
            sample = torch.tensor(given, device=points.device) if isinstance(given, list) else given
        if list(sample.shape) != [points.shape[0]]:
            raise _impl.createPoptorchError(
                f"the {name} of nearest says the sample of each of {points.shape[0]} points; it has the shape {list(sample.shape)}."
            )
        samples.append(sample)
    return torch.ops.poptorch.nearest(x.detach(), y.detach(), *samples)


def _nearest(x: Tensor, y: Tensor, batch_x: Tensor, batch_y: Tensor) -> Tensor:
    distance = torch.cdist(x.reshape(x.shape[0], -1).float(), y.reshape(y.shape[0], -1).float())
    distance = distance.masked_fill(batch_x[:, None] != batch_y[None, :], float("inf"))
    return distance.argmin(1).to(torch.int32)


_library.impl("ctc_beam_search_decoder", _decode, "CompositeExplicitAutograd")
_library.impl("fps", _fps, "CompositeExplicitAutograd")
_library.impl("nearest", _nearest, "CompositeExplicitAutograd")
