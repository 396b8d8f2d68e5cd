"""Not torchvision: the part of it that the projects of the corpus use, over generated images."""

from . import datasets, models, transforms, utils

__version__ = "0.0"
__all__ = ["datasets", "models", "transforms", "utils"]
