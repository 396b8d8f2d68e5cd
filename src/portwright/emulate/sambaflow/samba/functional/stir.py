"""sambaflow.samba.functional.stir: parallel patterns."""

from __future__ import annotations

from portwright.emulate.sambaflow._refusal import not_emulated

_WHY = "parallel patterns are not emulated."
sn_imm = not_emulated("samba.functional.stir.sn_imm", _WHY)
sn_iteridx = not_emulated("samba.functional.stir.sn_iteridx", _WHY)
sn_select = not_emulated("samba.functional.stir.sn_select", _WHY)
sn_zipmapreduce = not_emulated("samba.functional.stir.sn_zipmapreduce", _WHY)
