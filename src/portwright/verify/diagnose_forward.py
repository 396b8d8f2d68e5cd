"""Finds the first module, in the order of the calls, whose output differs between two runs."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

from portwright.verify.compare import Comparison
from portwright.verify.measure import EPSILON, NOISE_FACTOR
from portwright.verify.recording import ModuleOutput, Recording, Step

_ROUNDINGS = 16.0


@dataclass(frozen=True)
class Located:
    """The first module whose output differs, and the nearest before it whose output is the same."""

    module: str
    kind: str
    before: str | None
    parameter: str | None  # the module's first parameter, or else that of the next module with one
    original: ModuleOutput
    ported: ModuleOutput | None
    distance: float
    bound: float


def forward_order(recording: Recording) -> list[str]:
    """Parameters in the order in which the first step used them; those of modules that are never called follow the one registered before them."""
    names = [t.name for t in recording.tensors if t.kind == "parameter"]
    first: dict[str, int] = {}
    for step in recording.steps[:1]:
        for place, output in enumerate(step.outputs):
            first.setdefault(output.module, place)
    ordered: list[tuple[int, int, str]] = []
    position = -1
    for index, name in enumerate(names):
        position = first.get(_owner(name), position)
        ordered.append((position, index, name))
    return [name for _, _, name in sorted(ordered)]


def locate(comparison: Comparison, step: int, *, around: bool = False) -> Located | None:
    """The first innermost module whose output differs in this step; None where all paired outputs agree.

    With `around` it is sought among modules that contain others, whose own code runs around the layers inside.
    """
    mine, theirs = comparison.original.steps[step - 1], comparison.ported.steps[step - 1]
    noises = _noises(comparison, mine)
    before: str | None = None
    outer = _around(mine)
    chosen = outer if around else {output.module for output in mine.outputs} - outer
    for place, output, other in _pairs(comparison, mine, theirs, chosen):
        if other is None:
            continue
        distance = output_distance(output, other)
        bound = max(_ROUNDINGS * EPSILON["float32"] * step, NOISE_FACTOR * noises.get(place, 0.0))
        if distance > bound:
            parameter = _parameter_at(comparison.original, mine, place)
            return Located(output.module, output.kind, before, parameter, output, other, distance, bound)
        before = output.module
    return None


def output_distance(a: ModuleOutput, b: ModuleOutput) -> float:
    """The relative distance of two outputs, estimated from sums that do not depend on layout."""
    if not all(map(math.isfinite, (a.total, a.square, b.total, b.square))):
        return 0.0 if math.isfinite(a.square) == math.isfinite(b.square) else math.inf
    square = max(a.square, b.square)
    if not square:
        return 0.0
    total = abs(a.total - b.total) / math.sqrt(square * max(1, a.size))
    return max(total, abs(a.square - b.square) / square / 2)


def _pairs(
    comparison: Comparison, mine: Step, theirs: Step, chosen: set[str]
) -> list[tuple[int, ModuleOutput, ModuleOutput | None]]:
    """Each call of these modules of the original with the same call in the port, where there is one."""
    names = _module_names(comparison.ported)
    calls: defaultdict[str, list[ModuleOutput]] = defaultdict(list)
    for output in theirs.outputs:
        calls[output.module].append(output)
    mine_calls: defaultdict[str, int] = defaultdict(int)
    for output in mine.outputs:
        mine_calls[output.module] += 1
    turn: defaultdict[str, int] = defaultdict(int)
    pairs: list[tuple[int, ModuleOutput, ModuleOutput | None]] = []
    for place, output in enumerate(mine.outputs):
        number, turn[output.module] = turn[output.module], turn[output.module] + 1
        if output.module not in chosen:
            continue
        found = calls.get(names.get(output.module, output.module), [])
        other = found[number] if number < len(found) and len(found) == mine_calls[output.module] else None
        if other is None or other.size != output.size:
            # Renamed without parameters, or called another number of times: pair it with any equal output of the port.
            other = next(
                (o for o in theirs.outputs if o.size == output.size and output_distance(output, o) < 1e-5),
                None,
            )
        pairs.append((place, output, other))
    return pairs


def _noises(comparison: Comparison, mine: Step) -> dict[int, float]:
    perturbed = comparison.perturbed
    if perturbed is None or len(perturbed.steps) < mine.index:
        return {}
    outputs = perturbed.steps[mine.index - 1].outputs
    if len(outputs) != len(mine.outputs):
        return {}
    return {
        place: output_distance(a, b) for place, (a, b) in enumerate(zip(mine.outputs, outputs, strict=True))
    }


def _around(step: Step) -> set[str]:
    """Modules in which others are called."""
    names = {o.module for o in step.outputs}
    # "<Loss>" is outside the model
    paths = [name.split(".") for name in names if name and not name.startswith("<")]
    return names & (
        {".".join(parts[:n]) for parts in paths for n in range(1, len(parts))} | ({""} if paths else set())
    )


def _module_names(ported: Recording) -> dict[str, str]:
    """The port's name of each module of the original whose matched tensors all lie in one module of the port."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for match in ported.matches:
        found[_owner(match.original)].update(_owner(name) for name in match.ported)
    return {mine: theirs.copy().pop() for mine, theirs in found.items() if len(theirs) == 1}


def _parameter_at(recording: Recording, step: Step, place: int) -> str | None:
    """The first parameter of the module called here, or else of the next that has one."""
    first: dict[str, str] = {}
    for tensor in recording.tensors:
        if tensor.kind == "parameter":
            first.setdefault(_owner(tensor.name), tensor.name)
    return next((first[o.module] for o in step.outputs[place:] if o.module in first), None)


def _owner(name: str) -> str:
    return name.rpartition(".")[0]
