"""What the CS system probably does with a TensorFlow op: our own table, each row derived from the torch table."""

from __future__ import annotations

import functools
from pathlib import Path

from portwright.graph.graph import Graph, Node
from portwright.graph.kernels import Constraint, Verdict
from portwright.graph.tables import TableFile
from portwright.targets.csx.constraints import CONSTRAINTS as SHARED
from portwright.targets.csx.constraints import find_everywhere, tensor


def one_group_of_channels(graph: Graph, node: Node) -> str | None:
    """the filter takes all channels of the input"""
    value, kernel = tensor(graph, node.args[0]), tensor(graph, node.args[1])
    if value is None or kernel is None:
        return None
    is_last = not str(node.kwargs.get("data_format", "NHWC")).startswith("NC")
    channels = value.shape[-1] if is_last else value.shape[1]
    if kernel.shape[-2] == channels:
        return None
    return f'it has {channels // max(kernel.shape[-2], 1)} groups: "convolutions with groups != 1 are not supported"'


def reflects(graph: Graph, node: Node) -> str | None:
    """mode is REFLECT"""
    mode = node.kwargs.get("mode", "REFLECT")
    return (
        None
        if mode == "REFLECT"
        else f"it pads in mode {mode}, and only REFLECT has a torch counterpart that runs"
    )


def trained_along_the_first_axis(graph: Graph, node: Node) -> str | None:
    """where it is trained, it moves along the first axis"""
    value = tensor(graph, node.args[0])
    axes = node.args[-1]
    axes = axes if isinstance(axes, tuple) else (axes,)
    if value is None or not (graph.trains and value.requires_grad):
        return None
    rank = max(len(value.shape), 1)
    if all(isinstance(axis, int) and axis % rank == 0 for axis in axes):
        return None
    return f"its gradient along axes {list(axes)} is not lowered, only along the first"


CONSTRAINTS: dict[str, Constraint] = {
    **SHARED,
    **{rule.__name__: rule for rule in (one_group_of_channels, reflects, trained_along_the_first_axis)},
}


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
