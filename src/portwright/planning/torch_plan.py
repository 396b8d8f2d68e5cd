"""`portwright plan`: captures a subject once for each way of casting, and plans it on each target."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from portwright.base_model import LossModule
from portwright.errors import UserError
from portwright.graph.capturing.capture import capture
from portwright.graph.capturing.hosts import converting_fakes
from portwright.graph.graph import Graph
from portwright.graph.match import MatchReport, match, match_needs
from portwright.graph.plans.files import Planned
from portwright.graph.plans.fit import parse_mode
from portwright.graph.plans.optimizer_state import OptimizerCost
from portwright.graph.plans.plan import make_plan
from portwright.graph.plans.request import PlanOptions, machine_of, parse_memory
from portwright.layers.legal import legalise
from portwright.legal_forms import valid_targets
from portwright.planning.subject import Subject
from portwright.target import Target


def plan_subject(subject: Subject, options: PlanOptions) -> Planned:
    """Plans on every target that was asked for; a mode that a target does not have is an error."""
    mode, memories = parse_mode(options.mode), parse_memory(options.memory, options.targets)
    planned = Planned(subject)
    captures = _Captures(subject)
    for target in options.targets:
        machine = machine_of(target, memories)
        try:
            graph, report, gain = _match(captures, target, options.legalise)
        except SystemExit as stop:
            raise UserError(
                f"the model's own code ended the process, with {stop.code!r}.", "Take exit() out of it."
            ) from stop
        planned.plans[target.name.lower()] = make_plan(
            report,
            machine,
            subject=subject.name,
            mode=mode,
            optimizer=captures.optimizer,
            legalise=gain,
            notes=(*subject.notes, *_notes(graph)),
        )
    return planned


def _match(
    captures: _Captures, target: Target, is_legal: bool
) -> tuple[Graph, MatchReport, Mapping[str, Any] | None]:
    has_forms = target.name.lower() in valid_targets()
    is_legal = is_legal and has_forms
    graph = captures.of(target, is_legal)
    report = _judge(graph, target)
    if not has_forms or (not report.refused and not is_legal):
        return graph, report, None
    other = _judge(captures.of(target, not is_legal), target)
    before, after = (other, report) if is_legal else (report, other)
    gain = {
        "removed": max(0, len(before.refused) - len(after.refused)),
        "of": len(before.refused),
        "left": len(after.refused),
        "applied": is_legal,
        "swaps": captures.swaps(target),
    }
    return graph, report, gain


def _judge(graph: Graph, target: Target) -> MatchReport:
    if target.kernels is not None:
        return match(graph, target.kernels(), target.name)
    return match_needs(graph, target.needs, target.name)


def _fuses_attention(target: Target) -> bool:
    """Whether attention is one kernel that never holds the scores, as torch's is; vendors' attention is planned op by op."""
    return target.kernels is None


def _legalise(model: Any, target: Target, made: list[Any]) -> Any:
    """The model with its refused parts in their legal form; calls outside its forward, such as a loss, included."""
    model = model if isinstance(model, LossModule) else LossModule(model)
    legal = legalise(model.net, target.name.lower())
    made.append(legal)
    call = model.call

    def redirected(batch: Any) -> Any:
        with legal.redirecting():
            return call(batch)

    model.call = redirected
    return model


class _Captures:
    """Captured graphs of a subject; targets with the same mixed precision share one."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._graphs: dict[tuple[str, str, bool], Graph] = {}
        self._swaps: dict[str, list[dict[str, Any]]] = {}
        self.optimizer = subject.optimizer

    def of(self, target: Target, is_legal: bool) -> Graph:
        casts, name = self._casts(target)
        key = (name, target.name if is_legal else "", _fuses_attention(target))
        if key not in self._graphs:
            self._graphs[key] = self._capture(casts, target, is_legal)
        return self._graphs[key]

    def swaps(self, target: Target) -> list[dict[str, Any]]:
        return self._swaps.get(target.name, [])

    def _casts(self, target: Target) -> tuple[AbstractContextManager[Any], str]:
        if target.kernels is None:
            if not self._subject.half:
                return nullcontext(), ""
            return torch.autocast("cpu", dtype=getattr(torch, self._subject.half)), self._subject.half
        casts = target.kernels().casts()
        return casts, "" if isinstance(casts, nullcontext) else target.name

    def _capture(self, casts: AbstractContextManager[Any], target: Target, is_legal: bool) -> Graph:
        subject = self._subject
        made: list[Any] = []

        def factory() -> Any:
            with converting_fakes():
                model = subject.make_model()
            if hasattr(model, "own_optimizer") and not subject.has_fixed_optimizer:
                own = model.own_optimizer()  # it goes before that of params
                if own is not None:
                    self.optimizer = OptimizerCost(type(own).__name__, dict(own.defaults))
            return _legalise(model, target, made) if is_legal else model

        graph = capture(
            factory,
            subject.batch,
            casts=casts,
            optimizer=self.optimizer.name,
            root=subject.root,
            fuses_attention=_fuses_attention(target),
        )
        if not graph.modules and not graph.nodes and graph.stops:
            stop = graph.stops[0]
            raise UserError(
                f"the model cannot be made: {f'{stop.place}: ' if stop.place else ''}{stop.message}.",
                "Make it run here first: python run.py CPU --mode train --validate_only.",
            )
        if not any(v.kind == "parameter" and v.requires_grad for v in graph.values):
            # Without trained weights there is no training step; the forward pass can still be planned.
            graph = capture(
                factory, subject.batch, trains=False, casts=self._casts(target)[0], root=subject.root
            )
        if is_legal:
            self._swaps[target.name] = [dataclasses.asdict(swap) for swap in made[-1].swaps]
        return graph


def _notes(graph: Graph) -> list[str]:
    notes = []
    if "loss" in graph.info:
        notes.append(f"the loss is {graph.info['loss']}.")
    if not graph.trains:
        notes.append("no weight is trained: this is the plan of a forward pass.")
    if any(stop.is_last for stop in graph.stops):
        notes.append("the step was not seen to its end, so sizes and operations are of its first part.")
    return notes
