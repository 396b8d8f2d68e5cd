"""What the Cerebras front end asks of an op beyond having a kernel: one small function for each rule, the reason or None.

The rules were learned by asking SDK 2.10.0 (tests/vendor/refresh.py); the words in quotes are its own. Importing the three files
fills the list.
"""

from __future__ import annotations

from portwright.targets.csx import constraints_arguments, constraints_shapes
from portwright.targets.csx.constraints_base import CONSTRAINTS
from portwright.targets.csx.constraints_dtypes import DTYPES, find_everywhere

__all__ = ["CONSTRAINTS", "DTYPES", "constraints_arguments", "constraints_shapes", "find_everywhere"]
