"""A plan as lines for a person: the verdict first, then why, then the layers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from portwright.graph.match import Refusal
from portwright.graph.plans.plan import Plan
from portwright.job.sizes import show_bytes, show_count

_FITS = {True: "yes", False: "no", None: "not known"}
_MOST_REFUSALS = 50
_MOST_SWAPS = 20
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def report(plans: dict[str, Plan]) -> list[str]:
    """One plan in full, or several side by side with each one's refusals below."""
    if len(plans) == 1:
        return _one(next(iter(plans.values())))
    lines = [_verdict(plan) for plan in plans.values()]
    lines += ["", *_side_by_side(plans), ""]
    lines += [f"kernels of {plan.report.target}: {plan.report.label}" for plan in plans.values()]
    for plan in plans.values():
        if plan.report.refused or plan.changes:
            lines += [
                "",
                f"{plan.report.target}:",
                *_refusals(plan),
                *_bullets("what to change", plan.changes),
            ]
    shared = list(dict.fromkeys(note for plan in plans.values() for note in plan.notes))
    return [*lines, *_bullets("notes", shared)]


def _one(plan: Plan) -> list[str]:
    lines = [_verdict(plan), *_refusals(plan), ""]
    memory, flops = plan.memory, plan.flops
    batch = plan.graph.batch_size
    copies = f" (and {show_bytes(memory.weight_copies)} of copies)" if memory.weight_copies else ""
    lines += [
        f"mode          {plan.fit.mode}: {plan.fit.why_mode}",
        f"fits          {_FITS[plan.fit.fits]}: {plan.fit.why}",
        *_how_to_ask(plan),
        f"parameters    {plan.graph.num_parameters:,}",
        f"FLOPs/sample  {show_count(flops.total.total)} (forward {show_count(flops.forward.total)}, "
        f"backward {show_count(flops.backward.total)}); optimizer {show_count(plan.update_flops)} a step",
        f"memory        weights {show_bytes(memory.weights)}{copies}, optimizer {show_bytes(memory.optimizer)}"
        f" ({plan.optimizer.name or 'none'}), gradients {show_bytes(memory.gradients)}, "
        f"activations {show_bytes(memory.activations)} at most, for a batch of {batch}",
        f"largest batch {plan.fit.batch_note or f'{plan.fit.largest_batch:,} (estimated)'}",
    ]
    for name, label in (("total_utilization", "utilization   "), ("estimated_deltat", "cycles/sample ")):
        if name in plan.estimates:
            estimate = plan.estimates[name]
            low, high = estimate.interval
            lines.append(f"{label}{_number(estimate.value)} (estimated, {_number(low)} to {_number(high)})")
    counts = ", ".join(f"{count} {how}" for how, count in sorted(plan.report.counts.items()))
    lines.append(f"kernels       {plan.report.label}; {counts}")
    lines += [*_swaps(plan), "", *_layers(plan), *_stages(plan)]
    lines += _bullets("what to change", plan.changes)
    return [*lines, *_bullets("notes", plan.notes)]


def _verdict(plan: Plan) -> str:
    name, machine = plan.report.target, plan.machine.name
    if plan.untrained:
        name += f", planned only ({plan.untrained})"
    if not plan.supported:
        places = len(plan.report.refused)
        return f"{name}: not supported on {machine}: {places} place(s) refused" + (
            "" if plan.fit.fits is not False else ", and it does not fit"
        )
    if plan.fit.fits is False:
        return f"{name}: supported, but does not fit on {machine}: {plan.fit.why}"
    known = "fits" if plan.fit.fits else "whether it fits is not known (give its memory with --memory)"
    return f"{name}: supported on {machine}, {known}, mode {plan.fit.mode}"


def _how_to_ask(plan: Plan) -> list[str]:
    """The key of runconfig that chooses the planned mode, where a run has a choice."""
    if plan.fit.execution is None or not plan.fit.fits:
        return []
    alone = " (auto, the default, chooses it too)"
    if plan.fit.execution == "pipelined":
        alone = (
            f", under torchrun --nproc-per-node {len(plan.fit.stages)}" if len(plan.fit.stages) > 1 else ""
        )
    return [f"to run it so  runconfig.execution: {plan.fit.execution}{alone}"]


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _swaps(plan: Plan) -> list[str]:
    """The parts that were replaced by their legal form."""
    if not plan.legalise or not plan.legalise["applied"]:
        return []
    swaps = plan.legalise["swaps"]
    lines = [
        f"legalised     {len(swaps)} part(s), which removed {plan.legalise['removed']} of {plan.legalise['of']} refusals"
    ]
    lines += [
        f"  {swap['module'] or '(model)'}: {swap['what']} -> {swap['form']}" for swap in swaps[:_MOST_SWAPS]
    ]
    return [*lines, f"  and {len(swaps) - _MOST_SWAPS} more"] if len(swaps) > _MOST_SWAPS else lines


def _refusals(plan: Plan) -> list[str]:
    lines = []
    refused = plan.report.refused
    for refusal in refused[:_MOST_REFUSALS]:
        lines.append(f"  {_where(refusal)}: {refusal.op or 'step'}: {refusal.reason}{_times(refusal)}")
        if refusal.cure:
            lines.append(f"      cure: {refusal.cure}")
    if len(refused) > _MOST_REFUSALS:
        lines.append(f"  and {len(refused) - _MOST_REFUSALS} more; --json has them all")
    return lines


def _where(refusal: Refusal) -> str:
    if refusal.file is None:
        return refusal.module or "(no line known)"
    try:
        file = str(Path(refusal.file).relative_to(Path.cwd()))
    except ValueError:
        file = refusal.file
    return f"{file}:{refusal.line}"


def _times(refusal: Refusal) -> str:
    parts = [f"in {refusal.module}" if refusal.module else ""]
    parts.append("backward" if refusal.phase == "backward" else "")
    parts.append(f"{refusal.count} times" if refusal.count > 1 else "")
    said = ", ".join(part for part in parts if part)
    return f" ({said})" if said else ""


def _layers(plan: Plan) -> list[str]:
    columns: list[tuple[str, Callable[[int], float], Callable[[float], str]]] = [
        ("parameters", lambda i: plan.parameters_of[i], show_count),
        ("FLOPs/sample", lambda i: plan.flops.of(i).total, show_count),
        ("weights", lambda i: plan.memory.layers[i].weights, show_bytes),
        ("optimizer", lambda i: plan.memory.layers[i].optimizer, show_bytes),
        ("activations", lambda i: plan.memory.layers[i].activations, show_bytes),
    ]
    total = plan.flops.total.total
    if plan.fit.rectangles and plan.machine.fabric:
        cores = plan.machine.fabric[0] * plan.machine.fabric[1]
        columns.append(("of fabric", lambda i: plan.fit.rectangles[i].area / cores, lambda v: f"{v:.2%}"))
    else:
        columns.append(
            ("of work", lambda i: plan.flops.of(i).total / total if total else 0.0, lambda v: f"{v:.1%}")
        )
    table = [["layer", "kind", *(name for name, _, _ in columns)]]
    for name, kind, indices in _fold(plan):
        values = [show(sum(value(i) for i in indices)) for _, value, show in columns]
        table.append([name, kind, *values])
    everything = [show(sum(value(i) for i in range(len(plan.rows)))) for _, value, show in columns]
    return _align([*table, ["all", "", *everything]], left=2)


def _fold(plan: Plan) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Name, kind and numbers of the layers that are one line: neighbours with the same sizes and the same name but for one
    number are layers.0-11 x12."""
    start = 0
    while start < len(plan.rows):
        period, count = _repetition(plan, start)
        for offset in range(period):
            indices = tuple(start + offset + k * period for k in range(count))
            first, last = plan.rows[indices[0]], plan.rows[indices[-1]]
            yield _range_name(first.name, last.name, count), first.kind, indices
        start += period * count


def _repetition(plan: Plan, start: int) -> tuple[int, int]:
    """How many layers make the pattern that begins here, and how often it comes; (1, 1) for no pattern."""
    num = len(plan.rows)
    for period in range(1, min(8, (num - start) // 2) + 1):
        count = 1
        while start + (count + 1) * period <= num and all(
            _alike(plan, start + j, start + count * period + j, count) for j in range(period)
        ):
            count += 1
        if count > 1 and (period == 1 or count > 2):
            return period, count
    return 1, 1


def _alike(plan: Plan, one: int, other: int, steps: int) -> bool:
    a, b = plan.memory.layers[one], plan.memory.layers[other]
    first, second = plan.rows[one], plan.rows[other]
    numbers = _differing(first.name, second.name)
    return (
        first.kind == second.kind
        and numbers is not None
        and numbers[1] - numbers[0] > 0
        and plan.parameters_of[one] == plan.parameters_of[other]
        and plan.flops.forward_of[one] == plan.flops.forward_of[other]
        and (a.weights, a.optimizer) == (b.weights, b.optimizer)
        and steps > 0
    )


def _differing(one: str, other: str) -> tuple[int, int] | None:
    """The two numbers by which two names differ, if they differ by one number alone."""
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
        return None
    pairs = [(a, b) for a, b in zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True) if a != b]
    return (int(pairs[0][0]), int(pairs[0][1])) if len(pairs) == 1 else None


def _range_name(first: str, last: str, count: int) -> str:
    if count == 1:
        return first
    numbers = _differing(first, last)
    assert numbers is not None
    low, high = map(str, numbers)
    left, right = first.split("."), last.split(".")
    joined = [a if a == b else f"{low}-{high}" for a, b in zip(left, right, strict=True)]
    return f"{'.'.join(joined)} x{count}"


def _stages(plan: Plan) -> list[str]:
    if not plan.fit.stages:
        return []
    shows_cores = plan.fit.execution is None
    table = [
        ["stage", "layers", "of work", "memory", *(["cores for memory"] if shows_cores else []), "in flight"]
    ]
    for stage in plan.fit.stages:
        first, last = plan.rows[stage.layers[0]].name, plan.rows[stage.layers[-1]].name
        table.append(
            [
                str(stage.index),
                first if first == last else f"{first} to {last}",
                f"{stage.share_of_work:.1%}",
                f"{show_bytes(stage.memory_bytes)} of {show_bytes(stage.memory_available)}",
                *([f"{stage.cores:,} of {stage.cores_available:,}"] if shows_cores else []),
                str(stage.in_flight),
            ]
        )
    return ["", *_align(table, left=2)]


def _side_by_side(plans: dict[str, Plan]) -> list[str]:
    def value(plan: Plan, name: str) -> str:
        return _number(plan.estimates[name].value) if name in plan.estimates else "-"

    rows: list[tuple[str, Callable[[Plan], str]]] = [
        ("machine", lambda p: p.machine.name),
        ("supported", lambda p: "yes" if p.supported else f"no, {len(p.report.refused)} refused"),
        ("fits", lambda p: _FITS[p.fit.fits]),
        ("mode", lambda p: p.fit.mode),
        ("parameters", lambda p: show_count(p.graph.num_parameters)),
        ("FLOPs/sample", lambda p: show_count(p.flops.total.total)),
        ("batch", lambda p: str(p.graph.batch_size)),
        ("weights", lambda p: show_bytes(p.memory.weights)),
        ("optimizer", lambda p: show_bytes(p.memory.optimizer)),
        ("gradients", lambda p: show_bytes(p.memory.gradients)),
        ("activations", lambda p: show_bytes(p.memory.activations)),
        ("needed", lambda p: show_bytes(p.fit.needed_bytes)),
        ("available", lambda p: show_bytes(p.fit.capacity_bytes) if p.fit.capacity_bytes else "not known"),
        (
            "largest batch",
            lambda p: (
                "any" if p.fit.largest_batch is None and p.fit.fits else str(p.fit.largest_batch or "-")
            ),
        ),
        ("utilization", lambda p: value(p, "total_utilization")),
        ("cycles/sample", lambda p: value(p, "estimated_deltat")),
    ]
    table = [["", *(plan.report.target for plan in plans.values())]]
    table += [[name, *(show(plan) for plan in plans.values())] for name, show in rows]
    return _align(table, left=len(plans) + 1)


def _align(table: Sequence[Sequence[str]], left: int) -> list[str]:
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def _bullets(title: str, lines: Sequence[str]) -> list[str]:
    return ["", f"{title}:", *(f"  - {line}" for line in lines)] if lines else []
