"""Not plyfile: imported by a dataset that the corpus does not use."""

from quiet import Quiet as PlyData
from quiet import Quiet as PlyElement

__all__ = ["PlyData", "PlyElement"]
