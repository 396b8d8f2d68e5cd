"""What stands behind tf.contrib: numbers against numpy and by hand."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from portwright.errors import UserError
from portwright.tensorflow import prepare

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("tensorflow is not installed", allow_module_level=True)

prepare()
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def v1() -> Iterator[Any]:
    import tensorflow as tf

    with tf.Graph().as_default():
        yield tf.compat.v1


def evaluate(v1: Any, *fetches: Any, after: Any = ()) -> Any:
    with v1.Session() as session:
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        for op in after:
            session.run(op)
        found = session.run(list(fetches))
    return found[0] if len(found) == 1 else found


def names(v1: Any) -> list[str]:
    return sorted(v.op.name for v in v1.global_variables())


# -- layers ------------------------------------------------------------------------------------------------


def test_layer_norm_is_over_all_axes_but_the_first(v1: Any) -> None:
    from portwright.compat.contrib_norms import layer_norm

    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    found = evaluate(v1, layer_norm(v1.constant(x)))
    flat = x.reshape(2, -1)
    expected = (flat - flat.mean(1, keepdims=True)) / np.sqrt(flat.var(1, keepdims=True) + 1e-12)
    np.testing.assert_allclose(found, expected.reshape(x.shape), rtol=1e-4, atol=1e-5)
    assert names(v1) == ["LayerNorm/beta", "LayerNorm/gamma"]
    assert v1.global_variables()[0].shape == [4]


def test_layer_norm_of_the_last_axis_as_bert_has_it(v1: Any) -> None:
    from portwright.compat.contrib_norms import layer_norm

    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    found = evaluate(v1, layer_norm(v1.constant(x), begin_norm_axis=-1, begin_params_axis=-1, scope="n"))
    np.testing.assert_allclose(found.mean(-1), 0, atol=1e-6)
    assert names(v1) == ["n/beta", "n/gamma"]


def test_layer_norm_refuses_an_axis_that_is_not_there(v1: Any) -> None:
    from portwright.compat.contrib_norms import layer_norm

    with pytest.raises(UserError, match="begins at axis 3"):
        layer_norm(v1.ones([2, 3]), begin_norm_axis=3)


def test_batch_norm_moves_its_averages_only_by_its_updates(v1: Any) -> None:
    from portwright.compat.contrib_norms import batch_norm

    x = np.random.default_rng(0).normal(3, 2, size=(8, 4)).astype(np.float32)
    out = batch_norm(v1.constant(x), decay=0.5, scale=True)
    updates = v1.get_collection(v1.GraphKeys.UPDATE_OPS)
    mean, variance = (
        next(v for v in v1.global_variables() if v.op.name.endswith(n)) for n in ("mean", "variance")
    )
    y, before = evaluate(v1, out, mean)
    np.testing.assert_allclose(y.mean(0), 0, atol=1e-5)
    assert not before.any()
    after_mean, after_variance = evaluate(v1, mean, variance, after=updates)
    np.testing.assert_allclose(after_mean, x.mean(0) * 0.5, rtol=1e-5)
    np.testing.assert_allclose(after_variance, 0.5 + x.var(0, ddof=1) * 0.5, rtol=1e-4)  # as 1.15 has it
    assert names(v1) == [f"BatchNorm/{n}" for n in ("beta", "gamma", "moving_mean", "moving_variance")]


def test_fully_connected_keeps_leading_axes_and_refuses_an_unknown_size(v1: Any) -> None:
    from portwright.compat.contrib_layers import fully_connected

    out = fully_connected(
        v1.ones([2, 5, 3]), 4, activation_fn=None, weights_initializer=v1.ones_initializer()
    )
    np.testing.assert_allclose(evaluate(v1, out), np.full((2, 5, 4), 3.0))
    assert names(v1) == ["fully_connected/biases", "fully_connected/weights"]
    with pytest.raises(UserError, match="has no size"):
        fully_connected(v1.placeholder(v1.float32, [None, None]), 4)


def test_arg_scope_gives_defaults_inside_only(v1: Any) -> None:
    from portwright.compat.contrib_convolutions import conv2d
    from portwright.compat.contrib_initializers import l2_regularizer
    from portwright.compat.contrib_scopes import arg_scope

    x = v1.ones([1, 4, 4, 1])
    with arg_scope([conv2d], weights_regularizer=l2_regularizer(0.5), padding="VALID") as kept:
        assert conv2d(x, 2, 3).shape.as_list() == [1, 2, 2, 2]
        assert conv2d(x, 2, 3, padding="SAME").shape.as_list() == [1, 4, 4, 2]
    assert conv2d(x, 2, 3).shape.as_list() == [1, 4, 4, 2]
    with arg_scope(kept):
        assert conv2d(x, 2, 3).shape.as_list() == [1, 2, 2, 2]
    assert len(v1.losses.get_regularization_losses()) == 3
    with pytest.raises(UserError, match="add_arg_scope"), arg_scope([len], a=1):
        pass


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_a_transposed_convolution_has_the_size_that_it_says(v1: Any, padding: str) -> None:
    from portwright.compat.contrib_convolutions import conv2d_transpose

    out = conv2d_transpose(v1.ones([1, 4, 4, 2]), 3, [3, 3], stride=2, padding=padding)
    assert evaluate(v1, out).shape == tuple(out.shape.as_list())


@pytest.mark.parametrize("uniform", [True, False])
def test_initializers_have_their_variance(v1: Any, uniform: bool) -> None:
    from portwright.compat.contrib_initializers import variance_scaling_initializer, xavier_initializer

    drawn = evaluate(v1, variance_scaling_initializer(2.0, "FAN_IN", uniform, seed=1)([200, 300]))
    assert abs(drawn.var() * 200 / 2 - 1) < 0.05
    drawn = evaluate(v1, xavier_initializer(uniform, seed=1)([200, 300]))
    assert abs(drawn.var() * 250 - 1) < 0.05


def test_regularizers(v1: Any) -> None:
    from portwright.compat.contrib_initializers import l1_regularizer, l2_regularizer

    w = v1.constant([1.0, -2.0])
    assert evaluate(v1, l2_regularizer(0.1)(w)) == pytest.approx(0.25)
    assert evaluate(v1, l1_regularizer(1.0)(w)) == pytest.approx(3.0)
    assert l2_regularizer(0.0)(w) is None
    for bad in (-1.0, "a"):
        with pytest.raises(UserError, match="scale of a regularizer"):
            l2_regularizer(bad)  # type: ignore[arg-type]


# -- CRF and LSTM ------------------------------------------------------------------------------------------


def _scores(scores: Any, transitions: Any, length: int) -> dict[tuple[int, ...], float]:
    tags = range(scores.shape[1])
    return {
        path: sum(scores[i, t] for i, t in enumerate(path))
        + sum(transitions[a, b] for a, b in itertools.pairwise(path))
        for path in itertools.product(tags, repeat=length)
    }


def test_crf_against_all_paths(v1: Any) -> None:
    from portwright.compat import contrib_crf as crf

    draw = np.random.default_rng(0)
    scores = draw.normal(size=(3, 4, 3)).astype(np.float32)
    transitions = draw.normal(size=(3, 3)).astype(np.float32)
    lengths, tags = np.array([4, 2, 1]), np.array([[0, 1, 2, 0], [2, 1, 0, 0], [1, 0, 0, 0]])
    inputs, moves = v1.constant(scores), v1.constant(transitions)
    likelihood, _ = crf.crf_log_likelihood(inputs, v1.constant(tags), v1.constant(lengths), moves)
    decoded, best = crf.crf_decode(inputs, moves, v1.constant(lengths))
    found, found_tags, found_best = evaluate(v1, likelihood, decoded, best)
    for row, length in enumerate(lengths):
        paths = _scores(scores[row], transitions, length)
        norm = np.log(np.sum(np.exp(list(paths.values()))))
        assert found[row] == pytest.approx(paths[tuple(tags[row, :length])] - norm, abs=1e-4)
        right = max(paths, key=lambda path: paths[path])
        assert tuple(found_tags[row, :length]) == right
        assert not found_tags[row, length:].any()
        assert found_best[row] == pytest.approx(paths[right], abs=1e-4)
        assert tuple(crf.viterbi_decode(scores[row, :length], transitions)[0]) == right


def test_the_fused_lstm_against_numpy(v1: Any) -> None:
    from portwright.compat.contrib_rnn import LSTMBlockFusedCell, TimeReversedFusedRNN

    x = np.random.default_rng(0).normal(size=(5, 2, 3)).astype(np.float32)
    cell = LSTMBlockFusedCell(4)
    lengths = np.array([5, 3])
    outputs, state = cell(v1.constant(x), dtype=v1.float32, sequence_length=v1.constant(lengths))
    kernel, bias = v1.global_variables()
    turned, _ = TimeReversedFusedRNN(cell)(v1.constant(x[::-1].copy()), dtype=v1.float32)
    whole, _ = cell(v1.constant(x), dtype=v1.float32)
    found, last, w, b, one, other = evaluate(v1, outputs, state, kernel, bias, turned, whole)
    np.testing.assert_allclose(one, other[::-1], rtol=1e-5)
    assert [kernel.op.name, bias.op.name] == ["lstm_fused_cell/kernel", "lstm_fused_cell/bias"]

    def sigmoid(z: Any) -> Any:
        return 1 / (1 + np.exp(-z))

    for row, length in enumerate(lengths):
        c, h = np.zeros(4), np.zeros(4)
        for step in range(length):
            i, j, f, o = np.split(np.concatenate([x[step, row], h]) @ w + b, 4)
            c = sigmoid(f + 1.0) * c + sigmoid(i) * np.tanh(j)
            h = sigmoid(o) * np.tanh(c)
            np.testing.assert_allclose(found[step, row], h, rtol=1e-3, atol=1e-5)
        assert not found[length:, row].any()
        np.testing.assert_allclose(last.c[row], c, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(last.h[row], h, rtol=1e-3, atol=1e-5)


def test_two_fused_cells_have_scopes_of_their_own(v1: Any) -> None:
    from portwright.compat.contrib_rnn import LSTMBlockFusedCell

    for cell in (LSTMBlockFusedCell(2), LSTMBlockFusedCell(2)):
        cell(v1.ones([3, 1, 2]), dtype=v1.float32)
    assert {name.partition("/")[0] for name in names(v1)} == {"lstm_fused_cell", "lstm_fused_cell_1"}


# -- the rest ----------------------------------------------------------------------------------------------


def test_decoupled_weight_decay(v1: Any) -> None:
    from portwright.compat.contrib_optimizers import AdamWOptimizer, extend_with_decoupled_weight_decay

    for make, plain in (
        (lambda: AdamWOptimizer(0.1, learning_rate=0.01), lambda: v1.train.AdamOptimizer(0.01)),
        (
            lambda: extend_with_decoupled_weight_decay(v1.train.GradientDescentOptimizer)(
                0.1, learning_rate=0.01
            ),
            lambda: v1.train.GradientDescentOptimizer(0.01),
        ),
    ):
        moved = []
        for index, optimizer in enumerate((make(), plain())):
            w = v1.Variable([2.0, -1.0], name=f"w{index}")
            step = optimizer.minimize(v1.reduce_sum(w * v1.constant([1.0, 3.0])), var_list=[w])
            moved.append(evaluate(v1, w, after=[step]))
        np.testing.assert_allclose(moved[0], moved[1] - 0.1 * np.array([2.0, -1.0]), rtol=1e-5)


def test_lazy_adam_leaves_other_rows_alone(v1: Any) -> None:
    from portwright.compat.contrib_optimizers import LazyAdamOptimizer

    table = v1.get_variable("t", initializer=np.ones((3, 2), np.float32))
    optimizer = LazyAdamOptimizer(0.1)
    step = optimizer.minimize(v1.reduce_sum(v1.gather(table, [1])))
    found, m = evaluate(v1, table, optimizer.get_slot(table, "m"), after=[step])
    np.testing.assert_allclose(found, [[1, 1], [0.9, 0.9], [1, 1]], rtol=1e-5)
    assert not m[[0, 2]].any()


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("rate=0.5", "rate", 0.5),
        ("rate=1", "rate", 1.0),
        ("layers=[4,5]", "layers", [4, 5]),
        ("layers[1]=7", "layers", [1, 7]),
        ("flag=false,size=3", "flag", False),
        ("name=a b", "name", "a b"),
    ],
)
def test_hparams_are_read(text: str, name: str, expected: Any) -> None:
    from portwright.compat.contrib_training import HParams

    made = HParams(rate=0.1, layers=[1, 2], flag=True, size=1, name="x")
    assert made.parse(text).values()[name] == expected
    assert HParams(**made.values()).to_json() == made.to_json()


@pytest.mark.parametrize("text", ["sise=3", "size=a", "size=1.5", "flag=2", "layers=3x", "=3", "size"])
def test_hparams_that_cannot_be_read(text: str) -> None:
    from portwright.compat.contrib_training import HParams

    with pytest.raises((ValueError, KeyError)):
        HParams(size=1, flag=True, layers=[1]).parse(text)


def test_streaming_metrics_take_predictions_first(v1: Any) -> None:
    from portwright.compat import contrib_metrics as metrics

    seen, told = v1.constant([1, 1, 1, 0]), v1.constant([1, 0, 0, 1])
    accuracy, update = metrics.streaming_accuracy(seen, told, v1.constant([3.0, 1.0, 1.0, 1.0]))
    x, y = np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 4.0])
    r, update_r = metrics.streaming_pearson_correlation(v1.constant(x), v1.constant(y))
    held, update_held = metrics.streaming_concat(v1.constant(x))
    found = evaluate(v1, accuracy, r, held, after=[update, update_r, update_held, update_held])
    assert found[0] == pytest.approx(0.5)
    assert found[1] == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-4)
    np.testing.assert_array_equal(found[2], [*x, *x])


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("log_loss", "sigmoid b", 0.60166562),
        ("log_loss", "sigmoid b column", 0.46964619),
        ("softmax_cross_entropy", "a b row", 0.28733534),
        ("mean_squared_error", "a b row", 0.025),
    ],
)
def test_losses_have_their_arguments_the_other_way_round(
    v1: Any, name: str, arguments: str, expected: Any
) -> None:
    """Numbers of TensorFlow 1.15."""
    from portwright.compat import contrib_losses

    a = v1.constant([[0.9, -0.2], [0.4, 0.3]])
    given = {
        "a": a, "sigmoid": v1.sigmoid(a), "b": v1.constant([[1.0, 0.0], [0.0, 1.0]]), "row": [1.0, 0.0], "column": [[1.0], [0.0]]
    }  # fmt: skip
    found = evaluate(v1, getattr(contrib_losses, name)(*(given[word] for word in arguments.split())))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert len(v1.losses.get_losses()) == 1


def test_optimize_loss_keeps_its_rate_in_a_variable(v1: Any) -> None:
    from portwright.compat.contrib_layers import optimize_loss

    weight = v1.get_variable("w", [], initializer=v1.ones_initializer())
    step = optimize_loss(weight * 2.0, v1.train.get_or_create_global_step(), 0.25, "SGD", clip_gradients=1.0)
    assert names(v1) == ["OptimizeLoss/learning_rate", "global_step", "w"]
    assert evaluate(v1, weight, after=[step]) == pytest.approx(0.75)
    told = {s.op.name for s in v1.get_collection(v1.GraphKeys.SUMMARIES)}
    assert told == {
        f"OptimizeLoss/{n}"
        for n in ("loss", "global_norm/gradient_norm", "global_norm/clipped_gradient_norm")
    }


def test_variables_are_listed_and_restored(v1: Any, tmp_path: Path) -> None:
    from portwright.compat import contrib_variables as variables
    from portwright.compat.contrib_layers import fully_connected

    fully_connected(v1.ones([1, 2]), 2, scope="a")
    fully_connected(v1.ones([1, 2]), 2, scope="b")
    assert [v.op.name for v in variables.get_variables("a", "weights")] == ["a/weights"]
    assert len(variables.get_model_variables()) == 4
    assert [v.op.name for v in variables.get_variables_to_restore(exclude=["a"])] == ["b/weights", "b/biases"]
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        path = v1.train.Saver().save(session, str(tmp_path / "c"))
        kept = session.run(v1.global_variables()[0])
        session.run(v1.global_variables_initializer())
        variables.assign_from_checkpoint_fn(path, variables.get_variables("a"))(session)  # type: ignore[misc]
        np.testing.assert_array_equal(session.run(v1.global_variables()[0]), kept)
    with pytest.raises(UserError, match="no variables"):
        variables.assign_from_checkpoint_fn(path, [])


def test_mnist_files_are_read_in_batches(tmp_path: Path, v1: Any) -> None:
    import gzip
    import struct

    from portwright.compat.mnist_files import read_data_sets

    for part, count in (("train", 6), ("t10k", 2)):
        header = struct.pack(">BBBBIII", 0, 0, 8, 3, count, 2, 2)
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(header + bytes(range(count * 4)))
        header = struct.pack(">BBBBI", 0, 0, 8, 1, count)
        with gzip.open(tmp_path / f"{part}-labels-idx1-ubyte.gz", "wb") as file:
            file.write(header + bytes(range(count)))
    found = read_data_sets(str(tmp_path), one_hot=True, validation_size=2, seed=0)
    assert [one.num_examples for one in found] == [4, 2, 2]
    seen = [found.train.next_batch(3)[1].argmax(1).tolist() for _ in range(4)]
    assert sorted(label for batch in seen for label in batch) == [2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5]
    assert found.train.epochs_completed == 3
    with pytest.raises(UserError, match="no train-images") as missing:
        read_data_sets(str(tmp_path / "nowhere"), source_url="http://old/mnist/")
    assert "from http://old/mnist/" in str(missing.value)
    floats, whole = (
        read_data_sets(str(tmp_path), dtype=dtype, validation_size=2) for dtype in (v1.float32, v1.uint8)
    )
    assert (floats.train.images.dtype, whole.train.images.dtype) == (np.float32, np.uint8)
    np.testing.assert_allclose(floats.train.images * 255, whole.train.images)
    with pytest.raises(TypeError, match="int32"):
        read_data_sets(str(tmp_path), dtype=np.int32, validation_size=2)
    fake = read_data_sets(str(tmp_path), fake_data=True, one_hot=True)
    images, labels = fake.train.next_batch(2, fake_data=True)
    assert (fake.train.num_examples, len(images), set(images[1]), labels[1]) == (10000, 2, {1}, [1, *[0] * 9])
    with pytest.raises(UserError, match="fake_data"):
        fake.train.next_batch(2)


def test_messages_keep_what_is_set() -> None:
    from portwright.compat.cerebras_tf import CSConfig, FullConfig

    config = FullConfig()
    config.matching.kernel.use_it = True
    config.matching.disabled.append("x")
    config.replicas = -1
    assert config.as_dict() == {"matching": {"kernel": {"use_it": True}, "disabled": ["x"]}, "replicas": -1}
    assert CSConfig(use_cbfloat16=False).as_dict() == {"use_cbfloat16": False}


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("metrics.f1_score", "precision and recall"),
        ("metrics.streaming_auc", "labels come first"),
        ("estimator.replicate_model_fn", "MirroredStrategy"),
        ("opt.MomentumWOptimizer", "extend_with_decoupled_weight_decay"),
        ("layers.relu", "fully_connected"),
        ("crf.crf_log_norm", "crf_log_likelihood"),
    ],
)
def test_a_name_that_no_public_project_uses_says_what_to_use(name: str, cure: str) -> None:
    from portwright.compat.contrib_names import contrib_modules, cure_for

    module, _, last = name.rpartition(".")
    assert last not in contrib_modules()[f"tensorflow.contrib.{module}"]
    assert cure in cure_for(f"tensorflow.contrib.{name}")
