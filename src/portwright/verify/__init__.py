"""Proves that two training scripts compute the same: both are run and recorded, and the recordings compared."""
