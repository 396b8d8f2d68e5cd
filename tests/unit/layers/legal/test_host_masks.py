"""A mask that torch's stacks drop because it is causal is used by ours, from wherever it was made."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from portwright.graph.capturing.capture import capture
from portwright.graph.inputs import TensorSpec
from portwright.graph.match import match
from portwright.layers.legal import legalise
from portwright.targets.csx.kernels import table


class Translating(nn.Module):
    """The mask is made on the host, as torch's tutorials do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        mask = self.net.generate_square_subsequent_mask(x.shape[1], device="cpu")
        return self.net(x, x, src_mask=mask, tgt_mask=mask).pow(2).mean()


def make_legal() -> nn.Module:
    model = Translating()
    legalise(model, "csx")
    return model


def test_a_mask_of_the_host_is_taken_by_legal_stacks() -> None:
    kernels = table()
    graph = capture(make_legal, TensorSpec((2, 4, 8)), casts=kernels.casts())
    assert [stop.message for stop in graph.stops] == []
    assert match(graph, kernels, "csx").refused == ()


def test_it_masks_as_torch_does() -> None:
    model, x = Translating(), torch.randn(2, 4, 8)
    expected = model(x)
    legalise(model, "csx")
    torch.testing.assert_close(model(x), expected)
