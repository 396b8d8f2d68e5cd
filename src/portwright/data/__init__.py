"""The input pipeline.

Names load on first use: draws, stores and readers of files need only numpy, so that preparing data and TensorFlow
runs never import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from portwright.data.draws import Draws as Draws
    from portwright.data.gather import ArrayDataset as ArrayDataset
    from portwright.data.gather import FileDataset as FileDataset
    from portwright.data.gather import GatherDataset as GatherDataset
    from portwright.data.gather import StoreDataset as StoreDataset
    from portwright.data.loader import ResumableLoader as ResumableLoader
    from portwright.data.manifest import Field as Field
    from portwright.data.store import Store as Store
    from portwright.data.store_writer import StoreWriter as StoreWriter

_MODULES = {
    "ArrayDataset": "gather",
    "Draws": "draws",
    "Field": "manifest",
    "FileDataset": "gather",
    "GatherDataset": "gather",
    "ResumableLoader": "loader",
    "Store": "store",
    "StoreDataset": "gather",
    "StoreWriter": "store_writer",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
