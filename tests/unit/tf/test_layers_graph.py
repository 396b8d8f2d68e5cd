"""In a model_fn's graph: names, static shapes, precision, seeds, dropout, images."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import torch
from layer_twins import numbers

from portwright.errors import UserError
from portwright.tensorflow import layers

v1 = tf.compat.v1


def model(ids: Any, policy: Any = None, *, training: bool = False, dropout: float = 0.1) -> Any:
    """Every layer of a language model once."""
    embedding = layers.EmbeddingLayer(
        11, 12, pad_token_id=0, max_position_embeddings=9, dropout=dropout, name="embedding", dtype=policy
    )
    relative = layers.RelativePositionEmbeddingLayer(3, name="relative", dtype=policy)
    rotary = layers.RotaryPositionEmbeddingHelper(9, 4)
    padding = layers.mask_of_zeros(ids)
    x = embedding(ids, training=training)
    length = ids.shape[1]
    memory = layers.TransformerEncoderLayer(12, 3, 17, dropout, name="encoder_0", dtype=policy)(
        x,
        src_key_padding_mask=padding,
        self_attn_position_bias=relative(length, length),
        training=training,
    )
    x = layers.TransformerDecoderLayer(
        12, 3, 17, dropout, "geglu", norm_first=True, name="decoder_0", dtype=policy
    )(x, memory, tgt_is_causal=True, rotary_position_embedding_helper=rotary, training=training)
    x = layers.LayerNorm(name="norm", dtype=policy)(x)
    return layers.SharedWeightsDense(11, name="head", dtype=policy)(x, embedding.weight)


def names() -> list[str]:
    return [variable.op.name for variable in v1.global_variables()]


def test_names_are_the_same_in_every_graph_and_mode() -> None:
    found = []
    for training in (True, False):
        with tf.Graph().as_default():
            model(tf.zeros([2, 5], tf.int32), training=training)
            found.append(names())
    assert found[0] == found[1]
    assert {"embedding/word_embeddings", "encoder_0/self_attn/query/kernel", "decoder_0/norm3/gamma"} <= set(
        found[0]
    )
    assert len(set(found[0])) == len(found[0])


def test_a_scope_of_the_users_comes_first_and_a_second_call_shares() -> None:
    with tf.Graph().as_default():
        layer = layers.TransformerEncoderLayer(4, 2, 8, name="layer")
        with v1.variable_scope("bert"):
            layer(tf.zeros([1, 3, 4]))
        before = names()
        with v1.variable_scope("again"):
            layer(tf.zeros([2, 6, 4]))
        assert names() == before
        assert all(name.startswith("bert/layer/") for name in before)
        layers.Dense(3)(tf.zeros([1, 2]))
        layers.Dense(3)(tf.zeros([1, 2]))
        assert names()[-4:] == ["dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias"]


@functools.cache
def run(policy: str, shape: tuple[int, int]) -> tuple[Any, Any]:
    """The model's logits and the largest number of its gradients, from weights that are the same for each policy."""
    rng = np.random.default_rng(0)
    ids = rng.integers(1, 11, shape)
    with tf.Graph().as_default(), v1.Session() as session:
        logits = model(tf.constant(ids, tf.int32), policy)
        assert logits.shape.as_list() == [*shape, 11]
        variables = v1.global_variables()
        feed = {
            variable.initializer.inputs[1]: rng.normal(size=variable.shape) * 0.3 for variable in variables
        }
        session.run([variable.initializer for variable in variables], feed)
        gradients = tf.gradients(tf.cast(logits, tf.float32), variables)
        assert None not in gradients
        sizes = [tf.reduce_max(tf.abs(tf.convert_to_tensor(gradient))) for gradient in gradients]
        stored = {variable.dtype.base_dtype for variable in variables}
        found, largest = session.run([tf.cast(logits, tf.float64), tf.reduce_max(tf.stack(sizes))])
        return (logits.dtype, stored), (found, largest)


@pytest.mark.parametrize(
    ("policy", "computed", "tolerance", "shapes"),
    [
        ("mixed_float16", tf.float16, 0.02, [(3, 7)]),
        ("mixed_bfloat16", tf.bfloat16, 0.1, [(1, 1)]),
        ("float64", tf.float64, 1e-4, [(1, 1)]),
    ],
)
def test_precision(policy: str, computed: Any, tolerance: float, shapes: list[tuple[int, int]]) -> None:
    for shape in shapes:
        types, (expected, largest) = run("float32", shape)
        assert types == (tf.float32, {tf.float32})
        types, (found, other) = run(policy, shape)
        assert types == (computed, {tf.float64 if policy == "float64" else tf.float32})
        np.testing.assert_allclose(found, expected, atol=tolerance * np.abs(expected).max())
        assert other == pytest.approx(largest, rel=5 * tolerance)


def test_the_global_policy_is_taken() -> None:
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        with tf.Graph().as_default():
            assert model(tf.zeros([1, 3], tf.int32)).dtype == tf.bfloat16
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")


def test_a_batch_of_unknown_size() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        ids = v1.placeholder(tf.int32, [None, 5])
        logits = model(ids)
        assert logits.shape.as_list() == [None, 5, 11]
        session.run(v1.global_variables_initializer())
        whole = session.run(logits, {ids: [[1, 2, 3, 4, 5], [6, 7, 0, 0, 0]]})
        one = session.run(logits, {ids: [[1, 2, 3, 4, 5]]})
        np.testing.assert_allclose(whole[:1], one, atol=1e-5)


def test_an_unknown_length_is_refused_where_it_cannot_work() -> None:
    with tf.Graph().as_default():
        ids = v1.placeholder(tf.int32, [2, None])
        with pytest.raises(UserError, match="unknown length"):
            layers.EmbeddingLayer(11, 4, max_position_embeddings=9)(ids)
        x = v1.placeholder(tf.float32, [2, None, 4])
        assert layers.MultiheadAttention(4, 2)(x)[0].shape.as_list() == [2, None, 4]
        with pytest.raises(UserError, match="unknown"):
            layers.MultiheadAttention(4, 2)(x, is_causal=True)
        with pytest.raises(UserError, match="must be known"):
            layers.Dense(3)(v1.placeholder(tf.float32, [2, None]))


def test_shapes_of_single_samples_do_not_depend_on_the_rest_of_the_batch() -> None:
    ids = np.array([[1, 2, 3, 0, 0], [4, 5, 6, 7, 8], [9, 0, 0, 0, 0]])
    with tf.Graph().as_default(), v1.Session() as session:
        fed = v1.placeholder(tf.int32, [None, 5])
        logits = model(fed)
        session.run(v1.global_variables_initializer())
        whole = session.run(logits, {fed: ids})
        for row in range(3):
            np.testing.assert_allclose(
                session.run(logits, {fed: ids[row : row + 1]})[0], whole[row], atol=1e-5
            )


def test_weights_repeat_with_the_seed_of_the_graph() -> None:
    def first(seed: int) -> dict[str, Any]:
        with tf.Graph().as_default(), v1.Session() as session:
            v1.set_random_seed(seed)
            model(tf.zeros([1, 3], tf.int32))
            session.run(v1.global_variables_initializer())
            return dict(session.run({variable.op.name: variable for variable in v1.global_variables()}))

    one, again, other = first(1), first(1), first(2)
    for name, value in one.items():
        np.testing.assert_array_equal(value, again[name])
    kernels = [name for name in one if name.endswith("kernel")]
    assert all(not np.array_equal(one[name], other[name]) for name in kernels)
    assert not np.array_equal(one["encoder_0/self_attn/query/kernel"], one["encoder_0/self_attn/key/kernel"])


def test_dropout() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        x = tf.ones([100, 100])
        kept = session.run(layers.Dropout(0.3)(x, training=True))
        assert set(np.unique(kept)) == {np.float32(0.0), np.float32(1 / 0.7)}
        assert abs((kept == 0).mean() - 0.3) < 0.03
        assert layers.Dropout(0.3)(x).name == x.name  # nothing is added outside of training
        assert layers.Dropout(0.0)(x, training=True).name == x.name
    for rate in (1.0, -0.1, "a", True):
        with pytest.raises(UserError, match="probability"):
            layers.Dropout(rate)  # type: ignore[arg-type]


def test_stateless_dropout_depends_on_seed_place_and_step_alone() -> None:
    def run(seed: int, steps: list[int]) -> list[Any]:
        with tf.Graph().as_default(), v1.Session() as session:
            step = v1.train.get_or_create_global_step()
            layers.use_stateless_dropout(seed)
            outputs = [layers.Dropout(0.5)(tf.ones([8, 8]), training=True) for _ in range(2)]
            session.run(v1.global_variables_initializer())
            found = []
            for value in steps:
                step.load(value, session)
                found.append(session.run(outputs))
            return found

    one, two = run(1, [0, 1, 2]), run(1, [2, 2])
    np.testing.assert_array_equal(one[2], two[0])
    np.testing.assert_array_equal(two[0], two[1])
    assert not np.array_equal(one[0], one[1])
    assert not np.array_equal(one[0][0], one[0][1])
    assert not np.array_equal(one[0], run(2, [0])[0])
    with pytest.raises(UserError, match="model_fn"):
        layers.use_stateless_dropout()


def test_dropout_draws_as_tensorflow_does() -> None:
    """From the same seeds of graph and operation: exact replays of old models rely on it."""

    def run(make: Any) -> Any:
        with tf.Graph().as_default(), v1.Session() as session:
            v1.set_random_seed(7)
            return session.run(make(tf.ones([6, 6])))

    np.testing.assert_array_equal(
        run(lambda x: layers.Dropout(0.4, seed=3)(x, training=True)),
        run(lambda x: tf.nn.dropout(x, rate=0.4, seed=3)),
    )


BIG = [400, 300]
CASES: dict[str, tuple[Any, float, float]] = {  # standard deviation, largest value
    "zeros": ("zeros", 0.0, 0.0),
    "constant": ({"name": "constant", "val": 2.0}, 0.0, 2.0),
    "uniform": ("uniform", 0.1 / math.sqrt(12), 0.05),
    "normal": ({"name": "normal", "stddev": 0.2}, 0.2, 1.2),
    "truncated_normal": ({"name": "truncated_normal", "std": 0.02}, 0.02 * 0.8796, 0.04),
    "glorot_uniform": ("glorot_uniform", math.sqrt(2 / 700), math.sqrt(6 / 700)),
    "xavier_normal": ({"name": "xavier_normal", "gain": "relu"}, math.sqrt(4 / 700), 1.0),
    "kaiming_uniform": ("kaiming_uniform", math.sqrt(2 / 400), math.sqrt(6 / 400)),
    "he_normal": ({"name": "he_normal", "mode": "fan_out"}, math.sqrt(2 / 300), 1.0),
    "lecun_normal": ("lecun_normal", math.sqrt(1 / 400), 2 / math.sqrt(400) / 0.8796 + 1e-6),
    "variance_scaling": (
        {"name": "variance_scaling", "scale": 3.0, "mode": "fan_avg", "distribution": "uniform"},
        math.sqrt(3 / 350),
        3 / math.sqrt(350),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.float64])
def test_initializers(name: str, dtype: Any) -> None:
    spec, deviation, largest = CASES[name]
    drawn = layers.get_initializer(spec)(BIG, dtype=dtype)
    assert (drawn.dtype, drawn.shape.as_list()) == (dtype, BIG)
    values = np.asarray(drawn, np.float64)
    assert values.std() == pytest.approx(deviation, rel=0.03, abs=1e-6)
    assert np.abs(values).max() <= largest * 1.001 + 1e-6


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "truncated_normal", "std": 1.0, "a": -0.1, "b": 0.1},
        {"name": "truncated_normal", "std": 1.0, "a": -4.0, "b": 4.0},
        {"name": "truncated_normal", "mean": 0.5, "std": 0.3, "b": 0.6},
        {"name": "truncated_normal", "mean": 0.5, "std": 0.0, "a": 0.25},
        {"name": "truncated_normal", "std": 0.02},
        *({"name": "xavier_normal", "gain": name} for name in ("leaky_relu", "tanh", "selu")),
        {"name": "kaiming_normal", "a": 0.3},
    ],
)
def test_initializers_draw_from_the_distributions_of_torch(spec: dict[str, Any]) -> None:
    from portwright.layers.initializers import get_initializer

    torch.manual_seed(0)
    theirs = np.sort(get_initializer(spec)(torch.empty(BIG[::-1])).numpy(), axis=None)
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(0)
        ours = np.sort(session.run(layers.get_initializer(spec)(BIG)), axis=None)
    near = np.linspace(100, ours.size - 100, 50).astype(
        int
    )  # the outermost few lie far apart in any two samples
    np.testing.assert_allclose(ours[near], theirs[near], atol=0.05 * theirs.std(), rtol=0.01)
    bounds = [spec[name] for name in ("a", "b") if name in spec and spec["name"] == "truncated_normal"]
    assert np.isin(ours, np.float32(bounds)).mean() < 1e-3


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("glorot", "Unknown initializer 'glorot'"),
        ({"stddev": 1.0}, "has no name"),
        ({"name": "normal", "scale": 1.0}, "no option 'scale'"),
        ({"name": "normal", "std": "wide"}, "finite number"),
        ({"name": "normal", "std": -1.0}, "not negative"),
        ({"name": "uniform", "a": 1.0, "b": 0.0}, "below b"),
        ({"name": "normal", "seed": 1.5}, "whole number"),
        ({"name": "truncated_normal", "std": 0.01, "a": 5, "b": 6}, "mean=0, std=0.01"),
        (3, "is 3"),
        (tf.keras.initializers.Zeros, "Give a name"),
    ],
)
def test_bad_initializers_are_refused(spec: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        layers.get_initializer(spec)


def test_kinds_of_initializers_equal_those_of_pytorch() -> None:
    from portwright.layers.initializers import _KINDS as of_torch
    from portwright.tensorflow.layers.initializers import _KINDS

    assert set(of_torch) <= set(_KINDS)
    with pytest.raises(UserError, match="matrix or a kernel"):
        layers.get_initializer("glorot_uniform")([3])
    given = layers.get_initializer({"name": "normal", "seed": 3})
    assert layers.get_initializer(given) is given


def test_value_and_gate_are_drawn_apart() -> None:
    layer = layers.Dense(300, "swiglu")
    layer(tf.zeros([1, 400]))
    value, gate = np.split(layer.kernel.numpy(), 2, axis=-1)
    assert value.std() == pytest.approx(math.sqrt(2 / 700), rel=0.03)
    assert not np.allclose(value, gate)


def test_images_equal_keras() -> None:
    x = tf.constant(numbers((2, 7, 9, 3)))
    pairs = [
        (
            layers.Conv2D(4, 3, 2, "same", activation="relu"),
            tf.keras.layers.Conv2D(4, 3, 2, "same", activation="relu"),
        ),
        (layers.Conv2D(4, (3, 2), dilation_rate=2), tf.keras.layers.Conv2D(4, (3, 2), dilation_rate=2)),
        (layers.Conv2DTranspose(4, 2, 2), tf.keras.layers.Conv2DTranspose(4, 2, 2)),
        (layers.Conv2DTranspose(4, 3, 2), tf.keras.layers.Conv2DTranspose(4, 3, 2)),
        (layers.Conv2DTranspose(4, 3, 2, "same"), tf.keras.layers.Conv2DTranspose(4, 3, 2, "same")),
        (layers.Conv2DTranspose(4, 1, 2), tf.keras.layers.Conv2DTranspose(4, 1, 2)),
        (layers.MaxPool2D(), tf.keras.layers.MaxPool2D()),
        (layers.MaxPool2D(3, 2, "same"), tf.keras.layers.MaxPool2D(3, 2, "same")),
    ]
    for ours, keras in pairs:
        ours(x)
        keras(x)
        keras.set_weights(ours.get_weights())
        np.testing.assert_allclose(ours(x), keras(x), atol=1e-5)
    with pytest.raises(UserError, match="Unknown padding"):
        layers.Conv2D(4, 3, padding="full")
    with pytest.raises(UserError, match="kernel_size"):
        layers.Conv2D(4, (3, 3, 3))
    with pytest.raises(UserError, match="batch, height, width, channels"):
        layers.Conv2D(4, 3)(tf.zeros([2, 3]))
    with pytest.raises(UserError, match="'batchnorm'"):
        layers.UNetBlock(4, norm="batch_norm")


def test_a_block_of_a_unet_moves_its_means() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        block = layers.UNetBlock(4, norm="batchnorm", name="down_0", dtype="mixed_bfloat16")
        images = v1.placeholder(tf.float32, [None, 6, 6, 3])
        output = block(images, training=True)
        up = layers.Conv2DTranspose(4, 2, 2)(output)
        assert (output.shape.as_list(), up.shape.as_list()) == ([None, 6, 6, 4], [None, 12, 12, 4])
        session.run(v1.global_variables_initializer())
        before = session.run(block.norms[0].moving_mean)
        session.run([output, *block.updates], {images: numbers((1, 6, 6, 3))})
        assert not np.array_equal(before, session.run(block.norms[0].moving_mean))
        assert {"down_0/conv_0/kernel", "down_0/norm_1/gamma"} <= set(names())


def test_an_outer_function_of_tensorflow() -> None:
    layer = layers.TransformerEncoderLayer(4, 2, 8, norm_first=True)
    x = tf.constant(numbers((1, 3, 4)))
    eager = layer(x)
    np.testing.assert_allclose(tf.function(layer)(x), eager, atol=1e-6)
