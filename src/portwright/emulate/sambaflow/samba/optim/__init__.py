"""sambaflow.samba.optim: what the device updates weights with; their host part holds settings and state, and never steps."""

from __future__ import annotations

from portwright.emulate.sambaflow._refusal import not_emulated
from portwright.emulate.sambaflow.samba.optim.adam import AdamW
from portwright.emulate.sambaflow.samba.optim.sgd import SGD

Adam, SparseAdamW = not_emulated("samba.optim.Adam"), not_emulated("samba.optim.SparseAdamW")

__all__ = ["SGD", "Adam", "AdamW", "SparseAdamW"]
