"""Rules about ranks, shapes and dims."""

from __future__ import annotations

from portwright.graph.graph import Graph, Node
from portwright.graph.tables import argument
from portwright.targets.csx.constraints_base import constraint, is_in_place, tensor, tensors


@constraint
def has_dimensions(graph: Graph, node: Node) -> str | None:
    """its input has at least one dimension"""
    value = tensor(graph, node.args[0]) if node.args else None
    if value is not None and not value.shape:
        return 'its input is a scalar tensor, which is not lowered: "input tensor cannot be scalar"'
    return None


@constraint
def has_dimensions_if_any_given(graph: Graph, node: Node) -> str | None:
    """its input has at least one dimension, unless it reduces over all"""
    if argument(node, "dim", 2 if "norm" in node.op else 1) in (None, ()):
        return None
    return has_dimensions(graph, node)


@constraint
def is_batched_2d(graph: Graph, node: Node) -> str | None:
    """its input has a batch dimension: four in all"""
    return _wants_rank(graph, node, 4)


@constraint
def is_batched_3d(graph: Graph, node: Node) -> str | None:
    """its input has a batch dimension: five in all"""
    return _wants_rank(graph, node, 5)


@constraint
def is_matrix(graph: Graph, node: Node) -> str | None:
    """its input has two dimensions"""
    return _wants_rank(graph, node, 2)


def _wants_rank(graph: Graph, node: Node, rank: int) -> str | None:
    value = tensor(graph, node.args[0])
    if value is None or len(value.shape) == rank:
        return None
    return f"its input has {len(value.shape)} dimensions, and only {rank} are lowered"


@constraint
def no_broadcast(graph: Graph, node: Node) -> str | None:
    """its inputs have one shape"""
    shapes = {value.shape for value in tensors(graph, node.args)}
    return None if len(shapes) == 1 else 'it broadcasts: "requires the same type for all operands and result"'


@constraint
def has_four_dimensions(graph: Graph, node: Node) -> str | None:
    """its input has at least four dimensions"""
    value = tensor(graph, node.args[0])
    if value is None or len(value.shape) >= 4:
        return None
    return f"its input has {len(value.shape)} dimensions, and fewer than 4 are not lowered"


@constraint
def keeps_dims(graph: Graph, node: Node) -> str | None:
    """over several dims, keepdim is on"""
    dims = argument(node, "dim", 1)
    if isinstance(dims, tuple) and len(dims) > 1 and not argument(node, "keepdim", 2, False):
        return f"it reduces {len(dims)} dims without keepdim, which is not lowered"
    return None


@constraint
def keeps_its_shape(graph: Graph, node: Node) -> str | None:
    """the shape stays"""
    value = tensor(graph, node.args[0])
    if value is None or value.shape == graph.values[node.outputs[0]].shape:
        return None
    return "it changes the shape in place, which is not lowered"


@constraint
def copies_its_own_shape(graph: Graph, node: Node) -> str | None:
    """source and destination have one shape, or the source is a scalar"""
    into, source = tensor(graph, node.args[0]), tensor(graph, argument(node, "src", 1))
    if into is None or source is None or not source.shape or into.shape == source.shape:
        return None
    return f'it broadcasts {list(source.shape)} into {list(into.shape)}: "must have the same shape"'


@constraint
def first_has_the_result_shape(graph: Graph, node: Node) -> str | None:
    """its first input has the shape of the result"""
    first, result = tensor(graph, node.args[0]), graph.values[node.outputs[0]]
    if first is not None and first.shape and first.shape != result.shape:
        return f'it broadcasts its first input to {list(result.shape)}: "operands/results must have the same shape"'
    return None


@constraint
def rising_dims(graph: Graph, node: Node) -> str | None:
    """its dims rise"""
    places = _places(graph, node)
    return None if places == sorted(places) else f"its dims {list(argument(node, 'dim', 1))} do not rise"


@constraint
def neighbouring_dims(graph: Graph, node: Node) -> str | None:
    """its dims rise and are neighbours"""
    places = _places(graph, node)
    value = tensor(graph, node.args[0])
    if len(places) < 2 or value is None:
        return None
    between = (value.shape[d] for d in range(min(places), max(places)) if d not in places)
    if places == sorted(places) and all(size == 1 for size in between):
        return None
    return f"its dims {list(argument(node, 'dim', 1))} are not rising neighbours, which is not lowered"


def _places(graph: Graph, node: Node) -> list[int]:
    dims, value = argument(node, "dim", 1), tensor(graph, node.args[0])
    if not isinstance(dims, tuple) or value is None:
        return []
    return [dim % max(len(value.shape), 1) for dim in dims]


@constraint
def repeats_its_own_dimensions(graph: Graph, node: Node) -> str | None:
    """it adds no dimension, and repeats at least once"""
    repeats = argument(node, "repeats", 1, ())
    value = tensor(graph, node.args[0])
    if value is not None and len(repeats) != len(value.shape):
        return f"it repeats {len(value.shape)} dimensions into {len(repeats)}, which is not lowered"
    return "it repeats zero times" if 0 in repeats else None


@constraint
def in_its_own_order(graph: Graph, node: Node) -> str | None:
    """its dimensions lie in memory in their own order"""
    layout = argument(node, "physical_layout", 1, ())
    return (
        None
        if list(layout) == sorted(layout)
        else "another order in memory needs as_strided, which is not lowered"
    )


@constraint
def in_place_on_a_matrix(graph: Graph, node: Node) -> str | None:
    """in place, its input has two dimensions"""
    return is_matrix(graph, node) if is_in_place(node) else None


@constraint
def reduces_a_single_sample(graph: Graph, node: Node) -> str | None:
    """a sample without a batch dimension is reduced"""
    value = tensor(graph, node.args[0])
    if value is not None and len(value.shape) == 1 and argument(node, "reduction", 3, 1) == 0:
        return "a sample without a batch dimension is not reduced, which is not lowered"
    return None
