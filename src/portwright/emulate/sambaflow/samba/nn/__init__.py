"""sambaflow.samba.nn."""

from __future__ import annotations

from portwright.emulate.sambaflow.samba.nn.parameter import SambaParameter

__all__ = ["SambaParameter"]
