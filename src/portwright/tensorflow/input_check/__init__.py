"""The input pipeline looked at: which stages the real tf.data graph has, in which order and with which options, and how fast it is."""
