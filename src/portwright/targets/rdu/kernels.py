"""The ops that SambaNova's public documents and examples show to run on an RDU (kernels.tsv).

The vendor's compiler takes more, so a refusal here means "not shown in public", and says so. SambaFlow makes gradients and
has its own SGD and AdamW: a backward op is judged by the forward op whose gradient it is.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from portwright.graph.graph import Graph, Node
from portwright.graph.tables import OwnTrainingTable, argument

LABEL = "conservative: only what SambaNova's public documents and examples show; SambaFlow takes more, and none of it was tried"
OPTIMIZERS = ("SGD", "AdamW")


class RduTable(OwnTrainingTable):
    """The public part of SambaFlow's table."""

    optimizers = OPTIMIZERS
    no_optimizer = (
        "no public document shows the optimizer {} on an RDU (a conservative refusal)",
        f"Use one of {', '.join(OPTIMIZERS)}, or ask SambaNova.",
    )


def no_alpha(graph: Graph, node: Node) -> str | None:
    """alpha=1."""
    alpha = argument(node, "alpha", 2, 1)
    return (
        None
        if alpha == 1
        else f"{node.op} with alpha={alpha}, which the API reference supports on the CPU only"
    )


def two_dimensional(graph: Graph, node: Node) -> str | None:
    """two dimensions, not transposed, one group."""
    stride, groups = argument(node, "stride", 3, ()), argument(node, "groups", 8, 1)
    if len(stride) == 2 and not argument(node, "transposed", 6, False) and groups == 1:
        return None
    return (
        f"a convolution in {len(stride)} dimension(s), groups={groups}; public examples have two dimensions, not transposed, "
        "one group (a conservative refusal)"
    )


def indices_unused(graph: Graph, node: Node) -> str | None:
    """return_indices=False."""
    indices = node.outputs[1] if len(node.outputs) > 1 else -1
    if any(indices in other.inputs for other in graph.of_phase("forward")):
        return "a max pool whose indices are used, which no public example does (a conservative refusal)"
    return None


CONSTRAINTS = {check.__name__: check for check in (no_alpha, two_dimensional, indices_unused)}
CURES = {"no_alpha": "Multiply first: x + alpha * y.", "two_dimensional": "Compile it on the system itself."}


@cache
def table() -> RduTable:
    return RduTable(
        Path(__file__).with_name("kernels.tsv"),
        CONSTRAINTS,
        LABEL,
        cures=CURES,
        unlisted=lambda op: (
            f"{op} is not in the public list (a conservative refusal: SambaFlow may well run it)",
            "Compile it on the system itself, or ask SambaNova; portwright ops --target rdu lists what is public.",
        ),
    )
