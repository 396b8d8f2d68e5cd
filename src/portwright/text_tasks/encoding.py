"""Encodes one text, a pair, or words to rows of one length, with special tokens, segments and padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from portwright.data.columns import Arrays
from portwright.errors import UserError
from portwright.text.sources import choose_tokenizer, find_source
from portwright.text.tokenizer import Tokenizer, check_positions, check_tokenizer

Ids = Sequence[int] | npt.NDArray[np.int32]


class Encoder:
    """Makes rows `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`; a vocabulary with <s> gets two separators, as in RoBERTa."""

    def __init__(
        self, tokenizer: Tokenizer, options: Mapping[str, Any], section: str, model: Mapping[str, Any]
    ) -> None:
        self.tokenizer = tokenizer
        self.length: int = options["max_sequence_length"]
        check_tokenizer(tokenizer, section, model)
        used_up = model["pad_token_id"] + 1 if model["positions_after_padding"] else 0
        check_positions(section, "max_sequence_length", self.length, model, used_up)
        self.cls_id, self.sep_id = tokenizer.id_of("cls"), tokenizer.id_of("sep")
        self.pad_id = tokenizer.id_of("pad")
        self.num_between = 2 if tokenizer.backend.id_to_token(self.cls_id) == "<s>" else 1
        self.segments: int = model["num_segments"] if model["use_segment_embedding"] else 1
        self.room = self.length - 2
        if self.room < 1:
            raise UserError(f"{section}.max_sequence_length is {self.length}.", "Give 3 or more.")

    def join(self, first: Ids, second: Ids | None = None) -> tuple[list[int], list[int]]:
        """The ids and segments of a row; texts that are too long are cut at the end, the longer one first."""
        one, two = [int(each) for each in first], [int(each) for each in second] if second is not None else []
        extra = self.num_between if second is not None else 0
        room = max(self.room - extra, 0)
        if len(one) + len(two) > room:
            half = room // 2
            if len(two) <= half:
                one = one[: room - len(two)]
            elif len(one) <= room - half:
                two = two[: room - len(one)]
            else:
                one, two = one[: room - half], two[:half]
        ids = [self.cls_id, *one, self.sep_id]
        types = [0] * len(ids)
        if second is not None:
            ids += [self.sep_id] * (self.num_between - 1)
            types += [0] * (len(ids) - len(types))
            ids += [*two, self.sep_id]
            types += [min(1, self.segments - 1)] * (len(ids) - len(types))
        return ids, types

    def stack(self, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Arrays:
        """Padded rows: input_ids, attention_mask, token_type_ids."""
        return {
            "input_ids": pad_lists([ids for ids, _ in rows], self.length, self.pad_id, np.int32),
            "attention_mask": pad_lists([[1] * len(ids) for ids, _ in rows], self.length, 0, np.int32),
            "token_type_ids": pad_lists([types for _, types in rows], self.length, 0, np.int32),
        }

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """The tokens of each word; one that has none is unknown."""
        # Words in a text follow a blank, which changes their tokens in byte-level vocabularies.
        encoded = self.tokenizer.encode_batch([f" {word}" for word in words])
        return [ids.tolist() or [self.tokenizer.id_of("unk")] for ids in encoded]

    def encode_with_places(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Tokens, and where in the text each begins and ends."""
        encoded = self.tokenizer.backend.encode(text, add_special_tokens=False)
        return list(encoded.ids), list(encoded.offsets)


def pad_lists(rows: Sequence[Sequence[Any]], width: int, fill: Any, dtype: Any) -> npt.NDArray[Any]:
    padded = np.full((len(rows), width), fill, dtype)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
    return padded


def make_encoder(options: Mapping[str, Any], section: str, model: Mapping[str, Any]) -> Encoder:
    """An encoder with the options' tokenizer; for the package's own text, with that of BERT's pre-training on it."""
    if options.get("tokenizer") is None and options.get("data_dir") is not None:
        raise UserError(
            f"{section} has a data_dir and no tokenizer.",
            "Give the tokenizer that the encoder was pre-trained with (tokenizer.json, vocab.txt or a folder with one).",
        )
    kind = "roberta" if model["positions_after_padding"] else "bert"
    source = find_source({**options, "data_dir": None}, section)
    tokenizer = choose_tokenizer(source, kind, model["vocab_size"], options)
    assert tokenizer is not None, "text of the package always has one"
    return Encoder(tokenizer, options, section, model)
