"""sambaflow.samba.optim.sgd: where some scripts look for SGD."""

from __future__ import annotations

from portwright.emulate.sambaflow.samba.optim import SGD  # noqa: F401
