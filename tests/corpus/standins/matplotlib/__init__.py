"""Not matplotlib: nothing is drawn."""

from quiet import Quiet

use = Quiet()
