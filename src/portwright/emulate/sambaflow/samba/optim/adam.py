"""sambaflow.samba.optim.adam: where some scripts look for AdamW."""

from __future__ import annotations

from portwright.emulate.sambaflow.samba.optim import AdamW  # noqa: F401
