"""What the CS system probably does with a TensorFlow op: our own table, each row derived from the torch table."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from portwright.graph.graph import Graph, Node
from portwright.graph.kernels import Verdict
from portwright.graph.tables import TableFile
from portwright.targets.csx.constraints import find_everywhere
from portwright.targets.csx.tensorflow_constraints import CONSTRAINTS

LABEL = (
    "Portwright's own table for TensorFlow: each row follows a row of the torch table (asked of SDK 2.10.0) or the facts; "
    "no TensorFlow compiler was asked"
)
_HOST_FUNCTIONS = ("tf.PyFunc", "tf.PyFuncStateless", "tf.EagerPyFunc")


@functools.cache
def table() -> CsxTensorFlowTable:
    return CsxTensorFlowTable()


class CsxTensorFlowTable(TableFile):
    """The TensorFlow ops of the CS system."""

    def __init__(self) -> None:
        super().__init__(
            Path(__file__).with_name("tensorflow_kernels.tsv"), CONSTRAINTS, LABEL, unlisted=_unlisted
        )
        self._known: dict[str, Any] = {}  # a big model calls few ops many times

    def _find(self, op: str) -> Any:
        if op not in self._known:
            self._known[op] = super()._find(op)
        return self._known[op]

    def judge(self, graph: Graph, node: Node) -> Verdict:
        if node.phase == "optimizer" and node.op not in _HOST_FUNCTIONS:
            return Verdict("native")  # as for torch: the SDK has its own optimizers
        others = node.kwargs.get("other_dtypes", ())
        if others and self.explain(node.op).how != "refused":
            return Verdict(
                "refused",
                f"it works on {', '.join(others)}, which the device does not have",
                "Do this in the input function, and give the model numbers.",
            )
        if "string" in others and self._find(node.op) is None:
            return Verdict(
                "refused",
                "it works on strings, which the device does not have",
                "Do this in the input function, and give the model numbers.",
            )
        reason = find_everywhere(graph, node)
        if reason is not None:
            return Verdict(
                "refused", reason, "Cast it in the input function, or use float32, float16 or int32."
            )
        return super().judge(graph, node)


def _unlisted(op: str) -> tuple[str, str]:
    name = op.removeprefix("tf.")
    return f"{name} has no row in the TensorFlow table, since nothing on the torch side corresponds to it", ""
