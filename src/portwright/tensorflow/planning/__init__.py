"""Plans of TensorFlow training steps."""
