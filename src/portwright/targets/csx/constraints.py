"""What the Cerebras front end asks of an op beyond having a kernel: one small function for each rule, the reason or None.

The rules were learned by asking SDK 2.10.0 (tests/vendor/refresh.py); the words in quotes are its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from portwright.graph.graph import Graph, Node, Ref, Value
from portwright.graph.kernels import Constraint
from portwright.graph.tables import argument

CONSTRAINTS: dict[str, Constraint] = {}


def _constraint(function: Constraint) -> Constraint:
    CONSTRAINTS[function.__name__] = function
    return function


def tensor(graph: Graph, given: Any) -> Value | None:
    return graph.values[given.value] if isinstance(given, Ref) else None


def tensors(graph: Graph, arguments: Sequence[Any]) -> list[Value]:
    return [graph.values[a.value] for a in arguments if isinstance(a, Ref)]


def is_in_place(node: Node) -> bool:
    name = node.op.split(".")[1]
    return name.endswith("_") and not name.endswith("__")


_DTYPES = ("float16", "bfloat16", "float32", "float8_e5m2", "bool", "int16", "int32", "int64")


def find_everywhere(graph: Graph, node: Node) -> str | None:
    """What holds of every op: the dtypes that the compiler has."""
    for index in (*node.inputs, *node.outputs):
        dtype = graph.values[index].dtype
        if dtype not in _DTYPES:
            return f"the compiler has no {dtype}; it has {', '.join(_DTYPES)}"
    return None


@_constraint
def has_dimensions(graph: Graph, node: Node) -> str | None:
    """its input has at least one dimension"""
    value = tensor(graph, node.args[0]) if node.args else None
    if value is not None and not value.shape:
        return 'its input is a scalar tensor, which is not lowered: "input tensor cannot be scalar"'
    return None


@_constraint
def has_dimensions_if_any_given(graph: Graph, node: Node) -> str | None:
    """its input has at least one dimension, unless it reduces over all"""
    if argument(node, "dim", 2 if "norm" in node.op else 1) in (None, ()):
        return None
    return has_dimensions(graph, node)


@_constraint
def one_group(graph: Graph, node: Node) -> str | None:
    """groups is 1"""
    groups = argument(node, "groups", 9 if "backward" in node.op else 8, 1)
    if groups == 1:
        return None
    return f'it has {groups} groups: "convolutions with groups != 1 are not supported"'


@_constraint
def not_backward_of_1d(graph: Graph, node: Node) -> str | None:
    """a convolution that is trained has two or three spatial dimensions"""
    value = tensor(graph, argument(node, "input", 1))
    if value is not None and len(value.shape) == 3:
        return 'its gradient is not lowered: "1D backward convolutions are not supported"'
    return None


@_constraint
def plain_average(graph: Graph, node: Node) -> str | None:
    """ceil_mode is off, and no divisor is given"""
    first = 2 if "backward" in node.op else 1
    if argument(node, "ceil_mode", first + 3, False):
        return "ceil_mode is on, which is not lowered"
    if argument(node, "divisor_override", first + 5) is not None:
        return "a divisor_override is given, which is not lowered"
    return None


@_constraint
def is_batched_2d(graph: Graph, node: Node) -> str | None:
    """its input has a batch dimension: four in all"""
    return _wants_rank(graph, node, 4)


@_constraint
def is_batched_3d(graph: Graph, node: Node) -> str | None:
    """its input has a batch dimension: five in all"""
    return _wants_rank(graph, node, 5)


@_constraint
def is_matrix(graph: Graph, node: Node) -> str | None:
    """its input has two dimensions"""
    return _wants_rank(graph, node, 2)


def _wants_rank(graph: Graph, node: Node, rank: int) -> str | None:
    value = tensor(graph, node.args[0])
    if value is None or len(value.shape) == rank:
        return None
    return f"its input has {len(value.shape)} dimensions, and only {rank} are lowered"


@_constraint
def euclidean(graph: Graph, node: Node) -> str | None:
    """the norm is the 2-norm"""
    order = argument(node, "ord" if "linalg" in node.op else "p", 1, 2)
    return (
        None if order in (2, 2.0, None) else f"the norm of order {order} is not lowered, only that of order 2"
    )


@_constraint
def same_shapes(graph: Graph, node: Node) -> str | None:
    """its inputs have one shape, or one of them has that of the result"""
    values = [value for value in tensors(graph, node.args) if value.shape]
    result = graph.values[node.outputs[0]].shape
    if any(value.shape != result for value in values[:2]) and not any(
        value.shape == result for value in values[:1]
    ):
        return f'it broadcasts its first input to {list(result)}: "operands/results must have the same shape"'
    return None


@_constraint
def no_broadcast(graph: Graph, node: Node) -> str | None:
    """its inputs have one shape"""
    shapes = {value.shape for value in tensors(graph, node.args)}
    return None if len(shapes) == 1 else 'it broadcasts: "requires the same type for all operands and result"'


@_constraint
def not_64_bit(graph: Graph, node: Node) -> str | None:
    """integers have at most 32 bits"""
    if any(graph.values[i].dtype == "int64" for i in node.inputs):
        return "it has no 64-bit integer form: \"unsupported dtype: 'i64'\""
    return None


@_constraint
def one_leading_index(graph: Graph, node: Node) -> str | None:
    """one index tensor, at the front"""
    indices = argument(node, "indices", 1, ())
    given = [i for i in indices if i is not None]
    if any(graph.values[i.value].dtype in ("bool", "uint8") for i in given):
        return "a mask selects, so that the size of the result depends on values"
    if indices and indices[0] is None:
        return "an index that is not at the front is not lowered"
    return None


@_constraint
def accumulates(graph: Graph, node: Node) -> str | None:
    """it adds to what is there; plain assignment by index is not lowered"""
    if argument(node, "accumulate", 3, False):
        return None
    return "assignment by an index tensor is not lowered, only accumulation"


@_constraint
def unit_scale(graph: Graph, node: Node) -> str | None:
    """scale is 1"""
    scale = argument(node, "scale", 2, 1)
    return None if scale == 1 else f"a scale of {scale} is not lowered"


@_constraint
def only_as_a_function(graph: Graph, node: Node) -> str | None:
    """it is not called in place: the decomposition is for the function alone"""
    if is_in_place(node):
        name = node.op.split(".")[1]
        return (
            f"in place it is not decomposed: \"failed to legalize operation 'torch.aten.{name.rstrip('_')}'\""
        )
    return None


@_constraint
def not_in_place_on_half(graph: Graph, node: Node) -> str | None:
    """it is not called in place on half precision"""
    value = tensor(graph, node.args[0])
    if is_in_place(node) and value is not None and value.dtype == "float16":
        return f'"Cannot call in-place method {node.op.split(".")[1]} on fp16 Tensors"'
    return None


@_constraint
def not_half(graph: Graph, node: Node) -> str | None:
    """its input is in single precision"""
    if any(value.dtype == "float16" for value in tensors(graph, node.args)):
        return "mixed precision gives it half precision, which the SDK refuses here"
    return None


@_constraint
def half_turns(graph: Graph, node: Node) -> str | None:
    """it turns by a multiple of 180 degrees"""
    return (
        "a turn by 90 degrees needs as_strided_, which has no kernel"
        if argument(node, "k", 1, 1) % 2
        else None
    )


@_constraint
def repeats_its_own_dimensions(graph: Graph, node: Node) -> str | None:
    """it adds no dimension, and repeats at least once"""
    repeats = argument(node, "repeats", 1, ())
    value = tensor(graph, node.args[0])
    if value is not None and len(repeats) != len(value.shape):
        return f"it repeats {len(value.shape)} dimensions into {len(repeats)}, which is not lowered"
    return "it repeats zero times" if 0 in repeats else None


@_constraint
def floating_fill(graph: Graph, node: Node) -> str | None:
    """a floating-point tensor is filled with a floating-point number"""
    value = graph.values[node.outputs[0]]
    fill = argument(node, "fill_value", 1)
    if value.dtype.startswith(("float", "bfloat")) and isinstance(fill, int) and not isinstance(fill, bool):
        return f"{value.dtype} is filled with the integer {fill}, which is not lowered"
    return None


@_constraint
def rising_dims(graph: Graph, node: Node) -> str | None:
    """its dims are in rising order"""
    dims = argument(node, "dim", 1)
    value = tensor(graph, node.args[0])
    if not isinstance(dims, tuple) or value is None:
        return None
    places = [d % max(len(value.shape), 1) for d in dims]
    return None if places == sorted(places) else f"its dims {list(dims)} fall"


@_constraint
def along_the_first(graph: Graph, node: Node) -> str | None:
    """its index runs along the first dimension"""
    value = tensor(graph, node.args[0])
    dim = argument(node, "dim", 1, 0)
    if value is None or dim % max(len(value.shape), 1) == 0:
        return None
    return f"it adds along dimension {dim}, and only the first is lowered: \"failed to legalize 'torch.prim.ListConstruct'\""


@_constraint
def trains_along_the_first(graph: Graph, node: Node) -> str | None:
    """where it is trained, its index runs along the first dimension"""
    value = tensor(graph, node.args[0])
    if value is None or not (graph.trains and value.requires_grad):
        return None
    return along_the_first(graph, node)


@_constraint
def not_unsafe(graph: Graph, node: Node) -> str | None:
    """it is split or chunk, not unsafe_split"""
    return "unsafe_split is not lowered; split is" if "unsafe_" in node.op else None


@_constraint
def has_four_dimensions(graph: Graph, node: Node) -> str | None:
    """its input has at least four dimensions"""
    value = tensor(graph, node.args[0])
    if value is None or len(value.shape) >= 4:
        return None
    return f"its input has {len(value.shape)} dimensions, and fewer than 4 are not lowered"


@_constraint
def has_running_statistics(graph: Graph, node: Node) -> str | None:
    """it has running statistics"""
    if argument(node, "running_mean", 3) is None:
        return 'it has no running statistics: "unsupported PyTorch scalar type: UNKNOWN_SCALAR"'
    return None


@_constraint
def keeps_dims(graph: Graph, node: Node) -> str | None:
    """over several dims, keepdim is on"""
    dims = argument(node, "dim", 1)
    if isinstance(dims, tuple) and len(dims) > 1 and not argument(node, "keepdim", 2, False):
        return f"it reduces {len(dims)} dims without keepdim, which is not lowered"
    return None


@_constraint
def keeps_its_shape(graph: Graph, node: Node) -> str | None:
    """the shape stays"""
    value = tensor(graph, node.args[0])
    if value is None or value.shape == graph.values[node.outputs[0]].shape:
        return None
    return "it changes the shape in place, which is not lowered"


@_constraint
def reduces_a_single_sample(graph: Graph, node: Node) -> str | None:
    """a sample without a batch dimension is reduced"""
    value = tensor(graph, node.args[0])
    if value is not None and len(value.shape) == 1 and argument(node, "reduction", 3, 1) == 0:
        return "a sample without a batch dimension is not reduced, which is not lowered"
    return None


@_constraint
def copies_its_own_shape(graph: Graph, node: Node) -> str | None:
    """source and destination have one shape, or the source is a scalar"""
    into, source = tensor(graph, node.args[0]), tensor(graph, argument(node, "src", 1))
    if into is None or source is None or not source.shape or into.shape == source.shape:
        return None
    return f'it broadcasts {list(source.shape)} into {list(into.shape)}: "must have the same shape"'


@_constraint
def in_its_own_order(graph: Graph, node: Node) -> str | None:
    """its dimensions lie in memory in their own order"""
    layout = argument(node, "physical_layout", 1, ())
    return (
        None
        if list(layout) == sorted(layout)
        else "another order in memory needs as_strided, which is not lowered"
    )
