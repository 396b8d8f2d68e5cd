"""poptorch.profiling: there is no IPU to profile."""

from __future__ import annotations

from portwright.emulate.poptorch._names import refused_of

__getattr__ = refused_of("profiling")
