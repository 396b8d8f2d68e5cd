"""Training objectives on text and the rows that each needs, whether prepared in a store or made when a run begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

import numpy as np

from portwright.data.columns import Arrays
from portwright.data.draws import Draws
from portwright.data.manifest import Field
from portwright.errors import UserError, suggest
from portwright.text import packing, spans
from portwright.text.masking import MaskRules, mask_tokens
from portwright.text.sentences import full_sentences, sentence_pairs, split_sentences
from portwright.text.tokenizer import Ids, Tokenizer

ObjectiveName = Literal["causal", "masked", "pairs", "spans"]
OBJECTIVES: tuple[str, ...] = get_args(ObjectiveName)


@dataclass(frozen=True)
class Document:
    """A text, or a piece of one that is too long to be held in memory."""

    text: str
    whole: bool = True  # whether the document ends here
    begun: bool = False  # whether an earlier piece has the document's beginning


@dataclass(frozen=True)
class Objective:
    """How rows are made of documents; `sequence_length` is the model's input length (for spans, the encoder's)."""

    name: str
    sequence_length: int
    packed: bool = True  # causal: rows are filled without gaps
    static: bool = False  # masked, pairs: masked `dup_factor` times when the store is prepared
    dup_factor: int = 1
    mask_probability: float = 0.15
    max_predictions: int = 20
    whole_word: bool = False
    noise_density: float = spans.NOISE_DENSITY
    mean_span: float = spans.MEAN_SPAN_LENGTH
    seed: int = 1

    def __post_init__(self) -> None:
        if self.name not in OBJECTIVES:
            raise UserError(f"'{self.name}' is no objective.", suggest(self.name, OBJECTIVES))
        least = {"causal": 1, "masked": 4, "pairs": 5, "spans": 4}[self.name]
        if self.sequence_length < least:
            raise UserError(
                f"sequence_length is {self.sequence_length}.",
                f"{self.name} needs at least {least} tokens a row.",
            )
        if self.static and self.name not in ("masked", "pairs"):
            raise UserError(f"static masking is asked for, and {self.name} masks nothing.", "Leave it out.")
        if self.dup_factor < 1 or (self.dup_factor > 1 and not self.static and self.name != "pairs"):
            raise UserError(
                f"dup_factor is {self.dup_factor}.", "It is 1, or more with static masking or with pairs."
            )

    @property
    def kind(self) -> str:
        """The kind of tokenizer to train for this objective."""
        return {"causal": "gpt", "masked": "bert", "pairs": "bert", "spans": "t5"}[self.name]

    @property
    def width(self) -> int:
        """Tokens of a row in the store."""
        if self.name == "causal":
            return self.sequence_length + 1
        if self.name == "spans":
            return spans.raw_length_for(self.sequence_length, self.noise_density, self.mean_span)
        return self.sequence_length

    def fields(self, vocab_size: int) -> list[Field]:
        """The fields of a record; ids take two bytes where the vocabulary allows."""
        ids = "uint16" if vocab_size <= 1 << 16 else "int32"
        fields = [Field("tokens", ids, (self.width,)), Field("length", "int32")]
        if self.name == "pairs":
            fields += [Field("first_length", "int32"), Field("next_sentence_label", "int32")]
        if self.static:
            shape = (self.max_predictions,)
            fields += [Field("masked_lm_positions", "int32", shape), Field("masked_lm_ids", ids, shape)]
            fields.append(Field("num_predictions", "int32"))
        return fields

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raises where the tokenizer lacks a special token that the objective puts into rows."""
        needed = {"causal": ("eos",), "spans": ("eos", "pad")}.get(self.name, ("pad", "cls", "sep", "mask"))
        for role in needed:
            tokenizer.id_of(role)
        if self.name == "spans":
            num_spans = int(spans.noise_of(self.width, self.noise_density, self.mean_span)[1])
            if num_spans > len(tokenizer.sentinel_ids):
                raise UserError(
                    f"{tokenizer.source} has {len(tokenizer.sentinel_ids)} sentinels <extra_id_N>, and rows of "
                    f"{self.sequence_length} tokens have {num_spans} spans.",
                    f"Take extra_ids of at least {num_spans}, or shorter rows.",
                )

    def mask_rules(self, tokenizer: Tokenizer) -> MaskRules:
        return MaskRules(
            tokenizer.id_of("mask"),
            tokenizer.is_special,
            tokenizer.ordinary_ids,
            *tokenizer.joins,
            self.mask_probability,
            self.max_predictions,
            self.whole_word,
        )

    def rows(
        self,
        documents: Sequence[Document],
        tokenizer: Tokenizer,
        part: int = 0,
        donors: Sequence[Document] = (),
    ) -> Arrays:
        """Makes the rows of some documents; `part` numbers them within the data and seeds random numbers.

        `donors` give pairs their foreign second sentences; they get no rows of their own.
        """
        if self.name in ("masked", "pairs"):
            return self._masked_rows(documents, tokenizer, part, donors)
        encoded = tokenizer.encode_batch([document.text for document in documents])
        if self.name == "spans":
            return packing.chunk_rows(packing.join_documents(encoded), self.width, tokenizer.pad_id)
        end = np.asarray([tokenizer.eos_id], np.int32)
        streams = [
            np.concatenate([ids, end]) if document.whole else ids
            for document, ids in zip(documents, encoded, strict=True)
            if len(ids) or document.begun
        ]
        if self.packed:
            stream = packing.join_documents(streams)
            return packing.pack_rows(stream, self.sequence_length, tokenizer.pad_id)
        return packing.stack_rows(
            [packing.pack_rows(stream, self.sequence_length, tokenizer.pad_id) for stream in streams],
            self.width,
        )

    def _masked_rows(
        self, documents: Sequence[Document], tokenizer: Tokenizer, part: int, donors: Sequence[Document]
    ) -> Arrays:
        sentences = _encode_sentences(documents, tokenizer)
        ids = tokenizer.id_of("cls"), tokenizer.id_of("sep"), tokenizer.id_of("pad")
        if self.name == "masked":
            tables = [full_sentences(sentences, self.width, *ids)]
            if self.static:
                tables *= self.dup_factor
        else:
            if any(document.begun or not document.whole for document in documents):
                raise UserError(
                    "a text is too long to be one document of pairs.",
                    "Cut it: `split` is paragraph, or line.",
                )
            others = _encode_sentences(donors, tokenizer)
            tables = [
                sentence_pairs(sentences, self.width, *ids, Random(f"{self.seed}:{part}:{turn}"), others)
                for turn in range(self.dup_factor)
            ]
        if self.static:
            rules = self.mask_rules(tokenizer)
            tables = [_mask_once(table, rules, self.seed, part, turn) for turn, table in enumerate(tables)]
        return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def _encode_sentences(documents: Sequence[Document], tokenizer: Tokenizer) -> list[list[Ids]]:
    texts = [split_sentences(document.text) for document in documents]
    flat = tokenizer.encode_batch([sentence for sentences in texts for sentence in sentences])
    encoded: list[list[Ids]] = []
    place = 0
    for sentences in texts:
        mine = flat[place : place + len(sentences)]
        place += len(sentences)
        encoded.append([ids for ids in mine if len(ids)])
    return encoded


def _mask_once(table: Arrays, rules: MaskRules, seed: int, part: int, turn: int) -> Arrays:
    draws = Draws(seed, turn, np.arange(len(table["tokens"])) + (part << 32))
    tokens, positions, weights, labels = mask_tokens(table["tokens"], table["length"], draws, rules)
    return {
        **table,
        "tokens": tokens,
        "masked_lm_positions": positions,
        "masked_lm_ids": labels,
        "num_predictions": weights.sum(axis=1).astype(np.int32),
    }
