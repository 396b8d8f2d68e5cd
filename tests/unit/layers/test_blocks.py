import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from portwright.errors import UserError
from portwright.layers import (
    DecoderLayerCache,
    FeedForwardNetwork,
    GPTJDecoderLayer,
    KVCache,
    LinformerAttention,
    MultiheadAttention,
    MultiQueryAttention,
    RMSNorm,
    RotaryPositionEmbeddingHelper,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
    generate_square_subsequent_mask,
)

LAYERS = [
    (nn.TransformerEncoderLayer, TransformerEncoderLayer),
    (nn.TransformerDecoderLayer, TransformerDecoderLayer),
]


def leaky(x):
    return F.leaky_relu(x, 0.2)


def assert_same(theirs, ours, inputs, kwargs, grad=True):
    results = []
    for module in (theirs, ours):
        leaves = [tensor.clone().requires_grad_(grad) for tensor in inputs]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Support for mismatched")
            output = module(*leaves, **kwargs)
        gradients = []
        if grad:
            seed = torch.Generator().manual_seed(1)
            module.zero_grad()
            (output * torch.randn(output.shape, generator=seed)).sum().backward()
            gradients = [tensor.grad for tensor in (*leaves, *module.parameters())]
        results.append((output, gradients))
    torch.testing.assert_close(results[1][0], results[0][0], atol=2e-6, rtol=1e-5)
    for ours_gradient, gradient in zip(results[1][1], results[0][1], strict=True):
        torch.testing.assert_close(ours_gradient, gradient, atol=1e-5, rtol=1e-4)


def random_masks(draw, generator, batch, heads, queries, keys, is_batched):
    masks = []
    shape = (batch * heads if is_batched else heads, queries, keys)
    for size in (draw(st.sampled_from([(queries, keys), shape])), (batch, keys) if is_batched else (keys,)):
        masked = torch.rand(size, generator=generator) < 0.3
        masked[..., 0] = False
        kind = draw(st.sampled_from(["none", "bool", "zeros", "float"]))
        floats = torch.randn(size, generator=generator) if kind == "float" else torch.zeros(size)
        masks.append({"none": None, "bool": masked}.get(kind, floats.masked_fill(masked, float("-inf"))))
    return masks


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_layers_equal_torchs_with_copied_weights(data):
    draw = data.draw
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    torch.manual_seed(draw(st.integers(0, 2**20)))
    is_decoder, is_batched, batch_first = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    heads = draw(st.integers(1, 4))
    width = heads * draw(st.integers(1, 4))
    torch_type, our_type = LAYERS[is_decoder]
    options = {
        "dim_feedforward": draw(st.integers(1, 20)),
        "dropout": 0.0,
        "activation": draw(st.sampled_from(["relu", "gelu", F.relu, nn.GELU(), leaky])),
        "layer_norm_eps": draw(st.sampled_from([1e-5, 1e-2])),
        "norm_first": draw(st.booleans()),
        "bias": draw(st.booleans()),
        "batch_first": batch_first,
    }
    theirs = torch_type(width, heads, **options)
    ours = our_type(width, heads, **options)
    ours.load_state_dict(theirs.state_dict())
    training = draw(st.booleans())
    theirs.train(training)
    ours.train(training)
    length, memory_length, batch = draw(st.integers(1, 6)), draw(st.integers(1, 6)), draw(st.integers(1, 3))

    def make_input(length):
        shape = (batch, length, width) if batch_first else (length, batch, width)
        return torch.randn(shape if is_batched else (length, width), generator=generator)

    inputs = [make_input(length)]
    mask, padding = random_masks(draw, generator, batch, heads, length, length, is_batched)
    kwargs = {"src_mask": mask, "src_key_padding_mask": padding}
    if is_decoder:
        inputs.append(make_input(memory_length))
        memory_mask, memory_padding = random_masks(
            draw, generator, batch, heads, length, memory_length, is_batched
        )
        kwargs = {
            "tgt_mask": mask,
            "tgt_key_padding_mask": padding,
            "memory_mask": memory_mask,
            "memory_key_padding_mask": memory_padding,
        }
    if draw(st.booleans()):
        kwargs["tgt_mask" if is_decoder else "src_mask"] = nn.Transformer.generate_square_subsequent_mask(
            length
        )
        kwargs["tgt_is_causal" if is_decoder else "is_causal"] = True
    assert_same(theirs, ours, inputs, kwargs)
    # Without gradients torch's layer takes what is not 0 in a float mask for masked, which is a fault of torch's.
    floats = [mask for mask in kwargs.values() if isinstance(mask, torch.Tensor) and mask.is_floating_point()]
    if all(((mask == 0) | mask.isneginf()).all() for mask in floats):
        with torch.no_grad():
            assert_same(theirs, ours, inputs, kwargs, grad=False)


@pytest.mark.parametrize(("torch_type", "our_type"), LAYERS)
@pytest.mark.parametrize("norm_first", [True, False])
def test_the_same_seed_trains_the_same_with_dropout(torch_type, our_type, norm_first):
    results = []
    for kind in (torch_type, our_type):
        torch.manual_seed(7)
        layer = kind(8, 2, 16, dropout=0.3, norm_first=norm_first)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(3):
            x = torch.randn(5, 2, 8)
            loss = (layer(x) if torch_type is nn.TransformerEncoderLayer else layer(x, x)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        results.append(layer.state_dict())
    assert list(results[0]) == list(results[1])
    for name, tensor in results[0].items():
        torch.testing.assert_close(results[1][name], tensor, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("torch_type", "our_type"), LAYERS)
def test_state_dicts_go_both_ways(torch_type, our_type):
    theirs, ours = torch_type(8, 2, 16), our_type(8, 2, 16)
    theirs.load_state_dict(ours.state_dict())
    for name, tensor in ours.state_dict().items():
        assert torch.equal(theirs.state_dict()[name], tensor)
    assert isinstance(ours, torch_type)


@pytest.mark.parametrize("our_type", [TransformerEncoderLayer, TransformerDecoderLayer])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_takes_masks_of_any_type(our_type, dtype, mask_dtype):
    torch.manual_seed(0)
    layer = our_type(16, 4, 32, dropout=0.0, batch_first=True)
    x = torch.randn(2, 5, 16)
    masked = torch.ones(5, 5).triu(1).bool()
    mask = (
        masked
        if mask_dtype == torch.bool
        else torch.zeros(5, 5, dtype=mask_dtype).masked_fill(masked, torch.finfo(mask_dtype).min)
    )
    args = () if our_type is TransformerEncoderLayer else (x,)
    expected = layer(x, *args, **{f"{'src' if not args else 'tgt'}_mask": masked})
    layer.to(dtype)
    args = tuple(arg.to(dtype) for arg in args)
    received = layer(x.to(dtype), *args, **{f"{'src' if not args else 'tgt'}_mask": mask})
    assert received.dtype == dtype
    torch.testing.assert_close(received.float(), expected, atol=0.1, rtol=0.1)


def test_our_layer_works_inside_torchs_encoder_and_theirs_inside_ours():
    torch.manual_seed(0)
    theirs = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    ours = TransformerEncoderLayer(8, 2, 16, batch_first=True)
    ours.load_state_dict(theirs.state_dict())
    padding = torch.tensor([[False, False, False], [False, False, True]])
    x = torch.randn(2, 3, 8)
    with pytest.warns(UserWarning, match="enable_nested_tensor"):
        around_ours = nn.TransformerEncoder(ours, 2).eval()
    around_theirs = TransformerEncoder(theirs, 2, enable_nested_tensor=False).eval()
    reference = nn.TransformerEncoder(theirs, 2, enable_nested_tensor=False).eval()
    with torch.no_grad():
        expected = reference(x, src_key_padding_mask=padding)
        for encoder in (around_ours, around_theirs):
            torch.testing.assert_close(
                encoder(x, src_key_padding_mask=padding), expected, atol=1e-6, rtol=1e-5
            )


@pytest.mark.parametrize("our_type", [TransformerEncoderLayer, TransformerDecoderLayer, GPTJDecoderLayer])
@pytest.mark.parametrize(
    "activation", ["swish", "gelu_new", "squared_relu", nn.Tanh(), torch.sin, "swiglu", "geglu"]
)
def test_activations_by_name_callable_and_gated(our_type, activation):
    torch.manual_seed(0)
    layer = our_type(8, 2, dim_feedforward=6, dropout=0.0, activation=activation, batch_first=True)
    gated = activation in ("swiglu", "geglu")
    assert layer.linear1.out_features == (12 if gated else 6)
    hidden = layer.linear1(torch.randn(3, 8))
    functions = {
        "swish": F.silu,
        "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
        "squared_relu": lambda x: F.relu(x) ** 2,
        "swiglu": lambda x: x[..., :6] * F.silu(x[..., 6:]),
        "geglu": lambda x: x[..., :6] * F.gelu(x[..., 6:]),
    }
    function = functions[activation] if isinstance(activation, str) else activation
    torch.testing.assert_close(layer.activation(hidden), function(hidden))
    x = torch.randn(2, 3, 8)
    output = layer(x, x) if our_type is TransformerDecoderLayer else layer(x)
    assert output.shape == x.shape


def test_unknown_options_and_names_are_refused_with_the_nearest():
    with pytest.raises(UserError, match="Did you mean 'attention_dropout_rate'"):
        TransformerEncoderLayer(8, 2, attention_dropout=0.1)
    with pytest.raises(UserError, match="Did you mean 'gelu'"):
        TransformerEncoderLayer(8, 2, activation="gellu")
    with pytest.raises(UserError, match="Did you mean 'multiquery_attention'"):
        TransformerDecoderLayer(8, 2, attention_module="multi_query_attention")
    with pytest.raises(UserError, match="Did you mean 'rmsnorm'"):
        TransformerEncoderLayer(8, 2, norm_layer="rms_norm")


def test_options_reach_the_parts():
    layer = TransformerDecoderLayer(
        8,
        4,
        6,
        dropout=0.1,
        attention_dropout_rate=0.2,
        ffn_dropout_rate=0.3,
        use_ff_layer1_dropout=False,
        use_projection_bias_in_attention=False,
        use_ffn_bias_in_attention=True,
        use_ffn_bias=False,
        attention_type="dot_product",
        attention_module="multiquery_attention",
        extra_attention_params={"num_kv_groups": 2},
        norm_layer="rmsnorm",
        cross_attention_kv_dim=5,
        attention_initializer={"name": "constant", "val": 1.0},
        ffn_initializer={"name": "constant", "val": 2.0},
        ffn_output_layer_initializer={"name": "constant", "val": 3.0},
    )
    for attention in (layer.self_attn, layer.multihead_attn):
        assert isinstance(attention, MultiQueryAttention)
        assert attention.dropout == 0.2
        assert attention.num_kv_groups == 2
        assert attention.attention_scale == 1.0
        assert attention.in_proj_bias is None
        assert attention.out_proj.bias is not None
        assert (attention.out_proj.weight == 1).all()
    assert layer.multihead_attn.kdim == 5
    assert (layer.dropout.p, layer.dropout1.p, layer.dropout2.p, layer.dropout3.p) == (0.0, 0.1, 0.1, 0.3)
    assert layer.linear1.bias is None
    assert (layer.linear1.weight == 2).all()
    assert (layer.linear2.weight == 3).all()
    assert isinstance(layer.norm1, RMSNorm)
    assert layer(torch.randn(3, 2, 8), torch.randn(4, 2, 5)).shape == (3, 2, 8)


def test_value_and_gate_are_two_matrices_to_an_initializer():
    layer = TransformerEncoderLayer(64, 2, 64, activation="swiglu", ffn_initializer="xavier_uniform")
    network = FeedForwardNetwork(64, [64], ["swiglu"])
    for weight in (layer.linear1.weight, network.ffn[0].linear_layer.weight):
        assert weight.shape == (128, 64)
        # The bound for 64 by 64; for 128 by 64 it would be smaller.
        assert weight.abs().max().item() == pytest.approx((6 / 128) ** 0.5, rel=1e-2)


def test_linformer_in_a_layer():
    layer = TransformerEncoderLayer(
        8,
        2,
        16,
        batch_first=True,
        attention_module="linformer_attention",
        extra_attention_params={"kv_len": 6, "reduced_kv_len_dim": 2},
    )
    assert isinstance(layer.self_attn, LinformerAttention)
    padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    assert layer(torch.randn(2, 6, 8), src_key_padding_mask=padding).shape == (2, 6, 8)


def test_reset_draws_new_weights_and_keeps_initializers():
    layer = TransformerEncoderLayer(8, 2, 16, ffn_initializer={"name": "constant", "val": 2.0})
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(9.0)
    layer.reset_parameters()
    for name, tensor in layer.state_dict().items():
        assert not (tensor == 9).any(), name
        if name in ("linear1.weight", "norm1.weight", "norm2.bias"):
            assert torch.equal(tensor, before[name])
    assert not torch.equal(layer.self_attn.in_proj_weight, before["self_attn.in_proj_weight"])


@pytest.mark.parametrize("untied", [True, False])
def test_gptj_adds_attention_and_feed_forward_together(untied):
    torch.manual_seed(0)
    layer = GPTJDecoderLayer(8, 2, untied, dim_feedforward=16, dropout=0.0, batch_first=True)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    x = torch.randn(2, 5, 8)
    rotary = RotaryPositionEmbeddingHelper(16, 4)
    normed = layer.norm1(x)
    attended = layer.self_attn(
        normed, normed, normed, is_causal=True, rotary_position_embedding_helper=rotary, need_weights=False
    )[0]
    fed = layer.linear2(F.gelu(layer.linear1(layer.norm3(x) if untied else normed)))
    received = layer(x, tgt_is_causal=True, rotary_position_embedding_helper=rotary)
    torch.testing.assert_close(received, x + attended + fed, atol=1e-6, rtol=1e-5)
    assert ("norm3.weight" in layer.state_dict()) == untied
    with pytest.raises(UserError, match="another norm_first"):
        GPTJDecoderLayer(8, 2, norm_first=False)


def test_decoder_layer_without_memory():
    layer = TransformerDecoderLayer(8, 2, 16, batch_first=True, add_cross_attention=False)
    x = torch.randn(2, 5, 8)
    assert layer(x, tgt_is_causal=True).shape == x.shape
    assert not any(name.startswith(("multihead_attn", "norm2")) for name in layer.state_dict())
    with pytest.raises(UserError, match="got none"):
        TransformerDecoderLayer(8, 2, 16)(x)


@pytest.mark.parametrize("our_type", [TransformerDecoderLayer, GPTJDecoderLayer])
@pytest.mark.parametrize("kind", ["pairs", "cache"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_layers_decode_step_by_step(our_type, kind, batch_first):
    torch.manual_seed(0)
    layer = our_type(8, 2, dim_feedforward=16, batch_first=batch_first).eval()
    dim = 1 if batch_first else 0
    x, memory = torch.randn(2, 6, 8), torch.randn(2, 3, 8)
    x, memory = (x, memory) if batch_first else (x.transpose(0, 1), memory.transpose(0, 1))
    rotary = RotaryPositionEmbeddingHelper(16, 4)
    padding = torch.tensor([[False, False, True], [False, False, False]])
    args = (memory,) if our_type is TransformerDecoderLayer else ()
    kwargs = {"tgt_is_causal": True, "rotary_position_embedding_helper": rotary}
    if args:
        kwargs["memory_key_padding_mask"] = padding
    with torch.no_grad():
        expected = layer(x, *args, **kwargs)
        past = DecoderLayerCache(KVCache(), KVCache()) if kind == "cache" else None
        outputs = []
        for step, piece in enumerate(torch.split(x, (2, 1, 1, 2), dim=dim)):
            # After the first step the memory's keys and values are held, and it is needed no more.
            now = args if step == 0 else ()
            output, past = layer(piece, *now, past_kv=past, cache_present_kv=True, **kwargs)
            outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, dim=dim), expected, atol=2e-6, rtol=1e-5)
    if kind == "pairs":
        assert len(past) == (4 if args else 2)
        assert past[0].shape == (2, 2, 6, 4)
        with pytest.raises(UserError, match="holds 1 tensors"):
            layer(x, *args, past_kv=(past[0],))


def test_position_bias_reaches_both_attentions():
    torch.manual_seed(0)
    layer = TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    x, memory = torch.randn(2, 4, 8), torch.randn(2, 3, 8)
    plain = layer(x, memory)
    causal = generate_square_subsequent_mask(4).expand(2, 4, 4)
    torch.testing.assert_close(
        layer(x, memory, self_attn_position_bias=causal), layer(x, memory, tgt_is_causal=True)
    )
    biased = layer(x, memory, cross_attn_position_bias=torch.randn(2, 4, 3))
    assert not torch.allclose(biased, plain)
    encoder = TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    torch.testing.assert_close(encoder(x, self_attn_position_bias=causal), encoder(x, is_causal=True))


def test_feed_forward_network_is_its_layers_in_a_row():
    torch.manual_seed(0)
    network = FeedForwardNetwork(4, [6, 5, 3], ["gelu", "swiglu", None], [0.5, None, None])
    x = torch.randn(7, 4)
    network.eval()
    first, second, third = (layer.linear_layer for layer in network.ffn)
    hidden = F.gelu(first(x))
    value, gate = second(hidden).chunk(2, dim=-1)
    torch.testing.assert_close(network(x), third(value * F.silu(gate)))
    network.train()
    assert not torch.allclose(network(x), network(x))
    assert list(network.state_dict())[:2] == ["ffn.0.linear_layer.weight", "ffn.0.linear_layer.bias"]
    assert (first.bias == 0).all()


def test_feed_forward_network_initializers_and_errors():
    network = FeedForwardNetwork(
        2,
        [3, 4],
        kernel_initializer={"name": "constant", "val": 1.0},
        output_layer_initializer="zeros",
        use_bias=False,
    )
    assert (network.ffn[0].linear_layer.weight == 1).all()
    assert (network.ffn[1].linear_layer.weight == 0).all()
    assert network.ffn[0].linear_layer.bias is None
    for kwargs, match in (
        ({"layers_units": []}, "make no network"),
        ({"layers_units": [3, 0]}, "make no network"),
        ({"layers_units": [3], "layers_activation": ["relu", "relu"]}, "for 1 layers"),
        ({"layers_units": [3], "layers_activation": "relu"}, "for 1 layers"),
    ):
        with pytest.raises(UserError, match=match):
            FeedForwardNetwork(2, **kwargs)


def test_attention_module_can_be_a_class_of_ones_own():
    class Mine(MultiheadAttention):
        pass

    layer = TransformerEncoderLayer(8, 2, 16, attention_module=Mine)
    assert type(layer.self_attn) is Mine
