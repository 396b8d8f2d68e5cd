"""The Cerebras front end's conditions on ops that have a kernel: one function each, which gives the reason or None.

The conditions were learned by asking SDK 2.10.0 (tests/vendor/refresh.py); quoted text is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from portwright.graph.graph import Graph, Node, Ref, Value
from portwright.graph.kernels import Constraint
from portwright.graph.tables import argument, base_name

CONSTRAINTS: dict[str, Constraint] = {}


def constraint(function: Constraint) -> Constraint:
    CONSTRAINTS[function.__name__] = function
    return function


def refuses(reason: str) -> Callable[[Callable[[Graph, Node], bool]], Constraint]:
    """A constraint that says for which nodes it refuses, always with the same reason."""

    def make(is_refused: Callable[[Graph, Node], bool]) -> Constraint:
        @wraps(is_refused)
        def check(graph: Graph, node: Node) -> str | None:
            return reason if is_refused(graph, node) else None

        return constraint(check)

    return make


def tensor(graph: Graph, given: Any) -> Value | None:
    return graph.values[given.value] if isinstance(given, Ref) else None


def tensors(graph: Graph, arguments: Sequence[Any]) -> list[Value]:
    return [graph.values[a.value] for a in arguments if isinstance(a, Ref)]


def is_in_place(node: Node) -> bool:
    name = node.op.split(".")[1]
    return name.endswith("_") and not name.endswith("__")


def is_floating(value: Value) -> bool:
    return value.dtype.startswith(("float", "bfloat"))


DTYPES = ("float16", "bfloat16", "float32", "float8_e5m2", "bool", "int16", "int32", "int64")


def find_everywhere(graph: Graph, node: Node) -> str | None:
    """What holds of every op: the dtypes that the compiler has."""
    for index in (*node.inputs, *node.outputs):
        dtype = graph.values[index].dtype
        if dtype not in DTYPES:
            return f"the compiler has no {dtype}; it has {', '.join(DTYPES)}"
    return None


@refuses("it has no 64-bit integer form: \"unsupported dtype: 'i64'\"")
def not_64_bit(graph: Graph, node: Node) -> bool:
    """integers have at most 32 bits"""
    return any(graph.values[i].dtype == "int64" for i in node.inputs)


@constraint
def not_in_place_on_half(graph: Graph, node: Node) -> str | None:
    """it is not called in place on half precision"""
    value = tensor(graph, node.args[0])
    if is_in_place(node) and value is not None and value.dtype == "float16":
        return f'"Cannot call in-place method {node.op.split(".")[1]} on fp16 Tensors"'
    return None


@refuses("mixed precision gives it half precision, which the SDK refuses here")
def not_half(graph: Graph, node: Node) -> bool:
    """its input is in single precision"""
    return any(value.dtype == "float16" for value in tensors(graph, node.args))


@constraint
def floating_fill(graph: Graph, node: Node) -> str | None:
    """a floating-point tensor is filled with a floating-point number"""
    value = graph.values[node.outputs[0]]
    fill = argument(node, "fill_value", 1)
    if is_floating(value) and isinstance(fill, int) and not isinstance(fill, bool):
        return f"{value.dtype} is filled with the integer {fill}, which is not lowered"
    return None


@constraint
def floating_point(graph: Graph, node: Node) -> str | None:
    """its input is floating point"""
    value = tensor(graph, node.args[0])
    return None if value is None or is_floating(value) else f"it has no form for {value.dtype}"


@constraint
def integers_padded_with_integers(graph: Graph, node: Node) -> str | None:
    """integers are padded with an integer that is given"""
    value, fill = tensor(graph, node.args[0]), argument(node, "value", 2, 0.0)
    if value is None or is_floating(value) or not isinstance(fill, float):
        return None
    return f"{value.dtype} is padded with the floating-point number {fill}, which is not lowered"


@refuses("integers are scaled by a floating-point number: \"unsupported input dtype: 'f64'\"")
def integers_scaled_by_integers(graph: Graph, node: Node) -> bool:
    """integers are scaled by integers"""
    value = tensor(graph, node.args[0])
    scales = (argument(node, "beta", 3, 1), argument(node, "alpha", 4, 1))
    return value is not None and not is_floating(value) and any(isinstance(scale, float) for scale in scales)


@constraint
def integers_without_dtype(graph: Graph, node: Node) -> str | None:
    """integers come without a dtype"""
    value = tensor(graph, node.args[0])
    if value is not None and not is_floating(value) and (node.kwargs.get("dtype") or not value.shape):
        return f"its form for {value.dtype} with a dtype, or on a scalar, is not lowered"
    return None


@constraint
def integers_have_the_result_shape(graph: Graph, node: Node) -> str | None:
    """integer inputs have the shape of the result"""
    result = graph.values[node.outputs[0]]
    for value in tensors(graph, node.args):
        if not is_floating(value) and value.shape and value.shape != result.shape:
            return (
                f'it broadcasts integers to {list(result.shape)}: "operands/results must have the same shape"'
            )
    return None


@constraint
def one_precision(graph: Graph, node: Node) -> str | None:
    """its inputs have one precision"""
    dtypes = {value.dtype for value in tensors(graph, node.args) if is_floating(value)}
    return None if len(dtypes) < 2 else f"it mixes {' and '.join(sorted(dtypes))}"


@refuses('"Subtraction, the `-` operator, with a bool tensor is not supported"')
def not_a_mask(graph: Graph, node: Node) -> bool:
    """no input is bool"""
    return any(value.dtype == "bool" for value in tensors(graph, node.args))


@refuses('its input is a scalar tensor, which is not lowered: "input tensor cannot be scalar"')
def has_dimensions(graph: Graph, node: Node) -> bool:
    """its input has at least one dimension"""
    value = tensor(graph, node.args[0]) if node.args else None
    return value is not None and not value.shape


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


@refuses('it broadcasts: "requires the same type for all operands and result"')
def no_broadcast(graph: Graph, node: Node) -> bool:
    """its inputs have one shape"""
    return len({value.shape for value in tensors(graph, node.args)}) != 1


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


@refuses("it changes the shape in place, which is not lowered")
def keeps_its_shape(graph: Graph, node: Node) -> bool:
    """the shape stays"""
    value = tensor(graph, node.args[0])
    return value is not None and value.shape != graph.values[node.outputs[0]].shape


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


@refuses("another order in memory needs as_strided, which is not lowered")
def in_its_own_order(graph: Graph, node: Node) -> bool:
    """its dimensions lie in memory in their own order"""
    layout = argument(node, "physical_layout", 1, ())
    return list(layout) != sorted(layout)


@constraint
def in_place_on_a_matrix(graph: Graph, node: Node) -> str | None:
    """in place, its input has two dimensions"""
    return is_matrix(graph, node) if is_in_place(node) else None


@refuses("a sample without a batch dimension is not reduced, which is not lowered")
def reduces_a_single_sample(graph: Graph, node: Node) -> bool:
    """a sample without a batch dimension is reduced"""
    value = tensor(graph, node.args[0])
    return value is not None and len(value.shape) == 1 and argument(node, "reduction", 3, 1) == 0


@constraint
def one_group(graph: Graph, node: Node) -> str | None:
    """groups is 1"""
    groups = argument(node, "groups", 9 if "backward" in node.op else 8, 1)
    if groups == 1:
        return None
    return f'it has {groups} groups: "convolutions with groups != 1 are not supported"'


@refuses('its gradient is not lowered: "1D backward convolutions are not supported"')
def not_backward_of_1d(graph: Graph, node: Node) -> bool:
    """a convolution that is trained has two or three spatial dimensions"""
    value = tensor(graph, argument(node, "input", 1))
    return value is not None and len(value.shape) == 3


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


@refuses("unsafe_split is not lowered; split is")
def not_unsafe(graph: Graph, node: Node) -> bool:
    """it is split or chunk, not unsafe_split"""
    return "unsafe_" in node.op


@refuses('it has no running statistics: "unsupported PyTorch scalar type: UNKNOWN_SCALAR"')
def has_running_statistics(graph: Graph, node: Node) -> bool:
    """it has running statistics"""
    return argument(node, "running_mean", 3) is None


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
    """The node that made the first argument, searched among its neighbours."""
    value = argument(node, "self", 0)
    near = graph.nodes[max(0, node.index - 20) : node.index]
    return next((maker for maker in reversed(near) if value.value in maker.outputs), None)


def _is_reshape(node: Node) -> bool:
    return base_name(node.op) in ("aten.view", "aten._unsafe_view", "aten.reshape")


@refuses("in place, its gradient is not lowered")
def from_its_input(graph: Graph, node: Node) -> bool:
    """the gradient is computed from the input, so the activation is not in place"""
    return bool(argument(node, "is_result", 4, False))
