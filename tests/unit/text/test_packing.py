from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from portwright.data.draws import Draws
from portwright.text.batches import CausalBatch
from portwright.text.packing import (
    chunk_rows,
    document_positions,
    join_documents,
    pack_rows,
    pad_rows,
)

EOS, PAD = 0, 99
DOCUMENTS = st.lists(st.lists(st.integers(1, 98), max_size=20), max_size=12)


def as_ids(documents: list[list[int]]) -> list[np.ndarray]:
    return [np.asarray([*each, EOS], np.int32) for each in documents]


def batch_of(rows: dict[str, np.ndarray], **options: bool) -> dict[str, np.ndarray]:
    return CausalBatch(EOS, **options)(rows, Draws(0, 0, np.arange(len(rows["length"]))))


@given(DOCUMENTS, st.integers(1, 9))
def test_packing_loses_no_token_and_makes_each_a_label_once(documents: list[list[int]], length: int) -> None:
    stream = [token for each in documents for token in [*each, EOS]]
    rows = pack_rows(join_documents(as_ids(documents)), length, PAD)
    assert rows["tokens"].shape[1] == length + 1
    batch = batch_of(rows)
    counted = batch["attention_mask"] == 1
    assert batch["labels"][counted].tolist() == stream[1:]
    assert batch["input_ids"][counted].tolist() == stream[:-1]
    assert (rows["tokens"][np.arange(length + 1) >= rows["length"][:, None]] == PAD).all()
    if len(stream) > 1:
        assert len(rows["length"]) == -(-(len(stream) - 1) // length)


@given(DOCUMENTS, st.integers(1, 9))
def test_document_ids_and_positions_begin_anew_after_each_end(
    documents: list[list[int]], length: int
) -> None:
    rows = pack_rows(join_documents(as_ids(documents)), length, PAD)
    batch = batch_of(rows, document_mask=True)
    for tokens, numbers, places in zip(
        batch["input_ids"], batch["document_ids"], batch["position_ids"], strict=True
    ):
        number = place = 0
        for token, found_number, found_place in zip(tokens, numbers, places, strict=True):
            assert (found_number, found_place) == (number, place)
            number, place = (number + 1, 0) if token == EOS else (number, place + 1)


def test_positions_of_one_row_by_hand() -> None:
    numbers, places = document_positions(np.asarray([[5, EOS, EOS, 6, 7]]), EOS)
    assert numbers.tolist() == [[0, 0, 1, 2, 2]]
    assert places.tolist() == [[0, 1, 0, 0, 1]]


@given(st.lists(st.integers(1, 98), max_size=40), st.integers(1, 9))
def test_chunks_hold_the_whole_stream(stream: list[int], width: int) -> None:
    rows = chunk_rows(np.asarray(stream, np.int32), width, PAD)
    inside = np.arange(width) < rows["length"][:, None]
    assert rows["tokens"][inside].tolist() == stream
    assert (rows["tokens"][~inside] == PAD).all()


def test_no_documents_make_no_rows() -> None:
    assert pack_rows(join_documents([]), 4, PAD)["tokens"].shape == (0, 5)
    assert pad_rows([], 4, PAD)["length"].shape == (0,)
