"""What a stranger found by attacking the layers: each stays a test."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import portwright.layers as ours
from portwright.errors import UserError
from portwright.layers import LinformerAttention, from_torch
from portwright.losses import chunked_cross_entropy

X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
CAUSAL = torch.ones(5, 5, dtype=torch.bool).triu(1)
PADDING = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])


def both(make: Any) -> tuple[Any, Any]:
    """What a user's code gives on torch.nn and, with its import changed, on ours."""
    made = []
    for package in (nn, ours):
        torch.manual_seed(0)
        made.append(make(package))
    return tuple(made)


def zeroing_layer(package: Any) -> type:
    class Zeroing(package.TransformerEncoderLayer):
        def forward(self, src, src_mask=None, src_key_padding_mask=None, is_causal=False):
            out = super().forward(src, src_mask, src_key_padding_mask, is_causal)
            if src_key_padding_mask is None:
                return out
            return out.masked_fill((src_key_padding_mask != 0)[..., None], 0.0)

    return Zeroing


def biased_layer(package: Any) -> type:
    class Biased(package.TransformerEncoderLayer):
        def forward(self, src, src_mask=None, src_key_padding_mask=None, is_causal=False):
            return super().forward(src, src_mask + torch.linspace(-1, 1, 25).view(5, 5), src_key_padding_mask)

    return Biased


@pytest.mark.parametrize("subclass", [zeroing_layer, biased_layer])
def test_a_users_subclass_gets_the_masks_that_torch_would_give_it(subclass: Any) -> None:
    def encode(package: Any) -> torch.Tensor:
        layer = subclass(package)(8, 2, 16, 0.0, batch_first=True)
        encoder = package.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        padding = PADDING if subclass is zeroing_layer else None
        return encoder(X, mask=CAUSAL, src_key_padding_mask=padding)

    theirs, mine = both(encode)
    torch.testing.assert_close(mine, theirs, atol=2e-6, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:Support for mismatched")
def test_a_layers_attention_may_be_replaced_by_torchs() -> None:
    encoder = ours.TransformerEncoder(ours.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2)
    for layer in encoder.layers:
        layer.self_attn = nn.MultiheadAttention(8, 2, batch_first=True)
    assert encoder(X, mask=CAUSAL, src_key_padding_mask=PADDING).shape == X.shape


def test_batches_that_differ_are_refused_and_not_broadcast() -> None:
    decoder = ours.TransformerDecoder(ours.TransformerDecoderLayer(8, 2, 16, 0.0), 1)
    with pytest.raises(UserError, match="batch_first is False"):
        decoder(torch.randn(4, 1, 8), torch.randn(4, 7, 8))
    attention = ours.MultiheadAttention(8, 2, batch_first=True)
    keys = torch.randn(3, 5, 8)
    with pytest.raises(UserError, match="batches of 1 and 3"):
        attention(torch.randn(1, 4, 8), keys, keys)
    linformer = LinformerAttention(8, 2, batch_first=True, kv_len=5, reduced_kv_len_dim=2)
    with pytest.raises(UserError, match="batches of 1 and 3"):
        linformer(torch.randn(1, 4, 8), keys, keys)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_subclassed_encoder_is_converted_around_and_still_evaluates_with_padding() -> None:
    class Own(nn.TransformerEncoder):
        pass

    encoder = Own(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    conversion = from_torch(encoder)
    with torch.no_grad():
        theirs, mine = (module(X, src_key_padding_mask=PADDING) for module in (encoder, conversion.module))
    torch.testing.assert_close(mine[~PADDING], theirs[~PADDING], atol=1e-5, rtol=1e-5)
    assert any("nested" in note for note in conversion.notes)


def test_traced_modules_survive_a_conversion() -> None:
    class Traced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).relu()

    model = nn.Sequential(torch.fx.symbolic_trace(Traced()), nn.TransformerEncoderLayer(8, 2, 16, 0.0))
    torch.testing.assert_close(from_torch(model).module(X), model(X), atol=2e-6, rtol=1e-5)


def test_a_causal_mask_that_learns_is_taken_as_it_is() -> None:
    attention = ours.MultiheadAttention(8, 2, batch_first=True)
    mask = ours.Transformer.generate_square_subsequent_mask(5).requires_grad_()
    attention(X, X, X, attn_mask=mask, need_weights=False)[0].sum().backward()
    assert mask.grad is not None


def test_an_output_projection_of_another_kind_is_left_alone_and_said() -> None:
    class More(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + 100

    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    attention.out_proj = More(8, 8)  # type: ignore[assignment]
    conversion = from_torch(attention)
    assert conversion.unconverted
    torch.testing.assert_close(conversion.module(X, X, X)[0], attention(X, X, X)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_linformer_takes_float_padding(dtype: torch.dtype) -> None:
    attention = LinformerAttention(8, 2, batch_first=True, kv_len=5, reduced_kv_len_dim=2).eval()
    added = torch.zeros(2, 5, dtype=dtype).masked_fill(PADDING, torch.finfo(dtype).min)
    expected = attention(X, X, X, key_padding_mask=PADDING)[0]
    torch.testing.assert_close(attention(X, X, X, key_padding_mask=added)[0], expected)


def test_a_mean_over_nothing_is_nan_as_torchs_is() -> None:
    loss = chunked_cross_entropy(torch.zeros(0, 4), torch.randn(5, 4), torch.zeros(0, dtype=torch.long))
    assert loss.isnan()
