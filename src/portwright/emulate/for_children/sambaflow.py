"""Found through PYTHONPATH by the processes that an emulated script starts: gives them the emulator under its name."""

import sys

from portwright.emulate import lend

del sys.modules["sambaflow"]
lend("sambaflow")
