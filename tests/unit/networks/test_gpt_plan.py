"""Gpt as planners see it: torch's own ops for a vendor's compiler, and the same products where torch's kernels run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from portwright.graph.capturing.capture import capture
from portwright.graph.graph import Graph
from portwright.graph.plans.flops import flops_of_node
from portwright.networks import Gpt

SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_heads": 2,
    "filter_size": 24,
    "max_position_embeddings": 8,
    "dropout_rate": 0.0,
    "attention_dropout_rate": 0.0,
}
KINDS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gpt3": {"attention_sliding_window_length": 4, "sliding_window_every_other_decoder_layer": True},
    "gptj": {"rotary_dim": 4, "share_embedding_weights": False, "use_bias_in_output": True},
}


def capture_step(kind: str, fuses_attention: bool) -> Graph:
    class Step(Gpt):
        def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:  # type: ignore[override]
            return super().forward(batch["ids"], labels=batch["ids"], label_weights=batch["weights"])

    batch = {"ids": torch.zeros(4, 8, dtype=torch.int32), "weights": torch.ones(4, 8)}
    graph = capture(lambda: Step({**SIZES, **KINDS[kind]}), batch, fuses_attention=fuses_attention)
    assert not graph.stops
    return graph


@pytest.mark.parametrize("kind", KINDS)
def test_vendors_get_torchs_own_ops(kind: str) -> None:
    ops = {node.op for node in capture_step(kind, fuses_attention=False).nodes}
    assert all(op.startswith("aten.") for op in ops)
    assert not any(op.startswith(("aten.tril", "aten.triu")) for op in ops)  # an IPU has neither


@pytest.mark.parametrize("kind", KINDS)
def test_the_heads_products_are_counted_either_way(kind: str) -> None:
    tokens, head = 4 * 8, 50 * 16
    counts = []
    for fuses in (False, True):
        graph = capture_step(kind, fuses)
        counts.append(sum(flops_of_node(graph, node)[0] for node in graph.nodes))
    plain, fused = counts
    # A fused kernel computes the scores of a layer once more in the backward pass.
    scores = 3 * 2 * tokens * 8 * 16
    assert fused - plain in (0, scores)
    weights = 4 * 16 * 16 + 2 * 16 * 24
    products = 3 * 2 * tokens * (3 * weights + head) + 3 * 2 * 3 * tokens * 8 * 2 * 16
    assert plain == products
