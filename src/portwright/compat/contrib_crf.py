"""Linear-chain conditional random fields, as tf.contrib.crf had them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf


def _score(inputs: Any, tag_indices: Any, lengths: Any, transition_params: Any) -> Any:
    """The score of each sequence of tags, and of its steps from tag to tag; 0 for an empty one."""
    tags = tf.cast(tag_indices, tf.int32)
    chosen = tf.gather(inputs, tags, axis=2, batch_dims=2)
    mask = tf.sequence_mask(lengths, tf.shape(tags)[1], dtype=inputs.dtype)
    steps = tf.gather_nd(transition_params, tf.stack([tags[:, :-1], tags[:, 1:]], -1))
    step_mask = tf.sequence_mask(tf.maximum(lengths - 1, 0), tf.shape(tags)[1] - 1, dtype=steps.dtype)
    return tf.reduce_sum(chosen * mask, 1) + tf.reduce_sum(steps * step_mask, 1)


def _log_norm(inputs: Any, lengths: Any, transition_params: Any) -> Any:
    """The logarithm of the sum over all sequences of tags; 0 for an empty one."""
    steps = tf.transpose(inputs, [1, 0, 2])

    def advance(state: Any, element: Any) -> Any:
        scores, index = element
        new = tf.reduce_logsumexp(state[:, :, None] + transition_params[None], 1) + scores
        return tf.where_v2((index < lengths)[:, None], new, state)

    states = tf.foldl(advance, (steps[1:], tf.range(1, tf.shape(steps)[0])), initializer=steps[0])
    norm = tf.reduce_logsumexp(states, 1)
    return tf.where_v2(lengths > 0, norm, tf.zeros_like(norm))


def crf_log_likelihood(
    inputs: Any, tag_indices: Any, sequence_lengths: Any, transition_params: Any = None
) -> tuple[Any, Any]:
    """The log likelihood of each sequence of tags, and the transition weights, which are created unless given."""
    if transition_params is None:
        num_tags = inputs.shape.as_list()[2]
        transition_params = tf.get_variable("transitions", [num_tags, num_tags])
    lengths = tf.cast(sequence_lengths, tf.int32)
    score = _score(inputs, tag_indices, lengths, transition_params)
    return score - _log_norm(inputs, lengths, transition_params), transition_params


def crf_decode(potentials: Any, transition_params: Any, sequence_length: Any) -> tuple[Any, Any]:
    """The best sequence of tags of each, and its score; tags past its end are 0."""
    lengths = tf.cast(sequence_length, tf.int32)
    steps = tf.transpose(potentials, [1, 0, 2])
    count, num_tags = tf.shape(steps)[0], tf.shape(steps)[2]
    places = tf.range(1, count)

    def advance(state: Any, element: Any) -> Any:
        scores, index = element
        paths = state[0][:, :, None] + transition_params[None]
        is_inside = (index < lengths)[:, None]
        new = tf.where_v2(is_inside, tf.reduce_max(paths, 1) + scores, state[0])
        came_from = tf.argmax(paths, 1, output_type=tf.int32)
        stays = tf.broadcast_to(tf.range(num_tags)[None], tf.shape(came_from))
        return new, tf.where_v2(is_inside, came_from, stays)

    start = (steps[0], tf.zeros([tf.shape(steps)[1], num_tags], tf.int32))
    states, backs = tf.scan(advance, (steps[1:], places), initializer=start)
    last = tf.concat([steps[:1], states], 0)[-1]
    best = tf.argmax(last, 1, output_type=tf.int32)

    def retreat(tag: Any, back: Any) -> Any:
        return tf.gather(back, tag, axis=1, batch_dims=1)

    earlier = tf.scan(retreat, backs, initializer=best, reverse=True)
    tags = tf.transpose(tf.concat([earlier, best[None]], 0))
    mask = tf.sequence_mask(lengths, count, dtype=tags.dtype)
    return tags * mask, tf.reduce_max(last, 1)


def viterbi_decode(score: Any, transition_params: Any) -> tuple[list[int], float]:
    """The best tags of one sequence of scores in numpy, and its score."""
    trellis, backs = np.zeros_like(score), np.zeros_like(score, dtype=np.int32)
    trellis[0] = score[0]
    for step in range(1, score.shape[0]):
        paths = np.expand_dims(trellis[step - 1], 1) + transition_params
        trellis[step] = score[step] + np.max(paths, 0)
        backs[step] = np.argmax(paths, 0)
    tags = [int(np.argmax(trellis[-1]))]
    for back in reversed(backs[1:]):
        tags.append(int(back[tags[-1]]))
    return tags[::-1], float(np.max(trellis[-1]))
