import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from portwright.errors import UserError
from portwright.layers import (
    KVCache,
    LinformerAttention,
    MultiheadAttention,
    MultiQueryAttention,
    RotaryPositionEmbeddingHelper,
    create_sliding_window_mask,
    generate_square_subsequent_mask,
)

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
HALF_TYPES = (torch.float16, torch.bfloat16)


def pair(*args, **kwargs):
    """torch's attention and ours, with the same weights, none of which is zero."""
    theirs = nn.MultiheadAttention(*args, **kwargs)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.3)
    ours = MultiheadAttention(*args, **kwargs)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def random_mask(kind, shape, generator, dtype=torch.float32):
    """A mask of a kind, in which the first key is never masked."""
    if kind == "none":
        return None
    masked = torch.rand(shape, generator=generator) < 0.4
    masked[..., 0] = False
    if kind == "bool":
        return masked
    bias = torch.randn(shape, generator=generator)
    return bias.masked_fill(masked, float("-inf")).to(dtype)


def assert_same(theirs, ours, inputs, kwargs, atol=1e-6, grad_atol=1e-5):
    copies = [[tensor.clone().requires_grad_() for tensor in dict.fromkeys(inputs)] for _ in range(2)]
    results = []
    for module, leaves in zip((theirs, ours), copies, strict=True):
        by_input = dict(zip(dict.fromkeys(inputs), leaves, strict=True))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Support for mismatched")
            output, weights = module(*(by_input[tensor] for tensor in inputs), **kwargs)
        seed = torch.Generator().manual_seed(1)
        loss = (output * torch.randn(output.shape, generator=seed)).sum()
        if weights is not None:
            loss = loss + (weights * torch.randn(weights.shape, generator=seed)).sum()
        module.zero_grad()
        loss.backward()
        results.append((output, weights, leaves))
    (output, weights, leaves), (our_output, our_weights, our_leaves) = results
    torch.testing.assert_close(our_output, output, atol=atol, rtol=1e-5)
    assert (weights is None) == (our_weights is None)
    if weights is not None:
        torch.testing.assert_close(our_weights, weights, atol=atol, rtol=1e-5)
    for leaf, our_leaf in zip(leaves, our_leaves, strict=True):
        torch.testing.assert_close(our_leaf.grad, leaf.grad, atol=grad_atol, rtol=1e-4)
    for (name, parameter), ours_parameter in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(
            ours_parameter.grad,
            parameter.grad,
            atol=grad_atol,
            rtol=1e-4,
            msg=lambda text, name=name: f"{name}: {text}",
        )


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_equals_torch_with_copied_weights(data):
    draw = data.draw
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    torch.manual_seed(draw(st.integers(0, 2**20)))
    heads = draw(st.integers(1, 4))
    embed_dim = heads * draw(st.integers(1, 6))
    queries, keys, batch = draw(st.integers(1, 7)), draw(st.integers(1, 7)), draw(st.integers(1, 3))
    kdim, vdim = draw(st.sampled_from([(None, None), (5, None), (None, 3), (embed_dim, embed_dim), (7, 9)]))
    batch_first, is_batched = draw(st.booleans()), draw(st.booleans())
    theirs, ours = pair(
        embed_dim,
        heads,
        bias=draw(st.booleans()),
        add_bias_kv=draw(st.booleans()),
        add_zero_attn=draw(st.booleans()),
        kdim=kdim,
        vdim=vdim,
        batch_first=batch_first,
    )

    def make_input(length, width):
        shape = (length, batch, width) if not batch_first else (batch, length, width)
        return torch.randn(shape if is_batched else (length, width), generator=generator)

    kind = draw(st.sampled_from(["self", "shared keys", "separate"]))
    query = make_input(queries, embed_dim)
    if kind == "self" and kdim in (None, embed_dim) and vdim in (None, embed_dim):
        inputs, keys = (query, query, query), queries
    else:
        key = make_input(keys, kdim or embed_dim)
        same = kind == "shared keys" and (kdim or embed_dim) == (vdim or embed_dim)
        inputs = (query, key, key if same else make_input(keys, vdim or embed_dim))
    mask_shape = draw(
        st.sampled_from([(queries, keys), ((batch if is_batched else 1) * heads, queries, keys)])
    )
    kwargs = {
        "attn_mask": random_mask(draw(st.sampled_from(["none", "bool", "float"])), mask_shape, generator),
        "key_padding_mask": random_mask(
            draw(st.sampled_from(["none", "bool", "float"])),
            (batch, keys) if is_batched else (keys,),
            generator,
        ),
        "need_weights": draw(st.booleans()),
        "average_attn_weights": draw(st.booleans()),
    }
    theirs.train(draw(st.booleans()))
    ours.train(theirs.training)
    assert_same(theirs, ours, inputs, kwargs)
    with torch.no_grad(), warnings.catch_warnings():  # where torch takes its path for inference
        warnings.filterwarnings("ignore", message="Support for mismatched")
        expected, received = theirs(*inputs, **kwargs)[0], ours(*inputs, **kwargs)[0]
    torch.testing.assert_close(received, expected, atol=1e-6, rtol=1e-5)


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(1, 9),
    need_weights=st.booleans(),
    padded=st.booleans(),
    as_bool=st.booleans(),
    batch_first=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_causal_hint_equals_torchs(length, need_weights, padded, as_bool, batch_first, seed):
    torch.manual_seed(seed)
    theirs, ours = pair(8, 2, batch_first=batch_first)
    x = torch.randn(2, length, 8) if batch_first else torch.randn(length, 2, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(length)
    kwargs = {
        "attn_mask": mask == float("-inf") if as_bool else mask,
        "is_causal": True,
        "need_weights": need_weights,
    }
    if padded:
        padding = torch.zeros(2, length, dtype=torch.bool)
        padding[1, 1:] = True
        kwargs["key_padding_mask"] = (
            padding if as_bool else torch.zeros(2, length).masked_fill(padding, float("-inf"))
        )
    assert_same(theirs, ours, (x, x, x), kwargs)
    without_mask = ours(x, x, x, **{**kwargs, "attn_mask": None})
    torch.testing.assert_close(without_mask[0], ours(x, x, x, **kwargs)[0], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("options", [{"add_bias_kv": True}, {"add_zero_attn": True}])
@pytest.mark.parametrize("need_weights", [True, False])
def test_causal_hint_and_keys_of_the_layer(options, need_weights):
    torch.manual_seed(0)
    theirs, ours = pair(8, 2, batch_first=True, **options)
    x = torch.randn(2, 5, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    # Hinted at, torch's layer forgets its own keys unless it gives weights; an import change must not change that.
    kwargs = {"attn_mask": mask, "is_causal": True, "need_weights": need_weights}
    assert_same(theirs, ours, (x, x, x), kwargs)
    # Without a mask there is nothing to be equal to, and the layer's keys are seen.
    visible = ours(x, x, x, attn_mask=mask.clone(), need_weights=False)[0]
    torch.testing.assert_close(
        ours(x, x, x, is_causal=True, need_weights=need_weights)[0], visible, atol=1e-6, rtol=1e-5
    )


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_dropout_draws_what_torch_draws(need_weights, batch_first):
    theirs, ours = pair(8, 2, dropout=0.4, batch_first=batch_first)
    x = torch.randn(6, 3, 8)
    results = []
    for module in (theirs, ours):
        torch.manual_seed(3)
        results.append(module(x, x, x, need_weights=need_weights))
    torch.testing.assert_close(results[1][0], results[0][0], atol=1e-6, rtol=1e-5)
    if need_weights:
        torch.testing.assert_close(results[1][1], results[0][1])
    assert not torch.allclose(results[1][0], ours(x, x, x, need_weights=need_weights)[0])
    ours.eval()
    assert torch.equal(ours(x, x, x)[0], ours(x, x, x)[0])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kdim": 5, "vdim": 3},
        {"bias": False},
        {"add_bias_kv": True, "add_zero_attn": True},
        {"dtype": torch.float64},
    ],
)
def test_the_same_seed_gives_the_same_weights_and_names(options):
    torch.manual_seed(5)
    theirs = nn.MultiheadAttention(12, 3, **options)
    after = torch.rand(1)
    torch.manual_seed(5)
    ours = MultiheadAttention(12, 3, **options)
    assert torch.equal(after, torch.rand(1))
    assert set(theirs.state_dict()) == set(ours.state_dict())
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(tensor, ours.state_dict()[name]), name
        assert tensor.dtype == ours.state_dict()[name].dtype
    theirs.load_state_dict(ours.state_dict())
    assert isinstance(ours, nn.MultiheadAttention)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types_equal_torchs(dtype):
    torch.manual_seed(0)
    theirs, ours = pair(16, 4, batch_first=True, dtype=dtype)
    x = torch.randn(2, 6, 16, dtype=dtype)
    mask = generate_square_subsequent_mask(6, dtype=dtype)
    tolerance = 1e-12 if dtype == torch.float64 else 2e-2
    for need_weights in (True, False):
        for kwargs in ({}, {"attn_mask": mask}):
            expected = theirs(x, x, x, need_weights=need_weights, **kwargs)[0]
            received = ours(x, x, x, need_weights=need_weights, **kwargs)[0]
            assert received.dtype == dtype
            torch.testing.assert_close(received, expected, atol=tolerance, rtol=tolerance)


def test_autocast_takes_masks_of_any_type():
    attention = MultiheadAttention(16, 4, batch_first=True)
    x = torch.randn(2, 6, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = attention(x, x, x, is_causal=True, need_weights=False)[0]
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.bool):
            mask = torch.ones(6, 6).triu(1).bool()
            if dtype != torch.bool:
                mask = torch.zeros(6, 6, dtype=dtype).masked_fill(mask, torch.finfo(dtype).min)
            received = attention(x, x, x, attn_mask=mask, need_weights=False)[0]
            torch.testing.assert_close(received, expected, atol=2e-2, rtol=2e-2)


MASKED = {
    "bool": lambda masked: masked,
    "-inf": lambda masked: torch.zeros(masked.shape).masked_fill(masked, float("-inf")),
    **{
        f"min of {dtype}": lambda masked, dtype=dtype: torch.zeros(masked.shape, dtype=dtype).masked_fill(
            masked, torch.finfo(dtype).min
        )
        for dtype in (torch.float32, torch.float64, *HALF_TYPES)
    },
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", MASKED)
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_masked_wholly_give_zeros_and_finite_gradients(kind, dropout, need_weights, dtype, device):
    torch.manual_seed(0)
    attention = MultiheadAttention(16, 2, dropout=dropout, batch_first=True, dtype=dtype, device=device)
    nn.init.ones_(attention.out_proj.bias)
    masked = torch.zeros(5, 5, dtype=torch.bool)
    masked[2] = True
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1] = True
    x = torch.randn(3, 5, 16, dtype=dtype, device=device, requires_grad=True)
    masks = {"attn_mask": masked, "key_padding_mask": padding}
    for names in (["attn_mask"], ["key_padding_mask"], ["attn_mask", "key_padding_mask"]):
        given_masks = {name: MASKED[kind](masks[name]).to(device) for name in names}
        output, weights = attention(x, x, x, need_weights=need_weights, **given_masks)
        empty = torch.zeros(3, 5, dtype=torch.bool)
        empty[:, 2] = "attn_mask" in names
        empty[1] |= "key_padding_mask" in names
        assert torch.equal(
            output[empty], torch.ones_like(output[empty])
        )  # the bias alone: attention gave zeros
        assert not (output[~empty] == 1).all(dim=-1).any()
        if weights is not None:
            assert (weights[empty] == 0).all()
        x.grad = None
        attention.zero_grad()
        (output.float() ** 2).sum().backward()
        assert x.grad is not None
        for gradient in (x.grad, *(parameter.grad for parameter in attention.parameters())):
            assert torch.isfinite(gradient).all()
            assert gradient.any()


def test_rows_not_masked_wholly_equal_torchs_beside_those_that_are():
    torch.manual_seed(0)
    theirs, ours = pair(16, 2, batch_first=True)
    x = torch.randn(2, 5, 16)
    mask = torch.rand(5, 5) < 0.5
    mask[:, 0] = False
    mask[3] = True
    expected, received = theirs(x, x, x, attn_mask=mask)[0], ours(x, x, x, attn_mask=mask)[0]
    others = [0, 1, 2, 4]
    torch.testing.assert_close(received[:, others], expected[:, others], atol=1e-6, rtol=1e-5)
    assert torch.isfinite(received).all()


@pytest.fixture
def kernel_calls(monkeypatch):
    """What the fused kernel is asked."""
    calls = []
    kernel = F.scaled_dot_product_attention

    def record(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, **kwargs):
        calls.append({"mask": attn_mask, "is_causal": is_causal, "q": q, "k": k, **kwargs})
        return kernel(q, k, v, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", record)
    return calls


def test_no_mask_is_made_where_the_kernel_has_a_flag(kernel_calls):
    attention = MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 6, 8)
    ours = generate_square_subsequent_mask(6)
    for kwargs in ({"is_causal": True}, {"attn_mask": ours, "is_causal": True}, {"attn_mask": ours}):
        attention(x, x, x, need_weights=False, **kwargs)
        assert kernel_calls[-1]["mask"] is None
        assert kernel_calls[-1]["is_causal"]
    ours[0, 1] = 0.0  # no longer causal
    attention(x, x, x, need_weights=False, attn_mask=ours)
    assert kernel_calls[-1]["mask"] is not None
    assert not kernel_calls[-1]["is_causal"]


def test_padding_is_not_expanded(kernel_calls):
    attention = MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(3, 6, 8)
    padding = torch.zeros(3, 6, dtype=torch.bool)
    attention(x, x, x, need_weights=False, key_padding_mask=padding)
    assert kernel_calls[-1]["mask"].shape == (3, 1, 1, 6)


@pytest.mark.parametrize("batch_first", [True, False])
def test_heads_are_split_and_merged_without_a_copy(batch_first, kernel_calls):
    attention = MultiheadAttention(8, 2, batch_first=batch_first)
    x = torch.randn(3, 6, 8)
    attention(x, x, x, need_weights=False)
    q, k = kernel_calls[-1]["q"], kernel_calls[-1]["k"]
    assert q.untyped_storage().data_ptr() == k.untyped_storage().data_ptr()


@pytest.mark.parametrize("shape", ["[L,S]", "[B,L,S]", "[B*H,L,S]", "[B,1,L,S]", "[1,H,1,S]"])
@pytest.mark.parametrize("as_bool", [True, False])
def test_masks_of_every_shape(shape, as_bool):
    torch.manual_seed(0)
    batch, heads, length = 2, 3, 4
    attention = MultiheadAttention(6, heads, batch_first=True)
    x = torch.randn(batch, length, 6)
    sizes = {
        "[L,S]": (length, length),
        "[B,L,S]": (batch, length, length),
        "[B*H,L,S]": (batch * heads, length, length),
        "[B,1,L,S]": (batch, 1, length, length),
        "[1,H,1,S]": (1, heads, 1, length),
    }
    mask = random_mask("bool" if as_bool else "float", sizes[shape], torch.Generator().manual_seed(0))
    if shape == "[B,L,S]":
        full = mask[:, None].expand(batch, heads, length, length)
    elif shape == "[B*H,L,S]":
        full = mask.view(batch, heads, length, length)
    else:
        full = mask.expand(batch, heads, length, length)
    expected = attention(x, x, x, attn_mask=full.reshape(batch * heads, length, length))[0]
    for need_weights in (True, False):
        received = attention(x, x, x, attn_mask=mask, need_weights=need_weights)[0]
        torch.testing.assert_close(received, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_multi_query_equals_multi_head_with_repeated_keys(groups, masked, need_weights):
    torch.manual_seed(0)
    heads, width = 4, 3
    grouped = MultiQueryAttention(12, heads, num_kv_groups=groups, batch_first=True)
    nn.init.normal_(grouped.in_proj_bias)
    full = MultiheadAttention(12, heads, batch_first=True)
    full.out_proj.load_state_dict(grouped.out_proj.state_dict())
    assert grouped.in_proj_weight.shape == ((heads + 2 * groups) * width, 12)
    for packed, repeated in (
        (grouped.in_proj_weight, full.in_proj_weight),
        (grouped.in_proj_bias, full.in_proj_bias),
    ):
        q, k, v = packed.detach().unflatten(0, (-1, width)).split((heads, groups, groups))
        with torch.no_grad():
            repeated.copy_(
                torch.cat(
                    [q, k.repeat_interleave(heads // groups, 0), v.repeat_interleave(heads // groups, 0)]
                ).flatten(0, 1)
            )
    x, memory = torch.randn(2, 5, 12), torch.randn(2, 7, 12)
    for inputs in ((x, x, x), (x, memory, memory), (x, memory, memory + 1)):
        mask = random_mask(
            "bool" if masked else "none", (5, inputs[1].shape[1]), torch.Generator().manual_seed(0)
        )
        received = grouped(*inputs, attn_mask=mask, need_weights=need_weights)
        expected = full(*inputs, attn_mask=mask, need_weights=need_weights)
        torch.testing.assert_close(received[0], expected[0], atol=1e-6, rtol=1e-5)
        if need_weights:
            torch.testing.assert_close(received[1], expected[1], atol=1e-6, rtol=1e-5)


def reference_attention(attention, x, scale, bias=0.0, norm=False):
    """Attention written out, one head's width at a time."""
    q, k, v = F.linear(x, attention.in_proj_weight, attention.in_proj_bias).chunk(3, dim=-1)
    outputs = []
    for head in range(attention.num_heads):
        part = slice(head * attention.head_dim, (head + 1) * attention.head_dim)
        q_head, k_head = q[..., part], k[..., part]
        factor = scale[head] if isinstance(scale, list) else scale
        if norm:
            q_head = q_head / q_head.norm(dim=-1, keepdim=True)
            k_head = k_head / k_head.norm(dim=-1, keepdim=True)
        scores = q_head @ k_head.transpose(-1, -2) * factor
        scores = scores + (bias[head] if isinstance(bias, torch.Tensor) else bias)
        outputs.append(torch.softmax(scores, dim=-1) @ v[..., part])
    return attention.out_proj(torch.cat(outputs, dim=-1))


@pytest.mark.parametrize(
    ("options", "scale"),
    [
        ({"attention_type": "dot_product"}, 1.0),
        ({"scale_qk_dot_by_d": True}, 1 / 4),
        ({"attention_logits_alpha": 3.0}, 3 / 2),
        ({"attention_type": "dot_product", "attention_logits_alpha": 0.5}, 0.5),
        ({"inner_dim": 24}, 1 / math.sqrt(12)),
    ],
)
@pytest.mark.parametrize("need_weights", [True, False])
def test_scores_are_scaled_as_asked(options, scale, need_weights):
    torch.manual_seed(0)
    attention = MultiheadAttention(8, 2, batch_first=True, **options)
    x = torch.randn(2, 5, 8)
    received = attention(x, x, x, need_weights=need_weights)[0]
    torch.testing.assert_close(received, reference_attention(attention, x, scale), atol=1e-6, rtol=1e-5)


def test_scaled_cosine_has_a_learned_temperature_a_head_that_is_bounded():
    torch.manual_seed(0)
    attention = MultiheadAttention(8, 2, batch_first=True, attention_type="scaled_cosine")
    x = torch.randn(2, 5, 8)
    expected = reference_attention(attention, x, [10.0, 10.0], norm=True)
    torch.testing.assert_close(attention(x, x, x, need_weights=False)[0], expected, atol=1e-6, rtol=1e-5)
    nn.init.constant_(attention.logits_scale, 50.0)
    expected = reference_attention(attention, x, [100.0, 100.0], norm=True)
    torch.testing.assert_close(attention(x, x, x)[0], expected, atol=1e-5, rtol=1e-4)


def test_position_bias_is_added_to_the_scores_and_learned():
    torch.manual_seed(0)
    attention = MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(3, 5, 8)
    bias = torch.randn(2, 5, 5, requires_grad=True)
    expected = reference_attention(attention, x, 0.5, bias=bias)
    for shaped in (bias, bias[None], bias[None].expand(3, 2, 5, 5)):
        for need_weights in (True, False):
            received = attention(x, x, x, position_bias=shaped, need_weights=need_weights)[0]
            torch.testing.assert_close(received, expected, atol=1e-6, rtol=1e-5)
    (gradient,) = torch.autograd.grad(received.square().sum(), bias)
    assert gradient.abs().sum() > 0
    masked = attention(x, x, x, position_bias=bias, is_causal=True)[0]
    causal = bias + generate_square_subsequent_mask(5)
    torch.testing.assert_close(
        masked, reference_attention(attention, x, 0.5, bias=causal), atol=1e-6, rtol=1e-5
    )


def test_queries_and_keys_are_normed_on_request():
    torch.manual_seed(0)
    attention = MultiheadAttention(8, 2, batch_first=True, attention_qk_norm_layer="rmsnorm")
    x = torch.randn(2, 5, 8)
    plain = MultiheadAttention(8, 2, batch_first=True)
    plain.load_state_dict(attention.state_dict(), strict=False)
    assert not torch.allclose(attention(x, x, x)[0], plain(x, x, x)[0])
    scaled = x * 100  # what a norm of the keys takes away again, as there is no bias yet
    weights = attention(x, x, x)[1], attention(scaled, scaled, scaled)[1]
    torch.testing.assert_close(*weights, atol=1e-3, rtol=1e-3)


def test_initializers_fill_each_projection_by_itself():
    constants = {"name": "constant", "val": 2.0}
    attention = MultiheadAttention(
        8,
        2,
        attention_initializer={"name": "constant", "val": 1.0},
        attention_q_initializer=constants,
        output_layer_initializer=lambda tensor: tensor.fill_(3.0),
        bias_initializer={"name": "constant", "val": 4.0},
    )
    assert (attention.in_proj_weight[:8] == 2).all()
    assert (attention.in_proj_weight[8:] == 1).all()
    assert (attention.out_proj.weight == 3).all()
    assert (attention.in_proj_bias == 4).all()
    # xavier_uniform by name sees a matrix of 64 by 64, torch's default one of 192 by 64
    by_name = MultiheadAttention(64, 2, attention_initializer="xavier_uniform")
    assert by_name.in_proj_weight.abs().max().item() == pytest.approx(math.sqrt(6 / 128), rel=1e-2)
    assert MultiheadAttention(64, 2).in_proj_weight.abs().max().item() == pytest.approx(
        math.sqrt(6 / 256), rel=1e-2
    )


@pytest.mark.parametrize(("projection", "output"), [(True, False), (False, True), (False, False)])
def test_biases_of_the_projections_can_be_chosen(projection, output):
    attention = MultiheadAttention(8, 2, use_projection_bias=projection, use_ffn_bias=output)
    assert (attention.in_proj_bias is not None) == projection
    assert (attention.out_proj.bias is not None) == output
    x = torch.randn(3, 2, 8)
    assert attention(x, x, x)[0].shape == x.shape


ROTARY = RotaryPositionEmbeddingHelper(32, 4)


@pytest.mark.parametrize("rotary", [None, ROTARY])
@pytest.mark.parametrize("kind", ["cache", "pair"])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("steps", [(1, 1, 1, 1, 1, 1), (3, 1, 2), (2, 4)])
@pytest.mark.parametrize("groups", [1, 4])
def test_decoding_step_by_step_equals_decoding_at_once(rotary, kind, batch_first, steps, groups):
    torch.manual_seed(0)
    attention = MultiQueryAttention(16, 4, num_kv_groups=groups, batch_first=batch_first).eval()
    x = torch.randn(2, 6, 16)
    dim = 1 if batch_first else 0
    x = x if batch_first else x.transpose(0, 1)
    kwargs = {"is_causal": True, "need_weights": False, "rotary_position_embedding_helper": rotary}
    with torch.no_grad():
        expected = attention(x, x, x, **kwargs)[0]
        past = KVCache() if kind == "cache" else None
        outputs = []
        for piece in torch.split(x, steps, dim=dim):
            output, _, past = attention(piece, piece, piece, past_kv=past, cache_present_kv=True, **kwargs)
            outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, dim=dim), expected, atol=1e-6, rtol=1e-5)


def test_masks_after_a_cache_cover_all_keys_or_the_new_ones():
    torch.manual_seed(0)
    attention = MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(2, 6, 8)
    padding = torch.zeros(2, 6, dtype=torch.bool)
    padding[0, 0] = True  # left padding, which later steps must still see
    window = create_sliding_window_mask(6, 3)
    expected = attention(x, x, x, attn_mask=window, key_padding_mask=padding)[0]
    _, _, past = attention(x[:, :4], x[:, :4], x[:, :4], cache_present_kv=True)
    new = x[:, 4:]
    received = attention(new, new, new, past_kv=past, attn_mask=window[4:], key_padding_mask=padding)[0]
    torch.testing.assert_close(received, expected[:, 4:], atol=1e-6, rtol=1e-5)
    causal = attention(x, x, x, is_causal=True)[0][:, 4:]
    short = attention(new, new, new, past_kv=past, attn_mask=generate_square_subsequent_mask(2))[0]
    torch.testing.assert_close(short, causal, atol=1e-6, rtol=1e-5)
    with pytest.raises(UserError, match="covers 3 keys"):
        attention(new, new, new, past_kv=past, attn_mask=torch.zeros(2, 3))


def test_a_cache_of_the_memory_is_made_once():
    torch.manual_seed(0)
    attention = MultiheadAttention(8, 2, kdim=5, vdim=5, batch_first=True)
    x, memory = torch.randn(2, 3, 8), torch.randn(2, 4, 5)
    expected = attention(x, memory, memory)[0]
    cache = KVCache()
    first = attention(x, memory, memory, past_kv=cache, past_kv_self_attn=False)[0]
    torch.testing.assert_close(first, expected)
    again = attention(x, None, None, past_kv=cache, past_kv_self_attn=False)[0]
    torch.testing.assert_close(again, expected)
    assert cache.length == 4
    alone = KVCache()
    attention(x[0], memory[0], memory[0], past_kv=alone, past_kv_self_attn=False)
    unbatched = attention(x[0], None, None, past_kv=alone, past_kv_self_attn=False)[0]
    torch.testing.assert_close(unbatched, expected[0])


def test_gradients_pass_through_a_cache():
    torch.manual_seed(0)
    attention = MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 4, 8, requires_grad=True)
    (expected,) = torch.autograd.grad(attention(x, x, x, is_causal=True)[0].square().sum(), x)
    cache = KVCache()
    pieces = [attention(p, p, p, is_causal=True, past_kv=cache)[0] for p in (x[:, :1], x[:, 1:3], x[:, 3:])]
    (received,) = torch.autograd.grad(torch.cat(pieces, dim=1).square().sum(), x)
    torch.testing.assert_close(received, expected, atol=1e-5, rtol=1e-4)


def test_a_cache_can_be_reordered_and_leaves_what_it_was_given():
    key = torch.arange(6.0).view(3, 1, 2, 1)
    cache = KVCache((key, key + 10))
    cache.reorder(torch.tensor([2, 0, 0]))
    assert cache.held[0].flatten().tolist() == [4, 5, 0, 1, 0, 1]
    assert cache.held[1].flatten().tolist() == [14, 15, 10, 11, 10, 11]
    new, _ = cache.append(torch.full((3, 1, 1, 1), 7.0), torch.full((3, 1, 1, 1), 7.0))
    assert new.flatten().tolist() == [4, 5, 7, 0, 1, 7, 0, 1, 7]
    assert cache.length == 3
    assert key.flatten().tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(UserError, match="batch of 3 and got one of 1"):
        cache.append(new[:1], new[:1])


@pytest.mark.parametrize("style", ["no-share", "share-headwise", "share-kv", "share-layerwise"])
@pytest.mark.parametrize("need_weights", [True, False])
def test_linformer_mixes_keys_and_values(style, need_weights):
    torch.manual_seed(0)
    attention = LinformerAttention(
        8, 2, batch_first=True, kv_len=7, reduced_kv_len_dim=3, param_share_style=style
    )
    if style == "share-layerwise":
        with pytest.raises(UserError, match="No mixing matrix"):
            attention(torch.randn(2, 5, 8), torch.randn(2, 5, 8), torch.randn(2, 5, 8))
        attention.tie_kernel_projections(nn.Parameter(torch.randn(1, 3, 7)))
    x = torch.randn(2, 5, 8)
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 3:] = True
    q, k, v = F.linear(x, attention.in_proj_weight, attention.in_proj_bias).unflatten(-1, (3, 2, 4)).unbind(2)
    k, v = (t.masked_fill(padding[:, :, None, None], 0) for t in (k, v))
    e = attention.key_projection_kernel.expand(2, 3, 7)[..., :5]
    f = (
        e
        if attention.value_projection_kernel is None
        else attention.value_projection_kernel.expand(2, 3, 7)[..., :5]
    )
    k, v = torch.einsum("hrs,bshd->bhrd", e, k), torch.einsum("hrs,bshd->bhrd", f, v)
    weights = torch.softmax(torch.einsum("blhd,bhrd->bhlr", q, k) / 2, dim=-1)
    expected = attention.out_proj(torch.einsum("bhlr,bhrd->blhd", weights, v).flatten(2))
    received, received_weights = attention(x, x, x, key_padding_mask=padding, need_weights=need_weights)
    torch.testing.assert_close(received, expected, atol=1e-6, rtol=1e-5)
    if need_weights:
        torch.testing.assert_close(received_weights, weights.mean(1), atol=1e-6, rtol=1e-5)
    kernels = sum("projection_kernel" in name for name, _ in attention.named_parameters())
    assert kernels == (2 if style in ("no-share", "share-headwise") else 1)


def test_linformer_refuses_what_has_no_meaning():
    x = torch.randn(2, 5, 8)
    attention = LinformerAttention(8, 2, batch_first=True, kv_len=5, reduced_kv_len_dim=3)
    for kwargs, name in (
        ({"attn_mask": torch.zeros(5, 5)}, "attn_mask"),
        ({"is_causal": True}, "is_causal"),
        ({"past_kv": KVCache()}, "past_kv"),
    ):
        with pytest.raises(UserError, match=name):
            attention(x, x, x, **kwargs)
    longer = torch.randn(2, 6, 8)
    with pytest.raises(UserError, match="6 keys and kv_len is 5"):
        attention(longer, longer, longer)
    with pytest.raises(UserError, match="Did you mean 'share-kv'"):
        LinformerAttention(8, 2, param_share_style="share_kv")
    with pytest.raises(UserError, match="int64 of shape"):
        attention(x, x, x, key_padding_mask=torch.zeros(2, 5, dtype=torch.int64))
    with pytest.raises(UserError, match="bool of shape"):
        attention(x, x, x, key_padding_mask=torch.zeros(2, 4))


@pytest.mark.parametrize("shape", [(0, 5, 8), (2, 0, 8)])
def test_empty_inputs_give_empty_outputs(shape):
    attention = MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(shape)
    for need_weights in (True, False):
        assert attention(x, x, x, need_weights=need_weights, is_causal=True)[0].shape == shape


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda a, x: a(x, x[0], x), "3, 2 and 3 dimensions"),
        (lambda a, x: a(x[..., :4], x, x), r"widths \(4, 8, 8\)"),
        (lambda a, x: a(x, x, x[:, :2]), "shapes"),
        (lambda a, x: a(x, x, x, attn_mask=torch.zeros(5, 4)), "covers 4 keys"),
        (lambda a, x: a(x, x, x, attn_mask=torch.zeros(4, 5)), "must broadcast to"),
        (lambda a, x: a(x, x, x, attn_mask=torch.zeros(5, 5, dtype=torch.long)), "type torch.int64"),
        (lambda a, x: a(x, x, x, attn_mask=torch.zeros(5)), "attn_mask has shape"),
        (lambda a, x: a(x, x, x, key_padding_mask=torch.zeros(5)), "key_padding_mask has shape"),
        (lambda a, x: a(x, x, x, key_padding_mask=torch.zeros(3, 5)), "key_padding_mask has shape"),
        (lambda a, x: a(x, x, x, key_padding_mask=torch.zeros(2, 5, dtype=torch.uint8)), "type torch.uint8"),
        (lambda a, x: a(x, x, x, position_bias=torch.zeros(3, 5, 5)), "must broadcast to"),
        (lambda a, x: MultiheadAttention(8, 3), "do not fit"),
        (lambda a, x: MultiheadAttention(0, 1), "do not fit"),
        (
            lambda a, x: MultiheadAttention(8, 2, attention_type="scaled_cosin"),
            "Did you mean 'scaled_cosine'",
        ),
        (lambda a, x: MultiQueryAttention(8, 4, num_kv_groups=3), "does not divide"),
    ],
)
def test_bad_input_is_refused_in_words(call, match):
    with pytest.raises(UserError, match=match):
        call(MultiheadAttention(8, 2, batch_first=True), torch.randn(2, 5, 8))


def test_nested_tensors_are_refused_with_the_cure():
    attention = MultiheadAttention(8, 2, batch_first=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(5, 8)])
    with pytest.raises(UserError, match="padded tensor"):
        attention(nested, nested, nested)
