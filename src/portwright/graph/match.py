"""Each op of a captured step: a kernel of the target, or the reason that it has none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from portwright.graph.graph import Graph, Place
from portwright.graph.kernels import KernelTable, Verdict

_CURES = {
    "host_read": "Keep the value a tensor: torch.where instead of if, a mask instead of a slice; read it only where values are logged.",
    "dynamic_shape": "Keep the shape fixed: multiply or fill by a mask instead of selecting.",
    "host_tensor": "Make it once as a buffer, or on the device of its input.",
    "failure": "Make the step run on the CPU first: python run.py CPU --validate_only.",
}


@dataclass(frozen=True)
class Refusal:
    """Why one place of the model does not run on the target."""

    op: str
    module: str
    file: str | None
    line: int | None
    reason: str
    cure: str
    count: int = 1  # nodes that share all of the above
    phase: str = "forward"
    repeats: tuple[str, ...] = ()  # other modules with the same refusal at the same line

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class MatchReport:
    """What a target says to a whole step."""

    target: str
    label: str
    graph: Graph
    verdicts: tuple[Verdict, ...]  # one a node
    refused: tuple[Refusal, ...]

    @property
    def supported(self) -> bool:
        return not self.refused

    @property
    def counts(self) -> dict[str, int]:
        return dict(Counter(verdict.how for verdict in self.verdicts))


def match(graph: Graph, table: KernelTable, target: str) -> MatchReport:
    """Judges every node; refusals of the same op at the same line are told once."""
    verdicts = tuple(table.judge(graph, node) for node in graph.nodes)
    found: dict[tuple[str, str, str], list[tuple[str, str, Place | None, str, str]]] = {}
    for stop in graph.stops:
        _add(found, stop.op, stop.message, stop.module, stop.place, _CURES[stop.kind], "forward")
    for node, verdict in zip(graph.nodes, verdicts, strict=True):
        if verdict.how == "refused":
            _add(found, node.op, verdict.reason, node.module, node.place, verdict.cure, node.phase)
    return MatchReport(target, table.label, graph, verdicts, tuple(_merge(found)))


def _add(
    found: dict[tuple[str, str, str], list[tuple[str, str, Place | None, str, str]]],
    op: str,
    reason: str,
    module: str,
    place: Place | None,
    cure: str,
    phase: str,
) -> None:
    found.setdefault((op, str(place), reason), []).append((op, module, place, cure, phase))


def _merge(
    found: dict[tuple[str, str, str], list[tuple[str, str, Place | None, str, str]]],
) -> Sequence[Refusal]:
    refusals = []
    for (op, _, reason), places in found.items():
        _, module, place, cure, phase = places[0]
        others = tuple(dict.fromkeys(p[1] for p in places if p[1] != module))
        refusals.append(
            Refusal(
                op,
                module,
                place.file if place else None,
                place.line if place else None,
                reason,
                cure,
                len(places),
                phase,
                others,
            )
        )
    return refusals
