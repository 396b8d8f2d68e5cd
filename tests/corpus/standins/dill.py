"""Not dill: the corpus keeps only what pickle can keep."""

from pickle import dump, dumps, load, loads

__version__ = "0.3.1"  # torch asks
__all__ = ["dump", "dumps", "extend", "load", "loads"]


def extend(use_dill=True):
    """torch calls it when it finds dill."""
