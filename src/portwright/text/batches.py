"""Turns the rows of a store into a model's inputs, a whole batch at once.

Each class is a `transform` of portwright.data's data sets: (batch, draws) -> batch. Its objects can be pickled, to be
sent to worker processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from portwright.data.columns import Arrays
from portwright.data.draws import Draws
from portwright.text.masking import MaskRules, mask_tokens
from portwright.text.packing import document_positions
from portwright.text.spans import corrupt_spans, noise_mask


@dataclass(frozen=True)
class CausalBatch:
    """Each token and the one that follows it; attention_mask is 1 where a token's loss counts."""

    eos_id: int
    document_mask: bool = False

    def __call__(self, batch: Arrays, draws: Draws) -> Arrays:
        tokens, lengths = batch["tokens"].astype(np.int32), batch["length"]
        inputs = np.ascontiguousarray(tokens[:, :-1])
        counted = np.arange(inputs.shape[1]) < lengths[:, None] - 1
        made: Arrays = {
            "input_ids": inputs,
            "labels": np.ascontiguousarray(tokens[:, 1:]),
            "attention_mask": counted.astype(np.int32),
        }
        if self.document_mask:
            made["document_ids"], made["position_ids"] = document_positions(inputs, self.eos_id)
        return made


@dataclass(frozen=True)
class MaskedBatch:
    """Rows with some tokens masked: new ones in each epoch, or always the same without `dynamic`."""

    rules: MaskRules
    dynamic: bool = True
    pairs: bool = False

    def __call__(self, batch: Arrays, draws: Draws) -> Arrays:
        tokens, lengths = batch["tokens"], batch["length"]
        if "masked_lm_positions" in batch:  # masked when the store was prepared
            input_ids = tokens.astype(np.int32)
            positions = batch["masked_lm_positions"].astype(np.int32)
            labels = batch["masked_lm_ids"].astype(np.int32)
            weights = (np.arange(positions.shape[1]) < batch["num_predictions"][:, None]).astype(np.float32)
        else:
            draws = draws if self.dynamic else Draws(draws.seed, 0, draws.indices)
            input_ids, positions, weights, labels = mask_tokens(tokens, lengths, draws, self.rules)
        inside = np.arange(tokens.shape[1]) < lengths[:, None]
        made: Arrays = {"input_ids": input_ids, "attention_mask": inside.astype(np.int32)}
        if self.pairs:
            second = inside & (np.arange(tokens.shape[1]) >= batch["first_length"][:, None])
            made["token_type_ids"] = second.astype(np.int32)
            made["next_sentence_label"] = batch["next_sentence_label"].astype(np.int32)
        return {
            **made,
            "masked_lm_positions": positions,
            "masked_lm_weights": weights,
            "labels": labels,
        }


@dataclass(frozen=True)
class SpanBatch:
    """T5's corrupted text and the spans that were taken out, new ones in each epoch."""

    sentinel_ids: tuple[int, ...]
    eos_id: int
    pad_id: int
    start_id: int
    source_length: int
    target_length: int
    density: float
    mean_span: float

    def __call__(self, batch: Arrays, draws: Draws) -> Arrays:
        tokens, lengths = batch["tokens"].astype(np.int32), batch["length"]
        mask = noise_mask(lengths, tokens.shape[1], draws, self.density, self.mean_span)
        inputs, input_lengths, targets, target_lengths = corrupt_spans(
            tokens, lengths, mask, np.asarray(self.sentinel_ids, np.int32), self.eos_id, self.pad_id
        )
        return sequence_pair(
            fit_width(inputs, self.source_length, self.pad_id),
            input_lengths,
            fit_width(targets, self.target_length, self.pad_id),
            target_lengths,
            self.start_id,
        )


@dataclass(frozen=True)
class PairBatch:
    """A sentence and its translation."""

    start_id: int

    def __call__(self, batch: Arrays, draws: Draws) -> Arrays:
        return sequence_pair(
            batch["source"].astype(np.int32),
            batch["source_length"],
            batch["target"].astype(np.int32),
            batch["target_length"],
            self.start_id,
        )


def sequence_pair(
    sources: npt.NDArray[np.int32],
    source_lengths: npt.NDArray[Any],
    targets: npt.NDArray[np.int32],
    target_lengths: npt.NDArray[Any],
    start_id: int,
) -> Arrays:
    """The batch of an encoder-decoder: the decoder sees its labels moved one place to the right."""
    moved = np.empty_like(targets)
    moved[:, :1] = start_id
    moved[:, 1:] = targets[:, :-1]
    return {
        "input_ids": sources,
        "attention_mask": _mask(sources, source_lengths),
        "decoder_input_ids": moved,
        "decoder_attention_mask": _mask(targets, target_lengths),
        "labels": targets,
    }


def fit_width(rows: npt.NDArray[np.int32], width: int, pad_id: int) -> npt.NDArray[np.int32]:
    """Rows padded to `width`; the caller has made sure that none is longer."""
    return np.pad(rows, ((0, 0), (0, width - rows.shape[1])), constant_values=pad_id)


def _mask(rows: npt.NDArray[np.int32], lengths: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    return (np.arange(rows.shape[1]) < lengths[:, None]).astype(np.int32)
