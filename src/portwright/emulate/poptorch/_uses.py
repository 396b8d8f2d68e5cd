"""Where the tensors of a trace are made and read, and how long they last: what an account of memory asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from portwright.emulate.poptorch._placement import Tag
from portwright.graph.graph import Value

if TYPE_CHECKING:
    from portwright.emulate.poptorch._watch import Watch


class Uses:
    """The values of one trace, by the places that use them."""

    def __init__(self, watch: Watch) -> None:
        self.tags, self.results = watch.tags, watch.results
        self.nodes, self.values = watch.tape.nodes, watch.tape.values
        self._makers, self._of_host = watch.tape.makers, watch.of_host

    def weights(self) -> Iterator[tuple[Value, bool]]:
        """Parameters and buffers, and whether gradients are computed for them; tied ones once."""
        for value in self.values:
            if value.kind in ("parameter", "buffer") and value.base == value.index:
                yield value, value.requires_grad

    def weight_homes(self) -> dict[int, Tag]:
        """Where each weight is read first."""
        homes: dict[int, Tag] = {}
        for node, tag in zip(self.nodes, self.tags, strict=True):
            for index in node.inputs:
                value = self.values[index]
                if tag is not None and value.kind in ("parameter", "buffer"):
                    homes.setdefault(value.base, tag)
        return homes

    def home(self, index: int) -> Tag:
        """Where a value is made; of an input, where it is read first."""
        maker = self._makers.get(index)
        if maker is None:
            tags = (
                t for n, t in zip(self.nodes, self.tags, strict=True) if index in n.inputs and t is not None
            )
            return next(tags, Tag())
        return self.tags[maker] or Tag()

    def stage_inputs(self) -> dict[tuple[int, int], Tag]:
        """(value, stage that reads it from an earlier one or from the host): where that stage is."""
        entering: dict[tuple[int, int], Tag] = {}
        for node, tag in zip(self.nodes, self.tags, strict=True):
            for index in node.inputs:
                value = self.values[index]
                base = self.values[value.base]
                if tag is None or base.kind not in ("activation", "input"):
                    continue
                if base.kind == "input" or self.home(base.index).stage != tag.stage:
                    entering.setdefault((base.index, tag.stage), tag)
        return entering

    def lifetimes(self) -> dict[int, tuple[int, int]]:
        """The first and last node at which each value of the forward pass is there; views count for what they show."""
        lives: dict[int, tuple[int, int]] = {}
        nodes, values = self.nodes, self.values
        for node in nodes:
            if node.index in self._of_host:
                continue
            for index in (*node.outputs, *node.inputs):
                base = values[index].base
                if values[base].kind in ("activation", "input"):
                    first = -1 if values[base].kind == "input" else node.index
                    lives[base] = lives.get(base, (first, 0))[0], node.index
        for index in self.results:
            base = values[index].base
            if base in lives:
                lives[base] = lives[base][0], len(nodes)
        return lives
