"""Optimizers that torch lacks, or has with other settings than the model zoo."""

from __future__ import annotations

from portwright.runtime.extra_optimizers.adafactor import Adafactor
from portwright.runtime.extra_optimizers.lamb import Lamb
from portwright.runtime.extra_optimizers.lion import Lion
from portwright.runtime.extra_optimizers.muon import Muon
from portwright.runtime.extra_optimizers.uncorrected_adam import UncorrectedAdam

__all__ = ["Adafactor", "Lamb", "Lion", "Muon", "UncorrectedAdam"]
