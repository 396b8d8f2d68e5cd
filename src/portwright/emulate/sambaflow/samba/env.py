"""sambaflow.samba.env: switches of stochastic rounding. The emulator rounds to nearest, so off is accepted and on is refused."""

from __future__ import annotations

from portwright.emulate.sambaflow._refusal import not_emulated

_WHY, _INSTEAD = "the emulator rounds to nearest.", "Leave stochastic rounding off here."

enable_conv_grad_accum_stoc = not_emulated("samba.env.enable_conv_grad_accum_stoc", _WHY, _INSTEAD)
enable_addbias_grad_accum_stoc = not_emulated("samba.env.enable_addbias_grad_accum_stoc", _WHY, _INSTEAD)


def disable_sgd_stoc() -> None:
    """Accepted: there is no stochastic rounding to switch off."""
