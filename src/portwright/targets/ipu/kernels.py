"""What PopTorch 3.4 runs on an IPU, from its documented list and the handlers in its public sources (kernels.tsv).

PopTorch makes gradients and has optimizers of its own, so a backward op is judged by the forward op whose gradient it is,
and the optimizer by its name. Nothing was tried with an SDK or an IPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from portwright.graph.graph import Graph, Node, Ref, once_a_graph
from portwright.graph.kernels import Verdict
from portwright.graph.tables import OwnTrainingTable, argument, base_name

LABEL = (
    "PopTorch 3.4: its documented list and the handlers of its public sources, not tried on an IPU; "
    "there int64 becomes int32 and float64 becomes float32"
)
OPTIMIZERS = ("SGD", "Adam", "AdamW", "RMSprop", "LAMB")
_RECURRENT = {"RNN", "GRU", "LSTM"}
_CELLS = {f"aten.{name}" for name in ("mkldnn_rnn_layer", "lstm", "gru", "mm", "addmm", "linear", "matmul")}
_VIEWS = {f"aten.{name}" for name in ("alias", "detach", "squeeze", "unsqueeze", "view")}
_BY_SHAPE = {  # what they make depends on the shape of their input alone
    f"aten.{name}" for name in ("new_ones", "new_zeros", "new_full", "ones_like", "zeros_like", "full_like")
}


class IpuTable(OwnTrainingTable):
    """PopTorch's table, with conditions that depend on several nodes."""

    optimizers = OPTIMIZERS
    no_optimizer = "PopTorch has no optimizer {}", f"Use one of {', '.join(OPTIMIZERS)}."

    def judge(self, graph: Graph, node: Node) -> Verdict:
        if node.phase == "forward" and (reason := _refused_recurrences(graph).get(node.index)) is not None:
            return Verdict("refused", reason, CURES["one_layer_one_way"])
        return super().judge(graph, node)


@once_a_graph
def _refused_recurrences(graph: Graph) -> dict[int, str]:
    """Nodes of recurrent modules with several layers, both directions, or no biases, each with the reason to refuse."""
    found: dict[int, str] = {}
    kinds = {module.path: module.kind for module in graph.modules if module.kind in _RECURRENT}
    names = {value.name for value in graph.values if value.kind == "parameter"}
    for path, kind in kinds.items():
        prefix = f"{path}." if path else ""
        inside = [n for n in graph.of_phase("forward") if n.module == path]
        if not inside:
            continue
        first = next((n.index for n in inside if base_name(n.op) in _CELLS), inside[0].index)
        if f"{prefix}weight_ih_l1" in names:
            found[first] = f"torch.nn.{kind} with several layers; PopTorch takes one"
        elif f"{prefix}weight_ih_l0_reverse" in names:
            found[first] = f"torch.nn.{kind} in both directions; PopTorch takes one"
        elif kind != "GRU" and f"{prefix}bias_ih_l0" not in names:
            found[first] = f"torch.nn.{kind} without biases; PopTorch takes that of GRU only"
    return found


def sorted_only(graph: Graph, node: Node) -> str | None:
    """sorted=True."""
    return None if argument(node, "sorted", 4, True) else "torch.topk with sorted=False"


def no_spectral_norm(graph: Graph, node: Node) -> str | None:
    """for matrices neither the 2-norm nor the nuclear norm."""
    order = argument(node, "ord", 1)
    dims = argument(node, "dim", 2)
    is_matrix = "matrix" in node.op or (
        len(dims) == 2 if isinstance(dims, list | tuple) else _rank(graph, node) == 2
    )
    return f"the norm ord={order!r} of a matrix" if is_matrix and order in (2, -2, "nuc") else None


def no_dilated_transpose(graph: Graph, node: Node) -> str | None:
    """no dilation where the convolution is transposed."""
    dilation = argument(node, "dilation", 5, [1])
    if argument(node, "transposed", 6, False) and any(step != 1 for step in dilation):
        return f"a transposed convolution with dilation={tuple(dilation)}"
    return None


def indices_unused(graph: Graph, node: Node) -> str | None:
    """return_indices=False."""
    indices = set(node.outputs[1:2])
    for other in graph.nodes[node.index + 1 :]:
        if other.phase == "forward" and indices.intersection(other.inputs):
            if base_name(other.op) not in _VIEWS:
                return "a max pool whose indices are used"
            indices.update(other.outputs)
    return None


def has_scale_second(graph: Graph, node: Node) -> str | None:
    """affine=True."""
    return _without_scale(node, 1)


def has_scale_third(graph: Graph, node: Node) -> str | None:
    """affine=True."""
    return _without_scale(node, 2)


def _without_scale(node: Node, position: int) -> str | None:
    if argument(node, "weight", position) is not None:
        return None
    name = node.op.split(".")[1].removeprefix("native_")
    return f"{name} without weights (affine=False), which the user guide leaves out"


def plain_embedding(graph: Graph, node: Node) -> str | None:
    """no padding_idx, scale_grad_by_freq or sparse."""
    return _not_plain(node, "torch.nn.Embedding", 2, 4)


def plain_embedding_bag(graph: Graph, node: Node) -> str | None:
    """no padding_idx, scale_grad_by_freq or sparse."""
    return _not_plain(node, "torch.nn.EmbeddingBag", 8, 5)


def _not_plain(node: Node, name: str, padding_at: int, sparse_at: int) -> str | None:
    padding = argument(node, "padding_idx", padding_at, -1)
    if isinstance(padding, int) and padding >= 0:
        return f"{name} with padding_idx={padding}"
    places = {"scale_grad_by_freq": 3, "sparse": sparse_at}
    given = next((key for key, place in places.items() if argument(node, key, place)), None)
    return f"{name} with {given}=True" if given else None


def no_class_weight(graph: Graph, node: Node) -> str | None:
    """no weight for each class."""
    return None if argument(node, "weight", 2) is None else "a loss with a weight for each class"


def reduced_ctc(graph: Graph, node: Node) -> str | None:
    """reduction 'mean' or 'sum'."""
    return "torch.nn.CTCLoss with reduction='none'" if argument(node, "reduction", 5, 1) == 0 else None


def no_align_corners(graph: Graph, node: Node) -> str | None:
    """align_corners=False."""
    return "upsampling with align_corners=True" if argument(node, "align_corners", 2, False) else None


def whole_factor(graph: Graph, node: Node) -> str | None:
    """the same factor for height and width: a whole one as scale_factor, or one of at most 6 decimals by size."""
    before, after = graph.values[node.inputs[0]].shape[-2:], graph.values[node.outputs[0]].shape[-2:]
    is_whole = not any(new % old for old, new in zip(before, after, strict=True) if old)
    is_even = after[0] * before[1] == after[1] * before[0] and after[0] >= before[0]
    if is_even and (is_whole or (argument(node, "scales_h", 3) is None and _reaches(before, after))):
        return None
    return f"bilinear upsampling from {tuple(before)} to {tuple(after)}"


def _reaches(before: Sequence[int], after: Sequence[int]) -> bool:
    """Whether PopTorch's kernel gives that size: it gets the factor as text of 6 decimals and truncates the product."""
    factor = float(f"{after[0] / before[0]:.6f}") if before[0] else 0.0
    return all(int(old * factor) == new for old, new in zip(before, after, strict=True))


def constant_input(graph: Graph, node: Node) -> str | None:
    """only of a constant, such as torch.ones(n, n)."""
    return None if _is_constant(graph, node) else "torch.triu of a tensor that is not a constant"


def _is_constant(graph: Graph, node: Node) -> bool:
    makers = {output: other for other in graph.nodes[: node.index] for output in other.outputs}
    pending = list(node.inputs)
    while pending:
        value = pending.pop()
        if value in makers:
            if base_name(makers[value].op) not in _BY_SHAPE:
                pending += makers[value].inputs
        elif graph.values[value].kind != "constant":
            return False
    return True


def one_layer_one_way(graph: Graph, node: Node) -> str | None:
    """one layer, one direction, no dropout, and biases except for GRU."""
    if ".mkldnn_rnn_layer" in node.op:
        return None  # this op is one layer and direction; _refused_recurrences judges the module
    layers, dropout = argument(node, "num_layers", 4, 1), argument(node, "dropout", 5, 0.0)
    name = node.op.split(".")[1].upper().partition("_")[0]
    if layers != 1:
        return f"torch.nn.{name} with {layers} layers; PopTorch takes one"
    if argument(node, "bidirectional", 7, False):
        return f"torch.nn.{name} in both directions; PopTorch takes one"
    if dropout:
        return f"torch.nn.{name} with dropout={dropout}"
    if name != "GRU" and not argument(node, "has_biases", 3, True):
        return f"torch.nn.{name} without biases; PopTorch takes that of GRU only"
    return None


def _rank(graph: Graph, node: Node) -> int:
    first = node.args[0] if node.args else None
    return len(graph.values[first.value].shape) if isinstance(first, Ref) else 0


CONSTRAINTS = {
    check.__name__: check
    for check in (
        sorted_only,
        no_spectral_norm,
        no_dilated_transpose,
        indices_unused,
        has_scale_second,
        has_scale_third,
        plain_embedding,
        plain_embedding_bag,
        no_class_weight,
        reduced_ctc,
        no_align_corners,
        whole_factor,
        constant_input,
        one_layer_one_way,
    )
}
CURES = {
    "sorted_only": "Use sorted=True.",
    "no_spectral_norm": "Use the Frobenius norm, ord='fro'.",
    "no_dilated_transpose": "Put zeros into the kernel yourself, and use dilation=1.",
    "indices_unused": "Leave return_indices out; upsample by torch.nn.Upsample instead of MaxUnpool.",
    "has_scale_second": "Use affine=True; with weight 1 and bias 0, kept fixed, it computes the same.",
    "has_scale_third": "Use affine=True; with weight 1 and bias 0, kept fixed, it computes the same.",
    "plain_embedding": "Leave it out; multiply by (ids != padding_idx) to keep the padding at zero.",
    "plain_embedding_bag": "Leave it out; multiply by (ids != padding_idx) to keep the padding at zero.",
    "no_class_weight": "Use reduction='none' and multiply by weight[target] yourself.",
    "reduced_ctc": "Use reduction='mean' or 'sum'.",
    "no_align_corners": "Use align_corners=False.",
    "whole_factor": "Use a whole scale_factor, the same both ways, or size= with a factor of few decimals (1.5).",
    "constant_input": "Make the mask once in __init__ and keep it as a buffer; masked_fill and where are supported.",
    "one_layer_one_way": "Stack modules of one layer each; for both directions, run a second one on the flipped input.",
}


@cache
def table() -> IpuTable:
    return IpuTable(
        Path(__file__).with_name("kernels.tsv"),
        CONSTRAINTS,
        LABEL,
        cures=CURES,
        unlisted=lambda op: (
            f"{op} is neither in PopTorch 3.4's documented list nor among the handlers of its sources",
            "See portwright ops --target ipu for what is.",
        ),
    )
