"""Documents of any length in rows of one length.

Rows are what a store holds: `tokens` [rows, width], padded at the end, and `length`, the tokens of each row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Arrays = dict[str, npt.NDArray[Any]]


def pack_rows(stream: Ids, length: int, pad_id: int) -> Arrays:
    """Running text in rows of `length` + 1 tokens; each begins with the last token of the row before it.

    So every token but the first is a label once. The last row is padded; no token is lost.
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


def pack_documents(documents: Iterable[Ids], length: int, eos_id: int, pad_id: int) -> Arrays:
    """Documents one after another, each ended by `eos_id`, in rows of `length` + 1."""
    return pack_rows(join_documents(documents, eos_id), length, pad_id)


def pad_documents(documents: Iterable[Ids], length: int, eos_id: int, pad_id: int) -> Arrays:
    """Each document in rows of its own, a long one in several; most rows are padded."""
    end = np.asarray([eos_id], np.int32)
    return stack_rows(
        [pack_rows(np.concatenate([each, end]), length, pad_id) for each in documents], length + 1
    )


def chunk_rows(stream: Ids, width: int, pad_id: int) -> Arrays:
    """Running text in rows of `width` tokens without overlap; the last one is padded."""
    num_rows = -(-len(stream) // width)
    tokens = np.full(num_rows * width, pad_id, np.int32)
    tokens[: len(stream)] = stream
    lengths = np.full(num_rows, width, np.int32)
    if num_rows:
        lengths[-1] = len(stream) - (num_rows - 1) * width
    return {"tokens": tokens.reshape(num_rows, width), "length": lengths}


def join_documents(documents: Iterable[Ids], end_id: int | None) -> Ids:
    """Documents one after another; `end_id` ends each, where it is given."""
    parts: list[Ids] = []
    for document in documents:
        parts.append(document)
        if end_id is not None:
            parts.append(np.asarray([end_id], np.int32))
    return np.concatenate(parts).astype(np.int32, copy=False) if parts else np.zeros(0, np.int32)


def pad_rows(rows: Sequence[Sequence[int] | Ids], width: int, pad_id: int) -> Arrays:
    """Rows of at most `width` tokens, padded to it."""
    tokens = np.full((len(rows), width), pad_id, np.int32)
    lengths = np.asarray([len(row) for row in rows], np.int32).reshape(len(rows))
    for number, row in enumerate(rows):
        tokens[number, : len(row)] = row
    return {"tokens": tokens, "length": lengths}


def stack_rows(parts: Sequence[Arrays], width: int) -> Arrays:
    """Rows of several pieces, one under the other."""
    if not parts:
        return {"tokens": np.zeros((0, width), np.int32), "length": np.zeros(0, np.int32)}
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def document_positions(tokens: npt.NDArray[Any], eos_id: int) -> tuple[Ids, Ids]:
    """Of packed rows [rows, length]: the number of each token's document in its row, and its place in the document."""
    begins = np.zeros(tokens.shape, np.bool_)
    begins[:, 1:] = tokens[:, :-1] == eos_id
    numbers = np.cumsum(begins, axis=1, dtype=np.int32)
    places = np.arange(tokens.shape[1], dtype=np.int32)
    starts = np.maximum.accumulate(np.where(begins, places, 0), axis=1).astype(np.int32)
    return numbers, places - starts
