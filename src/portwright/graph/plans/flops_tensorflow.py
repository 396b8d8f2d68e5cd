"""Counts of TensorFlow's ops, for flops.py: the same rules as for torch's, by TensorFlow's names and layouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from portwright.graph.graph import Graph, Node, Ref

Shape = Sequence[int]

_MOVE_NAMES = """
    AssignVariableOp Assign BatchToSpace BatchToSpaceND Bitcast BroadcastTo Case Cast Concat ConcatOffset Const ConcatV2 ConjugateTranspose
    DepthToSpace Diag DiagPart DynamicPartition DynamicStitch EagerPyFunc EmptyTensorList EnsureShape Enter Exit ExpandDims
    ExtractImagePatches Fill Gather GatherNd GatherV2 Identity IdentityN If IteratorGetNext LinSpace LookupTableFindV2 LoopCond
    MatrixBandPart MatrixDiag MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 MatrixDiagV2 MatrixDiagV3 MatrixSetDiag MatrixSetDiagV3
    Merge MirrorPad NextIteration NoOp OneHot OnesLike OptionalFromValue OptionalGetValue OptionalNone Pack Pad PadV2 PartitionedCall PyFunc PyFuncStateless
    RandomStandardNormal RandomUniform RandomUniformInt Range Rank ReadVariableOp Reshape ResourceGather ResourceGatherNd Reverse
    ReverseSequence ReverseV2 Roll ScatterNd Shape ShapeN Size Slice SpaceToBatch SpaceToBatchND SpaceToDepth Split SplitV Squeeze
    StatefulPartitionedCall StatelessCase StatelessIf StatelessMultinomial StatelessRandomGetKeyCounter StatelessRandomNormal
    StatelessRandomNormalV2 StatelessRandomUniform StatelessRandomUniformInt StatelessRandomUniformIntV2 StatelessRandomUniformV2
    StatelessTruncatedNormal StatelessTruncatedNormalV2 StatelessWhile StridedSlice StridedSliceGrad Switch TensorListElementShape
    TensorListFromTensor TensorListGetItem TensorListLength TensorListPopBack TensorListPushBack TensorListReserve
    TensorListSetItem TensorListStack TensorScatterUpdate Tile TopK TopKV2 Transpose TruncatedNormal Unique UniqueV2 Unpack Where
    While ZerosLike VarHandleOp VariableShape VariableV2
"""
MOVES = frozenset(_MOVE_NAMES.split())


def _shape(graph: Graph, node: Node, position: int) -> Shape:
    given = node.args[position]
    return graph.values[given.value].shape if isinstance(given, Ref) else ()


def _out(graph: Graph, node: Node) -> Shape:
    return graph.values[node.outputs[0]].shape if node.outputs else ()


def _matmul(graph: Graph, node: Node) -> int:
    first = _shape(graph, node, 0)
    if len(first) < 2:
        return 0
    inner = first[-2] if node.kwargs.get("transpose_a") or node.kwargs.get("adj_x") else first[-1]
    return 2 * math.prod(_out(graph, node)) * inner


def _convolutions(kind: str, ndims: Sequence[str], channels: int) -> dict[str, Callable[[Graph, Node], int]]:
    """A convolution and its gradients: each place of the output takes the whole filter of its channel.

    The filter's last `channels` dimensions belong to the output: HWIO has one, whose input channels are those of one group;
    HWIM two, since each of the output's channels comes from one of the input's.
    """

    def product(places: Shape, weights: Shape) -> int:
        return 2 * math.prod(places) * math.prod(weights[:-channels])

    counts: dict[str, Callable[[Graph, Node], int]] = {
        "": lambda graph, node: product(_out(graph, node), _shape(graph, node, 1)),
        "BackpropInput": lambda graph, node: product(_shape(graph, node, 2), _shape(graph, node, 1)),
        "BackpropFilter": lambda graph, node: product(_shape(graph, node, 2), _out(graph, node)),
    }
    names = [kind.format(n) for n in ndims]
    return {
        f"{name}{way}{version}": count
        for name in names
        for way, count in counts.items()
        for version in ("", "V2")[: 1 + bool(way)]
    }


def _einsum(graph: Graph, node: Node) -> int:
    """Every label once; a single operand is only summed or moved."""
    left, _, _ = str(node.kwargs.get("equation", "")).partition("->")
    terms = left.replace(" ", "").split(",")
    shapes = [graph.values[a.value].shape for a in node.args if isinstance(a, Ref)]
    if len(terms) != len(shapes) or len(terms) < 2:
        return 0
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        before, dots, after = term.partition("...")
        for label, size in zip(before, shape, strict=False):
            sizes[label] = max(sizes.get(label, 1), size)
        for label, size in zip(reversed(after), reversed(shape), strict=False):
            sizes[label] = max(sizes.get(label, 1), size)
        if dots:
            for place, size in enumerate(reversed(shape[len(before) : len(shape) - len(after)])):
                sizes[f".{place}"] = max(sizes.get(f".{place}", 1), size)
    return 2 * math.prod(sizes.values())


PRODUCTS: dict[str, Callable[[Graph, Node], int]] = {
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "SparseMatMul"), _matmul),
    **_convolutions("Conv{}", ("", "2D", "3D"), 1),
    **_convolutions("DepthwiseConv{}Native", ("2d",), 2),
    "Einsum": _einsum,
}
