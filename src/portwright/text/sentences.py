"""Rows for masked language models: RoBERTa's full sentences, and BERT's pairs, half of which belong together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

import numpy as np
import numpy.typing as npt

from portwright.data.columns import Arrays
from portwright.errors import UserError
from portwright.text.packing import pad_rows

Ids = npt.NDArray[np.int32]

_SENTENCE_END = re.compile(r"(?<=[.!?])(?=\s)|(?<=[。！？])|(?=\n)")
_SHORT_SHARE = 0.1  # of BERT's pairs made shorter than possible, so that the model learns short texts too


def split_sentences(text: str) -> list[str]:
    """Cuts a text into sentences and lines, each with the blanks before it; a blank piece joins the next one."""
    pieces: list[str] = []
    waiting = ""
    for piece in _SENTENCE_END.split(text):
        waiting += piece
        if waiting.strip():
            pieces.append(waiting)
            waiting = ""
    return pieces


def full_sentences(
    documents: Sequence[Sequence[Ids]], width: int, cls_id: int, sep_id: int, pad_id: int
) -> Arrays:
    """Rows `cls ... sep` of as many whole sentences as fit, across documents, with one more `sep` between documents.

    A sentence that is longer than a row goes on in the next one; no token is lost.
    """
    room = _room(width, 2)
    start, separator = np.asarray([cls_id], np.int32), np.asarray([sep_id], np.int32)
    rows: list[list[Ids]] = []
    size = room  # of the row at hand
    for document in documents:
        is_first = True
        for sentence in document:
            for at in range(0, len(sentence), room):
                piece = sentence[at : at + room]
                between = [separator] if is_first else []
                if size + len(between) + len(piece) > room:
                    rows.append([start])
                    size, between = 0, []
                rows[-1] += [*between, piece]
                size += len(between) + len(piece)
                is_first = False
    return pad_rows([np.concatenate([*row, separator]) for row in rows], width, pad_id)


def sentence_pairs(
    documents: Sequence[Sequence[Ids]],
    width: int,
    cls_id: int,
    sep_id: int,
    pad_id: int,
    random: Random,
    donors: Sequence[Sequence[Ids]] = (),
) -> Arrays:
    """Rows `cls A sep B sep`: B follows A (next_sentence_label 0) or is of another document (1), each half of the time.

    `first_length` counts the tokens up to the first `sep`. As in BERT, the text that follows A is used later where B is
    foreign, and a pair that is too long is cut at random at its beginning or end. `donors` are more documents to take a
    foreign B from.
    """
    room = _room(width, 3)
    documents = [kept for each in documents if (kept := _short_parts(each, room // 2))]
    everyone = [*documents, *(kept for each in donors if (kept := _short_parts(each, room // 2)))]
    if documents and len(everyone) < 2:
        raise UserError(
            "Pairs of sentences need at least two documents that are not empty; there is 1.",
            "Give more documents, or say what one is (`split` is line, or paragraph).",
        )
    rows: list[list[int]] = []
    first_lengths: list[int] = []
    labels: list[int] = []
    for number, given in enumerate(documents):
        document, start = list(given), 0
        while start < len(document):
            goal = random.randint(2, room) if random.random() < _SHORT_SHARE else room
            end, size = start, 0
            while end < len(document) and (end == start or size + len(document[end]) <= goal):
                size += len(document[end])
                end += 1
            if end - start == 1 and size > 1:  # else a single sentence would always get a foreign second one
                document[start:end] = np.array_split(document[start], 2)
                end += 1
            cut = start + random.randint(1, end - start - 1) if end - start > 1 else end
            first = np.concatenate(document[start:cut]).tolist()
            foreign = cut == end or random.random() < 0.5
            if foreign:
                second = _foreign(everyone, number, max(goal - len(first), 1), random)
                start = cut  # the text that follows A is still unused
            else:
                second = np.concatenate(document[cut:end]).tolist()
                start = end
            _shorten(first, second, room, random)
            rows.append([cls_id, *first, sep_id, *second, sep_id])
            first_lengths.append(len(first) + 2)
            labels.append(int(foreign))
    return {
        **pad_rows(rows, width, pad_id),
        "first_length": np.asarray(first_lengths, np.int32),
        "next_sentence_label": np.asarray(labels, np.int32),
    }


def _short_parts(sentences: Sequence[Ids], most: int) -> list[Ids]:
    """Drops empty sentences, and cuts sentences of more than `most` tokens."""
    return [sentence[at : at + most] for sentence in sentences for at in range(0, len(sentence), most)]


def _foreign(documents: Sequence[Sequence[Ids]], number: int, goal: int, random: Random) -> list[int]:
    other = documents[(number + 1 + random.randrange(len(documents) - 1)) % len(documents)]
    taken: list[int] = []
    for sentence in other[random.randrange(len(other)) :]:
        taken.extend(sentence.tolist())
        if len(taken) >= goal:
            break
    return taken


def _shorten(first: list[int], second: list[int], room: int, random: Random) -> None:
    while len(first) + len(second) > room:
        longer = first if len(first) > len(second) else second
        excess = min(len(first) + len(second) - room, max(abs(len(first) - len(second)), 1))
        from_front = random.randint(0, excess)
        del longer[len(longer) - (excess - from_front) :]
        del longer[:from_front]


def _room(width: int, num_special: int) -> int:
    room = width - num_special
    if room < 2:
        raise UserError(
            f"a sequence of {width} tokens has room for {max(room, 0)} beside the special ones.",
            f"Take a sequence length of at least {num_special + 2}.",
        )
    return room
