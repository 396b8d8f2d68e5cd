"""sambaflow.samba.graph."""

from __future__ import annotations

from portwright.emulate.sambaflow._refusal import not_emulated

FwdGraph = not_emulated("samba.graph.FwdGraph", "programs of several graphs are not emulated.")
