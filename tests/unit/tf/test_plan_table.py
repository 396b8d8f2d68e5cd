from __future__ import annotations

import re
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry
from unit.tf.plan_models import capture_net, layers, mlp, v1

from portwright.graph.match import match
from portwright.targets.csx.kernels import table as torch_table
from portwright.targets.csx.tensorflow_kernels import table

ROWS = list(table().rows())
ATEN = re.compile(r"aten\.[\w.]*\w")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.op)
def test_a_row_follows_its_source(row: Any) -> None:
    """Rows of the torch table that it names are there, and it refuses what they refuse; a constraint of theirs is named."""
    named = [torch_table().find(op) for op in ATEN.findall(row.source)]
    assert all(found is not None for found in named), row.source
    if named and "the loop itself" not in row.source:
        refuses = any(found is not None and found.how == "refused" for found in named)
        assert (row.how == "refused") == (refuses or "its constraint" in row.source)
    else:
        assert re.search("facts|decisions|optimizer|host|moves of|loop", row.source), row.source


def test_every_op_and_name_exists_in_tensorflow() -> None:
    missing = [row.op for row in ROWS if op_def_registry.get(row.op.removeprefix("tf.")) is None]
    assert missing == []
    unknown = [name for row in ROWS for name in row.api if not _exists(name)]
    assert unknown == []


def _exists(name: str) -> bool:
    found: Any = tf
    for part in name.split(".")[1:]:
        found = getattr(found, part, None)
    return found is not None


def test_the_table_says_whose_it_is() -> None:
    assert "Portwright's own" in table().label
    assert "no TensorFlow compiler was asked" in table().label


def judge(net: Any, shape: tuple[int, ...] = (4, 8), dtype: Any = tf.float32) -> dict[str, str]:
    report = match(capture_net(net, shape, dtype).graph, table(), "CSX")
    assert all(refusal.file is not None and refusal.line for refusal in report.refused)
    return {
        refusal.op.removeprefix("tf."): f"{refusal.reason} | {refusal.cure}" for refusal in report.refused
    }


def with_lookup(x: Any) -> Any:
    keys, values = tf.constant([1, 2], tf.int32), tf.constant([1.0, 2.0])
    numbers = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), 0.0)
    return mlp(numbers.lookup(x))


def with_python(x: Any) -> Any:
    made = tf.py_function(lambda a: a, [x], tf.float32)
    made.set_shape(x.shape)
    return mlp(made)


def convolve(change: Any) -> Any:
    return lambda x: layers.Dense(10)(layers.Flatten()(change(x)))


IMAGES = (4, 8, 8, 4)


@pytest.mark.parametrize(
    ("net", "shape", "dtype"),
    [
        pytest.param(mlp, (4, 8), tf.float32, id="mlp"),
        pytest.param(lambda x: mlp(tf.nn.dropout(x, 0.5)), (4, 8), tf.float32, id="dropout"),
        pytest.param(lambda x: mlp(tf.math.top_k(x, 4)[0]), (4, 8), tf.float32, id="top_k"),
        pytest.param(lambda x: mlp(tf.sort(x)), (4, 8), tf.float32, id="sort"),
        pytest.param(lambda x: mlp(tf.nn.gelu(x)), (4, 8), tf.float32, id="gelu"),
        pytest.param(lambda x: mlp(tf.reduce_mean(layers.Embedding(50, 8)(x), 1)), (4, 5), tf.int32, id="embedding"),
        pytest.param(lambda x: mlp(tf.reduce_mean(layers.LayerNormalization()(layers.MultiHeadAttention(2, 4)(x, x)), 1)), (4, 5, 8), tf.float32, id="attention"),
        pytest.param(convolve(lambda x: layers.MaxPooling2D()(layers.BatchNormalization()(layers.Conv2D(4, 3)(x), training=True))), IMAGES, tf.float32, id="conv"),
        pytest.param(convolve(lambda x: layers.Conv2DTranspose(4, 3, strides=2)(x)), IMAGES, tf.float32, id="transposed"),
        pytest.param(lambda x: layers.Dense(10)(layers.LSTM(4, unroll=True)(x)), (4, 3, 8), tf.float32, id="unrolled"),
        pytest.param(lambda x: mlp(x[:, tf.newaxis, ::2][:, 0]), (4, 16), tf.float32, id="slices"),
    ],
)  # fmt: skip
def test_what_runs(net: Any, shape: tuple[int, ...], dtype: Any) -> None:
    assert judge(net, shape, dtype) == {}


@pytest.mark.parametrize(
    ("net", "shape", "dtype", "op", "words"),
    [
        pytest.param(lambda x: mlp(x) + tf.reduce_sum(tf.gather_nd(x, tf.where(x > 0))), (4, 8), tf.float32, "Where", "depends on values", id="where"),
        pytest.param(lambda x: mlp(x) + tf.cast(tf.size(tf.unique(x[:, 0])[0]), tf.float32), (4, 8), tf.float32, "Unique", "depends on values", id="unique"),
        pytest.param(lambda x: mlp(tf.strings.to_number(x)), (4, 8), tf.string, "StringToNumber", "strings", id="strings"),
        pytest.param(with_lookup, (4, 8), tf.int32, "LookupTableFindV2", "input function", id="lookup"),
        pytest.param(with_python, (4, 8), tf.float32, "EagerPyFunc", "Python on the host", id="python"),
        pytest.param(lambda x: layers.Dense(10)(layers.LSTM(4)(x)), (4, 3, 8), tf.float32, "While", "unroll=True", id="lstm"),
        pytest.param(lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: mlp(x), lambda: -mlp(x)), (4, 8), tf.float32, "If", "tf.where", id="cond"),
        pytest.param(convolve(lambda x: layers.DepthwiseConv2D(3)(x)), IMAGES, tf.float32, "DepthwiseConv2dNative", "groups", id="depthwise"),
        pytest.param(convolve(lambda x: layers.Conv2D(4, 3, groups=2)(x)), IMAGES, tf.float32, "Conv2D", "2 groups", id="groups"),
        pytest.param(convolve(lambda x: layers.UpSampling2D()(x)), IMAGES, tf.float32, "ResizeNearestNeighbor", "upsample_nearest2d", id="upsample"),
        pytest.param(lambda x: mlp(tf.cast(x, tf.float32)), (4, 8), tf.float64, "Cast", "no float64", id="float64"),
        pytest.param(lambda x: mlp(tf.nn.selu(x)), (4, 8), tf.float32, "Selu", "scale", id="selu"),
        pytest.param(lambda x: mlp(tf.math.lgamma(x)), (4, 8), tf.float32, "Lgamma", "no row", id="unlisted"),
        pytest.param(lambda x: mlp(tf.reverse(layers.Dense(8)(x), [1])), (4, 8), tf.float32, "ReverseV2", "first", id="reverse"),
    ],
)  # fmt: skip
def test_what_is_refused_has_its_line_reason_and_op(
    net: Any, shape: tuple[int, ...], dtype: Any, op: str, words: str
) -> None:
    refused = judge(net, shape, dtype)
    assert op in refused
    assert words in refused[op]


def test_an_optimizer_is_not_judged_but_python_in_it_is() -> None:
    class Logging(v1.train.GradientDescentOptimizer):  # type: ignore[misc]
        def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
            seen = tf.numpy_function(lambda g: g, [grad], tf.float32)
            seen.set_shape(grad.shape)
            return super()._resource_apply_dense(tf.math.lgamma(grad) + seen, handle)

    report = match(capture_net(mlp, optimizer=lambda: Logging(0.1)).graph, table(), "CSX")
    assert [refusal.op for refusal in report.refused] == ["tf.PyFunc"]
