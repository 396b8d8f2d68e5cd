"""sambaflow.samba.sn_private: the vendor's own ops, of which no public document says what they compute."""

from __future__ import annotations

from portwright.emulate.sambaflow._refusal import not_emulated

_WHY = "no public document says what it computes."
sn_gather = not_emulated("samba.sn_private.sn_gather", _WHY)
sn_scatter = not_emulated("samba.sn_private.sn_scatter", _WHY)
sn_multinomial = not_emulated("samba.sn_private.sn_multinomial", _WHY)
