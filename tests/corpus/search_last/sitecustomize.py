"""Puts the stand-ins behind everything that is installed: a real package is always preferred."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "standins"))
