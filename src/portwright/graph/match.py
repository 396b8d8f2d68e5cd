"""Each op of a captured step: a kernel of the target, or the reason that it has none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from portwright.graph.graph import Graph, Stop
from portwright.graph.kernels import KernelTable, Verdict
from portwright.graph.tables import base_name
from portwright.legal_forms import cure_for
from portwright.needs import Answer
from portwright.watching.place import Place

_CURES = {
    "host_read": "Keep the value a tensor: torch.where instead of if, a mask instead of a slice; read it only where values are logged.",
    "dynamic_shape": "Keep the shape fixed: multiply or fill by a mask instead of selecting.",
    "host_tensor": "Make it once as a buffer, or on the device of its input.",
    "failure": "Make the step run on the CPU first: python run.py CPU --validate_only.",
}


_NEEDS = {"host_read": "no_host_reads", "dynamic_shape": "static_shapes", "host_tensor": "tensors_on_device"}


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

    @classmethod
    def at(
        cls, place: Place | None, op: str, module: str, reason: str, cure: str, phase: str = "forward"
    ) -> Refusal:
        """The refusal at a line of the user's code, where one is known."""
        file, line = (place.file, place.line) if place is not None else (None, None)
        return cls(op, module, file, line, reason, cure, phase=phase)

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
    """Judges every node; refusals with the same reason at the same line are one, under the first such op."""
    verdicts = tuple(table.judge(graph, node) for node in graph.nodes)
    kinds = {module.path: module.kind for module in graph.modules}
    found = [_found(stop, kinds.get(stop.module, ""), target) for stop in graph.stops]
    # A stop tells more than the table does: why the op cannot have a kernel.
    stopped = {(str(stop.place), base_name(stop.op)) for stop in graph.stops if stop.op}
    for node, verdict in zip(graph.nodes, verdicts, strict=True):
        if verdict.how == "refused" and (str(node.place), base_name(node.op)) not in stopped:
            found.append(
                Refusal.at(node.place, node.op, node.module, verdict.reason, verdict.cure, node.phase)
            )
    return MatchReport(target, table.label, graph, verdicts, tuple(_merge(found)))


def refused_in_a_step(needs: Mapping[str, Answer]) -> dict[str, Answer]:
    """The answers that refuse a need of which a captured step shows whether it is kept."""
    seen = (*_NEEDS.values(), "no_float64")
    return {need: needs[need] for need in seen if need in needs and needs[need].verdict == "refused"}


def match_needs(graph: Graph, needs: Mapping[str, Answer], target: str) -> MatchReport:
    """Judges a step for a target without a table: it runs all that torch runs, except for the needs that it refuses."""
    refused = refused_in_a_step(needs)
    found, verdicts = [], []
    for stop in graph.stops:
        if stop.kind == "failure":
            cure = "Make the step run on this machine first, with a real batch of this shape."
            found.append(Refusal.at(stop.place, stop.op, stop.module, stop.message, cure))
        elif (answer := refused.get(_NEEDS[stop.kind])) is not None:
            cure = answer.cure or _CURES[stop.kind]
            reason = f"{stop.message}: {answer.reason}"
            found.append(Refusal.at(stop.place, stop.op, stop.module, reason, cure))
    for node in graph.nodes:
        is_wide = any(value.dtype == "float64" for value in graph.output_values(node))
        answer = refused.get("no_float64") if is_wide else None
        verdicts.append(Verdict("native") if answer is None else Verdict("refused", answer.reason))
        if answer is not None:
            cure = answer.cure or "Use float32."
            found.append(Refusal.at(node.place, node.op, node.module, answer.reason, cure, node.phase))
    label = "whatever torch runs here, it runs" + (f", but for {', '.join(refused)}" if refused else "")
    return MatchReport(target, label, graph, tuple(verdicts), tuple(_merge(found)))


def _found(stop: Stop, kind: str, target: str) -> Refusal:
    op, cure = stop.op, _CURES[stop.kind]
    if stop.kind == "failure":
        # Where a layer itself fails, for instance under a target's mixed precision, its legal form is the cure.
        form = cure_for(f"nn.{kind}", target) if kind else None
        op, cure = op or (kind if form else "the step"), form or cure
    return Refusal.at(stop.place, op, stop.module, stop.message, cure)


def _merge(found: Sequence[Refusal]) -> Iterator[Refusal]:
    alike: dict[tuple[Any, ...], list[Refusal]] = {}
    for one in found:
        # Without a line the op is all that tells two refusals apart.
        key = (one.file, one.line, one.reason) if one.file else (one.op, one.module, one.reason)
        alike.setdefault(key, []).append(one)
    for group in alike.values():
        first = group[0]
        others = tuple(dict.fromkeys(one.module for one in group if one.module != first.module))
        yield replace(first, count=len(group), repeats=others)
