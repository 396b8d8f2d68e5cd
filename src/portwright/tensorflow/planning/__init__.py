"""Plans of TensorFlow steps: what is planned, how it is judged, and what a compile leaves."""
