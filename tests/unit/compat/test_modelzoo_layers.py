"""The model zoo's defaults, argument order, results and checkpoints, written out from what release 1.6 computes."""

import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from portwright import layers
from portwright.compat.modelzoo_layers import (
    LAYERS_1,
    LAYERS_2,
    EmbeddingLayer,
    FeedForwardNetwork,
    GPTJDecoderLayer,
    MultiheadAttention,
    MultiQueryAttention,
    SingleFeedForwardLayer,
    Transformer,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)
from portwright.errors import UserError

X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


def zoo_attention_state(prefix="", bias=False, width=8):
    """Weights under the names that the zoo saves them by."""
    names = ["proj_q_dense_layer", "proj_k_dense_layer", "proj_v_dense_layer", "proj_output_dense_layer"]
    state = {f"{prefix}{name}.weight": torch.randn(width, width) for name in names}
    if bias:
        state.update({f"{prefix}{name}.bias": torch.randn(width) for name in names})
    return state


def zoo_attention(state, x, heads, prefix="", mask=0.0):
    """Attention as the zoo computes it, from its own weights."""
    q, k, v = (
        F.linear(
            x,
            state[f"{prefix}proj_{part}_dense_layer.weight"],
            state.get(f"{prefix}proj_{part}_dense_layer.bias"),
        )
        .unflatten(-1, (heads, -1))
        .transpose(1, 2)
        for part in "qkv"
    )
    weights = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + mask, dim=-1)
    merged = (weights @ v).transpose(1, 2).flatten(2)
    output = (
        state[f"{prefix}proj_output_dense_layer.weight"],
        state.get(f"{prefix}proj_output_dense_layer.bias"),
    )
    return F.linear(merged, *output), weights


@pytest.mark.parametrize("bias", [True, False])
def test_attention_reads_a_zoo_checkpoint_and_gives_a_bare_tensor(bias):
    torch.manual_seed(0)
    attention = MultiheadAttention(8, 2, use_projection_bias=bias, use_ffn_bias=bias)
    state = zoo_attention_state(bias=bias)
    attention.load_state_dict(dict(state))
    mask = torch.ones(5, 5).triu(1) * -1e4
    expected, weights = zoo_attention(state, X, 2, mask=mask)
    received = attention(X, X, X, mask)
    assert isinstance(received, torch.Tensor)
    torch.testing.assert_close(received, expected, atol=1e-5, rtol=1e-5)
    output, averaged = attention(X, X, X, mask, None, True)
    torch.testing.assert_close(averaged, weights.mean(1), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
    attention.load_state_dict(attention.state_dict())  # and its own


def test_attention_gives_keys_to_cache():
    attention = MultiheadAttention(8, 2)
    whole, (key, _) = attention(X, X, X, cache_present_kv=True)
    assert key.shape == (2, 2, 5, 4)
    _, past = attention(X[:, :4], X[:, :4], X[:, :4], cache_present_kv=True)
    last = attention(X[:, 4:], X[:, 4:], X[:, 4:], past_kv=past)
    torch.testing.assert_close(last, whole[:, 4:], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float16, torch.int32, torch.float32])
def test_masks_that_crashed_or_were_refused_work(dtype):
    """Of 1.6: bool and bf16 masks crash, and padding masks are not implemented."""
    attention = MultiheadAttention(8, 2)
    masked = torch.ones(5, 5).triu(1).bool()
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    expected = attention(X, X, X, masked, padding)

    def as_type(mask):
        if dtype in (torch.bool, torch.int32):
            return mask.to(dtype)
        return torch.zeros(mask.shape, dtype=dtype).masked_fill(mask, torch.finfo(dtype).min)

    for padding_mask in (as_type(padding), as_type(padding)[:, None], as_type(padding)[:, None, None]):
        torch.testing.assert_close(
            attention(X, X, X, as_type(masked), padding_mask), expected, atol=1e-6, rtol=1e-5
        )
    layer = TransformerEncoderLayer(8, 2, 16, dropout=0.0)
    stack = TransformerEncoder(layer, 2)
    torch.testing.assert_close(
        stack(X, as_type(masked), as_type(padding)), stack(X, masked, padding), atol=1e-6, rtol=1e-5
    )


def test_defaults_are_the_zoos():
    layer = TransformerDecoderLayer(8, 2)
    assert layer.activation is F.gelu
    assert layer.self_attn.batch_first
    names = {name for name, _ in layer.named_parameters()}
    assert not any("bias" in name for name in names if not name.startswith("norm"))
    assert {"norm1.bias", "norm2.bias", "norm3.bias"} <= names
    assert layer.dropout.p == 0.0
    assert layer.dropout3.p == 0.1
    assert LAYERS_2["TransformerDecoderLayer"](8, 2).dropout.p == 0.1
    assert set(LAYERS_1) == set(LAYERS_2)
    assert SingleFeedForwardLayer(2, 3).linear_layer.bias is None
    assert FeedForwardNetwork(2, [3]).ffn[0].linear_layer.bias is None
    assert GPTJDecoderLayer(8, 2).self_attn.in_proj_bias is None
    assert GPTJDecoderLayer(8, 2)(X).shape == X.shape
    assert MultiQueryAttention(8, 4, num_kv_groups=2)(X, X, X).shape == X.shape


def test_layer_reads_a_zoo_checkpoint():
    torch.manual_seed(0)
    layer = TransformerEncoderLayer(8, 2, 16, norm_first=True).eval()
    state = {
        **zoo_attention_state("self_attn."),
        "ffn.ffn.0.linear_layer.weight": torch.randn(16, 8),
        "ffn.ffn.1.linear_layer.weight": torch.randn(8, 16),
        **{f"norm{i}.{kind}": torch.randn(8) for i in (1, 2) for kind in ("weight", "bias")},
    }
    layer.load_state_dict(dict(state))
    norm1 = F.layer_norm(X, (8,), state["norm1.weight"], state["norm1.bias"])
    x = X + zoo_attention(state, norm1, 2, "self_attn.")[0]
    norm2 = F.layer_norm(x, (8,), state["norm2.weight"], state["norm2.bias"])
    fed = F.gelu(norm2 @ state["ffn.ffn.0.linear_layer.weight"].T) @ state["ffn.ffn.1.linear_layer.weight"].T
    torch.testing.assert_close(layer(X), x + fed, atol=1e-4, rtol=1e-4)


def test_gated_checkpoint_joins_value_and_gate():
    layer = TransformerDecoderLayer(8, 2, 6, activation="swiglu", add_cross_attention=False)
    value, gate = torch.randn(6, 8), torch.randn(6, 8)
    state = {
        **zoo_attention_state("self_attn."),
        "ffn.ffn.0.linear_layer.weight": value,
        "ffn.ffn.0.linear_layer_for_glu.weight": gate,
        "ffn.ffn.1.linear_layer.weight": torch.randn(8, 6),
        **{f"norm{i}.{kind}": torch.randn(8) for i in (1, 3) for kind in ("weight", "bias")},
    }
    layer.load_state_dict(state)
    x = torch.randn(3, 8)
    torch.testing.assert_close(layer.activation(layer.linear1(x)), (x @ value.T) * F.silu(x @ gate.T))


def test_stacks_draw_each_layer_and_models_read_zoo_names():
    stack = TransformerEncoder(TransformerEncoderLayer(8, 2, 16), 2)
    assert not torch.equal(stack.layers[0].linear1.weight, stack.layers[1].linear1.weight)
    decoder = TransformerDecoder(
        TransformerDecoderLayer(8, 2, 16, add_cross_attention=False), 2, nn.LayerNorm(8)
    )
    rotary = layers.RotaryPositionEmbeddingHelper(16, 4)
    positional = decoder(X, None, None, None, None, None, rotary)
    assert not torch.allclose(decoder.eval()(X), positional)
    model = Transformer(8, 2, 1, 1, 16).eval()
    assert not torch.equal(model.encoder.layers[0].linear1.weight, model.decoder.layers[0].linear1.weight)
    doubled = {**model.state_dict(), "encoder_norm.weight": torch.ones(8), "decoder_norm.bias": torch.ones(8)}
    model.load_state_dict(doubled)
    with pytest.raises(RuntimeError, match="decoder_normal"):
        model.load_state_dict({**doubled, "decoder_normal": torch.ones(8)})
    assert model(X, X).shape == X.shape
    custom = Transformer(
        8,
        2,
        custom_encoder=nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, norm_first=True), 1, enable_nested_tensor=False
        ),
    )
    assert custom(X, X).shape == X.shape  # of 1.6: custom_encoder fails


def test_feed_forward_takes_the_config_of_later_releases():
    config = types.SimpleNamespace(
        input_unit=4, layers_units=[6, 3], layers_activation=["gelu", None], use_bias=True
    )
    network = FeedForwardNetwork(config)
    assert network(torch.randn(2, 4)).shape == (2, 3)
    assert network.ffn[0].linear_layer.bias is not None
    with pytest.raises(UserError, match="make no network"):
        FeedForwardNetwork(4)


def test_embedding_has_the_zoos_sinusoids_and_passes_over_segments():
    ids = torch.tensor([[1, 2, 3]])
    embedding = EmbeddingLayer(10, 6, max_position_embeddings=4, position_embedding_type="fixed")
    received = embedding(ids, torch.zeros_like(ids)) - embedding.word_embeddings(ids)
    frequencies = 1e4 ** -(torch.arange(3) / 2)  # over n - 1 timescales
    angles = torch.arange(3)[:, None] * frequencies
    torch.testing.assert_close(received[0, :, 0::2], angles.sin(), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(received[0, :, 1::2], angles.cos(), atol=1e-6, rtol=1e-5)
    rotary = EmbeddingLayer(10, 6, max_position_embeddings=4, position_embedding_type="rotary")
    torch.testing.assert_close(rotary(ids), rotary.word_embeddings(ids))
