"""sambaflow.samba.optim: what the device updates weights with; their host part holds settings and state, and never steps."""

from __future__ import annotations

from portwright.emulate.sambaflow._refusal import not_emulated
from portwright.emulate.sambaflow.samba.optim.adam import AdamW
from portwright.emulate.sambaflow.samba.optim.sgd import SGD

Adam = not_emulated(
    "samba.optim.Adam",
    "SambaFlow's API reference has SGD, AdamW and SparseAdamW, and no Adam; a few public ports call it all the same.",
    "Use samba.optim.AdamW with weight_decay=0, which is Adam.",
)
SparseAdamW = not_emulated(
    "samba.optim.SparseAdamW", "no public example shows what it does.", "Use samba.optim.AdamW."
)

__all__ = ["SGD", "Adam", "AdamW", "SparseAdamW"]
