"""sambaflow.samba.utils.benchmark_acc."""

from __future__ import annotations

from portwright.emulate.sambaflow._refusal import not_emulated

AccuracyReport = not_emulated(
    "samba.utils.benchmark_acc.AccuracyReport", "no public document says what it writes."
)
