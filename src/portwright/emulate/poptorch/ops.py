"""PopTorch's functions for use inside of models; each has the signature of the real one."""

from __future__ import annotations

from portwright.emulate.poptorch._block_ops import (
    BeginBlock,
    Block,
    BlockFunction,
    LegacyBeginBlockFn,
    _BlockHook,
    removeBlocks,
)
from portwright.emulate.poptorch._control_ops import MultiConv, NameScope, cond, for_loop
from portwright.emulate.poptorch._host_ops import CPU, custom_op, ipu_print_tensor
from portwright.emulate.poptorch._points import ctc_beam_search_decoder, fps, nearest
from portwright.emulate.poptorch._tensor_ops import (
    dynamic_slice,
    dynamic_update,
    identity_loss,
    nop,
    recomputationCheckpoint,
    serializedMatMul,
    set_available_memory,
    set_overlap_for_input,
    set_overlap_for_output,
)

__all__ = [
    "CPU",
    "BeginBlock",
    "Block",
    "BlockFunction",
    "LegacyBeginBlockFn",
    "MultiConv",
    "NameScope",
    "_BlockHook",
    "cond",
    "ctc_beam_search_decoder",
    "custom_op",
    "dynamic_slice",
    "dynamic_update",
    "for_loop",
    "fps",
    "identity_loss",
    "ipu_print_tensor",
    "nearest",
    "nop",
    "recomputationCheckpoint",
    "removeBlocks",
    "serializedMatMul",
    "set_available_memory",
    "set_overlap_for_input",
    "set_overlap_for_output",
]
