"""Optimizers that torch lacks, or has with other settings than the model zoo."""

from __future__ import annotations

from portwright.runtime.extra_optimizers.adafactor import Adafactor
from portwright.runtime.extra_optimizers.moments import Lamb, Lion, UncorrectedAdam
from portwright.runtime.extra_optimizers.muon import Muon

__all__ = ["Adafactor", "Lamb", "Lion", "Muon", "UncorrectedAdam"]
