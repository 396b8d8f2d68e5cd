"""The parts of tf.contrib.rnn and tf.contrib.seq2seq that had their own kernels or loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from portwright.errors import UnsupportedError


class LSTMBlockFusedCell:
    """An LSTM in one kernel over a sequence, time first; its variables are `lstm_fused_cell/kernel` and `bias`, gates in the order i, c, f, o."""

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        cell_clip: float | None = None,
        use_peephole: bool = False,
        reuse: Any = None,
        dtype: Any = None,
        name: str = "lstm_fused_cell",
    ) -> None:
        self._num_units, self._forget_bias, self._clip = num_units, forget_bias, cell_clip
        self._use_peephole, self._reuse, self._name = use_peephole, reuse, name
        self._scope: Any = None  # the scope of the first call, whose variables later calls share

    @property
    def num_units(self) -> int:
        return self._num_units

    def __call__(
        self,
        inputs: Any,
        initial_state: Any = None,
        dtype: Any = None,
        sequence_length: Any = None,
        scope: Any = None,
    ) -> tuple[Any, Any]:
        again = True if self._scope is not None else self._reuse
        with tf.variable_scope(self._scope or scope, self._name, reuse=again) as self._scope:
            inputs = tf.convert_to_tensor(inputs)
            dtype, size = inputs.dtype.base_dtype, self._num_units
            count, batch = tf.shape(inputs)[0], tf.shape(inputs)[1]
            kernel = tf.get_variable("kernel", [inputs.shape.as_list()[2] + size, 4 * size], dtype)
            bias = tf.get_variable("bias", [4 * size], dtype, tf.zeros_initializer())
            none = tf.zeros([size], dtype)
            peepholes = [
                tf.get_variable(f"w_{gate}_diag", [size], dtype) if self._use_peephole else none
                for gate in "ifo"
            ]
            if initial_state is None:
                cell = output = tf.zeros([batch, size], dtype)
            else:
                cell, output = initial_state
            longest = count if sequence_length is None else tf.reduce_max(sequence_length)
            _, cells, _, _, _, _, outputs = tf.raw_ops.BlockLSTM(
                seq_len_max=tf.cast(longest, tf.int64), x=inputs, cs_prev=cell, h_prev=output, w=kernel, wci=peepholes[0],
                wcf=peepholes[1], wco=peepholes[2], b=bias, forget_bias=self._forget_bias,
                cell_clip=-1.0 if self._clip is None else self._clip, use_peephole=self._use_peephole,
            )  # fmt: skip
            if sequence_length is None:
                return outputs, tf.nn.rnn_cell.LSTMStateTuple(cells[-1], outputs[-1])
            mask = tf.transpose(tf.sequence_mask(sequence_length, count, dtype=dtype))[..., None]
            outputs = outputs * mask
            with_first_cell = tf.concat([cell[None], cells], 0)
            with_first_output = tf.concat([output[None], outputs], 0)
            last = tf.stack([tf.cast(sequence_length, tf.int32), tf.range(batch)], 1)
            state = tf.nn.rnn_cell.LSTMStateTuple(
                tf.gather_nd(with_first_cell, last), tf.gather_nd(with_first_output, last)
            )
            return outputs, state


class TimeReversedFusedRNN:
    """Runs another fused RNN from each sequence's end to its beginning."""

    def __init__(self, cell: Any) -> None:
        self._cell = cell

    def __call__(
        self,
        inputs: Any,
        initial_state: Any = None,
        dtype: Any = None,
        sequence_length: Any = None,
        scope: Any = None,
    ) -> tuple[Any, Any]:
        def turn(x: Any) -> Any:
            if sequence_length is None:
                return tf.reverse(x, [0])
            return tf.reverse_sequence(x, sequence_length, seq_axis=0, batch_axis=1)

        outputs, state = self._cell(turn(inputs), initial_state, dtype, sequence_length, scope)
        return turn(outputs), state


class LSTMBlockCell(tf.nn.rnn_cell.BasicLSTMCell):  # type: ignore[misc]
    """The basic LSTM under another name; its variables are called the same."""

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        cell_clip: float | None = None,
        use_peephole: bool = False,
        dtype: Any = None,
        reuse: Any = None,
        name: str = "lstm_cell",
    ) -> None:
        if cell_clip is not None or use_peephole:
            raise UnsupportedError(
                "LSTMBlockCell was given cell_clip or use_peephole, which Portwright's has not.",
                "Use tf.nn.rnn_cell.LSTMCell, which has both.",
            )
        super().__init__(num_units, forget_bias=forget_bias, reuse=reuse, name=name, dtype=dtype)


def stack_bidirectional_dynamic_rnn(
    cells_fw: Sequence[Any],
    cells_bw: Sequence[Any],
    inputs: Any,
    initial_states_fw: Any = None,
    initial_states_bw: Any = None,
    dtype: Any = None,
    sequence_length: Any = None,
    parallel_iterations: int | None = None,
    time_major: bool = False,
    scope: Any = None,
    swap_memory: bool = False,
) -> tuple[Any, Any, Any]:
    """Bidirectional layers on top of each other; each takes both outputs of the one below."""
    states_fw, states_bw = [], []
    with tf.variable_scope(scope or "stack_bidirectional_rnn"):
        for index, (fw, bw) in enumerate(zip(cells_fw, cells_bw, strict=True)):
            with tf.variable_scope(f"cell_{index}"):
                outputs, (state_fw, state_bw) = tf.nn.bidirectional_dynamic_rnn(
                    fw, bw, inputs, sequence_length,
                    initial_states_fw[index] if initial_states_fw else None,
                    initial_states_bw[index] if initial_states_bw else None,
                    dtype, parallel_iterations, swap_memory, time_major,
                )  # fmt: skip
                inputs = tf.concat(outputs, 2)
            states_fw.append(state_fw)
            states_bw.append(state_bw)
    return inputs, tuple(states_fw), tuple(states_bw)


def sequence_loss(
    logits: Any,
    targets: Any,
    weights: Any,
    average_across_timesteps: bool = True,
    average_across_batch: bool = True,
    softmax_loss_function: Any = None,
    name: str | None = None,
) -> Any:
    """Weighted cross-entropy of sequences."""
    with tf.name_scope(name, "sequence_loss", [logits, targets, weights]):
        if softmax_loss_function is None:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits)
        else:
            flat = tf.reshape(logits, [-1, logits.shape.as_list()[2]])
            losses = tf.reshape(
                softmax_loss_function(labels=tf.reshape(targets, [-1]), logits=flat), tf.shape(targets)
            )
        losses = losses * weights
        axes = [
            axis for axis, averaged in enumerate((average_across_batch, average_across_timesteps)) if averaged
        ]
        if not axes:
            return losses
        return tf.reduce_sum(losses, axes) / (tf.reduce_sum(weights, axes) + 1e-12)
