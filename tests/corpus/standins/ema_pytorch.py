"""Not ema_pytorch: imported by a trainer that the corpus does not use."""

from quiet import Quiet as EMA

__all__ = ["EMA"]
