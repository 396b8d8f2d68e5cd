"""The input pipeline.

Names load on first use: draws, stores and readers of files need numpy alone, so that preparing data and TensorFlow
runs do without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from portwright.data.draws import Draws
    from portwright.data.file_dataset import FileDataset
    from portwright.data.gather import ArrayDataset, GatherDataset
    from portwright.data.loader import ResumableLoader
    from portwright.data.manifest import Field
    from portwright.data.store import Store
    from portwright.data.store_dataset import StoreDataset
    from portwright.data.store_writer import StoreWriter

_PUBLIC = {
    "ArrayDataset": "portwright.data.gather",
    "Draws": "portwright.data.draws",
    "FileDataset": "portwright.data.file_dataset",
    "Field": "portwright.data.manifest",
    "GatherDataset": "portwright.data.gather",
    "ResumableLoader": "portwright.data.loader",
    "Store": "portwright.data.store",
    "StoreDataset": "portwright.data.store_dataset",
    "StoreWriter": "portwright.data.store_writer",
}
__all__ = [
    "ArrayDataset",
    "Draws",
    "Field",
    "FileDataset",
    "GatherDataset",
    "ResumableLoader",
    "Store",
    "StoreDataset",
    "StoreWriter",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(
            f"module 'portwright.data' has no attribute {name!r}; it has {', '.join(__all__)}"
        )
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
