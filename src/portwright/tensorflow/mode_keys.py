"""The modes that a model function is called in."""

from __future__ import annotations


class ModeKeys:
    """Names of the modes, with the values that tf.estimator gave them.

    INFERENCE is another name of PREDICT. TRAIN_AND_EVAL is a mode of a run: no graph is ever built for it.
    """

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"
    INFERENCE = "infer"
    TRAIN_AND_EVAL = "train_and_eval"
