"""Copies to and from the host while an IPU computes, and what PopTorch asks for where they are wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from portwright.emulate.poptorch import enums
from portwright.emulate.poptorch._placement import PIPELINED
from portwright.graph.graph import Node, Place, Value

_Refuse = Callable[[str, "Place | None"], Exception]


def num_io_tiles(options: Any) -> int:
    """Tiles of each IPU that only copy; the option has the name of the method that sets it."""
    return int(options.TensorLocations._values.get("numIOTiles", 0))


@dataclass
class Overlaps:
    """The tensors that a model marks by set_overlap_for_input and set_overlap_for_output."""

    marks: list[tuple[str, int, int, Place | None]] = field(default_factory=list)
    is_wanted: bool = False

    def add(self, kind: str, mode: Any, value: int, marked: int, place: Place | None) -> None:
        self.marks.append((kind, value, marked, place))
        self.is_wanted = self.is_wanted or mode is not enums.OverlapMode.NoOverlap

    def check(
        self,
        values: Sequence[Value],
        nodes: Sequence[Node],
        results: Sequence[int],
        mode: str,
        options: Any,
        training: bool,
        refuse: _Refuse,
    ) -> None:
        for kind, value, marked, place in self.marks:
            name = f"poptorch.set_overlap_for_{kind}"
            if kind == "input":
                if values[value].kind != "input":
                    raise refuse(
                        f"{name} of a tensor that is not an input of the model. Use it first in forward",
                        place,
                    )
                if sum(value in node.inputs for node in nodes) != 1:
                    raise refuse(f"{name} must be the only use of an input. Go on with what it gives", place)
            else:
                if marked not in results:
                    raise refuse(
                        f"{name} of a tensor that is not an output of the model. Return what it gives", place
                    )
                if value in results or results.count(marked) > 1:
                    raise refuse(f"{name} of a tensor that is returned twice. Return it once", place)
        if self.is_wanted:
            self._check_settings(mode, options, training, refuse)

    def _check_settings(self, mode: str, options: Any, training: bool, refuse: _Refuse) -> None:
        place = self.marks[0][3]
        if mode == PIPELINED:
            raise refuse(
                "copies that overlap with computing do not go with poptorch.PipelinedExecution. Use poptorch.ShardedExecution",
                place,
            )
        if not num_io_tiles(options):
            raise refuse(
                "copies that overlap with computing need tiles of their own. Use options.TensorLocations.numIOTiles(32) or more",
                place,
            )
        chosen = enums.OutputMode(options.output_mode)
        if chosen is enums.OutputMode.Default:
            chosen = enums.OutputMode.Final if training else enums.OutputMode.All
        if chosen not in (enums.OutputMode.All, enums.OutputMode.Sum):
            raise refuse(
                f"copies that overlap with computing do not go with OutputMode.{chosen.name}. Use OutputMode.All or OutputMode.Sum",
                place,
            )
