"""Refusals that old code can catch as it always did, and that a person can act on."""

from __future__ import annotations

from portwright.errors import UserError


class BadValue(UserError, ValueError):
    """A value that tf.estimator refused with a ValueError."""


class BadType(UserError, TypeError):
    """A value that tf.estimator refused with a TypeError."""
