"""Rules about what an op is called with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from portwright.graph.graph import Graph, Node
from portwright.graph.tables import argument, base_name
from portwright.targets.csx.constraints_base import constraint, is_in_place, tensor, tensors


@constraint
def one_group(graph: Graph, node: Node) -> str | None:
    """groups is 1"""
    groups = argument(node, "groups", 9 if "backward" in node.op else 8, 1)
    if groups == 1:
        return None
    return f'it has {groups} groups: "convolutions with groups != 1 are not supported"'


@constraint
def not_backward_of_1d(graph: Graph, node: Node) -> str | None:
    """a convolution that is trained has two or three spatial dimensions"""
    value = tensor(graph, argument(node, "input", 1))
    if value is not None and len(value.shape) == 3:
        return 'its gradient is not lowered: "1D backward convolutions are not supported"'
    return None


@constraint
def plain_average(graph: Graph, node: Node) -> str | None:
    """ceil_mode is off, and no divisor is given"""
    first = 2 if "backward" in node.op else 1
    if argument(node, "ceil_mode", first + 3, False):
        return "ceil_mode is on, which is not lowered"
    if argument(node, "divisor_override", first + 5) is not None:
        return "a divisor_override is given, which is not lowered"
    return None


@constraint
def euclidean(graph: Graph, node: Node) -> str | None:
    """the norm is the 2-norm"""
    order = argument(node, "ord" if "linalg" in node.op else "p", 1, 2)
    return (
        None if order in (2, 2.0, None) else f"the norm of order {order} is not lowered, only that of order 2"
    )


@constraint
def unit_scale(graph: Graph, node: Node) -> str | None:
    """scale is 1"""
    scale = argument(node, "scale", 2, 1)
    return None if scale == 1 else f"a scale of {scale} is not lowered"


@constraint
def only_as_a_function(graph: Graph, node: Node) -> str | None:
    """it is not called in place: the decomposition is for the function alone"""
    if is_in_place(node):
        name = node.op.split(".")[1]
        return (
            f"in place it is not decomposed: \"failed to legalize operation 'torch.aten.{name.rstrip('_')}'\""
        )
    return None


@constraint
def whole_turns(graph: Graph, node: Node) -> str | None:
    """it turns by a multiple of 360 degrees"""
    turns = argument(node, "k", 1, 1) % 4
    return (
        f"a turn by {90 * turns} degrees is taken apart below autograd, into what has no kernel"
        if turns
        else None
    )


@constraint
def along_the_first(graph: Graph, node: Node) -> str | None:
    """its index runs along the first dimension"""
    value = tensor(graph, node.args[0])
    dim = argument(node, "dim", 1, 0)
    if value is None or dim % max(len(value.shape), 1) == 0:
        return None
    return f"it adds along dimension {dim}, and only the first is lowered: \"failed to legalize 'torch.prim.ListConstruct'\""


@constraint
def trains_along_the_first(graph: Graph, node: Node) -> str | None:
    """where it is trained, its index runs along the first dimension"""
    value = tensor(graph, node.args[0])
    if value is None or not (graph.trains and value.requires_grad):
        return None
    return along_the_first(graph, node)


@constraint
def not_unsafe(graph: Graph, node: Node) -> str | None:
    """it is split or chunk, not unsafe_split"""
    return "unsafe_split is not lowered; split is" if "unsafe_" in node.op else None


@constraint
def has_running_statistics(graph: Graph, node: Node) -> str | None:
    """it has running statistics"""
    if argument(node, "running_mean", 3) is None:
        return 'it has no running statistics: "unsupported PyTorch scalar type: UNKNOWN_SCALAR"'
    return None


@constraint
def front_or_last_index(graph: Graph, node: Node) -> str | None:
    """index tensors take the leading dimensions, or one takes the last; none is a mask"""
    indices, value = argument(node, "indices", 1, ()), tensor(graph, node.args[0])
    if (reason := _selects_by_mask(graph, indices)) is not None:
        return reason
    places = [place for place, index in enumerate(indices) if index is not None]
    is_front = places == list(range(len(places)))
    is_last = value is not None and places == [len(value.shape) - 1]
    return (
        None
        if is_front or is_last
        else f"index tensors at {places} are not lowered: only leading ones, or the last"
    )


@constraint
def accumulates_at_the_front(graph: Graph, node: Node) -> str | None:
    """it adds at leading index tensors, or fills by a mask; plain assignment by index is not lowered"""
    indices, value = argument(node, "indices", 1, ()), tensor(graph, argument(node, "values", 2))
    adds = argument(node, "accumulate", 3, False)
    given = tensors(graph, indices)
    if (
        not adds
        and len(given) == 1
        and given[0].dtype == "bool"
        and value is not None
        and value.num_elements == 1
    ):
        return None  # torch makes it masked_fill
    if (reason := _selects_by_mask(graph, indices)) is not None:
        return reason
    if not adds:
        return "assignment by an index tensor is not lowered, only accumulation"
    if any(index is None for index in indices[: len(given)]):
        return "an index tensor that is not at the front is not lowered: \"failed to legalize 'torch.prim.ListConstruct'\""
    return None


def _selects_by_mask(graph: Graph, indices: Sequence[Any]) -> str | None:
    if any(value.dtype in ("bool", "uint8") for value in tensors(graph, indices)):
        return "a mask selects, so that the size of the result depends on values"
    return None


@constraint
def log_softmax_by_a_positive_dim(graph: Graph, node: Node) -> str | None:
    """the log_softmax before it names its dim from the front, and nothing is reshaped between the two"""
    maker = _maker(graph, node)
    if maker is not None and _is_reshape(maker):
        before = _maker(graph, maker)
        if before is not None and "_log_softmax" in before.op:
            return "the log_softmax before it is reshaped on the way, on which the compiler stops; reshape before log_softmax"
    if maker is None or "_log_softmax" not in maker.op or maker.args[1] >= 0:
        return None
    return f"the log_softmax before it is along dim {maker.args[1]}, on which the compiler stops; name it from the front"


def _maker(graph: Graph, node: Node) -> Node | None:
    """The node that made the first argument, looked for nearby."""
    value = argument(node, "self", 0)
    near = graph.nodes[max(0, node.index - 20) : node.index]
    return next((maker for maker in reversed(near) if value.value in maker.outputs), None)


def _is_reshape(node: Node) -> bool:
    return base_name(node.op) in ("aten.view", "aten._unsafe_view", "aten.reshape")


@constraint
def from_its_input(graph: Graph, node: Node) -> str | None:
    """the gradient is computed from the input, so the activation is not in place"""
    return "in place, its gradient is not lowered" if argument(node, "is_result", 4, False) else None
