"""poptorch.testing, which only the vendor's own tests were found to use."""

from __future__ import annotations

from portwright.emulate.poptorch._names import refused_of

__getattr__ = refused_of("testing")
