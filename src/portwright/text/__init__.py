"""Text for language models: tokenizers, rows of documents, masking, span corruption, and the data sets made of them.

Names load on first use; torch is imported only by the functions that make a data set.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from portwright.text.datasets import causal_lm as causal_lm
    from portwright.text.datasets import make_dataloader as make_dataloader
    from portwright.text.datasets import masked_lm as masked_lm
    from portwright.text.datasets import span_corruption as span_corruption
    from portwright.text.datasets import translation as translation
    from portwright.text.objectives import Document as Document
    from portwright.text.objectives import Objective as Objective
    from portwright.text.shipped import shipped_documents as shipped_documents
    from portwright.text.sources import section_options as section_options
    from portwright.text.tokenizer import Tokenizer as Tokenizer
    from portwright.text.tokenizer_files import load_tokenizer as load_tokenizer
    from portwright.text.tokenizer_training import train_tokenizer as train_tokenizer

_MODULES = {
    "Document": "objectives",
    "Objective": "objectives",
    "Tokenizer": "tokenizer",
    "causal_lm": "datasets",
    "load_tokenizer": "tokenizer_files",
    "make_dataloader": "datasets",
    "masked_lm": "datasets",
    "section_options": "sources",
    "shipped_documents": "shipped",
    "span_corruption": "datasets",
    "train_tokenizer": "tokenizer_training",
    "translation": "datasets",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
