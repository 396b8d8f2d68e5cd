"""Checks input pipelines: the stages of the tf.data graph, their order and options, and their speed."""
