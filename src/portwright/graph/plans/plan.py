"""A plan: whether a target runs a model's training step, what the step takes there, and what to change."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from portwright.graph.graph import Graph
from portwright.graph.match import MatchReport
from portwright.graph.plans import flops as flops_module
from portwright.graph.plans import memory as memory_module
from portwright.graph.plans.estimate import MADE_BY, Estimate, estimate_cycles, estimate_utilization
from portwright.graph.plans.fit import choose_fit, fit_as_json
from portwright.graph.plans.flops import Flops, count_flops
from portwright.graph.plans.load import Fit, Load
from portwright.graph.plans.memory import Memory, measure_memory
from portwright.graph.plans.optimizer_state import OptimizerCost
from portwright.graph.plans.rows import Row, Rows
from portwright.target import ExecutionMode, Hardware

FORMAT = 1  # of the JSON; grows when a key changes its meaning


@dataclass(frozen=True)
class Plan:
    """One model on one target."""

    subject: str
    report: MatchReport
    machine: Hardware
    rows: tuple[Row, ...]
    parameters_of: tuple[int, ...]  # elements, one a layer
    refused_in: tuple[int, ...]  # refused nodes, one a layer
    flops: Flops
    optimizer: OptimizerCost
    memory: Memory
    fit: Fit
    estimates: Mapping[str, Estimate]
    changes: tuple[str, ...]
    legalise: Mapping[str, Any] | None = None  # what legal forms would gain, or did
    notes: tuple[str, ...] = ()
    untrained: str = ""  # why no run can train this step there, even if it fits

    @property
    def graph(self) -> Graph:
        return self.report.graph

    @property
    def supported(self) -> bool:
        return self.report.supported

    @property
    def is_good(self) -> bool:
        """Supported, and not known not to fit."""
        return self.supported and self.fit.fits is not False

    @property
    def update_flops(self) -> int:
        trained = (v for v in self.graph.values if v.kind == "parameter")
        return self.optimizer.update_flops(trained) if self.graph.trains else 0

    def as_json(self) -> dict[str, Any]:
        """The document of `portwright plan --json`; docs/plan.md names every key."""
        graph, memory = self.graph, self.memory
        return {
            "format": FORMAT,
            "made_by": MADE_BY,
            "estimated": True,
            "subject": self.subject,
            "framework": graph.info.get("framework", "pytorch"),
            "target": self.report.target,
            "machine": _machine_json(self.machine),
            "kernels": {"label": self.report.label, "ops": self.report.counts},
            "supported": self.supported,
            "refused": [refusal.as_json() for refusal in self.report.refused],
            "legalise": dict(self.legalise) if self.legalise is not None else None,
            "parameters": graph.num_parameters,
            "trained_parameters": sum(
                v.num_elements for v in graph.values if v.kind == "parameter" and v.requires_grad
            ),
            "batch_size": graph.batch_size,
            "trains": graph.trains,
            "optimizer": self.optimizer.name or None,
            "inputs": [
                {"name": v.name, "dtype": v.dtype, "shape": list(v.shape)}
                for v in graph.values
                if v.kind == "input"
            ],
            "flops_per_sample": round(self.flops.total.total),
            "flops": {
                "forward": _count_json(self.flops.forward),
                "backward": _count_json(self.flops.backward),
                "optimizer_per_step": self.update_flops,
            },
            "memory_bytes": {
                "weights": memory.weights,
                "weight_copies": memory.weight_copies,
                "gradients": memory.gradients,
                "optimizer": memory.optimizer,
                "activations": memory.activations,
                "saved_activations": memory.saved,
                "inputs": memory.inputs,
                "peak": memory.peak,
            },
            **fit_as_json(self.fit),
            "total_utilization": self._estimated("total_utilization"),
            "estimated_deltat": self._estimated("estimated_deltat"),
            "changes": list(self.changes),
            "notes": list(self.notes),
            "layers": [self._layer_json(i) for i in range(len(self.rows))],
            "stages": [stage.as_json() for stage in self.fit.stages],
            "fabric": {"columns": self.machine.fabric[0], "rows": self.machine.fabric[1]}
            if self.machine.fabric
            else None,
            "ops": self._ops_json(),
            "estimates": {name: estimate.as_json() for name, estimate in self.estimates.items()},
            "info": dict(graph.info),
        }

    def _estimated(self, name: str) -> float | int | None:
        """The value of an estimate; None where the mode has none of this name."""
        return self.estimates[name].value if name in self.estimates else None

    def _layer_json(self, index: int) -> dict[str, Any]:
        row, memory = self.rows[index], self.memory.layers[index]
        stage = next((s for s in self.fit.stages if index in s.layers), None)
        cores = self.fit.rectangles[index].area if self.fit.rectangles else None
        if stage is not None and stage.cores_of:
            cores = stage.cores_of[stage.layers.index(index)]
        total = self.flops.total.total
        return {
            "path": row.path,
            "name": row.name,
            "kind": row.kind,
            "repeats": row.repeats or None,
            "parameters": self.parameters_of[index],
            "flops_per_sample": {
                "forward": round(self.flops.forward_of[index].total),
                "backward": round(self.flops.backward_of[index].total),
            },
            "share_of_work": self.flops.of(index).total / total if total else 0.0,
            "memory_bytes": {
                "weights": memory.weights,
                "weight_copies": memory.weight_copies,
                "gradients": memory.gradients,
                "optimizer": memory.optimizer,
                "activations": memory.activations,
            },
            "live_bytes": {"forward": memory.live_forward, "backward": memory.live_backward},
            "cores": cores,
            "share_of_fabric": self.fit.rectangles[index].area / math.prod(self.machine.fabric)
            if self.fit.rectangles and self.machine.fabric
            else None,
            "rectangle": self.fit.rectangles[index].as_json() if self.fit.rectangles else None,
            "stage": stage.index if stage is not None else None,
            "refused": self.refused_in[index],
        }

    def _ops_json(self) -> list[dict[str, Any]]:
        """Each op of the step with how the target runs it, and the lines that call it."""
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for node, verdict in zip(self.graph.nodes, self.report.verdicts, strict=True):
            op = found.setdefault(
                (node.op, verdict.how),
                {"op": node.op, "how": verdict.how, "count": 0, "phases": set(), "places": Counter()},
            )
            op["count"] += 1
            op["phases"].add(node.phase)
            if node.place is not None:
                op["places"][(node.place.file, node.place.line)] += 1
        return [
            {
                **op,
                "phases": sorted(op["phases"]),
                "places": [
                    {"file": file, "line": line, "count": count}
                    for (file, line), count in sorted(op["places"].items())
                ],
            }
            for op in found.values()
        ]


def make_plan(
    report: MatchReport,
    machine: Hardware,
    *,
    subject: str = "",
    mode: ExecutionMode | None = None,
    optimizer: OptimizerCost | None = None,
    legalise: Mapping[str, Any] | None = None,
    notes: tuple[str, ...] = (),
    untrained: str = "",
) -> Plan:
    """Measures a matched step against a machine; without a mode the one that suits it is chosen."""
    graph = report.graph
    optimizer = optimizer if optimizer is not None else OptimizerCost(graph.optimizer)
    rows = Rows(graph)
    flops = count_flops(graph, rows)
    memory = measure_memory(graph, rows, optimizer)
    load = Load(
        memory,
        flops,
        graph.num_parameters,
        graph.trains,
        tuple(row.name for row in rows.rows),
    )
    if graph.info.get("framework", "pytorch") != "pytorch" and "resident" in machine.modes:
        machine = replace(machine, modes=("resident",))  # only runs with torch know runconfig.execution
    fit = choose_fit(load, machine, mode)
    parameters_of = [0] * len(rows.rows)
    for value in graph.values:
        if value.kind == "parameter":
            parameters_of[rows.of_value(value.name)] += value.num_elements
    refused_in = [0] * len(rows.rows)
    for position, verdict in enumerate(report.verdicts):
        if verdict.how == "refused":
            refused_in[rows.of_node(position)] += 1
    return Plan(
        subject,
        report,
        machine,
        tuple(rows.rows),
        tuple(parameters_of),
        tuple(refused_in),
        flops,
        optimizer,
        memory,
        fit,
        _estimates(load, fit, machine, optimizer),
        _changes(report, load, fit, machine, legalise),
        legalise,
        notes,
        untrained,
    )


def _estimates(load: Load, fit: Fit, machine: Hardware, optimizer: OptimizerCost) -> dict[str, Estimate]:
    memory, count = load.memory, load.flops.total
    estimates = {
        "flops_per_sample": Estimate(
            round(count.total),
            "operations a sample, forward and backward",
            flops_module.FORMULA,
            {"products": count.products, "others": count.others},
            (round(count.products), round(count.products + 10 * count.others)),
            "products are exact; other arithmetic is none where it is fused away, and at most about ten operations an element",
        ),
        "memory_bytes": Estimate(
            memory.peak,
            "bytes, most at once in a step",
            f"{memory_module.FORMULA}. {optimizer.formula}",
            {
                "weights": memory.weights,
                "weight_copies": memory.weight_copies,
                "gradients": memory.gradients,
                "optimizer": memory.optimizer,
                "activations": memory.activations,
                "inputs": memory.inputs,
                "batch_size": memory.batch_size,
            },
            (
                min(memory.peak, memory.weights + memory.optimizer + max(memory.gradients, memory.saved)),
                round(1.25 * memory.peak),
            ),
            "below: nothing but weights, state and the larger of saved activations and gradients; above: a quarter more for "
            "rounding and workspaces of kernels (assumed)",
        ),
        "needed_bytes": Estimate(
            fit.needed_bytes,
            f"bytes in mode {fit.mode}",
            fit.formula,
            {"batch_size": memory.batch_size, "capacity_bytes": fit.capacity_bytes, "machine": machine.name},
            (round(0.8 * fit.needed_bytes), round(1.25 * fit.needed_bytes)),
            "a quarter either way (assumed): compilers fuse, recompute and pad",
            tuple(machine.sources.get(name, "") for name in ("memory_bytes",) if name in machine.sources),
        ),
    }
    if fit.largest_batch is not None:
        estimates["largest_batch"] = Estimate(
            fit.largest_batch,
            "samples",
            "the largest batch whose bytes are within the capacity: what comes from the batch grows with it, the rest stays",
            {"capacity_bytes": fit.capacity_bytes, "captured_batch_size": memory.batch_size},
            (math.floor(0.8 * fit.largest_batch), math.ceil(1.25 * fit.largest_batch)),
            "that of the bytes",
        )
    if fit.rectangles and machine.fabric is not None and fit.shares is not None:
        estimates |= {
            "total_utilization": estimate_utilization(
                load.products, fit.shares, fit.rectangles, machine.fabric
            ),
            "estimated_deltat": estimate_cycles(load.products, load.wanted_cores, fit.shares),
        }
    return estimates


def _changes(
    report: MatchReport,
    load: Load,
    fit: Fit,
    machine: Hardware,
    legalise: Mapping[str, Any] | None,
) -> tuple[str, ...]:
    """What to do about refusals and about what does not fit, most helpful first."""
    changes = []
    if report.refused:
        if legalise and not legalise["applied"]:
            removed = legalise["removed"] or "none"
            changes.append(f"--legalise would remove {removed} of {legalise['of']} refusals by itself.")
        changes.append(f"Change the {len(report.refused)} refused place(s) as each one's cure says.")
    if fit.fits is not False:
        return tuple(changes)
    if fit.largest_batch:
        changes.append(
            f"Use a batch of at most {fit.largest_batch} (it is {load.memory.batch_size}); grad_accum_steps keeps the update the same."
        )
    elif fit.largest_batch == 0:
        changes.append("No batch size fits: the model itself is too large for this mode.")
    if fit.mode != "weight_streaming" and "weight_streaming" in machine.modes:
        changes.append("Use --mode weight_streaming: weights then live beside the chip.")
    wide = sum(v.num_bytes for v in report.graph.values if v.kind == "activation" and v.dtype == "float32")
    whole = sum(v.num_bytes for v in report.graph.values if v.kind == "activation")
    if whole and wide > whole / 2:
        changes.append(
            "Use mixed precision (runconfig.precision or model.mixed_precision): activations then take about half."
        )
    if load.memory.optimizer > load.memory.weights and not fit.largest_batch:
        changes.append("Use an optimizer with less state, such as SGD, Lion or Adafactor.")
    return tuple(changes)


def _count_json(count: flops_module.Count) -> dict[str, int]:
    return {
        "total": round(count.total),
        "products": round(count.products),
        "others": round(count.others),
    }


def _machine_json(machine: Hardware) -> dict[str, Any]:
    return {
        "name": machine.name,
        "memory_bytes": machine.memory_bytes or None,
        "modes": list(machine.modes),
        "num_cores": machine.num_cores,
        "core_memory_bytes": machine.core_memory_bytes,
        "num_chips": machine.num_chips,
        "sources": dict(machine.sources),
    }
