"""Not accelerate: imported by a trainer that the corpus does not use."""

from quiet import Quiet as Accelerator

__all__ = ["Accelerator"]
