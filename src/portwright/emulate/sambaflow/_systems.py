"""What an emulated system asks of a batch, and how a PEF says which system it is for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from portwright.emulate.sambaflow._refusal import SambaFlowError
from portwright.emulate.sambaflow.samba.sambatensor import SambaTensor
from portwright.errors import suggest

SYSTEMS = ("sn10", "sn30", "sn40l")
VARIABLE = "PORTWRIGHT_RDU_SYSTEM"
# SambaFlow documentation, transition to SN30: a default compile takes the 8 tiles of an RDU as two halves, each with half the batch.
_HALF_OF_SN30 = 4
# SambaFlow documentation, mixed precision: unless a preset is named, the compiler forces inputs and operators to BF16; mp0 leaves them.
_PRESETS = {None: "bf16", "default": "bf16", "mp0": "fp32"}


def choose_system(config: Mapping[str, Any]) -> str:
    """The system to compile for: the flag --arch, else the variable, else SN30, whose rules are the strictest."""
    named = config.get("arch")
    chosen = str(named if named not in (None, "native") else os.environ.get(VARIABLE) or "sn30").lower()
    if chosen not in SYSTEMS:
        raise SambaFlowError(f"unknown system '{chosen}'.", suggest(chosen, SYSTEMS))
    return chosen


def choose_precision(config: Mapping[str, Any]) -> str:
    preset = config.get("graphamp_preset")
    if preset not in _PRESETS:
        raise SambaFlowError(
            f"--graphamp-preset {preset} is not emulated by Portwright.",
            "Leave it out (everything in BF16, the documented default), or use mp0 (the types of the model).",
        )
    return _PRESETS[preset]


def check_batch(inputs: Sequence[SambaTensor], system: str, num_tiles: int | None) -> int | None:
    """The batch size of the inputs; an SN30 whose RDU works as two halves wants an even one."""
    sizes = {
        tensor.sn_name: tensor.shape[tensor.batch_dim] for tensor in inputs if tensor.batch_dim is not None
    }
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name}: {size}" for name, size in sizes.items())
        raise SambaFlowError(
            f"the inputs have batches of different sizes ({listed}).", "Give all of them one size."
        )
    size = next(iter(sizes.values()), None)
    if size and size % 2 and system == "sn30" and (num_tiles is None or num_tiles > _HALF_OF_SN30):
        raise SambaFlowError(
            f"the batch size is {size}, and an SN30 wants an even one: two halves of the RDU share each batch.",
            f"Use {size + 1}, or compile with --num-tiles {_HALF_OF_SN30} or for another --arch.",
        )
    return size
