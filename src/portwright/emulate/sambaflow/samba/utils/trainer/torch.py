"""sambaflow.samba.utils.trainer.torch."""

from __future__ import annotations

from portwright.emulate.sambaflow._refusal import not_emulated

train = not_emulated(
    "samba.utils.trainer.torch.train", "no public document says what it does.", "Write the loop."
)
