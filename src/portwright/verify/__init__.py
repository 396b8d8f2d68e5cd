"""Proves that two training scripts compute the same: both are run and recorded, and the recordings compared."""

from portwright.callable_package import make_callable

make_callable(__name__)
