"""One function an objective: from a section of params.yaml to a data set and its tokenizer.

`options` is that section (`train_input` or `eval_input`, whose name is `section`), `model` the model's. Keys that are
left out have the defaults of portwright.job.input_params.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from portwright.errors import UserError
from portwright.job.input_params import (
    CausalInputParams,
    MaskedInputParams,
    SpanInputParams,
    TranslationInputParams,
)
from portwright.text import spans
from portwright.text.agreement import check_positions, check_tokenizer
from portwright.text.batches import CausalBatch, MaskedBatch, PairBatch, SpanBatch
from portwright.text.masking import MaskRules
from portwright.text.number_words import number_pairs
from portwright.text.objectives import Objective
from portwright.text.packing import pad_rows
from portwright.text.pairs import Pairs, read_pairs, read_parallel
from portwright.text.shipped import HELD_OUT
from portwright.text.sources import Source, choose_tokenizer, find_source, pair_tokenizer
from portwright.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from portwright.data.gather import GatherDataset, Transform

Section = Mapping[str, Any]
Made = tuple["GatherDataset", Tokenizer | None]  # None: samples in files, and no tokenizer named

_GENERATED_PAIRS = 20_000


def causal_lm(options: Section, section: str, model: Section) -> Made:
    """Text to predict the next token of: input_ids, labels, attention_mask, with document_mask also document_ids and
    position_ids, all int32 [batch, max_sequence_length]."""
    options = _settle(options, CausalInputParams)
    length = options["max_sequence_length"]
    check_positions(section, "max_sequence_length", length, model)
    objective = Objective("causal", length, packed=options["pack_sequences"])
    source = find_source(options, section)
    tokenizer = choose_tokenizer(source, objective.kind, model["vocab_size"], options)
    transform = None
    if tokenizer is not None:
        _check(objective, tokenizer, section, model)
        transform = CausalBatch(tokenizer.eos_id, options["document_mask"])
    return _dataset(source, objective, tokenizer, transform, options, model), tokenizer


def masked_lm(options: Section, section: str, model: Section, *, kind: str | None = None) -> Made:
    """Text with masked tokens: input_ids, attention_mask int32 [batch, max_sequence_length]; masked_lm_positions and
    labels int32, masked_lm_weights float32 [batch, max_predictions_per_seq].

    Unless model.disable_nsp, pairs of sentences: token_type_ids and next_sentence_label too. `kind` is the kind of
    tokenizer to train, bert or roberta; left out: roberta where model.positions_after_padding.
    """
    options = _settle(options, MaskedInputParams)
    length = options["max_sequence_length"]
    kind = kind or ("roberta" if model.get("positions_after_padding") else "bert")
    used_up = model.get("pad_token_id", 1) + 1 if model.get("positions_after_padding") else 0
    check_positions(section, "max_sequence_length", length, model, used_up)
    pairs = not model.get("disable_nsp", kind == "roberta")
    objective = Objective(
        "pairs" if pairs else "masked",
        length,
        mask_probability=options["masked_lm_prob"],
        max_predictions=options["max_predictions_per_seq"],
        whole_word=options["mask_whole_word"],
    )
    source = find_source(options, section)
    tokenizer = choose_tokenizer(source, kind, model["vocab_size"], options)
    transform = None
    if tokenizer is not None:
        _check(objective, tokenizer, section, model)
        rules = MaskRules.of(
            tokenizer,
            options["masked_lm_prob"],
            options["max_predictions_per_seq"],
            whole_word=options["mask_whole_word"],
        )
        transform = MaskedBatch(rules, options["dynamic_masking"], pairs)
    return _dataset(source, objective, tokenizer, transform, options, model), tokenizer


def span_corruption(options: Section, section: str, model: Section) -> Made:
    """T5's denoising: input_ids, attention_mask int32 [batch, src_max_sequence_length]; decoder_input_ids,
    decoder_attention_mask, labels int32 [batch, tgt_max_sequence_length], padded with the padding's id."""
    options = _settle(options, SpanInputParams)
    noise = options["noise_density"], options["mean_noise_span_length"]
    length = options["src_max_sequence_length"]
    objective = Objective("spans", length, noise_density=noise[0], mean_span=noise[1])
    needed = spans.lengths_after(objective.width, *noise)[1]
    target_length = options["tgt_max_sequence_length"] or needed
    if target_length < needed:
        raise UserError(
            f"{section}.tgt_max_sequence_length is {target_length}, and inputs of {length} tokens have targets of "
            f"{needed}.",
            f"Set it to {needed}, or leave it out.",
        )
    source = find_source(options, section)
    tokenizer = choose_tokenizer(source, objective.kind, model["vocab_size"], options)
    transform = None
    if tokenizer is not None:
        _check(objective, tokenizer, section, model)
        transform = SpanBatch(
            tokenizer.sentinel_ids,
            tokenizer.eos_id,
            tokenizer.pad_id,
            model.get("decoder_start_token_id", tokenizer.pad_id),
            length,
            target_length,
            *noise,
        )
    return _dataset(source, objective, tokenizer, transform, options, model), tokenizer


def translation(options: Section, section: str, model: Section) -> Made:
    """Sentences and their translations: the fields of `span_corruption`. Without files, numbers in words.

    One tokenizer serves both languages. Pairs that are longer than the sequence lengths are left out.
    """
    from portwright.data.gather import ArrayDataset

    options = _settle(options, TranslationInputParams)
    widths = options["src_max_sequence_length"], options["tgt_max_sequence_length"] or 32
    for name, width in zip(("src", "tgt"), widths, strict=True):
        check_positions(section, f"{name}_max_sequence_length", width, model)
    pairs = _read_translations(options, section)
    vocab_size = min(
        model[name] for name in ("vocab_size", "src_vocab_size", "tgt_vocab_size") if name in model
    )
    # T5 ends with token 1 and begins with padding; the Transformer has <s> and </s> as tokens 2 and 3.
    kind = "t5" if model.get("eos_token_id") == 1 else "translation"
    tokenizer = pair_tokenizer(options, section, kind, vocab_size, pairs)
    check_tokenizer(tokenizer, section, {**model, "vocab_size": vocab_size})
    end = np.asarray([tokenizer.eos_id], np.int32)
    sides = [[np.concatenate([ids, end]) for ids in tokenizer.encode_batch(texts)] for texts in pairs]
    fitting = [
        number
        for number, (one, other) in enumerate(zip(*sides, strict=True))
        if len(one) <= widths[0] and len(other) <= widths[1]
    ]
    if not fitting:
        raise UserError(
            f"{section}: none of {len(sides[0])} pairs fits into {widths[0]} and {widths[1]} tokens.",
            "Raise src_max_sequence_length and tgt_max_sequence_length.",
        )
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, side, width in zip(("source", "target"), sides, widths, strict=True):
        rows = pad_rows(
            [side[number] for number in fitting[: options["num_samples"]]], width, tokenizer.pad_id
        )
        arrays |= {name: rows["tokens"], f"{name}_length": rows["length"]}
    start_id = model.get("decoder_start_token_id")
    if start_id is None:
        start_id = tokenizer.roles.get("bos", tokenizer.pad_id)
    return ArrayDataset(arrays, PairBatch(start_id)), tokenizer


def _read_translations(options: Section, section: str) -> Pairs:
    files = [options[name] for name in ("src_data_dir", "tgt_data_dir")]
    if any(files) and not all(files):
        raise UserError(
            f"{section} has one of src_data_dir and tgt_data_dir.", "Give both, line by line, or neither."
        )
    if all(files):
        return read_parallel(*files)
    if options.get("data_dir"):
        return read_pairs(
            options["data_dir"], options.get("source_key", "source"), options.get("target_key", "target")
        )
    num_samples = options["num_samples"] or _GENERATED_PAIRS
    sources, targets = number_pairs(num_samples * HELD_OUT // (HELD_OUT - 1) + HELD_OUT)
    taken = [
        (number % HELD_OUT == HELD_OUT - 1) == (section == "eval_input") for number in range(len(sources))
    ]
    return Pairs(
        *([text for text, mine in zip(texts, taken, strict=True) if mine] for texts in (sources, targets))
    )


def _check(objective: Objective, tokenizer: Tokenizer, section: str, model: Section) -> None:
    objective.check_tokenizer(tokenizer)
    check_tokenizer(tokenizer, section, model)


def _dataset(
    source: Source,
    objective: Objective,
    tokenizer: Tokenizer | None,
    transform: Transform | None,
    options: Section,
    model: Section,
) -> GatherDataset:
    from portwright.text.gathering import make_dataset

    return make_dataset(source, objective, tokenizer, transform, options, model["vocab_size"])


def _settle(options: Section, kind: type[BaseModel]) -> dict[str, Any]:
    defaults = {
        name: field.get_default(call_default_factory=True) for name, field in kind.model_fields.items()
    }
    return defaults | dict(options)
