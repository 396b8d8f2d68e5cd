"""Programs of TensorFlow 1 drawn around what a rule rewrites: other names, imports, nesting and order each time.

`show(name, value)` is what a program tells; whoever runs it gives it that function, and a `folder` of its own.
"""

from __future__ import annotations

import random
import re
import textwrap
from collections.abc import Callable
from functools import cache
from typing import TypeVar

T = TypeVar("T")
Pattern = Callable[["Old"], str]
_SLOT = re.compile(r"\{(tf\.[\w.]+|[a-z]+)\}")
_NAMES = (
    "ptf",
    "v1",
    "canned_v1",
    "portwright_tensorflow",
    "compat",
    "x",
    "net",
    "contrib_norms",
    "data",
    "value",
    "est",
)


class Old:
    """The choices of one program, all from one seed."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.tf = self.one("tf", "tf", "tf", "tensorflow", "T")
        self.imports = ["import tensorflow" if self.tf == "tensorflow" else f"import tensorflow as {self.tf}"]
        self.setup: list[str] = []
        self.taken = {self.tf, "show", "folder", "np"}

    def one(self, *choices: T) -> T:
        return self.random.choice(choices)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def name(self) -> str:
        """A name that this program does not have yet, often one that a rewrite could want."""
        free = [n for n in _NAMES if n not in self.taken]
        found = self.one(*free) if free and self.chance(0.3) else f"n{len(self.taken)}"
        self.taken.add(found)
        return found

    def of(self, dotted: str) -> str:
        """A name below `tf`, as this program reaches it."""
        module, _, last = dotted.rpartition(".")
        way = self.random.random()
        if way < 0.08 and module:
            alias = f"{module.replace('.', '_')}_"
            self._add(self.setup, f"{alias} = {self.tf}.{module}")
            return f"{alias}.{last}"
        if way < 0.16:
            package = (
                module
                if not module or module.startswith("contrib") or (self.chance(0.3) and module.islower())
                else ""
            )
            first = last if package or not module else module.partition(".")[0]
            self._add(
                self.imports, f"from {'.'.join(['tensorflow', *package.split()])} import {first} as {first}_"
            )
            return f"{first}_" + ("" if first == last else dotted[len(first) :])
        if way < 0.24:
            self._add(self.setup, f"{last}_own = {self.tf}.{dotted}")
            return f"{last}_own"
        return f"{self.tf}.{dotted}"

    @staticmethod
    def _add(lines: list[str], line: str) -> None:
        if line not in lines:
            lines.append(line)

    def fill(self, template: str, **parts: Callable[[], str]) -> str:
        """A template whose `{tf.x.y}` are spelled, and whose `{part}` are replaced."""
        return _SLOT.sub(
            lambda m: self.of(m[1][3:]) if m[1].startswith("tf.") else parts.get(m[1], m.group)(), template
        )

    def numbers(self, rows: int = 3, columns: int = 4) -> str:
        values = [
            [round(self.random.uniform(0.1, 2.0), 2) * self.one(1, 1, -1) for _ in range(columns)]
            for _ in range(rows)
        ]
        return repr(values)

    def write(self, body: str) -> str:
        head = [*self.imports, "import numpy as np"]
        self.random.shuffle(head)
        if self.chance(0.2):
            head.insert(0, self.one('"""Trains."""', "from __future__ import print_function", "# Old code"))
        return "\n".join([*head, *self.setup, body.strip("\n"), ""])


# -- what a graph computes: {m} is a matrix of 3 by 4, {i} are 3 integers below 3, {c} 3 booleans ---------------------------
_MATRIX = (
    "{tf.where}({c}, {m}, {n})", "{tf.where}({m} > 0.5, {m}, {n})", "{tf.nn.dropout}({m}, 0.5, seed=3)",
    "{tf.nn.dropout}({m}, keep_prob=0.8, seed=5)", "{tf.nn.softmax}({m}, dim=0)", "{tf.nn.softmax}({m}, 1)",
    "{tf.nn.log_softmax}({m}, dim=1)", "{tf.nn.l2_normalize}({m}, 1)", "{tf.nn.l2_normalize}({m}, dim=0)",
    "{tf.div}({m}, 1.5)", "{tf.log}({tf.abs}({m}) + 1.0)", "{m} + {tf.to_float}({i})[:, None]", "{tf.nn.relu}({m})",
    "{m} - {tf.reduce_mean}({m}, 1, True)", "{m} / {tf.reduce_sum}({tf.abs}({m}), keep_dims=True)",
    "{m} * {tf.reduce_max}({m}, reduction_indices=[0])", "{tf.expand_dims}({m}, dim=1)[:, 0]", "{tf.squeeze}({m}[None], squeeze_dims=[0])",
    "{tf.random_shuffle}({m}, seed=2)", "{m} + {tf.random_normal}([3, 4], seed=7)", "{m} + {tf.truncated_normal}([3, 4], stddev=0.1, seed=8)",
    "{m} * {tf.random_uniform}([4], seed=9)", "{tf.cond}({tf.reduce_sum}({m}) > 0, lambda: {m} * 2.0, lambda: {n})",
    "{tf.while_loop}(lambda k, v: k < 3, lambda k, v: (k + 1, v * 0.5), [{tf.constant}(0), {m}])[1]",
    "{tf.map_fn}(lambda row: row * 2.0, {m})", "{tf.gradients}({tf.reduce_sum}({m} * {m}), [{m}])[0]", "{tf.matrix_band_part}({m}, 1, 1)",
    "{tf.reverse_sequence}({m}, {i} + 1, seq_dim=1, batch_dim=0)", "{tf.batch_gather}({m}, {tf.tile}({i}[:, None], [1, 4]))",
    "{tf.clip_by_norm}({m}, 2.0)", "{tf.transpose}({tf.transpose}({m}))", "{tf.matmul}({m}, {n}, transpose_b=True)[:, :1] + {m}",
    "{tf.tensordot}({m}, {n}, [[0], [0]])[:3]", "{tf.Print}({m}, [{m}], 'at')", "{tf.unsorted_segment_sum}({m}, {i}, 3)",
    "{tf.nn.embedding_lookup}([{m}, {n}], {i} * 2)", "{tf.nn.embedding_lookup}({m}, {i})", "{tf.layers.flatten}({m}[:, :, None])",
    "{tf.py_func}(lambda a: a * np.float32(3), [{m}], {tf.float32}) + {tf.zeros}([3, 4])", "{tf.nn.bias_add}({m}, {m}[0])",
    "{tf.nn.conv2d}({m}[None, :, :, None], {tf.ones}([2, 2, 1, 1]), [1, 1, 1, 1], 'SAME')[0, :, :, 0]",
    "{tf.nn.max_pool}({m}[None, :, :, None], [1, 2, 2, 1], [1, 1, 1, 1], 'SAME')[0, :, :, 0]",
    "{tf.image.resize_bilinear}({m}[None, :, :, None], [3, 4], align_corners=True)[0, :, :, 0]",
    "{tf.image.resize_images}({m}[None, :, :, None], [6, 8])[0, ::2, ::2, 0]", "{tf.space_to_depth}({m}[None, :2, :, None], 2)[0, 0] + {m}[:1]",
    "{tf.get_variable}({name}, [3, 4], initializer={init}) + {m}", "{tf.Variable}({m}, trainable=False) * 1.0",
    "{tf.get_variable}({name}, initializer={tf.constant}({numbers})) * {m}", "{tf.ones_like}({m}, {tf.float32}) + {m}",
    "{tf.zeros_like}({m}, optimize=False) - {m}", "{tf.sparse_tensor_dense_matmul}({tf.SparseTensor}([[0, 1], [2, 0]], [1.0, 2.0], [3, 3]), {m})",
    "{tf.sparse_to_dense}([[0, 1], [2, 3]], [3, 4], [1.0, 2.0]) + {m}", "{tf.scan}(lambda a, b: a * 0.5 + b, {m})",
    "{tf.one_hot}({i}, 4) * {m}", "{tf.accumulate_n}([{m}, {n}])", "{tf.quantize_v2}({m}, -2.0, 2.0, {tf.quint8})[1] + {m}",
    "{tf.sigmoid}({m}) * {tf.nn.sigmoid_cross_entropy_with_logits}(labels={tf.abs}({m}), logits={n})",
    "{tf.reduce_logsumexp}({m}, axis=1, keep_dims=True) - {n}", "{tf.convert_to_tensor}({m}, {tf.float32})", "{tf.cast}({tf.to_int32}({m}), {tf.float32}) + {m}",
    "{tf.contrib.layers.layer_norm}({m}, scope={name})", "{tf.layers.dense}({m}, 4, kernel_initializer={init}, name={name})",
)  # fmt: skip
_CONTRIB = (
    "{tf.contrib.layers.fully_connected}({m}, 4, weights_initializer={init}, scope={name})",
    "{tf.contrib.layers.fully_connected}({m}, num_outputs=4, activation_fn=None, weights_initializer={init}, weights_regularizer={tf.contrib.layers.l2_regularizer}(0.1))",
    "{tf.contrib.layers.fully_connected}({m}, 4, weights_initializer={init}, normalizer_fn={tf.contrib.layers.batch_norm}, normalizer_params={'is_training': True})",
    "{tf.contrib.layers.linear}({m}, 4, weights_initializer={init})", "{tf.contrib.layers.relu}({m}, 4, weights_initializer={init})",
    "{tf.contrib.layers.layer_norm}({m})", "{tf.contrib.layers.layer_norm}({m}, center=False, begin_norm_axis=-1, begin_params_axis=-1, scope={name})",
    "{tf.contrib.layers.batch_norm}({m}, is_training=True, updates_collections=None)", "{tf.contrib.layers.batch_norm}({m}, decay=0.9, scale=True, is_training=False, scope={name})",
    "{tf.contrib.layers.batch_norm}({m}[None, :, :, None], fused=True, is_training=True)[0, :, :, 0]", "{tf.contrib.layers.instance_norm}({m}[None])[0]",
    "{tf.contrib.layers.group_norm}({m}[None], groups=2, channels_axis=-1, reduction_axes=[-2])[0]", "{tf.contrib.layers.flatten}({m}[:, :, None])",
    "{tf.contrib.layers.dropout}({m}, 0.5, seed=2)", "{tf.contrib.layers.dropout}({m}, keep_prob=0.5, is_training=False)", "{tf.contrib.layers.unit_norm}({m}, 1)",
    "{tf.contrib.layers.conv2d}({m}[None, :, :, None], 1, [2, 2], weights_initializer={init})[0, :, :, 0]", "{tf.contrib.layers.softmax}({m})",
    "{tf.contrib.layers.conv2d}({m}[None, :, :, None], 1, 3, rate=2, activation_fn=None, weights_initializer={init}, scope={name})[0, :, :, 0]",
    "{tf.contrib.layers.max_pool2d}({m}[None, :, :, None], 2, stride=1, padding='SAME')[0, :, :, 0]", "{tf.contrib.layers.one_hot_encoding}({i}, 4) * {m}",
    "{tf.contrib.layers.avg_pool2d}({m}[None, :, :, None], [2, 2], 1, 'SAME')[0, :, :, 0]", "{tf.contrib.layers.embed_sequence}({i}[None], 5, 4, initializer={init})[0] + {m}",
    "{tf.contrib.layers.conv2d_transpose}({m}[None, :, :, None], 1, 2, weights_initializer={init})[0, :, :, 0]",
    "{tf.contrib.layers.separable_conv2d}({m}[None, :, :, None], 1, 2, 1, weights_initializer={init})[0, :, :, 0]",
    "{tf.contrib.layers.stack}({m}, {tf.contrib.layers.fully_connected}, [3, 4], weights_initializer={init}, scope={name})",
    "{tf.contrib.layers.repeat}({m}, 2, {tf.contrib.layers.fully_connected}, 4, weights_initializer={init}, scope={name})",
    "{m} + {tf.contrib.layers.apply_regularization}({tf.contrib.layers.l1_regularizer}(0.1), [{n}])", "{m} * {tf.contrib.layers.l1_l2_regularizer}(0.1, 0.2)({n})",
    "{tf.get_variable}({name}, [3, 4], initializer={tf.contrib.layers.variance_scaling_initializer}(seed=3)) + {m}",
    "{tf.get_variable}({name}, [3, 4], initializer={tf.contrib.layers.variance_scaling_initializer}(1.0, 'FAN_AVG', True, 3)) + {m}",
    "{tf.get_variable}({name}, [3, 4], initializer={tf.contrib.layers.xavier_initializer}(uniform=False, seed=3)) + {m}",
    "{tf.contrib.framework.model_variable}({name}, [3, 4], initializer={init}) * {m}", "{tf.contrib.framework.sort}({m}, axis=1)",
    "{tf.contrib.framework.nest.flatten}([{m}, [{n}]])[1]", "{tf.nn.dynamic_rnn}({tf.contrib.rnn.GRUCell}(4, kernel_initializer={init}), {m}[None], dtype={tf.float32})[0][0]",
    "{tf.nn.dynamic_rnn}({tf.contrib.rnn.LSTMBlockCell}(4), {m}[None], dtype={tf.float32})[0][0]", "{tf.contrib.rnn.static_rnn}({tf.contrib.rnn.BasicLSTMCell}(4), [{m}], dtype={tf.float32})[0][0]",
    "{tf.nn.dynamic_rnn}({tf.contrib.rnn.DropoutWrapper}({tf.contrib.rnn.BasicRNNCell}(4), output_keep_prob=0.5, seed=3), {m}[None], dtype={tf.float32})[0][0]",
    "{tf.nn.dynamic_rnn}({tf.contrib.rnn.ResidualWrapper}({tf.contrib.rnn.LSTMCell}(4, use_peepholes=True, forget_bias=0.5)), {m}[None], dtype={tf.float32})[0][0]",
    "{m} + {tf.contrib.losses.mean_squared_error}({m}, {n})", "{m} + {tf.contrib.losses.absolute_difference}({m}, {n}, 0.5)",
    "{m} + {tf.contrib.losses.log_loss}({tf.sigmoid}({m}), {tf.sigmoid}({n}))", "{m} + {tf.contrib.losses.hinge_loss}({m}, {tf.to_float}({n} > 0.0))",
    "{m} + {tf.contrib.losses.compute_weighted_loss}({m}, 2.0)", "{m} + {tf.contrib.losses.cosine_distance}({m}, {n}, 1)",
    "{m} + {tf.contrib.losses.get_total_loss}()", "{m} + {tf.contrib.seq2seq.sequence_loss}({m}[None], {i}[None], {tf.ones}([1, 3]))",
    "{m} + {tf.contrib.seq2seq.sequence_loss}({m}[None], {i}[None], {tf.abs}({n})[None, :, 0], average_across_batch=False)",
    "{tf.contrib.crf.crf_log_likelihood}({m}[None], {i}[None], {tf.constant}([3]), {n}[:, :1] * {tf.ones}([1, 4]) if False else {tf.ones}([4, 4]))[0] + {m}",
    "{tf.contrib.crf.crf_decode}({m}[None], {tf.ones}([4, 4]), {tf.constant}([2]))[1] + {m}",
    "{m} + {tf.contrib.metrics.streaming_accuracy}({i}, {i})[1]", "{m} + {tf.contrib.metrics.streaming_mean}({m})[1]", "{m} + {tf.contrib.metrics.accuracy}({i}, {i})",
    "{m} + {tf.contrib.metrics.streaming_precision}({i} > 0, {c})[1]", "{m} + {tf.contrib.metrics.streaming_mean_squared_error}({m}, {n})[1]",
    "{m} + {tf.contrib.metrics.streaming_pearson_correlation}({m}, {n})[1]", "{m} + {tf.contrib.metrics.streaming_auc}({tf.sigmoid}({m}[:, 0]), {c})[1]",
    "{m} + {tf.to_float}({tf.contrib.metrics.confusion_matrix}({i}, {i}, 3))[0, 0]", "{tf.contrib.image.rotate}({m}, 0.5)", "{tf.contrib.nn.alpha_dropout}({m}, 0.5)",
)  # fmt: skip
_CONTRIB_OPTIMIZERS = (
    "AdamWOptimizer(0.01, 0.1)",
    "AdamWOptimizer(weight_decay=0.01, learning_rate=0.1)",
    "MomentumWOptimizer(0.01, 0.1, 0.9)",
    "LazyAdamOptimizer(0.1)",
)
_INITIALIZERS = (
    "{tf.random_normal_initializer}(stddev=0.3, seed=1)", "{tf.random_uniform_initializer}(-1.0, 1.0, seed=2)", "{tf.zeros_initializer}()",
    "{tf.truncated_normal_initializer}(0.5, 0.1, 3)", "{tf.constant_initializer}(0.25)", "{tf.ones_initializer}",
    "{tf.glorot_uniform_initializer}(seed=4)", "{tf.orthogonal_initializer}(seed=5)", "{tf.uniform_unit_scaling_initializer}(seed=6)",
    "{tf.variance_scaling_initializer}(2.0, mode='fan_out', seed=7)", "{tf.initializers.he_normal}(8)", "{tf.keras.initializers.Zeros}()",
    "{tf.initializers.random_normal}(seed=9)", "{tf.initializers.truncated_normal}(seed=9)", "{tf.contrib.layers.xavier_initializer}(seed=10)",
)  # fmt: skip
_LOSSES = (
    "{tf.reduce_mean}({tf.square}({m} - {n}))", "{tf.losses.mean_squared_error}({m}, {n})", "{tf.losses.absolute_difference}({m}, {n}, weights=2.0)",
    "{tf.losses.huber_loss}({m}, {n}, delta=0.5)", "{tf.losses.sparse_softmax_cross_entropy}({i}, {m})", "{tf.nn.l2_loss}({m})",
    "{tf.losses.softmax_cross_entropy}({tf.one_hot}({i}, 4), {m}, label_smoothing=0.1)", "{tf.losses.hinge_loss}({tf.to_float}({m} > 0), {n})",
    "{tf.losses.sigmoid_cross_entropy}({tf.to_float}({m} > 0), {n}, reduction={tf.losses.Reduction.SUM})", "{tf.losses.get_total_loss}() + {tf.reduce_sum}({m})",
    "{tf.reduce_mean}({tf.nn.softmax_cross_entropy_with_logits}(labels={tf.nn.softmax}({n}), logits={m}))",
    "{tf.reduce_sum}({tf.nn.sparse_softmax_cross_entropy_with_logits}(labels={i}, logits={m}))", "{tf.nn.weighted_cross_entropy_with_logits}({m}, {n}, 2.0)[0, 0]",
    "{tf.losses.cosine_distance}({m}, {n}, dim=1)", "{tf.losses.log_loss}({tf.sigmoid}({m}), {tf.sigmoid}({n}))",
)  # fmt: skip
_OTHERS = (  # what is asked of numbers, names and graphs
    "{tf.argmax}({m}, dimension=1)", "{tf.argmin}({m}, 1)", "{tf.count_nonzero}({m}, keep_dims=True)", "{tf.confusion_matrix}({i}, {i})",
    "{tf.shape}({m}, {tf.int64})", "{tf.setdiff1d}({i}, [1])[0]", "{tf.multinomial}({m}, 3, seed=4)", "{tf.is_nan}({m})", "{tf.size}({m}, None, {tf.int64})",
    "{tf.string_split}(['a b c', 'd'])[1]", "{tf.string_to_number}(['1.5', '2'])", "{tf.cumsum}({m}, 1)", "{tf.diag_part}({m}[:, :3])",
    "{tf.nn.top_k}({m}, 2)[1]", "{tf.nn.in_top_k}({m}, {i}, 2)", "{tf.matrix_inverse}({tf.matmul}({m}, {m}, False, True) + {tf.eye}(3) * 9.0)",
    "{tf.svd}({m})[0]", "{tf.norm}({m}, axis=1, keep_dims=True)", "{tf.nn.moments}({m}, [0], keep_dims=True)[1]", "{tf.assert_equal}({m}, {m})",
    "{tf.strings.length}(['ab', 'c'])", "{tf.substr}(['abc'], 1, 2)", "{tf.as_string}({i})", "{tf.reduce_all}({c}, keep_dims=True)", "{tf.nn.zero_fraction}({m})",
    "{tf.data.Dataset.range}(5).batch(2).make_one_shot_iterator().get_next()", "{tf.random.uniform}([2], seed=3)", "{tf.hessians}({tf.reduce_sum}({m} ** 2), {m})[0][0, 0]",
)  # fmt: skip
_OPTIMIZERS = (
    "GradientDescentOptimizer(0.1)", "AdamOptimizer(0.01)", "MomentumOptimizer(0.1, 0.9, use_nesterov=True)", "RMSPropOptimizer(0.01)",
    "AdagradOptimizer(0.1)", "AdadeltaOptimizer(1.0)", "FtrlOptimizer(0.1)", "ProximalGradientDescentOptimizer(0.1, l2_regularization_strength=0.1)",
)  # fmt: skip


class Graph:
    """Expressions of one program: matrices, nested a few levels deep."""

    def __init__(self, draw: Old, matrices: tuple[str, ...] = _MATRIX) -> None:
        self.draw, self.matrices = draw, matrices
        self.leaves: list[str] = []
        self.num_variables = 0

    def parts(self, depth: int) -> dict[str, Callable[[], str]]:
        self.num_variables += 1
        name, draw = f"'w{self.num_variables}'", self.draw
        found: dict[str, Callable[[], str]] = {
            "m": lambda: self.matrix(depth - 1), "n": lambda: self.matrix(depth - 1), "name": lambda: name, "numbers": draw.numbers,
            "i": lambda: "whole", "c": lambda: "flags", "init": lambda: draw.fill(draw.one(*_INITIALIZERS)),
        }  # fmt: skip
        return {key: cache(make) for key, make in found.items()}

    def matrix(self, depth: int) -> str:
        if depth <= 0:
            return self.draw.one(*self.leaves)
        return self.draw.fill(self.draw.one(*self.matrices), **self.parts(depth))

    def other(self, templates: tuple[str, ...], depth: int = 1) -> str:
        return self.draw.fill(self.draw.one(*templates), **self.parts(depth))


def _inputs(draw: Old, graph: Graph) -> tuple[str, str]:
    """Statements that make the leaves, and what session.run is fed."""
    first, second = draw.name(), draw.name()
    graph.leaves = [first, second]
    made = draw.fill(
        f"whole = {{tf.constant}}([{draw.one('0, 2, 1', '1, 1, 0')}])\nflags = {{tf.constant}}([True, False, True])\n"
    )
    if draw.chance(0.6):
        shape = draw.one("[3, 4]", "[None, 4]", "(3, 4)")
        made += draw.fill(
            f"{first} = {{tf.placeholder}}({{tf.float32}}, {shape})\n{second} = {{tf.constant}}({draw.numbers()})"
        )
        if shape == "[None, 4]":
            made += f"\n{first}.set_shape([3, 4])"
        return made, f"{{{first}: {draw.numbers()}}}"
    return made + draw.fill(
        f"{first} = {{tf.constant}}({draw.numbers()})\n{second} = {{tf.Variable}}({draw.numbers()})"
    ), "{}"


def _around(draw: Old, body: str) -> str:
    """Statements in a scope, a function, a class or a condition."""
    way = draw.one("plain", "plain", "scope", "function", "condition", "name", "device")
    inner = textwrap.indent(body, "    ")
    if way == "scope":
        return (
            draw.fill(
                f"with {{tf.variable_scope}}({draw.one(repr('part'), repr('a/b'))}, reuse={{tf.AUTO_REUSE}}):\n"
            )
            + inner
        )
    if way == "name":
        return draw.fill("with {tf.name_scope}('part'):\n") + inner
    if way == "device":
        return draw.fill("with {tf.device}('/cpu:0'):\n") + inner
    if way == "condition":
        return f"if True:\n{inner}"
    return body


def _program(draw: Old, statements: list[str], told: list[str], fed: str, seed: bool = False) -> str:
    """A graph, and a session that tells what is in it."""
    session = draw.name()
    values = "\n".join(
        f"show({number}, {session}.run({name}, feed_dict={fed}))" for number, name in enumerate(told)
    )
    values += (
        draw.fill("\nfor v in {tf.global_variables}():\n    show(v.name, [v.shape.as_list(), ")
        + f"{session}.run(v)])"
    )
    start = draw.fill(
        draw.one(
            "{tf.global_variables_initializer}()",
            "{tf.initialize_all_variables}()",
            "{tf.variables_initializer}({tf.global_variables}())",
        )
    )
    run = (
        f"{session}.run({start})\n{session}.run({draw.fill('{tf.local_variables_initializer}()')})\n{values}"
    )
    opened = draw.one("with", "with", "plain", "interactive")
    if opened == "with":
        run = draw.fill(f"with {{tf.Session}}() as {session}:\n") + textwrap.indent(run, "    ")
    else:
        kind = "{tf.Session}" if opened == "plain" else "{tf.InteractiveSession}"
        run = (
            draw.fill(
                f"{session} = {kind}({draw.one('', 'config={tf.ConfigProto}(allow_soft_placement=True)')})\n"
            )
            + run
        )
    body = "\n".join([*([draw.fill("{tf.set_random_seed}(3)")] if seed else []), *statements, run])
    way = draw.one("top", "top", "main", "graph", "app")
    inner = textwrap.indent(body, "    ")
    if way == "main":
        body = f"def main():\n{inner}\n\nif __name__ == '__main__':\n    main()"
    elif way == "graph":
        body = draw.fill("with {tf.Graph}().as_default():\n") + inner
    elif way == "app":
        body = f"def main(_):\n{inner}\n\n" + draw.fill(
            "try:\n    {tf.app.run}(main, ['x'])\nexcept SystemExit:\n    pass"
        )
    return draw.write(body)


def names(draw: Old) -> str:
    graph = Graph(draw)
    made, fed = _inputs(draw, graph)
    statements, told = [made], []
    for _ in range(draw.random.randint(2, 5)):
        name = draw.name()
        value = graph.other(_OTHERS) if draw.chance(0.4) else graph.matrix(draw.random.randint(1, 2))
        way = draw.one("plain", "plain", "function", "around", "lambda")
        if way == "function":
            statements.append(f"def make_{name}():\n    return {value}\n{name} = make_{name}()")
        elif way == "lambda":
            statements.append(f"{name} = (lambda: {value})()")
        else:
            statements.append(_around(draw, f"{name} = {value}") if way == "around" else f"{name} = {value}")
        told.append(name)
    return _program(draw, statements, told, fed, seed=draw.chance(0.2))


def contrib(draw: Old) -> str:
    """Parts of tf.contrib, one in the other, and now and then a step that trains them."""
    graph = Graph(draw, _CONTRIB)
    made, fed = _inputs(draw, graph)
    statements, told = [made], []
    for _ in range(draw.random.randint(1, 3)):
        name = draw.name()
        value = graph.matrix(draw.random.randint(1, 2))
        statement = _around(draw, f"{name} = {value}")
        if "Cell" in statement:
            opened = draw.fill(
                f"with {{tf.variable_scope}}('rnn{len(told)}', initializer={{tf.constant_initializer}}(0.2)):\n"
            )
            statement = opened + textwrap.indent(statement, "    ")
        statements.append(statement)
        told.append(name)
    way = draw.random.random()
    if way < 0.3:
        rate, _, rest = draw.one(*_CONTRIB_OPTIMIZERS).partition("(")
        statements.append(
            "v = " + draw.fill("{tf.get_variable}('v', [3, 4], initializer={tf.constant_initializer}(0.5))")
        )
        statements.append(
            draw.fill(
                f"step = {{tf.contrib.opt.{rate}}}({rest}.minimize({{tf.reduce_sum}}({told[0]} * v), var_list=[v])"
            )
        )
        told = ["step", *told, "step", told[0]]
    elif way < 0.6:
        statements.append(
            "v = " + draw.fill("{tf.get_variable}('v', [3, 4], initializer={tf.constant_initializer}(0.5))")
        )
        count = draw.one(
            "{tf.contrib.framework.get_or_create_global_step}()",
            "{tf.contrib.framework.create_global_step}()",
        )
        # Its value is the loss before or after the update: in TensorFlow 1 the two race.
        more = draw.one("", ", clip_gradients=0.5", ", learning_rate_decay_fn=lambda rate, k: rate * 0.5")
        statements.append(
            draw.fill(
                f"step = {{tf.contrib.layers.optimize_loss}}({{tf.reduce_sum}}({told[0]} * v), {count}, 0.1, {draw.one(repr('SGD'), repr('Momentum'))}{more}).op"
            )
        )
        told = ["step", *told, "step", told[0]]
    else:
        hold = draw.name()
        statements.append(
            f"{hold} = "
            + draw.fill("{tf.contrib.training.HParams}(size=3, rate=0.5, name='a')")
            + f"\n{hold}.parse('size=4,rate=0.25')\nshow('size', sorted({hold}.values().items()))"
        )
    return _program(draw, statements, told, fed)


def training(draw: Old) -> str:
    """A loss, an optimizer and a few steps."""
    graph = Graph(draw)
    made, fed = _inputs(draw, graph)
    graph.leaves = graph.leaves[:1]
    layer = draw.fill(
        f"w = {{tf.get_variable}}('w', [4, 4], initializer={draw.fill(draw.one(*_INITIALIZERS))})\nout = {{tf.matmul}}({graph.leaves[0]}, w)"
    )
    graph.leaves.append("out")
    loss = draw.fill(draw.one(*_LOSSES), m=lambda: "out", n=lambda: graph.leaves[0], i=lambda: "whole")
    rate, _, rest = draw.one(*_OPTIMIZERS).partition("(")
    step = draw.one(
        "{tf.train.get_or_create_global_step}()",
        "{tf.train.create_global_step}()",
        "{tf.Variable}(0, trainable=False, name='global_step')",
    )
    if draw.chance(0.4):
        decay = draw.one("exponential_decay(0.1, step, 2, 0.5)", "polynomial_decay(0.1, step, 5)", "piecewise_constant(step, [1, 2], [0.1, 0.2, 0.3])",
                         "cosine_decay(0.1, step, 4)", "inverse_time_decay(0.1, step, 2, 0.5)")  # fmt: skip
        rate, rest = (
            "GradientDescentOptimizer",
            draw.fill(f"{{tf.train.{decay.partition('(')[0]}}}(") + decay.partition("(")[2] + ")",
        )
    optimizer = draw.fill(f"{{tf.train.{rate}}}(") + rest
    minimize = draw.one("opt.minimize(loss, global_step=step)", "opt.apply_gradients(opt.compute_gradients(loss), step)",
                        draw.fill("opt.apply_gradients(zip({tf.clip_by_global_norm}({tf.gradients}(loss, {tf.trainable_variables}()), 1.0)[0], {tf.trainable_variables}()), step)"))  # fmt: skip
    statements = [
        made,
        layer,
        f"loss = {loss}",
        draw.fill(f"step = {step}"),
        f"opt = {optimizer}",
        f"train = {minimize}",
    ]
    if draw.chance(0.3):
        statements.append(draw.fill("accuracy, update = {tf.metrics.accuracy}(whole, {tf.argmax}(out, 1))"))
        told = ["train", "loss", "train", "update", "accuracy", "loss", "step"]
    else:
        told = ["loss", "train", "loss", "train", "train", "loss", "step"]
    return _program(draw, statements, told, fed)


def layers(draw: Old) -> str:
    graph = Graph(draw)
    made, fed = _inputs(draw, graph)
    net, statements = graph.leaves[0], [made]
    for number in range(draw.random.randint(1, 3)):
        init = draw.fill(draw.one(*_INITIALIZERS))
        bare = draw.one("", f", name='l{number}'")
        layer = draw.one(
            f"{{tf.layers.dense}}({net}, 4, {draw.one('None', 'tf_relu', 'activation=tf_relu')}, kernel_initializer={init}{bare})",
            f"{{tf.layers.dense}}({net}, units=4, kernel_initializer={init}, use_bias=False{bare})",
            f"{{tf.layers.Dense}}(4, kernel_initializer={init}{bare})({net})",
            f"{{tf.layers.batch_normalization}}({net}, training={draw.one(True, False)}{bare})",
            f"{{tf.layers.dropout}}({net}, 0.5, seed=3, training={draw.one(True, False)})",
            f"{{tf.layers.conv2d}}({net}[None, :, :, None], 1, [2, 2], padding='same', kernel_initializer={init}{bare})[0, :, :, 0]",
            f"{{tf.layers.conv1d}}({net}[None], 4, 2, padding='SAME', kernel_initializer={init}{bare})[0]",
            f"{{tf.layers.max_pooling2d}}({net}[None, :, :, None], 2, 1, 'same')[0, :, :, 0]",
            f"{{tf.layers.flatten}}({net}[:, :, None])",
            f"{{tf.nn.dynamic_rnn}}({{tf.nn.rnn_cell.{draw.one('GRUCell', 'BasicRNNCell', 'LSTMCell')}}}(4), {net}[None], dtype={{tf.float32}})[0][0]",
            f"{{tf.nn.static_rnn}}({{tf.nn.rnn_cell.BasicLSTMCell}}(4), [{net}], dtype={{tf.float32}})[0][0]",
            f"{{tf.nn.bidirectional_dynamic_rnn}}({{tf.nn.rnn_cell.GRUCell}}(2), {{tf.nn.rnn_cell.GRUCell}}(2), {net}[None], dtype={{tf.float32}})[0][0][0, :, :1] + {net}",
            f"{{tf.contrib.layers.fully_connected}}({net}, 4, weights_initializer={init})", f"{{tf.contrib.layers.layer_norm}}({net})",
            f"{{tf.nn.dynamic_rnn}}({{tf.contrib.rnn.MultiRNNCell}}([{{tf.contrib.rnn.LSTMCell}}(4) for _ in range(2)]), {net}[None], dtype={{tf.float32}})[0][0]",
        )  # fmt: skip
        layer = draw.fill(layer.replace("tf_relu", "{tf.nn.relu}"))
        if "rnn" in layer:
            layer = _around(draw, f"net{number} = {layer}").replace("variable_scope", "variable_scope")
            opened = draw.fill(
                f"with {{tf.variable_scope}}('rnn{number}', initializer={{tf.constant_initializer}}(0.{number + 1})):\n"
            )
            statements.append(opened + textwrap.indent(layer, "    "))
        else:
            statements.append(_around(draw, f"net{number} = {layer}"))
        net = f"net{number}"
    if draw.chance(0.5):
        statements.append(
            draw.fill(
                f"train = {{tf.train.GradientDescentOptimizer}}(0.1).minimize({{tf.reduce_sum}}({net} ** 2))"
            )
        )
        if not any(
            "get_variable" in s or "dense" in s or "conv" in s or "rnn" in s or "norm" in s or "Variable" in s
            for s in statements
        ):
            statements.pop()
    told = [net] if not statements[-1].startswith("train") else [net, "train", net]
    return _program(draw, statements, told, fed)


def dimensions(draw: Old) -> str:
    graph = Graph(draw)
    made, fed = _inputs(draw, graph)
    shape = draw.one("{m}.shape", "{m}.get_shape()", "sizes", "{m}.shape[0:]")
    number = draw.one("0", "1", "-1")
    size = draw.name()
    statements = [made]
    if shape == "sizes":
        statements.append(f"sizes = {graph.leaves[0]}.{draw.one('shape', 'get_shape()')}")
    value = (
        f"{shape.format(m=graph.leaves[0])}[{number}]{draw.one('', ' ')}.value"
        if draw.chance(0.9)
        else f"{shape.format(m=graph.leaves[0])}[-1].value"
    )
    if shape != "sizes" and draw.chance(0.3):
        statements.append(
            "class Box:\n    def __init__(self):\n        self.value = 2\nbox = [Box()]\nother = box[0].value"
        )
    statements.append(f"{size} = {value}")
    use = draw.one(f"{{tf.ones}}([{size} * 2])", f"{{tf.zeros}}([{size}, {value}]) + {size}", f"{{tf.constant}}([{size} or 0, {size} // 2])",
                   f"{{tf.fill}}([2], {value} if {size} is not None else -1)", f"{{tf.reshape}}({graph.leaves[1]}, [-1, {value} or 4])")  # fmt: skip
    statements += [draw.fill(f"out = {use}"), f"show('size', {size})", f"show('type', type({size}).__name__)"]
    return _program(draw, statements, ["out"], fed)


def iterators(draw: Old) -> str:
    made = draw.one(
        "{tf.data.Dataset.range}(10)",
        "{tf.data.Dataset.from_tensor_slices}([1.0, 2.0, 3.0, 4.0])",
        "{tf.data.Dataset.from_tensors}(2).repeat(5)",
    )
    data = draw.name()
    steps = draw.random.sample(
        [
            ".batch(2)",
            ".map(lambda v: v * 2)",
            ".repeat()",
            ".shuffle(4, seed=2)",
            ".prefetch(1)",
            ".skip(1)",
            ".cache()",
        ],
        draw.random.randint(0, 3),
    )
    chain = draw.fill(made) + "".join(steps)
    kind = draw.one("one_shot", "initializable")
    if draw.chance(0.25):  # a class of the user's with a method of the name
        return draw.write(
            f"class Source:\n    def make_{kind}_iterator(self):\n        return 5\n\n{data} = Source()\nshow('own', {data}.make_{kind}_iterator())\n"
        )
    way = draw.one("name", "chain", "function", "apply")
    if way == "apply":
        chain = chain.removesuffix(".repeat()") + draw.fill(
            ".apply({tf.contrib.data.batch_and_drop_remainder}(2))"
        )
    if way in ("name", "apply"):
        statements = [f"{data} = {chain}", f"it = {data}.make_{kind}_iterator()"]
    elif way == "chain":
        statements = [f"it = {chain}.make_{kind}_iterator()"]
    else:
        statements = [f"def {data}():\n    d = {chain}\n    return d.make_{kind}_iterator()\nit = {data}()"]
    statements.append("first = it.get_next()")
    if kind == "initializable":
        statements.append("start = it.initializer")
    return _program(
        draw, statements, [*(["start"] if kind == "initializable" else []), "first", "first"], "{}"
    )


def precision(draw: Old) -> str:
    policy = draw.one("'mixed_float16'", "'float32'", "{tf.keras.mixed_precision.experimental.Policy}('mixed_float16')",
                      "{tf.keras.mixed_precision.experimental.Policy}('float32', loss_scale=None)", "{tf.keras.mixed_precision.experimental.Policy}('float64')")  # fmt: skip
    lines = [draw.fill(f"{{tf.keras.mixed_precision.experimental.set_policy}}({policy})"),
             draw.fill("p = {tf.keras.mixed_precision.experimental.global_policy}()"), "show('name', p.name)"]  # fmt: skip
    lines += ["show('types', [p.compute_dtype, p.variable_dtype])"] if draw.chance(0.7) else []
    lines.append(
        draw.fill(
            "layer = {tf.keras.layers.Dense}(2)\nout = layer({tf.ones}([1, 3]))\nshow('dtype', str(out.dtype.name))"
        )
    )
    if draw.chance(0.3):
        lines = ["def choose():\n" + textwrap.indent("\n".join(lines), "    "), "choose()"]
    return draw.write("\n".join(lines))


def estimator(draw: Old) -> str:
    """A model_fn that is trained a few steps, evaluated and asked for predictions."""
    return _estimator(draw, "")


def tpu(draw: Old) -> str:
    return _estimator(draw, draw.one("contrib.tpu", "estimator.tpu"))


def cross_shard(draw: Old) -> str:
    return _estimator(
        draw,
        draw.one("contrib.tpu", "tpu", ""),
        draw.one("contrib.tpu.CrossShardOptimizer", "tpu.CrossShardOptimizer"),
    )


def _estimator(draw: Old, place: str, wrapper: str = "") -> str:
    graph = Graph(draw)
    graph.leaves = ["x"]
    spec, modes = (
        f"{{tf.{place}.TPUEstimatorSpec}}" if place and place != "tpu" else "{tf.estimator.EstimatorSpec}",
        "{tf.estimator.ModeKeys}",
    )
    is_tpu = "TPU" in spec
    init = draw.fill(draw.one(*_INITIALIZERS))
    layer = draw.one(
        "{tf.matmul}(x, {tf.get_variable}('w', [4, 4], initializer=" + init + "))",
        "{tf.layers.dense}(x, 4, kernel_initializer=" + init + ", name='d')",
    )
    loss = draw.fill(draw.one(*_LOSSES[:6]), m=lambda: "out", n=lambda: "x", i=lambda: "labels")
    rate, _, rest = draw.one(*_OPTIMIZERS).partition("(")
    optimizer = draw.fill(f"{{tf.train.{rate}}}(") + rest
    wrapped = ""
    if wrapper:
        use = draw.one("use_tpu", "params['use_tpu']", "False")
        arguments = draw.one(
            "opt", "opt=opt", "opt, name='shards'", "opt, " + draw.fill("{tf.losses.Reduction.MEAN}")
        )
        wrapped = draw.one(
            f"if {use}:\n    opt = {{wrapper}}({arguments})",
            f"opt = {{wrapper}}({arguments}) if {use} else opt",
        )
        wrapped = wrapped.replace("{wrapper}", draw.of(wrapper))
    body = ["x = features['x']", draw.fill(f"out = {layer}"),
            draw.fill(f"if mode == {modes}.PREDICT:\n    return {spec}(mode, predictions={{'out': out}})"), f"loss = {loss}",
            f"opt = {optimizer}", *([wrapped] if wrapped else []),
            draw.fill("train = opt.minimize(loss, global_step={tf.train.get_global_step}())")]  # fmt: skip
    if is_tpu:
        metrics = draw.fill(
            "(lambda a, b: {'acc': {tf.metrics.accuracy}(a, {tf.argmax}(b, 1))}, [labels, out])"
        )
        body.append(
            draw.fill(
                f"if mode == {modes}.EVAL:\n    return {spec}(mode=mode, loss=loss, eval_metrics={metrics})\nreturn {spec}(mode, loss=loss, train_op=train)"
            )
        )
    else:
        metrics = draw.fill("{'acc': {tf.metrics.accuracy}(labels, {tf.argmax}(out, 1))}")
        body.append(
            draw.fill(f"return {spec}(mode=mode, loss=loss, train_op=train, eval_metric_ops={metrics})")
        )
    arguments = draw.one("features, labels, mode, params", "features, labels, mode, params, config=None")
    lines = ["use_tpu = False", f"def model_fn({arguments}):\n" + textwrap.indent("\n".join(body), "    ")]
    data = draw.fill(
        f"d = {{tf.data.Dataset.from_tensor_slices}}(({{'x': np.array({draw.numbers(8)}, np.float32)}}, np.array([0, 1, 2, 3] * 2)))"
    )
    size = "params['batch_size']" if is_tpu else "4"
    made = f"d.repeat(times).batch({size}, drop_remainder=True)"
    returned = draw.one(
        f"return {made}",
        f"return {made}.make_one_shot_iterator().get_next()",
        f"d = {made}\n    return d.make_one_shot_iterator().get_next()",
    )
    lines.append(f"def input_fn(params, times={draw.one('None', '9')}):\n    {data}\n    {returned}")
    lines.append("def few(params):\n    return input_fn(params, 1)")
    if is_tpu:
        config = draw.fill(
            f"{{tf.{place}.RunConfig}}(model_dir=folder, tpu_config={{tf.{place}.TPUConfig}}(iterations_per_loop=2))"
        )
        sizes = "train_batch_size=4, eval_batch_size=4, predict_batch_size=4"
        lines.append(
            "e = "
            + draw.of(f"{place}.TPUEstimator")
            + f"(model_fn, config={config}, use_tpu=False, params={{'use_tpu': False}}, {sizes})"
        )
    else:
        config = draw.fill("{tf.estimator.RunConfig}(folder, tf_random_seed=5)")
        given = draw.one(
            "model_dir=folder, params={'use_tpu': False}", f"config={config}, params=dict(use_tpu=False)"
        )
        lines.append("e = " + draw.of("estimator.Estimator") + f"(model_fn, {given})")
    train = draw.one("e.train(input_fn, steps=3)", "e.train(input_fn=input_fn, max_steps=3)",
                     draw.fill("{tf.estimator.train_and_evaluate}(e, {tf.estimator.TrainSpec}(input_fn, max_steps=3), {tf.estimator.EvalSpec}(few, steps=1))"))  # fmt: skip
    ask = [train, "for key, number in sorted(e.evaluate(few, steps=2).items()):\n    show(key, number)",
           "for number, row in enumerate(e.predict(few)):\n    show(number, row['out'])",
           "for name in sorted(e.get_variable_names()):\n    show(name, e.get_variable_value(name))"]  # fmt: skip
    if draw.chance(0.4):
        ask = ["def main(_=None):\n" + textwrap.indent("\n".join(ask), "    "), "main()"]
    return draw.write("\n".join([*lines, *ask]))


PATTERNS: dict[str, tuple[Pattern, ...]] = {
    "PW610": (names, training), "PW611": (estimator,), "PW612": (tpu,), "PW613": (cross_shard,), "PW614": (contrib, contrib, layers, iterators),
    "PW615": (layers,), "PW616": (dimensions,), "PW625": (iterators,), "PW626": (names, training), "PW631": (precision,),
}  # fmt: skip


def program(code: str, seed: str) -> str:
    draw = Old(f"{code} {seed}")
    return draw.one(*PATTERNS[code])(draw)
