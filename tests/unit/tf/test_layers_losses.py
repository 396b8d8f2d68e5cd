"""Cross-entropy as portwright.losses has it, and poolers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_twins import array, numbers

from portwright import losses
from portwright.errors import UserError
from portwright.tensorflow import layers

LOGITS = numbers((2, 5, 7)) * 4
LABELS = np.array([[0, 6, 3, -100, 2], [1, 1, -100, -100, 5]])
WEIGHTS = np.array([[1, 0, 1, 1, 0.5], [0, 1, 1, 0, 1]], np.float32)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("ignored", [-100, 1])
def test_token_cross_entropy(smoothing: float, ignored: int) -> None:
    labels = np.where(LABELS == -100, ignored, LABELS)
    tensor = torch.from_numpy(LOGITS.copy()).requires_grad_()
    expected = losses.token_cross_entropy(
        tensor, torch.from_numpy(labels), ignore_index=ignored, label_smoothing=smoothing
    )
    expected.sum().backward()
    with tf.GradientTape() as tape:
        logits = tf.constant(LOGITS)
        tape.watch(logits)
        found = layers.token_cross_entropy(
            logits, tf.constant(labels), ignore_index=ignored, label_smoothing=smoothing
        )
    np.testing.assert_allclose(found, array(expected), atol=1e-5)
    np.testing.assert_allclose(tape.gradient(found, logits), tensor.grad, atol=1e-5)


@pytest.mark.parametrize(("scaling", "weight"), [("num_tokens", 1.0), ("batch_size", 0.3)])
def test_the_loss_of_gpt(scaling: str, weight: float) -> None:
    labels = np.abs(LABELS) % 7
    expected = losses.GPTLMHeadModelLoss(7, scaling, weight)(
        torch.from_numpy(LOGITS), torch.from_numpy(labels), torch.from_numpy(WEIGHTS)
    )
    found = layers.masked_cross_entropy(
        tf.constant(LOGITS),
        tf.constant(labels),
        tf.constant(WEIGHTS),
        loss_scaling=scaling,
        loss_weight=weight,
    )
    np.testing.assert_allclose(found, array(expected), rtol=1e-5)


def test_the_mean_is_torchs() -> None:
    expected = torch.nn.functional.cross_entropy(
        torch.from_numpy(LOGITS).reshape(-1, 7), torch.from_numpy(LABELS).reshape(-1), label_smoothing=0.1
    )
    found = layers.masked_cross_entropy(tf.constant(LOGITS), tf.constant(LABELS), label_smoothing=0.1)
    np.testing.assert_allclose(found, array(expected), rtol=1e-5)
    total = layers.masked_cross_entropy(tf.constant(LOGITS), tf.constant(LABELS), loss_scaling="none")
    np.testing.assert_allclose(
        total, np.sum(layers.token_cross_entropy(tf.constant(LOGITS), tf.constant(LABELS))), rtol=1e-5
    )


def test_a_batch_that_does_not_count_costs_nothing() -> None:
    logits = tf.constant(LOGITS)
    nothing = tf.constant(np.full((2, 5), -100))
    assert layers.masked_cross_entropy(logits, nothing) == 0.0
    assert layers.masked_cross_entropy(logits, tf.constant(LABELS), tf.zeros([2, 5])) == 0.0


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_half_logits_are_widened(dtype: Any) -> None:
    logits = tf.cast(tf.constant(LOGITS * 1000), dtype)
    found = layers.masked_cross_entropy(logits, tf.constant(LABELS))
    assert found.dtype == tf.float32
    assert np.isfinite(found)


def test_the_layer_takes_labels_first() -> None:
    labels = tf.constant(np.abs(LABELS) % 7)
    found = layers.CrossEntropyFromLogitsLayer()(labels, tf.constant(LOGITS))
    np.testing.assert_allclose(found, layers.token_cross_entropy(tf.constant(LOGITS), labels), rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: layers.token_cross_entropy(tf.zeros([2, 3]), tf.zeros([2])), "Give integers"),
        (
            lambda: layers.token_cross_entropy(tf.zeros([2, 3]), tf.zeros([3], tf.int32)),
            "one label for each row",
        ),
        (
            lambda: layers.token_cross_entropy(
                tf.zeros([2, 3]), tf.zeros([2], tf.int32), label_smoothing=2.0
            ),
            "label_smoothing is 2.0",
        ),
        (
            lambda: layers.masked_cross_entropy(
                tf.zeros([2, 3]), tf.zeros([2], tf.int32), loss_scaling="tokens"
            ),
            "'num_tokens'",
        ),
        (
            lambda: layers.masked_cross_entropy(tf.zeros([2, 3]), tf.zeros([2], tf.int32), tf.zeros([3])),
            "one for each label",
        ),
        (lambda: layers.PoolerLayer("avg"), "Unknown pooler_type"),
    ],
)
def test_bad_arguments_are_refused(call: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        call()


@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    kind=st.sampled_from(["mean", "max", "sum", "last"]),
)
def test_pooling_leaves_padding_out(lengths: list[int], kind: str) -> None:
    x = numbers((len(lengths), 4, 3))
    mask = np.arange(4)[None] < np.array(lengths)[:, None]
    found = layers.PoolerLayer(kind)(tf.constant(x), tf.constant(mask.astype(np.int32)))
    for row, length in enumerate(lengths):
        kept = x[row, :length]
        expected = (
            {
                "mean": lambda kept: kept.mean(0),
                "max": lambda kept: kept.max(0),
                "sum": lambda kept: kept.sum(0),
                "last": lambda kept: kept[-1],
            }[kind](kept)
            if length
            else np.zeros(3)
        )
        np.testing.assert_allclose(found[row], expected, atol=1e-5)


def test_pooling_without_a_mask() -> None:
    x = numbers((2, 4, 3))
    for kind, expected in (
        ("mean", x.mean(1)),
        ("max", x.max(1)),
        ("sum", x.sum(1)),
        ("first", x[:, 0]),
        ("last", x[:, -1]),
        (None, x),
    ):
        np.testing.assert_allclose(layers.PoolerLayer(kind)(tf.constant(x)), expected, atol=1e-5)
    pooler = layers.BertPooler(5)
    found = pooler(tf.constant(x))
    expected = np.tanh(x[:, 0] @ pooler.dense.kernel.numpy())
    np.testing.assert_allclose(found, expected, atol=1e-5)
