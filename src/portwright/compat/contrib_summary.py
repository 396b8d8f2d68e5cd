"""tf.contrib.summary: summaries as ops of a graph, which TPU programs write from their host call."""

from __future__ import annotations

from tensorflow.python.ops import summary_ops_v2

always_record_summaries = summary_ops_v2.always_record_summaries
record_summaries_every_n_global_steps = summary_ops_v2.record_summaries_every_n_global_steps
all_summary_ops = summary_ops_v2.all_v2_summary_ops
create_file_writer = summary_ops_v2.create_file_writer
initialize = summary_ops_v2.initialize
flush = summary_ops_v2.legacy_raw_flush
scalar = summary_ops_v2.scalar
histogram = summary_ops_v2.histogram
image = summary_ops_v2.image
audio = summary_ops_v2.audio
