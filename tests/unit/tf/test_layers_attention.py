"""Attention equals that of portwright.layers, forward and backward, whatever is masked, shared or turned."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import torch
from layer_twins import array, attention_pairs, compare, draw, norm_pairs, numbers

import portwright.layers as theirs
from portwright.errors import UserError
from portwright.tensorflow import layers

BATCH, QUERIES, KEYS, WIDTH, HEADS = 2, 5, 7, 12, 3


def twins(**options: Any) -> tuple[Any, Any]:
    module = draw(theirs.MultiheadAttention(WIDTH, HEADS, batch_first=True, **options)).eval()
    return layers.MultiheadAttention(WIDTH, HEADS, **options), module


def check(ours: Any, module: Any, inputs: list[np.ndarray], **arguments: Any) -> None:
    def run_ours(*tensors: Any) -> Any:
        given = {name: _to_tf(value) for name, value in arguments.items()}
        return ours(*tensors, **given)[0]

    def run_theirs(*tensors: Any) -> Any:
        query, key, value = (tensors * 3)[:3] if len(tensors) == 1 else tensors
        given = {name: _to_torch(value) for name, value in arguments.items()}
        return module(query, key, value, **given)[0]

    compare(run_ours, run_theirs, inputs, module, lambda other: attention_pairs(ours, other))


def _to_tf(value: Any) -> Any:
    return (
        tf.constant(value)
        if isinstance(value, np.ndarray)
        else value[0]
        if isinstance(value, tuple)
        else value
    )


def _to_torch(value: Any) -> Any:
    return (
        torch.from_numpy(value)
        if isinstance(value, np.ndarray)
        else value[1]
        if isinstance(value, tuple)
        else value
    )


PADDING = np.zeros((BATCH, QUERIES), bool)
PADDING[0, 3:] = True
SOME = np.triu(np.ones((QUERIES, QUERIES), bool), 2)
BIAS = numbers((HEADS, QUERIES, QUERIES), seed=5)

MASKS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "causal": {"is_causal": True},
    "padding": {"key_padding_mask": PADDING},
    "float padding": {"key_padding_mask": np.where(PADDING, -np.inf, 0.5).astype(np.float32)},
    "lowest padding": {"key_padding_mask": np.where(PADDING, np.finfo(np.float32).min, 0).astype(np.float32)},
    "causal padding": {"is_causal": True, "key_padding_mask": PADDING},
    "mask": {"attn_mask": SOME},
    "float mask": {"attn_mask": numbers((QUERIES, QUERIES))},
    "mask of 4": {"attn_mask": np.broadcast_to(SOME, (BATCH, HEADS, QUERIES, QUERIES)).copy()},
    "bias": {"position_bias": BIAS},
    "bias and all": {"position_bias": BIAS[None], "is_causal": True, "key_padding_mask": PADDING},
}


@pytest.mark.parametrize("name", MASKS)
def test_self_attention(name: str) -> None:
    check(*twins(), [numbers((BATCH, QUERIES, WIDTH))], **MASKS[name])


def test_a_mask_of_each_sequence() -> None:
    ours, module = twins()
    mask = np.stack([SOME, SOME.T & ~np.eye(QUERIES, dtype=bool)])
    x = numbers((BATCH, QUERIES, WIDTH))
    check(ours, module, [x], attn_mask=(tf.constant(mask), torch.from_numpy(mask)[:, None]))


def test_a_mask_of_each_head() -> None:
    mask = np.random.default_rng(0).random((BATCH * HEADS, QUERIES, QUERIES)) < 0.4
    mask[:, :, 0] = False
    check(*twins(), [numbers((BATCH, QUERIES, WIDTH))], attn_mask=mask)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 1, 3), (3, 2, 1), (1, 5, 5)])
def test_cross_attention_and_small_sizes(sizes: tuple[int, int, int]) -> None:
    batch, queries, keys = sizes
    inputs = [
        numbers((batch, queries, WIDTH)),
        numbers((batch, keys, WIDTH), 1),
        numbers((batch, keys, WIDTH), 2),
    ]
    check(*twins(), inputs)


@pytest.mark.parametrize(
    "options",
    [
        {"bias": False},
        {"use_projection_bias": False},
        {"use_ffn_bias": False},
        {"inner_dim": 21},
        {"attention_type": "dot_product"},
        {"scale_qk_dot_by_d": True, "attention_logits_alpha": 2.0},
    ],
)
def test_options(options: dict[str, Any]) -> None:
    check(*twins(**options), [numbers((BATCH, QUERIES, WIDTH))], is_causal=True)


@pytest.mark.parametrize(
    "options",
    [
        {"attention_type": "scaled_cosine"},
        {"attention_qk_norm_layer": "layernorm", "attention_qk_norm_eps": 1e-3},
        {
            "attention_qk_norm_layer": "rmsnorm",
            "attention_type": "scaled_cosine",
            "attention_logits_alpha": 0.5,
        },
    ],
)
def test_normed_queries_and_keys(options: dict[str, Any]) -> None:
    ours, module = twins(**options)

    def pairs(other: Any) -> list[tuple[Any, Any]]:
        found = attention_pairs(ours, other)
        if "attention_type" in options:
            found.append((ours.logits_scale, other.logits_scale))
        if "attention_qk_norm_layer" in options:
            found += norm_pairs(ours.q_norm, other.q_norm) + norm_pairs(ours.k_norm, other.k_norm)
        return found

    compare(
        lambda x: ours(x, is_causal=True)[0],
        lambda x: module(x, x, x, is_causal=True)[0],
        [numbers((BATCH, QUERIES, WIDTH))],
        module,
        pairs,
    )


@pytest.mark.parametrize("groups", [1, 2])
def test_shared_keys_and_values(groups: int) -> None:
    module = draw(theirs.MultiQueryAttention(WIDTH, 4, batch_first=True, num_kv_groups=groups)).eval()
    ours = layers.MultiQueryAttention(WIDTH, 4, num_kv_groups=groups)
    check(ours, module, [numbers((BATCH, QUERIES, WIDTH))], is_causal=True)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("positions", [None, np.array([3, 1, 4, 0, 2]), np.arange(10).reshape(2, 5)])
def test_rotary(layout: Any, positions: Any) -> None:
    ours = layers.RotaryPositionEmbeddingHelper(16, 2, layout=layout)
    other = theirs.RotaryPositionEmbeddingHelper(16, 2, layout=layout)
    given = {} if positions is None else {"position_ids": positions}
    helper = {"rotary_position_embedding_helper": (ours, other)}
    check(*twins(), [numbers((BATCH, QUERIES, WIDTH))], is_causal=True, **helper, **given)


@pytest.mark.parametrize("seq_dim", [1, 2])
def test_rotation_alone(seq_dim: Any) -> None:
    x = numbers((2, 6, 6, 10))
    arguments: dict[str, Any] = {"base": 500.0, "scaling_factor": 2.0}
    ours = layers.RotaryPositionEmbeddingHelper(4096, 8, **arguments)
    other = theirs.RotaryPositionEmbeddingHelper(4096, 8, **arguments)
    found = ours.rotate_tensor(tf.constant(x), 4000, seq_dim=seq_dim)
    expected = other.rotate_tensor(torch.from_numpy(x), 4000, seq_dim=seq_dim)
    np.testing.assert_allclose(found, expected, atol=1e-3)


@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        ("linear", None),
        ("yarn", {"original_max_position_embeddings": 64}),
        ("yarn", {"original_max_position_embeddings": 64, "truncate": False, "mscale_a": 0.2}),
        ("llama3", {"original_max_position_embeddings": 64, "high_freq_factor": 2.5}),
    ],
)
def test_rotation_of_longer_contexts(kind: str, extra: Any) -> None:
    x = numbers((1, 1, 200, 32))
    ours = layers.RotaryPositionEmbeddingHelper(200, 32, 10000.0, 4.0, kind, extra)
    other = theirs.RotaryPositionEmbeddingHelper(200, 32, 10000.0, 4.0, kind, extra)
    np.testing.assert_allclose(ours(tf.constant(x)), other(torch.from_numpy(x)), atol=2e-4)


def test_a_query_that_sees_nothing_gets_the_bias_alone() -> None:
    ours, module = twins()
    padding = np.ones((BATCH, QUERIES), bool)
    padding[1, 0] = False
    check(ours, module, [numbers((BATCH, QUERIES, WIDTH))], key_padding_mask=padding)
    output, weights = ours(
        tf.constant(numbers((BATCH, QUERIES, WIDTH))), key_padding_mask=tf.constant(padding)
    )
    assert not np.any(weights[0])
    np.testing.assert_allclose(
        output[0], np.broadcast_to(ours.output_projection.bias, (QUERIES, WIDTH)), rtol=1e-6
    )


def test_weights() -> None:
    ours, module = twins()
    x = numbers((BATCH, QUERIES, WIDTH))
    check(ours, module, [x])
    tensor = torch.from_numpy(x)
    for average in (True, False):
        found = ours(tf.constant(x), average_attn_weights=average)[1]
        expected = module(tensor, tensor, tensor, average_attn_weights=average)[1]
        np.testing.assert_allclose(found, array(expected), atol=1e-6)
    assert ours(tf.constant(x), need_weights=False)[1] is None


def test_a_cache_gives_what_the_whole_gives() -> None:
    ours, _ = twins()
    rotary = layers.RotaryPositionEmbeddingHelper(16, 4)
    x = tf.constant(numbers((BATCH, QUERIES, WIDTH)))
    arguments: dict[str, Any] = {"is_causal": True, "rotary_position_embedding_helper": rotary}
    whole = ours(x, **arguments)[0]
    first, _, past = ours(x[:, :2], cache_present_kv=True, **arguments)
    second, _, past = ours(x[:, 2:4], past_kv=past, cache_present_kv=True, **arguments)
    third, _, _ = ours(x[:, 4:], past_kv=past, cache_present_kv=True, **arguments)
    np.testing.assert_allclose(tf.concat([first, second, third], 1), whole, atol=1e-6)


STYLES = ["no-share", "share-headwise", "share-kv", "share-layerwise"]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("length", [9, 6])
def test_linformer(style: str, length: int) -> None:
    options: dict[str, Any] = {"kv_len": 9, "reduced_kv_len_dim": 4, "param_share_style": style}
    ours = layers.LinformerAttention(WIDTH, HEADS, **options)
    module: Any = theirs.LinformerAttention(WIDTH, HEADS, batch_first=True, **options)
    if style == "share-layerwise":
        kernel = numbers((1, 4, 9))
        module.tie_kernel_projections(torch.nn.Parameter(torch.from_numpy(kernel)))
        ours.tie_kernel_projections(tf.Variable(kernel))
    draw(module).eval()
    padding = np.zeros((BATCH, length), bool)
    padding[1, 4:] = True

    def pairs(other: Any) -> list[tuple[Any, Any]]:
        own = ours._tied if style == "share-layerwise" else ours.key_projection_kernel
        found = [*attention_pairs(ours, other), (own, other.key_projection_kernel)]
        if other.value_projection_kernel is not None:
            found.append((ours.value_projection_kernel, other.value_projection_kernel))
        return found

    def run_theirs(x: Any) -> Any:
        return module(x, x, x, key_padding_mask=torch.from_numpy(padding))[0]

    compare(
        lambda x: ours(x, key_padding_mask=tf.constant(padding))[0],
        run_theirs,
        [numbers((BATCH, length, WIDTH))],
        module,
        pairs,
    )
    assert len(ours.trainable_weights) == {"no-share": 10, "share-headwise": 10, "share-kv": 9}.get(style, 8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: layers.MultiheadAttention(12, 5), "do not fit"),
        (lambda: layers.MultiheadAttention(12, 0), "num_heads is 0"),
        (lambda: layers.MultiheadAttention(12, 4, num_kv_groups=3), "do not fit"),
        (lambda: layers.MultiheadAttention(12, 4, attention_type="scaled_dot"), "scaled_dot_product"),
        (lambda: layers.MultiheadAttention(12, 4, dropout=1.5), "1.5"),
        (lambda: layers.LinformerAttention(12, 4, param_share_style="share"), "share-kv"),
        (lambda: layers.LinformerAttention(12, 4, kv_len=0), "kv_len is 0"),
        (lambda: layers.RotaryPositionEmbeddingHelper(8, 3), "even"),
        (lambda: layers.RotaryPositionEmbeddingHelper(8, 4, layout="halves"), "'half'"),  # type: ignore[arg-type]
        (lambda: layers.RotaryPositionEmbeddingHelper(8, 4, base=0), "base"),
        (lambda: layers.RotaryPositionEmbeddingHelper(8, 4, scaling_type="yarn"), "needs original_max"),
        (lambda: layers.RotaryPositionEmbeddingHelper(8, 4, scaling_type="ntk"), "Unknown rotary scaling"),
        (
            lambda: layers.RotaryPositionEmbeddingHelper(8, 4, scaling_extra_args={"beta": 1}),
            "no option 'beta'",
        ),
    ],
)
def test_bad_options_are_refused(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


X = np.zeros([2, 3, 12], np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda layer: layer(X[0]), "batch, sequence, width"),
        (lambda layer: layer(X[..., 1:]), "embed_dim is 12"),
        (lambda layer: layer(X, X[:1]), "same batch"),
        (lambda layer: layer(X, X, np.zeros([2, 4, 12], np.float32)), "same length"),
        (lambda layer: layer(X, key_padding_mask=tf.zeros([2, 3], tf.int32)), "mask_of_zeros"),
        (lambda layer: layer(X, key_padding_mask=tf.zeros([3], tf.bool)), r"\[batch, keys\]"),
        (lambda layer: layer(X, attn_mask=tf.zeros([3], tf.bool)), r"\[queries, keys\]"),
        (lambda layer: layer(X, key_padding_mask=np.zeros([2, 1], bool)), "batch, keys"),
        (lambda layer: layer(X, key_padding_mask=np.zeros([3, 3], bool)), "batch, keys"),
        (lambda layer: layer(X, attn_mask=np.zeros([3, 1], bool)), "queries, keys"),
        (lambda layer: layer(X, attn_mask=np.zeros([4, 3, 3], bool)), "queries, keys"),
        (lambda layer: layer(X, training=tf.constant(True)), "True or False"),
        (
            lambda layer: layer(
                X, rotary_position_embedding_helper=layers.RotaryPositionEmbeddingHelper(2, 2)
            ),
            "there are 2",
        ),
        (
            lambda layer: layer(
                X, rotary_position_embedding_helper=layers.RotaryPositionEmbeddingHelper(8, 8)
            ),
            "heads have 4",
        ),
    ],
)
@pytest.mark.parametrize("eager", [True, False])
def test_bad_inputs_are_refused_in_one_line(call: Any, message: str, eager: bool) -> None:
    with contextlib.nullcontext() if eager else tf.Graph().as_default():
        layer = layers.MultiheadAttention(12, 3)
        with pytest.raises(UserError, match=message) as caught:
            call(lambda x, *rest, **given: layer(tf.constant(x), *map(tf.constant, rest), **given))
    assert "\n" not in str(caught.value)


def test_linformer_refuses_what_has_no_meaning() -> None:
    layer = layers.LinformerAttention(12, 3, kv_len=4)
    for arguments in ({"is_causal": True}, {"attn_mask": tf.zeros([3, 3], tf.bool)}, {"position_bias": X}):
        with pytest.raises(UserError, match="no meaning"):
            layer(tf.constant(X), **arguments)
    with pytest.raises(UserError, match="kv_len is 4"):
        layer(tf.zeros([1, 5, 12]))
    tied = layers.LinformerAttention(12, 3, kv_len=4, param_share_style="share-layerwise")
    with pytest.raises(UserError, match="tie_kernel_projections"):
        tied(tf.constant(X))
    with pytest.raises(UserError, match="shape"):
        tied.tie_kernel_projections(tf.zeros([1, 2, 3]))
    with pytest.raises(UserError, match="share-layerwise"):
        layer.tie_kernel_projections(tf.zeros([1, 64, 4]))


def test_masks_equal_those_of_pytorch() -> None:
    for options in ({}, {"num_sink_tokens": 2}, {"causal": False}):
        np.testing.assert_array_equal(
            layers.create_sliding_window_mask(9, 3, **options),
            theirs.create_sliding_window_mask(9, 3, **options),
        )
    np.testing.assert_array_equal(
        layers.generate_square_subsequent_mask(4), theirs.generate_square_subsequent_mask(4)
    )
    np.testing.assert_array_equal(
        layers.create_autoregressive_mask(4), theirs.create_autoregressive_mask(4, torch.bool)
    )
    np.testing.assert_array_equal(
        layers.make_padding_mask(tf.constant([0, 2, 3]), 3), [[1, 1, 1], [0, 0, 1], [0, 0, 0]]
    )
