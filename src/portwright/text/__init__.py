"""Text for language models: tokenizers, rows of documents, masking, span corruption, and the data sets made of them.

Names load on first use; torch is imported only by the functions that make a data set.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from portwright.text.datasets import causal_lm, masked_lm, span_corruption, translation
    from portwright.text.evaluation import section_options
    from portwright.text.objectives import Document, Objective
    from portwright.text.shipped import shipped_documents
    from portwright.text.tokenizer import Tokenizer
    from portwright.text.tokenizer_files import load_tokenizer
    from portwright.text.tokenizer_training import train_tokenizer

_PUBLIC = {
    "Document": "portwright.text.objectives",
    "Objective": "portwright.text.objectives",
    "Tokenizer": "portwright.text.tokenizer",
    "causal_lm": "portwright.text.datasets",
    "load_tokenizer": "portwright.text.tokenizer_files",
    "masked_lm": "portwright.text.datasets",
    "section_options": "portwright.text.evaluation",
    "shipped_documents": "portwright.text.shipped",
    "span_corruption": "portwright.text.datasets",
    "train_tokenizer": "portwright.text.tokenizer_training",
    "translation": "portwright.text.datasets",
}
__all__ = [
    "Document",
    "Objective",
    "Tokenizer",
    "causal_lm",
    "load_tokenizer",
    "masked_lm",
    "section_options",
    "shipped_documents",
    "span_corruption",
    "train_tokenizer",
    "translation",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(
            f"module 'portwright.text' has no attribute {name!r}; it has {', '.join(__all__)}"
        )
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
