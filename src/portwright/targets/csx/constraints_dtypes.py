"""Rules about dtypes and precision."""

from __future__ import annotations

from portwright.graph.graph import Graph, Node
from portwright.graph.tables import argument
from portwright.targets.csx.constraints_base import constraint, is_floating, is_in_place, tensor, tensors

DTYPES = ("float16", "bfloat16", "float32", "float8_e5m2", "bool", "int16", "int32", "int64")


def find_everywhere(graph: Graph, node: Node) -> str | None:
    """What holds of every op: the dtypes that the compiler has."""
    for index in (*node.inputs, *node.outputs):
        dtype = graph.values[index].dtype
        if dtype not in DTYPES:
            return f"the compiler has no {dtype}; it has {', '.join(DTYPES)}"
    return None


@constraint
def not_64_bit(graph: Graph, node: Node) -> str | None:
    """integers have at most 32 bits"""
    if any(graph.values[i].dtype == "int64" for i in node.inputs):
        return "it has no 64-bit integer form: \"unsupported dtype: 'i64'\""
    return None


@constraint
def not_in_place_on_half(graph: Graph, node: Node) -> str | None:
    """it is not called in place on half precision"""
    value = tensor(graph, node.args[0])
    if is_in_place(node) and value is not None and value.dtype == "float16":
        return f'"Cannot call in-place method {node.op.split(".")[1]} on fp16 Tensors"'
    return None


@constraint
def not_half(graph: Graph, node: Node) -> str | None:
    """its input is in single precision"""
    if any(value.dtype == "float16" for value in tensors(graph, node.args)):
        return "mixed precision gives it half precision, which the SDK refuses here"
    return None


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


@constraint
def integers_scaled_by_integers(graph: Graph, node: Node) -> str | None:
    """integers are scaled by integers"""
    value = tensor(graph, node.args[0])
    scales = (argument(node, "beta", 3, 1), argument(node, "alpha", 4, 1))
    if value is None or is_floating(value) or not any(isinstance(scale, float) for scale in scales):
        return None
    return "integers are scaled by a floating-point number: \"unsupported input dtype: 'f64'\""


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


@constraint
def not_a_mask(graph: Graph, node: Node) -> str | None:
    """no input is bool"""
    if any(value.dtype == "bool" for value in tensors(graph, node.args)):
        return '"Subtraction, the `-` operator, with a bool tensor is not supported"'
    return None
