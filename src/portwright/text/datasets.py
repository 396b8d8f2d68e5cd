"""For each objective a function that makes a data set and its tokenizer from a section of params.yaml.

`options` is that section, `section` its name (`train_input` or `eval_input`), `model` the section `model`. Keys that are
left out have the defaults of portwright.job.input_params.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel

from portwright import data
from portwright.data.columns import Arrays
from portwright.errors import UserError
from portwright.job.input_params import (
    CausalInputParams,
    MaskedInputParams,
    SpanInputParams,
    TranslationInputParams,
    loader_arguments,
)
from portwright.text import spans
from portwright.text.batches import CausalBatch, MaskedBatch, PairBatch, SpanBatch
from portwright.text.inputs import find_inputs
from portwright.text.objectives import Document, Objective
from portwright.text.packing import pad_rows, stack_rows
from portwright.text.pairs import Pairs, read_pairs, read_parallel
from portwright.text.prepare import units_of
from portwright.text.preparing import make_rows
from portwright.text.ready import FIELDS, csv_columns, read_csv_tokens, read_samples
from portwright.text.shipped import HELD_OUT, number_pairs, shipped_documents, split_held_out
from portwright.text.sources import (
    Source,
    check_text_size,
    choose_tokenizer,
    find_source,
    pair_tokenizer,
    section_options,
    text_options,
)
from portwright.text.tokenizer import Tokenizer, check_positions, check_tokenizer

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from portwright.data.gather import GatherDataset, Transform

Section = Mapping[str, Any]
Made = tuple["GatherDataset", Tokenizer | None]  # None: samples in files, and no tokenizer named

_GENERATED_PAIRS = 20_000


def make_dataloader(make: Callable[..., Made], params: Section, section: str) -> DataLoader[Any]:
    """The loader of a section of params; `make` is one of the functions below."""
    from torch.utils.data import DataLoader

    options = section_options(params, section)
    dataset, _ = make(options, section, params["model"])
    return DataLoader(dataset, **loader_arguments(options, section))


def causal_lm(options: Section, section: str, model: Section) -> Made:
    """Text to predict the next token of: input_ids, labels, attention_mask, with document_mask also document_ids and
    position_ids, all int32 [batch, max_sequence_length]."""
    options = _settle(options, CausalInputParams)
    length = options["max_sequence_length"]
    check_positions(section, "max_sequence_length", length, model)
    objective = Objective("causal", length, packed=options["pack_sequences"])

    def make_transform(tokenizer: Tokenizer) -> Transform:
        return CausalBatch(tokenizer.eos_id, options["document_mask"])

    return _open(objective, objective.kind, options, section, model, make_transform)


def masked_lm(options: Section, section: str, model: Section, *, kind: str | None = None) -> Made:
    """Text with masked tokens: input_ids, attention_mask int32 [batch, max_sequence_length]; masked_lm_positions and
    labels int32, masked_lm_weights float32 [batch, max_predictions_per_seq].

    Without model.disable_nsp the samples are pairs of sentences, with token_type_ids and next_sentence_label. `kind` is the
    kind of tokenizer to train, bert or roberta; by default roberta where model.positions_after_padding.
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

    def make_transform(tokenizer: Tokenizer) -> Transform:
        return MaskedBatch(objective.mask_rules(tokenizer), options["dynamic_masking"], pairs)

    return _open(objective, kind, options, section, model, make_transform)


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

    def make_transform(tokenizer: Tokenizer) -> Transform:
        start_id = model.get("decoder_start_token_id", tokenizer.pad_id)
        special = tokenizer.sentinel_ids, tokenizer.eos_id, tokenizer.pad_id
        return SpanBatch(*special, start_id, length, target_length, *noise)

    return _open(objective, objective.kind, options, section, model, make_transform)


def translation(options: Section, section: str, model: Section) -> Made:
    """Sentences and their translations, in the fields of `span_corruption`; without files, numbers in words.

    One tokenizer serves both languages. Pairs that are longer than the sequence lengths are left out.
    """
    options = _settle(options, TranslationInputParams)
    widths = options["src_max_sequence_length"], options["tgt_max_sequence_length"] or 32
    for name, width in zip(("src", "tgt"), widths, strict=True):
        check_positions(section, f"{name}_max_sequence_length", width, model)
    pairs = _read_translations(options, section)
    vocab_size = min(
        model[name] for name in ("vocab_size", "src_vocab_size", "tgt_vocab_size") if name in model
    )
    # T5 ends a text with token 1 and begins it with padding; the Transformer has <s> and </s> as tokens 2 and 3.
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
    arrays: Arrays = {}
    for name, side, width in zip(("source", "target"), sides, widths, strict=True):
        rows = pad_rows(
            [side[number] for number in fitting[: options["num_samples"]]], width, tokenizer.pad_id
        )
        arrays |= {name: rows["tokens"], f"{name}_length": rows["length"]}
    start_id = model.get("decoder_start_token_id")
    if start_id is None:
        start_id = tokenizer.roles.get("bos", tokenizer.pad_id)
    return data.ArrayDataset(arrays, PairBatch(start_id)), tokenizer


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


def _open(
    objective: Objective,
    kind: str,
    options: Section,
    section: str,
    model: Section,
    make_transform: Callable[[Tokenizer], Transform],
) -> Made:
    """The samples of a section; without a tokenizer and a transform, the files hold ready samples."""
    from portwright.data.gather import FirstSamples

    source, vocab_size = find_source(options, section), model["vocab_size"]
    tokenizer = choose_tokenizer(source, kind, vocab_size, options)
    transform = None
    if tokenizer is not None:
        objective.check_tokenizer(tokenizer)
        check_tokenizer(tokenizer, section, model)
        transform = make_transform(tokenizer)
    dataset: GatherDataset
    if source.kind == "store":
        dataset = _store_dataset(source, objective, transform, options, vocab_size)
    elif source.kind in ("hdf5", "csv"):
        dataset = _samples_dataset(source, objective, tokenizer, transform, options, vocab_size)
    else:
        assert tokenizer is not None
        dataset = data.ArrayDataset(_text_rows(source, objective, tokenizer, options), transform)
    if not len(dataset):
        raise UserError(f"{section} has no sample: its text is too short.", "Give more text.")
    limit = options.get("num_samples")
    if limit is not None and limit < len(dataset):
        dataset = FirstSamples(dataset, limit)
    return dataset, tokenizer


def _settle(options: Section, kind: type[BaseModel]) -> dict[str, Any]:
    defaults = {
        name: field.get_default(call_default_factory=True) for name, field in kind.model_fields.items()
    }
    return defaults | dict(options)


def _text_rows(
    source: Source, objective: Objective, tokenizer: Tokenizer, options: Mapping[str, Any]
) -> Arrays:
    if source.kind == "shipped":
        texts = split_held_out(shipped_documents(), training=source.section != "eval_input")
        return objective.rows([Document(text) for text in texts], tokenizer)
    check_text_size(source)
    chosen = text_options(objective, options)
    units = units_of(find_inputs(source.places), chosen)
    return stack_rows([make_rows(unit, chosen, tokenizer)[0] for unit, _ in units], objective.width)


def _store_dataset(
    source: Source,
    objective: Objective,
    transform: Transform | None,
    options: Mapping[str, Any],
    vocab_size: int,
) -> GatherDataset:
    dataset = data.StoreDataset(source.places[0], transform)
    names = {field.name for field in dataset.store.fields}
    if "tokens" not in names:
        if not set(FIELDS[objective.name]) <= names:
            raise UserError(
                f"{source.section}: '{source.places[0]}' has the fields {', '.join(sorted(names))}.",
                f"Prepare it with `portwright data prepare --objective {objective.name}`, or give "
                f"{', '.join(FIELDS[objective.name])}.",
            )
        dataset.transform = None
        dataset.store.require_ids("input_ids", vocab_size)
        return dataset
    made = dataset.store.manifest.header.made_by.get("objective")
    made = made if isinstance(made, dict) else {}
    _check_made(source, objective, made)
    if made.get("static") and made.get("max_predictions") != objective.max_predictions:
        raise UserError(
            f"{source.section}.max_predictions_per_seq is {objective.max_predictions}, and '{source.places[0]}' was "
            f"masked with {made.get('max_predictions')}.",
            f"Set it to {made.get('max_predictions')}, or prepare the store without --static.",
        )
    dataset.store.require_ids("tokens", vocab_size)
    return dataset


def _check_made(source: Source, objective: Objective, made: Mapping[str, Any]) -> None:
    folder = source.places[0]
    fits = {"masked": ("masked", "pairs")}.get(objective.name, (objective.name,))
    if made.get("name") not in fits:
        cure = f"Prepare the text with --objective {objective.name}."
        if objective.name == "pairs" and made.get("name") == "masked":
            cure += " Without pairs of sentences, set model.disable_nsp."
        raise UserError(
            f"{source.section}: '{folder}' was prepared for the objective {made.get('name')!r}, and this model learns "
            f"by {objective.name}.",
            cure,
        )
    for key in ("sequence_length", *(("noise_density", "mean_span") if objective.name == "spans" else ())):
        if made.get(key) != getattr(objective, key):
            raise UserError(
                f"{source.section}: '{folder}' was prepared with {key} {made.get(key)}, and {getattr(objective, key)} is "
                "asked for.",
                f"Set it to {made.get(key)}, or prepare the text anew.",
            )


def _samples_dataset(
    source: Source,
    objective: Objective,
    tokenizer: Tokenizer | None,
    transform: Transform | None,
    options: Mapping[str, Any],
    vocab_size: int,
) -> GatherDataset:
    if source.kind == "csv" and "tokens" in csv_columns(source.places[0]):
        if objective.name not in ("masked", "pairs"):
            raise UserError(
                f"{source.section}: '{source.places[0]}' holds tokens to be masked.",
                f"Give text, or samples of {', '.join(FIELDS[objective.name])}.",
            )
        if tokenizer is None:
            raise UserError(
                f"{source.section}: '{source.places[0]}' holds tokens, and no tokenizer is named.",
                "Name the vocab.txt that made them.",
            )
        rows = read_csv_tokens(
            source.places,
            objective.sequence_length,
            tokenizer,
            pairs=objective.name == "pairs",
            do_lower=options.get("do_lower", True),
        )
        return data.ArrayDataset(rows, transform)
    arrays = read_samples(source.places, objective.name, vocab_size)
    found = arrays["input_ids"].shape[1]
    if found != objective.sequence_length:
        raise UserError(
            f"{source.section}: the samples have {found} tokens, and {objective.sequence_length} are asked for.",
            f"Set the section's sequence length to {found}.",
        )
    return data.ArrayDataset(arrays)
