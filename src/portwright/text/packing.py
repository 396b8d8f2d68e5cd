"""Puts documents of any length into rows of one length.

A store holds these rows: `tokens` [rows, width], padded at the end, and `length`, the number of tokens in each row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from portwright.data.columns import Arrays

Ids = npt.NDArray[np.int32]


def pack_rows(stream: Ids, length: int, pad_id: int) -> Arrays:
    """Running text in rows of `length` + 1 tokens; each begins with the last token of the row before it.

    So every token but the first is a label exactly once. The last row is padded; no token is lost.
    """
    num_rows = -(-(len(stream) - 1) // length) if len(stream) > 1 else 0
    padded = np.full(num_rows * length + 1, pad_id, np.int32)
    padded[: len(stream)] = stream[: len(padded)]
    tokens = np.lib.stride_tricks.as_strided(
        padded, (num_rows, length + 1), (length * padded.itemsize, padded.itemsize), writeable=False
    ).copy()
    lengths = np.full(num_rows, length + 1, np.int32)
    if num_rows:
        lengths[-1] = len(stream) - (num_rows - 1) * length
    return {"tokens": tokens, "length": lengths}


def chunk_rows(stream: Ids, width: int, pad_id: int) -> Arrays:
    """Running text in rows of `width` tokens without overlap; the last one is padded."""
    num_rows = -(-len(stream) // width)
    tokens = np.full(num_rows * width, pad_id, np.int32)
    tokens[: len(stream)] = stream
    lengths = np.full(num_rows, width, np.int32)
    if num_rows:
        lengths[-1] = len(stream) - (num_rows - 1) * width
    return {"tokens": tokens.reshape(num_rows, width), "length": lengths}


def join_documents(documents: Iterable[Ids]) -> Ids:
    """Joins documents into one array."""
    return np.concatenate([np.zeros(0, np.int32), *documents])


def pad_rows(rows: Sequence[Sequence[int] | Ids], width: int, pad_id: int) -> Arrays:
    """Rows of at most `width` tokens, padded to it."""
    tokens = np.full((len(rows), width), pad_id, np.int32)
    lengths = np.asarray([len(row) for row in rows], np.int32).reshape(len(rows))
    for number, row in enumerate(rows):
        tokens[number, : len(row)] = row
    return {"tokens": tokens, "length": lengths}


def stack_rows(parts: Sequence[Arrays], width: int) -> Arrays:
    """Joins the rows of several pieces."""
    if not parts:
        return {"tokens": np.zeros((0, width), np.int32), "length": np.zeros(0, np.int32)}
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def document_positions(tokens: npt.NDArray[Any], eos_id: int) -> tuple[Ids, Ids]:
    """For packed rows [rows, length]: the number of each token's document in its row, and its place in that document."""
    begins = np.zeros(tokens.shape, np.bool_)
    begins[:, 1:] = tokens[:, :-1] == eos_id
    numbers = np.cumsum(begins, axis=1, dtype=np.int32)
    places = np.arange(tokens.shape[1], dtype=np.int32)
    starts = np.maximum.accumulate(np.where(begins, places, 0), axis=1).astype(np.int32)
    return numbers, places - starts
