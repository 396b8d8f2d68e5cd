"""sambaflow.samba.utils.trainer.samba."""

from __future__ import annotations

from portwright.emulate.sambaflow._refusal import not_emulated

train = not_emulated(
    "samba.utils.trainer.samba.train", "no public document says what it does.", "Write the loop."
)
