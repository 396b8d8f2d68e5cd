"""sambaflow.samba.utils.checkpoint."""

from __future__ import annotations

from portwright.emulate.sambaflow._refusal import not_emulated

load_sharded_checkpoint = not_emulated(
    "samba.utils.checkpoint.load_sharded_checkpoint",
    "its format is not public.",
    "Use model.load_state_dict.",
)
