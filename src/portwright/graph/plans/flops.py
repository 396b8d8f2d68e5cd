"""Floating-point operations of a step, from the shapes alone.

A product counts 2*m*n*k: matrix products, convolutions and attention, as torch's own counter does. Any other arithmetic counts
one an element of its largest tensor; views, copies, casts and lookups compute nothing and count nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from portwright.graph.graph import Graph, Node, Ref
from portwright.graph.plans import flops_tensorflow
from portwright.graph.plans.rows import Rows

FORMULA = (
    "products 2*m*n*k from the shapes (matrix products, convolutions, attention); other arithmetic one an element of its largest "
    "tensor; views, copies, casts and lookups nothing; divided by the batch size"
)

Shape = Sequence[int]

# Ops that move or name data: no arithmetic. An op's name here is without namespace and overload.
_MOVE_NAMES = """
    _assert_async _efficientzerotensor _local_scalar_dense _reshape_alias _reshape_copy _shape_as_tensor _to_copy _unsafe_view
    _unsafe_index alias arange argsort as_strided as_strided_scatter broadcast_to bernoulli cat clone constant_pad_nd
    contiguous copy copy_ detach detach_ device_put diag_embed diagonal diagonal_scatter embedding empty empty_like
    empty_permuted empty_strided equal expand expand_as eye fill fill_ flatten flip full full_like gather index index_copy
    index_put index_put_ index_select is_same_size item lift lift_fresh lift_fresh_copy masked_select movedim narrow
    new_empty new_empty_strided new_full new_ones new_zeros nonzero ones ones_like permute pixel_shuffle pixel_unshuffle
    rand rand_like randint randn randn_like randperm reflection_pad1d reflection_pad2d reflection_pad3d repeat
    repeat_interleave replication_pad1d replication_pad2d replication_pad3d reshape resize_ roll rot90 scalar_tensor scatter
    scatter_ select select_backward select_scatter set_ slice slice_backward slice_scatter sort split split_with_sizes squeeze
    squeeze_ stack sym_size t t_ take tensor_split tile to topk transpose transpose_ tril triu unbind unfold unsafe_split
    unsqueeze unsqueeze_ view view_as view_as_complex view_as_real zero_ zeros zeros_like convert_element_type broadcast_in_dim
    iota expand_copy permute_copy slice_copy view_copy select_copy squeeze_copy t_copy transpose_copy unsqueeze_copy
    split_copy split_with_sizes_copy unbind_copy alias_copy detach_copy
"""
_MOVES = frozenset(_MOVE_NAMES.split()) | flops_tensorflow.MOVES


@dataclass(frozen=True, slots=True)
class Count:
    """Operations of one sample."""

    products: float = 0.0  # 2*m*n*k
    others: float = 0.0  # one an element

    @property
    def total(self) -> float:
        return self.products + self.others

    def __add__(self, other: Count) -> Count:
        return Count(self.products + other.products, self.others + other.others)


@dataclass(frozen=True)
class Flops:
    """Operations of one sample, of the step and of each layer."""

    forward: Count
    backward: Count
    forward_of: tuple[Count, ...]  # one a layer
    backward_of: tuple[Count, ...]

    @property
    def total(self) -> Count:
        return self.forward + self.backward

    def of(self, layer: int) -> Count:
        return self.forward_of[layer] + self.backward_of[layer]


def count_flops(graph: Graph, rows: Rows) -> Flops:
    """Counts forward and backward; the optimizer's share is `optimizer_state.update_flops`."""
    products = {phase: [0] * len(rows.rows) for phase in ("forward", "backward")}
    others = {phase: [0] * len(rows.rows) for phase in ("forward", "backward")}
    seen: dict[object, tuple[int, int]] = {}
    for position, node in enumerate(graph.nodes):
        if node.phase == "optimizer":
            continue
        # Identical calls, as those of identical layers, are counted once.
        key = (
            node.op,
            tuple(graph.values[i].shape for i in node.inputs),
            tuple(graph.values[i].shape for i in node.outputs),
            _plain(node),
        )
        counted = seen.get(key)
        if counted is None:
            counted = seen[key] = flops_of_node(graph, node)
        layer = rows.of_node(position)
        products[node.phase][layer] += counted[0]
        others[node.phase][layer] += counted[1]
    batch = max(graph.batch_size, 1)
    per_layer = {
        phase: tuple(Count(p / batch, o / batch) for p, o in zip(products[phase], others[phase], strict=True))
        for phase in products
    }
    whole = {phase: Count(sum(products[phase]) / batch, sum(others[phase]) / batch) for phase in products}
    return Flops(whole["forward"], whole["backward"], per_layer["forward"], per_layer["backward"])


def flops_of_node(graph: Graph, node: Node) -> tuple[int, int]:
    """Operations of one call, as products and as others; exactly one of the two is not 0, or both are."""
    name, turns = _name(node), int(node.kwargs.get("trips", 1))  # of the loops around it
    count = _PRODUCTS.get(name)
    if count is not None:
        return count(graph, node) * turns, 0
    if name in _MOVES:
        return 0, 0
    sizes = [graph.values[i].num_elements for i in (*node.inputs, *node.outputs)]
    return 0, max(sizes, default=0) * turns


def is_product(node: Node) -> bool:
    return _name(node) in _PRODUCTS


def _name(node: Node) -> str:
    """The op without its namespace and overload."""
    parts = node.op.split(".")
    return parts[1] if len(parts) > 1 else node.op


def _plain(node: Node) -> object:
    """The arguments that a count may depend on; only products look at more than a loop's turns."""
    if not is_product(node):
        return node.kwargs.get("trips")
    named = tuple(f"{name}={value}" for name, value in node.kwargs.items())
    return (*("tensor" if isinstance(a, Ref) else str(a) for a in node.args), *named)


def _shapes(graph: Graph, node: Node) -> list[Shape]:
    """Shapes of the tensors among the positional arguments, in their order."""
    return [graph.values[a.value].shape for a in node.args if isinstance(a, Ref)]


def _matmul(a: Shape, b: Shape) -> int:
    """Any product over the last dimension of a: what it gives has a's and b's other dimensions, batch dimensions shared."""
    if len(a) == 0 or len(b) == 0:
        return 0
    inner = a[-1]
    rows = a[-2] if len(a) > 1 else 1
    columns = b[-1] if len(b) > 1 else 1
    batch = _broadcast(a[:-2], b[:-2])
    return 2 * math.prod(batch) * rows * inner * columns


def _broadcast(a: Shape, b: Shape) -> list[int]:
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    padded = [1] * (len(longer) - len(shorter)) + list(shorter)
    return [max(x, y) if min(x, y) else 0 for x, y in zip(longer, padded, strict=True)]


def _linear(graph: Graph, node: Node) -> int:
    x, weight = _shapes(graph, node)[:2]
    return 2 * math.prod(x) * (weight[0] if len(weight) > 1 else 1)


def _convolution(graph: Graph, node: Node) -> int:
    x, weight = _shapes(graph, node)[:2]
    out = graph.values[node.outputs[0]].shape
    is_transposed = bool(node.args[6]) if len(node.args) > 6 else False
    return _convolve(x, weight, out, is_transposed)


def _convolve(x: Shape, weight: Shape, out: Shape, is_transposed: bool) -> int:
    """Each weight is used once at each place of the output, or of the input of a transposed one."""
    spatial_dims = len(weight) - 2
    batch = 1 if len(x) == spatial_dims + 1 else x[0]
    places = x if is_transposed else out
    return 2 * batch * math.prod(places[len(places) - spatial_dims :]) * math.prod(weight)


def _convolution_backward(graph: Graph, node: Node) -> int:
    gradient, x, weight = _shapes(graph, node)[:3]
    is_transposed = bool(node.args[7])
    wanted = node.args[10]
    return sum(bool(flag) for flag in wanted[:2]) * _convolve(x, weight, gradient, is_transposed)


def _attend(query: Shape, key: Shape, value: Shape) -> tuple[int, int]:
    """Products of the forward pass, and of the backward pass of a kernel that keeps no scores and computes them again."""
    batch = math.prod(query[:-2])
    queries, width = query[-2], query[-1]
    keys, value_width = key[-2], value[-1]
    scores = 2 * batch * queries * keys * width  # q @ k'
    mixed = 2 * batch * queries * keys * value_width  # scores @ v
    return scores + mixed, 3 * scores + 2 * mixed


def _head(hidden: Shape, weight: Shape) -> int:
    """An output layer and its loss in one (portwright.losses.chunked)."""
    return 2 * hidden[0] * math.prod(weight)


def _head_loss_and_gradients(graph: Graph, node: Node) -> int:
    """The same and its gradients: a product more for each matrix that needs one."""
    return _head(*_shapes(graph, node)[1:3]) * (1 + sum(bool(needed) for needed in node.args[-1][:2]))


def _recurrent(graph: Graph, node: Node) -> int:
    """A whole LSTM, GRU or RNN that was not taken apart: every weight matrix times every position of the sequence."""
    refs = [graph.values[i].shape for i in node.inputs]
    x = refs[0]
    matrices = [shape for shape in refs[1:] if len(shape) == 2]
    return 2 * math.prod(x[:-1]) * sum(math.prod(shape) for shape in matrices)


_PRODUCTS: dict[str, Callable[[Graph, Node], int]] = {
    **dict.fromkeys(
        ("mm", "bmm", "matmul", "mv", "dot", "vdot", "inner", "_scaled_mm", "_int_mm"),
        lambda graph, node: _matmul(*_shapes(graph, node)[:2]),
    ),
    **dict.fromkeys(
        ("addmm", "addmm_", "addbmm", "baddbmm", "baddbmm_", "addmv", "_addmm_activation"),
        lambda graph, node: _matmul(*_shapes(graph, node)[1:3]),
    ),
    "linear": _linear,
    **dict.fromkeys(
        (
            "convolution",
            "_convolution",
            "conv1d",
            "conv2d",
            "conv3d",
            "mkldnn_convolution",
            "cudnn_convolution",
            "_slow_conv2d_forward",
        ),
        _convolution,
    ),
    "convolution_backward": _convolution_backward,
    **dict.fromkeys(
        (
            "scaled_dot_product_attention",
            "_scaled_dot_product_attention_math",
            "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_cudnn_attention",
            "_scaled_dot_product_fused_attention_overrideable",
        ),
        lambda graph, node: _attend(*_shapes(graph, node)[:3])[0],
    ),
    **dict.fromkeys(
        (
            "_scaled_dot_product_efficient_attention_backward",
            "_scaled_dot_product_flash_attention_backward",
            "_scaled_dot_product_flash_attention_for_cpu_backward",
            "_scaled_dot_product_cudnn_attention_backward",
            "_scaled_dot_product_fused_attention_overrideable_backward",
        ),
        lambda graph, node: _attend(*_shapes(graph, node)[1:4])[1],
    ),
    "head_losses": lambda graph, node: _head(*_shapes(graph, node)[:2]),
    "head_loss_and_gradients": _head_loss_and_gradients,
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu", "mkldnn_rnn_layer"), _recurrent),
    **flops_tensorflow.PRODUCTS,
}
