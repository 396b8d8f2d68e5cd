"""A training step of a model function as a Graph, read from the TensorFlow graph that it builds; nothing is run."""
