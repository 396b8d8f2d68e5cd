"""SambaFlow as far as its public documents and examples go, computed on this machine's CPU; docs/emulated-sambaflow.md lists its names.

No RDU and no code of the vendor's is used. What is not emulated raises when it is called, and says so.
"""

from __future__ import annotations

import sys

from portwright.emulate.sambaflow._modules import ModuleMaker

__version__ = "1.21.0+emulated"
sys.meta_path.append(ModuleMaker())
