from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from portwright.errors import UserError
from portwright.text.sentences import full_sentences, sentence_pairs, split_sentences

CLS, SEP, PAD = 1, 2, 0
# Tokens tell their document by their hundreds.
DOCUMENTS = st.lists(st.lists(st.integers(0, 12), max_size=6), max_size=8)


def numbered(sizes: list[list[int]]) -> list[list[np.ndarray]]:
    documents = []
    for number, sentences in enumerate(sizes):
        place, made = 100 * (number + 1), []
        for size in sentences:
            made.append(np.arange(place, place + size, dtype=np.int32))
            place += size
        documents.append(made)
    return documents


@given(st.text(alphabet="ab.!? \n\r。", max_size=60))
def test_sentences_are_the_text(text: str) -> None:
    pieces = split_sentences(text)
    assert text.startswith("".join(pieces))
    assert not text[len("".join(pieces)) :].strip()
    assert all(piece.strip() for piece in pieces)


def test_sentences_by_hand() -> None:
    text = "One. Two?\nThree 3.5 x\n\n  Four! 五。六"
    assert split_sentences(text) == ["One.", " Two?", "\nThree 3.5 x", "\n\n  Four!", " 五。", "六"]


@given(DOCUMENTS, st.integers(4, 20))
def test_full_sentences_lose_no_token(sizes: list[list[int]], width: int) -> None:
    documents = numbered(sizes)
    rows = full_sentences(documents, width, CLS, SEP, PAD)
    found: list[int] = []
    for tokens, length in zip(rows["tokens"], rows["length"], strict=True):
        assert tokens[0] == CLS
        assert tokens[length - 1] == SEP
        assert tokens[length - 2] != SEP
        assert (tokens[length:] == PAD).all()
        inner = tokens[1 : length - 1]
        found += [int(token) for token in inner if token != SEP]
        for before, token in pairwise(inner):
            if before != SEP and token != SEP:
                assert before // 100 == token // 100  # documents are held apart
    assert found == [int(token) for document in documents for part in document for token in part]


@given(DOCUMENTS, st.integers(5, 30), st.integers(0, 1000))
def test_pairs(sizes: list[list[int]], width: int, seed: int) -> None:
    documents = numbered(sizes)
    if not any(len(part) for document in documents for part in document):
        assert sentence_pairs(documents, width, CLS, SEP, PAD, Random(seed))["tokens"].shape == (0, width)
        return
    if sum(any(len(part) for part in document) for document in documents) < 2:
        with pytest.raises(UserError, match="at least two documents"):
            sentence_pairs(documents, width, CLS, SEP, PAD, Random(seed))
        return
    rows = sentence_pairs(documents, width, CLS, SEP, PAD, Random(seed))
    assert len(rows["length"])
    for tokens, length, first_length, label in zip(
        rows["tokens"], rows["length"], rows["first_length"], rows["next_sentence_label"], strict=True
    ):
        assert length <= width
        assert tokens[0] == CLS
        assert [int(place) for place in np.flatnonzero(tokens == SEP)] == [first_length - 1, length - 1]
        first, second = tokens[1 : first_length - 1], tokens[first_length : length - 1]
        assert len(first)
        assert len(second)
        assert len({int(token) // 100 for token in first}) == 1
        is_foreign = bool(first[0] // 100 != second[0] // 100)
        assert is_foreign == bool(label)
        if not is_foreign:
            assert first.max() < second.min()


def test_a_lone_document_borrows() -> None:
    documents = numbered([[5] * 19, [4] * 9])
    rows = sentence_pairs(documents[:1], 32, CLS, SEP, PAD, Random(1), documents[1:])
    for tokens, first_length, label in zip(
        rows["tokens"], rows["first_length"], rows["next_sentence_label"], strict=True
    ):
        assert tokens[1] // 100 == 1
        assert (tokens[first_length] // 100 == 2) == bool(label)
    assert 0 < rows["next_sentence_label"].mean() < 1


def test_half_of_the_pairs_belong_together() -> None:
    documents = numbered([[5] * 12] * 400)
    labels = sentence_pairs(documents, 32, CLS, SEP, PAD, Random(1))["next_sentence_label"]
    assert labels.mean() == pytest.approx(0.5, abs=0.03)


def test_no_room_is_said() -> None:
    with pytest.raises(UserError, match="a sequence of 3 tokens"):
        full_sentences(numbered([[3]]), 3, CLS, SEP, PAD)
