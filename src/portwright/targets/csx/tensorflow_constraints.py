"""Conditions of the TensorFlow table, as kernels.tsv has them for torch, on TensorFlow's arguments."""

from __future__ import annotations

from portwright.graph.graph import Graph, Node
from portwright.graph.kernels import Constraint
from portwright.targets.csx.constraints import CONSTRAINTS as SHARED
from portwright.targets.csx.constraints import tensor


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
