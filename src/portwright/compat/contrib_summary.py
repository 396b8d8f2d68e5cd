"""tf.contrib.summary: summaries as ops of a graph, which TPU programs write from their host call."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.ops import summary_ops_v2

always_record_summaries = summary_ops_v2.always_record_summaries
never_record_summaries = summary_ops_v2.never_record_summaries
record_summaries_every_n_global_steps = summary_ops_v2.record_summaries_every_n_global_steps
should_record_summaries = summary_ops_v2.should_record_summaries
all_summary_ops = summary_ops_v2.all_v2_summary_ops
create_file_writer = summary_ops_v2.create_file_writer
initialize = summary_ops_v2.initialize
flush = summary_ops_v2.legacy_raw_flush
generic = summary_ops_v2.generic
scalar = summary_ops_v2.scalar
histogram = summary_ops_v2.histogram
image = summary_ops_v2.image
audio = summary_ops_v2.audio


def graph(param: Any, step: Any = None, name: str | None = None) -> Any:
    """Writes a graph."""
    return summary_ops_v2.graph_v1(param, step or tf.train.get_or_create_global_step(), name)
