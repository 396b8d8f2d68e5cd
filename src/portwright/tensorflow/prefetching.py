"""Reading ahead of the step, for a pipeline whose writer forgot to."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from portwright.tensorflow.bad_input import BadValue
from portwright.tensorflow.input_check.stages import Stage, read_stages

_SWITCH = "PORTWRIGHT_TF_PREFETCH"


def is_wanted() -> bool:
    """Whether the environment asks for it with PORTWRIGHT_TF_PREFETCH=1; docs/benchmarks.md says why it must be asked for."""
    value = os.environ.get(_SWITCH, "0")
    if value not in ("0", "1", ""):
        raise BadValue(f"{_SWITCH} is {value!r}.", "Set it to 0 or 1, or unset it.")
    return value == "1"


def needs_prefetch(dataset: Any) -> bool:
    """Whether a dataset makes a batch only when a step asks for it.

    One that calls Python is left as it is: its code could notice that it runs ahead.
    """
    stages = read_stages(dataset)
    last = next((stage for stage in reversed(stages) if stage.kind != "options"), None)
    return last is not None and last.kind != "prefetch" and not _call_python(stages)


def append_prefetch(dataset: Any, initializer: tf.Operation) -> None:
    """Has the op that starts an iterator over `dataset` start it over the same dataset, read ahead.

    It is done to the finished graph, because the seeds of a model's ops come of the number of ops before them: these
    must stay what they are with tf.estimator.
    """
    with tf.device(dataset._variant_tensor.device):
        ahead = dataset.prefetch(tf.data.AUTOTUNE)
    initializer._update_input(0, ahead._variant_tensor)


def _call_python(stages: Iterable[Stage]) -> bool:
    return any(
        stage.calls_python or any(_call_python(branch) for branch in stage.branches) for stage in stages
    )
