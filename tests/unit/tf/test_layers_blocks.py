"""Encoder and decoder layers, embeddings, norms and products equal those of portwright.layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import torch
from layer_twins import array, block_pairs, compare, dense_pairs, draw, norm_pairs, numbers

import portwright.layers as theirs
from portwright.errors import UserError
from portwright.tensorflow import layers

BATCH, LENGTH, WIDTH, HEADS, INNER = 2, 5, 12, 3, 17
X = numbers((BATCH, LENGTH, WIDTH))
PADDING = np.zeros((BATCH, LENGTH), bool)
PADDING[1, 3:] = True

BLOCKS: dict[str, dict[str, Any]] = {
    "post": {},
    "pre": {"norm_first": True},
    "swiglu": {"activation": "swiglu", "norm_first": True},
    "gelu": {"activation": "gelu", "layer_norm_eps": 1e-12},
    "no bias": {"bias": False},
    "rms": {"norm_layer": "rmsnorm", "layer_norm_eps": 1e-6, "use_ffn_bias": False},
    "shared keys": {
        "attention_module": "multiquery_attention",
        "extra_attention_params": {"num_kv_groups": 1},
    },
}


@pytest.mark.parametrize("name", BLOCKS)
def test_encoder_layer(name: str) -> None:
    ours = layers.TransformerEncoderLayer(WIDTH, HEADS, INNER, **BLOCKS[name])
    module = draw(
        theirs.TransformerEncoderLayer(WIDTH, HEADS, INNER, batch_first=True, **BLOCKS[name])
    ).eval()
    compare(
        lambda x: ours(x, src_key_padding_mask=tf.constant(PADDING)),
        lambda x: module(x, src_key_padding_mask=torch.from_numpy(PADDING)),
        [X],
        module,
        lambda other: block_pairs(ours, other),
    )


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("cross", [True, False])
def test_decoder_layer(name: str, cross: bool) -> None:
    options = {**BLOCKS[name], "add_cross_attention": cross}
    ours = layers.TransformerDecoderLayer(WIDTH, HEADS, INNER, **options)
    module = draw(theirs.TransformerDecoderLayer(WIDTH, HEADS, INNER, batch_first=True, **options)).eval()
    compare(
        lambda x, *rest: ours(
            x,
            *rest,
            tgt_is_causal=True,
            **({"memory_key_padding_mask": tf.constant(PADDING)} if rest else {}),
        ),
        lambda x, *rest: module(
            x,
            *rest,
            tgt_is_causal=True,
            **({"memory_key_padding_mask": torch.from_numpy(PADDING)} if rest else {}),
        ),
        [numbers((BATCH, 4, WIDTH), 1), *([X] if cross else [])],
        module,
        lambda other: block_pairs(ours, other),
    )


@pytest.mark.parametrize("untied", [False, True])
def test_gptj_layer(untied: bool) -> None:
    rotary = (layers.RotaryPositionEmbeddingHelper(8, 4), theirs.RotaryPositionEmbeddingHelper(8, 4))
    ours = layers.GPTJDecoderLayer(WIDTH, HEADS, untied, dim_feedforward=INNER)
    module = draw(
        theirs.GPTJDecoderLayer(WIDTH, HEADS, untied, dim_feedforward=INNER, batch_first=True)
    ).eval()
    compare(
        lambda x: ours(x, tgt_is_causal=True, rotary_position_embedding_helper=rotary[0]),
        lambda x: module(x, tgt_is_causal=True, rotary_position_embedding_helper=rotary[1]),
        [X],
        module,
        lambda other: block_pairs(ours, other),
    )


def test_a_decoder_with_a_cache_gives_what_the_whole_gives() -> None:
    ours = layers.TransformerDecoderLayer(WIDTH, HEADS, INNER, add_cross_attention=False)
    whole = ours(tf.constant(X), tgt_is_causal=True)
    first, past = ours(tf.constant(X[:, :3]), tgt_is_causal=True, cache_present_kv=True)
    second, _ = ours(tf.constant(X[:, 3:]), tgt_is_causal=True, past_kv=past, cache_present_kv=True)
    np.testing.assert_allclose(tf.concat([first, second], 1), whole, atol=1e-5)


def test_a_memory_of_another_width() -> None:
    options = {"cross_attention_kv_dim": 8}
    ours = layers.TransformerDecoderLayer(WIDTH, HEADS, INNER)
    module = draw(theirs.TransformerDecoderLayer(WIDTH, HEADS, INNER, batch_first=True, **options)).eval()
    compare(ours, module, [X, numbers((BATCH, 3, 8), 4)], module, lambda other: block_pairs(ours, other))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: layers.TransformerEncoderLayer(12, 3, atention_type="dot_product"), "attention_type"),
        (lambda: layers.TransformerEncoderLayer(12, 3, activation="swigu"), "'swiglu'"),
        (lambda: layers.TransformerEncoderLayer(12, 3, norm_layer="layer_norm"), "'layernorm'"),
        (lambda: layers.TransformerEncoderLayer(12, 3, norm_layer=layers.LayerNorm()), "not what makes one"),
        (lambda: layers.TransformerEncoderLayer(12, 3, attention_module="linformer"), "linformer_attention"),
        (lambda: layers.TransformerEncoderLayer(12, 3, ffn_initializer="xavier"), "xavier_"),
        (lambda: layers.TransformerEncoderLayer(12.5, 3), "12.5"),  # type: ignore[arg-type]
        (lambda: layers.GPTJDecoderLayer(12, 3, norm_first=False), "norms first"),
        (lambda: layers.TransformerDecoderLayer(12, 3)(tf.zeros([1, 2, 12])), "got none"),
    ],
)
def test_bad_blocks_are_refused(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


@pytest.mark.parametrize("pad", [None, 2, -1])
@pytest.mark.parametrize("kind", ["learned", "fixed", None])
def test_embeddings(kind: Any, pad: int | None) -> None:
    options: dict[str, Any] = {
        "pad_token_id": pad,
        "max_position_embeddings": 9,
        "position_embedding_type": kind,
        "num_segments": 3,
        "embedding_scale": 2.0,
        "output_scale": 0.5,
    }
    if kind == "learned":
        options["position_embedding_offset"] = 2
    ours = layers.EmbeddingLayer(11, WIDTH, **options)
    module: Any = draw(theirs.EmbeddingLayer(11, WIDTH, **options)).eval()
    ids = np.array([[1, 2, 3, 2, 10], [4, 4, 4, 0, 2]])
    segments = np.array([[0, 0, 1, 1, 2], [2, 1, 0, 1, 0]])

    def pairs(other: Any) -> list[tuple[Any, Any]]:
        found = [
            (ours.word_embeddings, other.word_embeddings.weight),
            (ours.segment_embeddings, other.segment_embeddings.weight),
        ]
        return (
            [*found, (ours.position_embeddings, other.position_embeddings.weight)]
            if kind == "learned"
            else found
        )

    compare(ours, module, [ids, segments], module, pairs)
    for arguments in (
        {"past_length": 3},
        {"position_ids": np.array([3, 1, 0, 2, 4])},
        {"position_ids": segments},
    ):
        given = {
            name: torch.as_tensor(value) if name == "position_ids" else value
            for name, value in arguments.items()
        }
        np.testing.assert_allclose(
            ours(tf.constant(ids), **arguments), array(module(torch.from_numpy(ids), **given)), atol=1e-5
        )


def test_positions_that_belong_into_attention() -> None:
    ids = tf.constant([[1, 2, 3]])
    rotary: dict[str, Any] = {
        "position_embedding_type": "rotary",
        "max_position_embeddings": 8,
        "rotary_dim": 4,
        "rotary_layout": "half",
        "pos_scaling_factor": 2.0,
    }
    x = numbers((1, 2, 3, 4))
    ours, module = layers.EmbeddingLayer(9, 4, **rotary), theirs.EmbeddingLayer(9, 4, **rotary)
    np.testing.assert_allclose(
        ours.get_rope_helper()(tf.constant(x)), module.get_rope_helper()(torch.from_numpy(x)), atol=1e-6
    )
    assert ours.compute_position_bias(3, 3) is None
    alibi: dict[str, Any] = {"position_embedding_type": "alibi", "num_heads": 3}
    ours, module = layers.EmbeddingLayer(9, 4, **alibi), theirs.EmbeddingLayer(9, 4, **alibi)
    np.testing.assert_allclose(
        ours.compute_position_bias(3, 5), module.compute_position_bias(3, 5), rtol=1e-6
    )
    relative = layers.EmbeddingLayer(9, 4, position_embedding_type="relative", num_heads=3, name="words")
    assert ours.get_rope_helper() is None
    np.testing.assert_array_equal(relative(ids), tf.gather(relative.weight, ids))
    assert relative.compute_position_bias(3, 5).shape == (1, 3, 3, 5)
    assert len(relative.trainable_weights) == 2


def stack_pairs(stack: Any, module: Any) -> list[tuple[Any, Any]]:
    pairs = [] if module.norm is None else norm_pairs(stack.norm, module.norm)
    for layer, other in zip(stack.layers, module.layers, strict=True):
        pairs += block_pairs(layer, other)
    return pairs


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_whole_transformer(norm_first: bool) -> None:
    sizes = (WIDTH, HEADS, 2, 3, INNER)
    ours = layers.Transformer(*sizes, activation="gelu", norm_first=norm_first, name="transformer")
    module = draw(
        theirs.Transformer(*sizes, activation="gelu", norm_first=norm_first, batch_first=True)
    ).eval()
    compare(
        lambda src, tgt: ours(src, tgt, src_key_padding_mask=tf.constant(PADDING), tgt_is_causal=True),
        lambda src, tgt: module(src, tgt, src_key_padding_mask=torch.from_numpy(PADDING), tgt_is_causal=True),
        [X, numbers((BATCH, 4, WIDTH), 2)],
        module,
        lambda other: stack_pairs(ours.encoder, other.encoder) + stack_pairs(ours.decoder, other.decoder),
        rtol=1e-3,
        atol=1e-4,
    )
    names = {weight.name for weight in ours.weights}
    assert {"transformer/encoder/layers_1/norm2/gamma:0", "transformer/decoder/norm/beta:0"} <= names
    assert len(names) == len(ours.weights) == len(list(module.parameters())) + 2 * (2 + 3 + 3) * 2


def test_a_stack_with_caches() -> None:
    layer = layers.TransformerDecoderLayer(WIDTH, HEADS, INNER, add_cross_attention=False)
    stack = layers.TransformerDecoder(layer, 2)
    whole = stack(tf.constant(X), tgt_is_causal=True)
    first, past = stack(tf.constant(X[:, :3]), tgt_is_causal=True, cache_present_kv=True)
    second, _ = stack(tf.constant(X[:, 3:]), tgt_is_causal=True, past_kv=past, cache_present_kv=True)
    np.testing.assert_allclose(tf.concat([first, second], 1), whole, atol=1e-5)
    with pytest.raises(UserError, match="1 entries for 2 layers"):
        stack(tf.constant(X), past_kv=past[:1])


def test_the_row_of_padding_starts_at_zero_and_small_integers_are_ids() -> None:
    layer = layers.EmbeddingLayer(11, 4, pad_token_id=3, position_embedding_type=None)
    found = layer(tf.constant([[3, 1]], tf.uint8))
    assert not np.any(found[0, 0])
    assert np.all(found[0, 1] != 0)
    assert layer.weight.shape == (11, 4)


def test_positions_and_segments_of_the_model_zoo() -> None:
    x = tf.constant(X)
    fixed = layers.PositionEmbeddingLayer(8)(x) - x
    np.testing.assert_allclose(fixed[0], layers.sinusoids(LENGTH, WIDTH, variant="modelzoo"), atol=1e-6)
    learned = layers.PositionEmbeddingLayer(8, "learned", name="positions")
    assert learned(x).shape == x.shape
    assert [weight.name for weight in learned.weights] == ["positions/position_embedding_weights:0"]
    np.testing.assert_allclose(
        (learned(x, position_ids=tf.constant([4, 4, 4, 4, 4])) - x)[0, 2], learned.weights[0][4], atol=1e-6
    )
    segment = layers.SegmentEmbeddingLayer(2)
    added = segment(x, tf.constant([[0, 1, 1, 0, 0]] * BATCH)) - x
    np.testing.assert_allclose(added[0, 1], segment.weights[0][1], atol=1e-6)


@pytest.mark.parametrize("variant", ["tutorial", "modelzoo"])
@pytest.mark.parametrize("width", [1, 2, 7, 16])
def test_sinusoids(variant: Any, width: int) -> None:
    from portwright.layers.positions import sinusoids

    expected = sinusoids(300, width, variant=variant, min_timescale=2.0, max_timescale=500.0)
    found = layers.sinusoids(300, width, variant=variant, min_timescale=2.0, max_timescale=500.0)
    np.testing.assert_allclose(found, array(expected), atol=1e-4)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "furthest"), [(32, 128), (8, 20), (5, 300)])
def test_relative_positions(bidirectional: bool, buckets: int, furthest: int) -> None:
    from portwright.layers.positions import relative_position_bucket

    distances = np.arange(-400, 400)
    expected = relative_position_bucket(torch.from_numpy(distances), bidirectional, buckets, furthest)
    np.testing.assert_array_equal(
        layers.relative_position_bucket(distances, bidirectional, buckets, furthest), array(expected)
    )
    ours = layers.RelativePositionEmbeddingLayer(
        HEADS, buckets, bidirectional, max_relative_positions=furthest
    )
    module = draw(
        theirs.RelativePositionEmbeddingLayer(
            HEADS, None, buckets, bidirectional, max_relative_positions=furthest
        )
    )
    for arguments in ({}, {"past_length": 4}):
        compare(
            lambda arguments=arguments: ours(6, 11, **arguments),
            lambda arguments=arguments: module(6, 11, **arguments),
            [],
            module,
            lambda other: [(ours.relative_attention_bias, other.relative_attention_bias.weight)],
        )
        module.zero_grad()


@pytest.mark.parametrize("heads", [1, 4, 6])
def test_alibi(heads: int) -> None:
    expected = theirs.AlibiPositionEmbeddingLayer(heads, scaling_factor=2.0)(4, 7, past_length=3)
    found = layers.AlibiPositionEmbedding(heads, scaling_factor=2.0)(4, 7, past_length=3)
    np.testing.assert_allclose(found, array(expected), rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: layers.EmbeddingLayer(0, 4), "vocab_size is 0"),
        (lambda: layers.EmbeddingLayer(9, 4, pad_token_id=9), "pad_token_id is 9"),
        (lambda: layers.EmbeddingLayer(9, 4), "max_position_embeddings"),
        (lambda: layers.EmbeddingLayer(9, 4, position_embedding_type="rotaty"), "'rotary'"),  # type: ignore[arg-type]
        (
            lambda: layers.EmbeddingLayer(9, 4, position_embedding_type="rotary", max_position_embeddings=4),
            "no rotary_dim",
        ),
        (lambda: layers.EmbeddingLayer(9, 4, position_embedding_type="relative"), "no num_heads"),
        (
            lambda: layers.EmbeddingLayer(9, 4, max_position_embeddings=4, pos_scaling_factor=2.0),
            "not at all",
        ),
        (
            lambda: layers.EmbeddingLayer(9, 4, embedding_scale=float("nan"), position_embedding_type=None),
            "nan",
        ),
        (lambda: layers.EmbeddingLayer(9, 4, position_embedding_type=None)(tf.zeros([1, 2])), "integer ids"),
        (
            lambda: layers.EmbeddingLayer(9, 4, max_position_embeddings=2)(tf.zeros([1, 3], tf.int32)),
            "does not fit",
        ),
        (
            lambda: layers.EmbeddingLayer(9, 4, position_embedding_type=None)(
                tf.zeros([1, 3], tf.int32), tf.zeros([1, 3], tf.int32)
            ),
            "num_segments",
        ),
        (lambda: layers.EmbeddingLayer(9, 4, position_embedding_type=None).weight, "before its weights"),
        (lambda: layers.PositionEmbeddingLayer(2)(tf.zeros([1, 3, 4])), "does not fit"),
        (lambda: layers.PositionEmbeddingLayer(2, "learnt"), "'learned'"),  # type: ignore[arg-type]
        (lambda: layers.sinusoids(4, 4, variant="zoo"), "'modelzoo'"),  # type: ignore[arg-type]
        (lambda: layers.RelativePositionEmbeddingLayer(3, 1), "at least 2"),
        (lambda: layers.AlibiPositionEmbedding(3, [1.0]), "1 slopes for 3 heads"),
    ],
)
def test_bad_embeddings_are_refused(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


def test_norms() -> None:
    for ours, module in (
        (layers.LayerNorm(), torch.nn.LayerNorm(WIDTH)),
        (layers.LayerNorm(1e-3, bias=False), torch.nn.LayerNorm(WIDTH, 1e-3, bias=False)),
        (layers.RMSNorm(1e-6), theirs.RMSNorm(WIDTH, eps=1e-6)),
    ):
        draw(module)
        compare(ours, module, [X * 7 + 3], module, lambda other, ours=ours: norm_pairs(ours, other))
    plain = layers.get_norm("nonparametric-layernorm")()
    np.testing.assert_allclose(plain(tf.constant(X)).numpy().mean(-1), 0.0, atol=1e-5)
    assert plain.weights == []


def test_norms_of_large_halves_do_not_overflow() -> None:
    x = tf.constant(numbers((2, 16)) * 5000, tf.float16)
    for norm in (layers.LayerNorm(dtype="mixed_float16"), layers.RMSNorm(dtype="mixed_float16")):
        assert np.all(np.isfinite(norm(x)))
        assert norm(x).dtype == tf.float16


def test_feed_forward() -> None:
    options: dict[str, Any] = {
        "layers_activation": ["gelu", "swiglu", None],
        "layers_dropout_rates": [0.5, None, 0.1],
    }
    ours = layers.FeedForwardNetwork([7, 9, 4], **options)
    module: Any = draw(theirs.FeedForwardNetwork(WIDTH, [7, 9, 4], **options)).eval()

    def pairs(other: Any) -> list[tuple[Any, Any]]:
        found = []
        for dense, part in zip(ours.dense_layers, other.ffn, strict=True):
            found += dense_pairs(dense, part.linear_layer.weight, part.linear_layer.bias)
        return found

    compare(ours, module, [X], module, pairs)
    with pytest.raises(UserError, match="list of 3"):
        layers.FeedForwardNetwork([7, 9, 4], ["gelu"])
    with pytest.raises(UserError, match="at least one"):
        layers.FeedForwardNetwork([])


def test_shared_weights() -> None:
    table = numbers((11, WIDTH), 5)
    ours = layers.SharedWeightsDense(11)
    np.testing.assert_allclose(ours(tf.constant(X), tf.constant(table)), X @ table.T, atol=1e-5)
    np.testing.assert_allclose(
        ours(tf.constant(X), tf.constant(table.T), transpose_kernel=False), X @ table.T, atol=1e-5
    )
    with pytest.raises(UserError, match="shared kernel"):
        ours(tf.constant(X), tf.constant(table.T))


def test_activations() -> None:
    from portwright.layers.activations import ACTIVATIONS as of_torch
    from portwright.tensorflow.layers.activations import ACTIVATIONS

    x = np.linspace(-4, 4, 24, dtype=np.float32).reshape(2, 12)
    assert set(of_torch) <= set(ACTIVATIONS)
    for name, function in of_torch.items():
        tensor = torch.from_numpy(x.copy()).requires_grad_()
        expected = function(tensor)
        expected.sum().backward()
        with tf.GradientTape() as tape:
            variable = tf.constant(x)
            tape.watch(variable)
            found = layers.get_activation(name.upper())(variable)
        np.testing.assert_allclose(found, array(expected), atol=2e-5, err_msg=name)
        np.testing.assert_allclose(tape.gradient(found, variable), tensor.grad, atol=5e-5, err_msg=name)
        assert layers.is_gated(name) == theirs.is_gated(name)
    with pytest.raises(UserError, match="Did you mean 'gelu'"):
        layers.get_activation("gellu")
    with pytest.raises(UserError, match="cannot be halved"):
        layers.get_activation("swiglu")(tf.zeros([2, 3]))
    with pytest.raises(UserError, match="class ReLU"):
        layers.get_activation(tf.keras.layers.ReLU)
