from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from unit.tf.plan_models import capture_fn, capture_net, layers, make_input_fn, mlp, v1

from portwright.errors import UserError
from portwright.graph.graph import Graph
from portwright.graph.inputs import TensorSpec
from portwright.graph.plans.flops import count_flops
from portwright.graph.plans.rows import Rows
from portwright.tensorflow.spec import EstimatorSpec

MLP_WEIGHTS = 8 * 16 + 16 * 10


def ops(graph: Graph, phase: str) -> Counter[str]:
    return Counter(node.op.removeprefix("tf.") for node in graph.nodes if node.phase == phase)


def products(graph: Graph) -> tuple[float, float]:
    flops = count_flops(graph, Rows(graph))
    return flops.forward.products, flops.backward.products


def test_a_step_has_its_phases_layers_and_lines() -> None:
    graph = capture_net(mlp).graph

    assert ops(graph, "forward")["MatMul"] == 2
    assert ops(graph, "backward")["MatMul"] == 3  # nobody reads the gradient of the batch
    assert ops(graph, "optimizer") == {"ResourceApplyGradientDescent": 4}
    assert graph.num_parameters == MLP_WEIGHTS + 26
    assert {m.path: (m.kind, m.parameters) for m in graph.modules if m.path} == {
        "dense": ("Dense", 170),
        "dense_1": ("Dense", 144),
    }
    forward = next(node for node in graph.nodes if node.op == "tf.MatMul")
    assert forward.module == "dense_1"
    assert forward.place is not None
    assert Path(forward.place.file).name == "plan_models.py"
    assert "Dense(16" in forward.place.code
    gradients = [node for node in graph.nodes if node.op == "tf.MatMul" and node.phase == "backward"]
    assert {graph.nodes[node.forward].op for node in gradients} == {"tf.MatMul"}
    assert {node.place for node in gradients} == {forward.place}
    assert graph.batch_size == 4
    assert graph.trains
    assert graph.values[graph.loss].shape == ()
    assert [(v.name, v.shape, v.dtype) for v in graph.values if v.kind == "input"] == [
        ("features", (4, 8), "float32"),
        ("labels", (4,), "int32"),
    ]


def test_products_are_those_of_the_shapes() -> None:
    assert products(capture_net(mlp).graph) == (2 * MLP_WEIGHTS, 2 * (MLP_WEIGHTS + 160))


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        pytest.param(mlp, (4, 8), id="matmul"),
        pytest.param(lambda x: layers.Dense(10)(layers.Flatten()(layers.Conv2D(6, 3, strides=2)(x))), (4, 9, 9, 3), id="conv"),
        pytest.param(lambda x: layers.Dense(10)(layers.Flatten()(layers.Conv2D(6, 3, padding="same")(x))), (4, 9, 9, 3), id="same"),
        pytest.param(lambda x: layers.Dense(10)(layers.Flatten()(tf.matmul(x, x, transpose_b=True))), (4, 5, 6), id="batch"),
    ],
)  # fmt: skip
def test_forward_products_equal_those_of_tensorflows_profiler(net: Any, shape: tuple[int, ...]) -> None:
    from unit.tf.plan_models import make_model_fn

    from portwright.tensorflow.capturing.build import build_step, of_functions
    from portwright.tensorflow.capturing.capture import capture_built

    built = build_step(*of_functions(make_model_fn(net), make_input_fn(shape), None, None), mode="eval")
    options = v1.profiler.ProfileOptionBuilder(v1.profiler.ProfileOptionBuilder.float_operation())
    counted = v1.profiler.profile(built.graph, cmd="op", options=options.with_empty_output().build())
    wanted = {"MatMul", "Conv2D", "BatchMatMulV2"}

    def walk(node: Any) -> int:
        own = node.float_ops if node.name in wanted else 0
        return own + sum(walk(child) for child in node.children)

    theirs = walk(counted)
    assert theirs > 0
    assert products(capture_built(built).graph)[0] * shape[0] == theirs


def test_gradients_of_convolutions_count_as_tensorflows_profiler_says() -> None:
    from unit.tf.plan_models import make_model_fn

    from portwright.graph.plans.flops import flops_of_node
    from portwright.tensorflow.capturing.build import build_step, of_functions
    from portwright.tensorflow.capturing.capture import capture_built

    def net(x: Any) -> Any:
        for width in (6, 5):
            x = layers.Conv2D(width, 3, padding="same")(x)
        return layers.Dense(10)(layers.Flatten()(x))

    built = build_step(*of_functions(make_model_fn(net), make_input_fn((4, 9, 9, 3)), None, None))
    graph = capture_built(built).graph
    for kind in ("Conv2DBackpropInput", "Conv2DBackpropFilter"):
        ours = sum(flops_of_node(graph, node)[0] for node in graph.nodes if node.op == f"tf.{kind}")
        made = [op for op in built.graph.get_operations() if op.type == kind]
        # The gradient of the batch is in the graph, and not in the step.
        theirs = [int(_statistics(built.graph, op)) for op in made if op.outputs[0].shape != (4, 9, 9, 3)]
        assert ours == sum(theirs) > 0


def _statistics(graph: Any, op: Any) -> int:
    from tensorflow.python.framework import ops as framework
    from tensorflow.python.profiler.internal import flops_registry

    assert flops_registry is not None  # importing it registers the formulas
    return framework.get_stats_for_node_def(graph, op.node_def, "flops").value  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("equation", "other", "products_of_all"),
    [("abc,cd->abd", (6, 7), 2 * 4 * 5 * 6 * 7), ("a...c,cd->a...d", (6, 7), 2 * 4 * 5 * 6 * 7), ("abc,abc->a", (4, 5, 6), 240)],
)  # fmt: skip
def test_einsum_counts_every_label_once(equation: str, other: tuple[int, ...], products_of_all: int) -> None:
    def net(x: Any) -> Any:
        mixed = tf.einsum(equation, x, v1.get_variable("w", other))
        return tf.zeros([4, 10]) + tf.reduce_sum(mixed)

    assert products(capture_net(net, (4, 5, 6), mode="eval").graph)[0] * 4 == products_of_all


@pytest.mark.parametrize(
    ("make", "name", "tensors"),
    [
        (lambda: v1.train.GradientDescentOptimizer(0.1), "SGD", 0),
        (lambda: v1.train.MomentumOptimizer(0.1, 0.9), "SGD", 1),
        (lambda: v1.train.AdamOptimizer(0.1), "Adam", 2),
        (lambda: v1.train.RMSPropOptimizer(0.1), "RMSprop", 2),
        (lambda: v1.train.AdagradOptimizer(0.1), "Adagrad", 1),
    ],
)
def test_an_optimizer_keeps_what_the_graph_has(make: Any, name: str, tensors: int) -> None:
    captured = capture_net(mlp, optimizer=make)
    parameters = [v for v in captured.graph.values if v.kind == "parameter"]

    assert captured.optimizer.name == name
    assert captured.optimizer.state_bytes(parameters) == 4 * tensors * captured.graph.num_parameters
    assert captured.optimizer.update_flops(parameters) > 0


def test_an_optimizer_in_plain_ops_goes_by_its_class() -> None:
    class SlowOptimizer(v1.train.GradientDescentOptimizer):  # type: ignore[misc]
        def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
            kept = self._zeros_slot(handle, "kept", "slow")
            return v1.assign_sub(handle, 0.1 * (grad + kept))

    captured = capture_net(mlp, optimizer=lambda: SlowOptimizer(0.1))
    parameters = [v for v in captured.graph.values if v.kind == "parameter"]
    assert captured.optimizer.name == "Slow"
    assert captured.optimizer.state_bytes(parameters) == 4 * captured.graph.num_parameters


def test_batch_norm_has_buffers_and_updates_them_in_the_forward_pass() -> None:
    def net(x: Any) -> Any:
        norm = layers.BatchNormalization()
        x = norm(layers.Conv2D(3, 3)(x), training=True)
        with tf.control_dependencies(norm.updates):
            return layers.Dense(10)(layers.Flatten()(tf.identity(x)))

    graph = capture_net(net, (4, 8, 8, 3)).graph
    buffers = [v.name for v in graph.values if v.kind == "buffer"]
    assert buffers == ["batch_normalization.moving_mean", "batch_normalization.moving_variance"]
    assert ops(graph, "forward")["AssignSubVariableOp"] == 2
    assert ops(graph, "backward")["FusedBatchNormGradV3"] == 1


def test_a_loop_counts_as_often_as_it_turns() -> None:
    looped = capture_net(lambda x: layers.Dense(10)(layers.LSTM(16)(x)), (4, 20, 8)).graph
    unrolled = capture_net(lambda x: layers.Dense(10)(layers.LSTM(16, unroll=True)(x)), (4, 20, 8)).graph

    assert "tf.While" in {node.op for node in looped.nodes}
    assert "tf.While" not in {node.op for node in unrolled.nodes}
    assert products(looped)[0] == products(unrolled)[0] == 20 * 2 * (8 + 16) * 64 + 2 * 16 * 10
    assert {node.module for node in looped.nodes if node.op == "tf.While"} == {"lstm.lstm_cell"}


def test_a_loop_of_tensorflow_1_counts_as_often_as_it_turns() -> None:
    def net(x: Any) -> Any:
        weight = v1.get_variable("w", [8, 8])
        _, x = tf.while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, tf.matmul(x, weight)), [0, x])
        return layers.Dense(10)(x)

    with tf.Graph().as_default():
        v1.disable_control_flow_v2()
        try:
            graph = capture_net(net).graph
        finally:
            v1.enable_control_flow_v2()
    assert "tf.LoopCond" in {node.op for node in graph.nodes}
    assert products(graph)[0] == 5 * 2 * 64 + 2 * 80


def test_a_loop_whose_turns_are_not_known_says_so() -> None:
    def net(x: Any) -> Any:
        weight = v1.get_variable("w", [8, 8])
        (x,) = tf.while_loop(lambda x: tf.reduce_sum(x) > 0.0, lambda x: (tf.matmul(x, weight),), [x])
        return layers.Dense(10)(x)

    assert any("how often this loop turns" in note for note in capture_net(net).graph.info["notes"])


def test_functions_are_followed_and_what_nothing_reads_is_left_out() -> None:
    def net(x: Any) -> Any:
        dense = layers.Dense(8)
        dense.build((4, 8))
        return layers.Dense(10)(tf.function(lambda y: tf.nn.relu(dense(y)))(x))

    graph = capture_net(net).graph
    assert ops(graph, "forward")["MatMul"] == 2
    assert ops(graph, "backward")["MatMul"] == 3


def test_gradients_of_a_tape_are_the_same_step() -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, mlp(features)))
        variables = v1.trainable_variables()
        pairs = zip(tape.gradient(loss, variables), variables, strict=True)
        return EstimatorSpec(
            mode, loss=loss, train_op=v1.train.GradientDescentOptimizer(0.1).apply_gradients(pairs)
        )

    taped, plain = capture_fn(model_fn, make_input_fn()).graph, capture_net(mlp).graph
    assert products(taped) == products(plain)
    assert ops(taped, "optimizer") == ops(plain, "optimizer")
    assert {n.module for n in taped.nodes if n.op == "tf.BiasAddGrad"} == {"dense", "dense_1"}


def test_summaries_checks_and_schedules_are_the_hosts() -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, mlp(features)))
        step = v1.train.get_global_step()
        rate = v1.train.polynomial_decay(0.1, step, 100)
        v1.summary.scalar("rate", rate)
        with tf.control_dependencies([tf.debugging.assert_positive(rate), v1.summary.scalar("loss", loss)]):
            train_op = v1.train.AdamOptimizer(rate).minimize(loss, step)
        return EstimatorSpec(mode, loss=loss, train_op=train_op)

    graph = capture_fn(model_fn, make_input_fn()).graph
    types = {node.op.removeprefix("tf.") for node in graph.nodes}
    assert not any("Summary" in name or "Assert" in name or "Pow" in name for name in types)
    assert graph.info["host_ops"] > 3
    assert all(v.dtype != "int64" for v in graph.values)  # the global step is no value of the step


def test_only_what_is_updated_is_trained() -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, mlp(features)))
        last = [v for v in v1.trainable_variables() if v.name.startswith("dense/")]
        return EstimatorSpec(
            mode, loss=loss, train_op=v1.train.AdamOptimizer(0.1).minimize(loss, var_list=last)
        )

    graph = capture_fn(model_fn, make_input_fn()).graph
    trained = {v.name for v in graph.values if v.kind == "parameter" and v.requires_grad}
    assert trained == {"dense.kernel", "dense.bias"}
    assert ops(graph, "backward")["MatMul"] == 1


def test_mixed_precision_copies_weights_and_leaves_the_policy_alone() -> None:
    def net(x: Any) -> Any:
        tf.keras.mixed_precision.set_global_policy("mixed_float16")
        return tf.cast(mlp(x), tf.float32)

    def scaled() -> Any:
        return v1.train.experimental.MixedPrecisionLossScaleOptimizer(v1.train.AdamOptimizer(0.1), "dynamic")

    graph = capture_net(net, optimizer=scaled).graph
    assert graph.info["guards_update"]
    assert ops(graph, "forward")["Cast"] >= 5
    assert {v.dtype for v in graph.values if v.kind == "parameter"} == {"float32"}
    assert "If" in ops(graph, "optimizer")
    assert tf.keras.mixed_precision.global_policy().name == "float32"


@pytest.mark.parametrize("mode", ["eval", "infer"])
def test_without_training_there_is_only_a_forward_pass(mode: str) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        logits = mlp(features)
        if mode == "infer":
            return EstimatorSpec(mode, predictions={"logits": logits})
        return EstimatorSpec(mode, loss=tf.reduce_mean(logits))

    captured = capture_fn(model_fn, make_input_fn(), mode=mode)
    assert not captured.graph.trains
    assert {node.phase for node in captured.graph.nodes} == {"forward"}
    assert products(captured.graph)[0] == 2 * MLP_WEIGHTS
    assert captured.optimizer.name == ""


@pytest.mark.filterwarnings("ignore:`tf.layers.dense` is deprecated")
def test_repeated_blocks_are_a_list() -> None:
    def net(x: Any) -> Any:
        for i in range(3):
            with v1.variable_scope(f"block_{i}"):
                x = x + v1.layers.dense(v1.layers.dense(x, 16, name="up"), 8, name="down")
        return layers.Dense(10)(x)

    modules = {module.path: module for module in capture_net(net).graph.modules}
    assert {"block.0", "block.1", "block.2", "block.0.up"} <= set(modules)
    assert modules["block.2"].repeats == "block.1"  # the first has no gradient of the batch
    assert modules["block.0.up"].kind == "Dense"


def test_another_batch_size_and_a_described_batch() -> None:
    resized = capture_fn_of_mlp(batch_size=32)
    assert resized.batch_size == 32
    described = capture_fn_of_mlp(
        described={"x": TensorSpec((2, 8)), "labels": TensorSpec((2,), "int32")}, takes_dict=True
    )
    assert described.batch_size == 2


def capture_fn_of_mlp(takes_dict: bool = False, **options: Any) -> Graph:
    from unit.tf.plan_models import make_model_fn

    net = (lambda x: mlp(x["x"])) if takes_dict else mlp
    return capture_fn(make_model_fn(net), make_input_fn(), **options).graph


# -- what is not known -----------------------------------------------------------------------------------------


def test_an_unknown_batch_size_is_an_error_with_its_line_and_cure() -> None:
    from unit.tf.plan_models import make_model_fn

    with pytest.raises(
        UserError, match=r"plan_models\.py:\d+: the batch size of the input 'features'"
    ) as error:
        capture_fn(make_model_fn(mlp), make_input_fn(drop=False))
    assert "drop_remainder=True" in error.value.cure


def test_an_unknown_batch_size_can_be_given() -> None:
    from unit.tf.plan_models import make_model_fn

    assert capture_fn(make_model_fn(mlp), make_input_fn(drop=False), batch_size=4).graph.batch_size == 4


def test_another_unknown_dimension_is_an_error_too() -> None:
    def input_fn() -> Any:
        rows = tf.data.Dataset.from_generator(
            lambda: iter([]), output_signature=tf.TensorSpec([None], tf.float32)
        )
        return rows.padded_batch(4, drop_remainder=True).map(lambda x: (x, tf.zeros([4], tf.int32)))

    with pytest.raises(UserError, match=r"'features' has the shape \(4, None\)"):
        capture_fn(lambda features, labels, mode: None or _spec_of(features, labels, mode), input_fn)


def _spec_of(features: Any, labels: Any, mode: str) -> Any:
    loss = tf.reduce_sum(features) * v1.get_variable("w", []) + tf.cast(tf.reduce_sum(labels), tf.float32)
    return EstimatorSpec(mode, loss=loss, train_op=v1.train.GradientDescentOptimizer(0.1).minimize(loss))


def test_python_in_the_step_without_a_shape_is_an_error_at_its_line() -> None:
    def net(x: Any) -> Any:
        return mlp(x) + tf.reduce_sum(tf.py_function(lambda a: a, [x], tf.float32) * 2.0)

    with pytest.raises(UserError, match=r"test_plan_capture\.py:\d+: EagerPyFunc makes") as error:
        capture_net(net)
    assert "input function" in error.value.cure


@pytest.mark.parametrize(
    "net",
    [
        lambda x: mlp(x) + tf.reduce_sum(tf.gather_nd(x, tf.where(x > 0))),
        lambda x: mlp(x) + tf.reduce_sum(tf.boolean_mask(x, x > 0)),
        lambda x: mlp(x) + tf.cast(tf.reduce_max(tf.unique(tf.cast(x[:, 0], tf.int32))[0]), tf.float32),
    ],
)
def test_behind_what_selects_by_value_the_most_is_assumed(net: Any) -> None:
    graph = capture_net(net).graph
    assert any("the most is assumed" in note for note in graph.info["notes"])
    selecting = next(n for n in graph.nodes if n.op in ("tf.Where", "tf.Unique"))
    assert graph.values[selecting.outputs[0]].shape[0] in (32, 4)
    assert products(graph) == products(capture_net(mlp).graph)


def test_a_model_function_without_a_loss_is_an_error() -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        return mlp(features)

    with pytest.raises(UserError, match="returned"):
        capture_fn(model_fn, make_input_fn())
