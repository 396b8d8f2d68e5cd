"""Which of a model's ops are public to run on an RDU: the same conservative table that `portwright plan --target rdu` asks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from portwright.emulate import table_of, target_of
from portwright.emulate.sambaflow._refusal import SambaFlowError
from portwright.emulate.sambaflow.logging import samba_logger
from portwright.errors import ExitStatus, suggest

VARIABLE = "PORTWRIGHT_RDU_UNLISTED_OPS"
STRICTNESS = ("refuse", "warn")


class _Judged(nn.Module):
    """The model with its outputs summed, so that there is one number to differentiate."""

    def __init__(self, model: nn.Module, call: Callable[[dict[str, Tensor], list[Tensor]], Any]) -> None:
        super().__init__()
        self.model = model
        self.__dict__["step"] = call

    def forward(self, *inputs: Tensor) -> Tensor:
        weights = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        found = [
            v for v in tree_leaves(self.__dict__["step"](weights, list(inputs))) if isinstance(v, Tensor)
        ]
        floats = [value for value in found if value.is_floating_point()] or found[:1]
        total = floats[0].float().sum()
        for value in floats[1:]:
            total = total + value.float().sum()
        return total


def choose_strictness(config: Mapping[str, Any]) -> str:
    """Whether ops that no public document shows are refused, or told of: the flag --unlisted-ops, else the variable."""
    chosen = str(config.get("unlisted_ops") or os.environ.get(VARIABLE) or "refuse")
    if chosen not in STRICTNESS:
        raise SambaFlowError(f"--unlisted-ops is '{chosen}'.", suggest(chosen, STRICTNESS))
    return chosen


def check_ops(
    model: nn.Module,
    call: Callable[[dict[str, Tensor], list[Tensor]], Any],
    inputs: Sequence[Tensor],
    *,
    trains: bool,
    unlisted: str,
) -> None:
    """Refuses a model with an op that no public document shows on an RDU, by its name and the user's line.

    The table is conservative: with `unlisted` "warn" such ops are told of and let through. What no static graph can hold is
    refused all the same.
    """
    from portwright.graph.capturing.capture import capture
    from portwright.graph.match import match

    modes = {part: part.training for part in model.modules()}
    try:
        graph = capture(lambda: _Judged(model, call), tuple(inputs), trains=trains and model.training)
    finally:
        for part, mode in modes.items():
            part.training = mode
    report = match(graph, table_of("sambaflow"), target_of("sambaflow").name)
    impossible = {stop.message for stop in graph.stops}
    refused = [one for one in report.refused if unlisted == "refuse" or one.reason in impossible]
    if len(refused) < len(report.refused):
        names = sorted({one.op for one in report.refused if one.reason not in impossible})
        samba_logger.warning(
            f"no public document shows these ops on an RDU, as they are used here: {', '.join(names)}"
        )
    if not refused:
        return
    failures = {stop.message for stop in graph.stops if stop.kind == "failure"}
    first = next((one for one in refused if one.reason in failures), refused[0])
    place = f" at {first.file}:{first.line}" if first.file else ""
    module = first.module.removeprefix("model").lstrip(".")
    more = f" ({len(refused) - 1} more op(s) are refused)" if len(refused) > 1 else ""
    error = SambaFlowError(
        f"{first.op}{place}{f', module {module}' if module else ''}: {first.reason.rstrip('.')}{more}.",
        first.cure,
        details={"refused": [one.as_json() for one in refused], "table": report.label},
    )
    if first.reason in failures:  # of the model itself, wherever it runs
        error.status = ExitStatus.USAGE
    raise error
