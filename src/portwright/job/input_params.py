"""The keys of train_input and eval_input of the reference models, with the model zoo's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field, PositiveInt


class InputParams(BaseModel):
    batch_size: PositiveInt = Field(32, description="samples of a step, over all processes")
    shuffle: bool | None = Field(
        None, description="a new order each epoch; left out: in training, not in evaluation"
    )


class LoaderInputParams(InputParams):
    drop_last: bool = Field(True, description="leave out a last batch that is not full")
    num_workers: int = Field(0, ge=0, description="processes that load data")
    prefetch_factor: PositiveInt | None = Field(None, description="batches that each of them keeps ready")
    persistent_workers: bool = Field(False, description="keep these processes from epoch to epoch")


class TextInputParams(LoaderInputParams):
    data_dir: str | list[str] | None = Field(
        None,
        description="a prepared store, or folders of *.h5, *.parquet, *.arrow, *.csv, *.jsonl, *.txt; "
        "without it, text that comes with the package",
    )
    tokenizer: str | None = Field(
        None,
        description="tokenizer.json, vocab.json, vocab.txt or a folder with one; left out: that of the store, "
        "or one trained on the text and kept beside it",
    )
    text_key: str = Field("text", description="the key or column that holds a document's text")
    split: Literal["file", "paragraph", "line"] | None = Field(
        None, description="what is a document in *.txt; left out: file, for pairs of sentences paragraph"
    )
    max_sequence_length: PositiveInt = Field(64, description="tokens of a sample")
    num_samples: PositiveInt | None = Field(None, description="take no more than these")


class CausalInputParams(TextInputParams):
    pack_sequences: bool = Field(
        True, description="documents one after another without gaps; else each is padded on its own"
    )
    document_mask: bool = Field(
        False,
        description="documents that share a sample do not see each other, and positions begin anew in each",
    )


class MaskedInputParams(TextInputParams):
    max_predictions_per_seq: PositiveInt = Field(
        10, description="the most tokens of a sample that are masked"
    )
    masked_lm_prob: float = Field(0.15, gt=0, lt=1, description="share of the tokens that are masked")
    mask_whole_word: bool = Field(False, description="mask all tokens of a word, or none")
    dynamic_masking: bool = Field(True, description="other tokens in each epoch; else always the same")
    do_lower: bool = Field(True, description="text in lower case, where a WordPiece vocabulary does not say")


class SpanInputParams(TextInputParams):
    max_sequence_length: None = Field(None, description="not used: source and target have a length each")  # type: ignore[assignment]
    src_max_sequence_length: PositiveInt = Field(64, description="tokens of an input, its end among them")
    tgt_max_sequence_length: PositiveInt | None = Field(
        None, description="tokens of a target; left out: as many as the input's spans need"
    )
    extra_ids: PositiveInt = Field(
        20, description="sentinels <extra_id_N>, the last tokens of a trained vocabulary"
    )
    noise_density: float = Field(0.15, gt=0, lt=1, description="share of the tokens that are taken out")
    mean_noise_span_length: float = Field(3.0, ge=1, description="tokens of a span, in the mean")


class TranslationInputParams(LoaderInputParams):
    src_data_dir: str | None = Field(
        None, description="a text file with a sentence a line; without it, numbers in English words"
    )
    tgt_data_dir: str | None = Field(
        None, description="its translation, line by line; without it, numbers in German words"
    )
    tokenizer: str | None = Field(
        None, description="of both languages; left out: trained on both and kept beside src_data_dir"
    )
    src_max_sequence_length: PositiveInt = Field(32, description="longer sentences are left out")
    tgt_max_sequence_length: PositiveInt = 32
    num_samples: PositiveInt | None = Field(
        None, description="take no more than these; of generated pairs 20000"
    )


def fill_defaults(params: dict[str, Any], schema: Mapping[str, type[BaseModel]]) -> dict[str, Any]:
    """Fills keys that params leave out with the defaults of the classes in PARAMS_SCHEMA."""
    for section, kind in schema.items():
        given = params.setdefault(section, {})
        for name, field in kind.model_fields.items():
            given.setdefault(name, field.get_default(call_default_factory=True))
    return params


def loader_arguments(options: Mapping[str, Any], section: str) -> dict[str, Any]:
    """What torch's DataLoader is called with, beside the data set."""
    shuffle = options.get("shuffle")
    num_workers = options.get("num_workers", 0)
    arguments = {
        "batch_size": options.get("batch_size", 32),
        "shuffle": section == "train_input" if shuffle is None else shuffle,
        "drop_last": options.get("drop_last", True),
        "num_workers": num_workers,
    }
    if num_workers:  # DataLoader refuses them without
        if options.get("prefetch_factor") is not None:
            arguments["prefetch_factor"] = options["prefetch_factor"]
        arguments["persistent_workers"] = options.get("persistent_workers", False)
    return arguments


class FineTuningInputParams(LoaderInputParams):
    data_dir: str | list[str] | None = Field(
        None, description="files, or folders of them; without it, a small task on text of the package"
    )
    tokenizer: str | None = Field(
        None,
        description="that of the pre-trained model: tokenizer.json, vocab.txt or a folder with one; needed with data_dir",
    )
    do_lower: bool = Field(True, description="text in lower case, where a vocab.txt does not say")
    max_sequence_length: PositiveInt = Field(64, description="tokens of a sample; longer texts are cut")
    num_samples: PositiveInt | None = Field(None, description="take no more than these")


class ClassifierInputParams(FineTuningInputParams):
    text_key: str = Field("text", description="column of the text")
    text_pair_key: str | None = Field(None, description="column of a second text, such as a hypothesis")
    label_key: str = Field("label", description="column of the label")


class TokenClassifierInputParams(FineTuningInputParams):
    tokens_key: str = Field("tokens", description="column of the words")
    labels_key: str = Field("labels", description="column of their labels")


class QaInputParams(FineTuningInputParams):
    max_sequence_length: PositiveInt = Field(128, description="tokens of question and text together")
    max_query_length: PositiveInt = Field(64, description="tokens of a question; longer ones are cut")
    doc_stride: PositiveInt = Field(
        64, description="a text that is too long is read in windows, each so many tokens after the last"
    )


class SummarizationInputParams(FineTuningInputParams):
    max_sequence_length: PositiveInt = Field(
        128, description="tokens of a sample; what is left makes another"
    )
    max_cls_tokens: PositiveInt = Field(16, description="sentences of a sample")
    sentences_key: str = Field("sentences", description="column of a document's sentences")
    labels_key: str = Field("labels", description="column that says which belong to the summary: 1, else 0")


class PairInputParams(TranslationInputParams):
    data_dir: str | list[str] | None = Field(
        None,
        description="files or folders of pairs: *.tsv, *.csv, *.jsonl, *.parquet, *.arrow, or *.src with *.tgt; "
        "without it and src_data_dir, numbers in English and German words",
    )
    source_key: str = Field(
        "source", description="column or key of the source; translation.en is a key in a key"
    )
    target_key: str = Field("target", description="column or key of the target")


class SpanOrPairInputParams(SpanInputParams):
    objective: Literal["spans", "pairs"] = Field(
        "spans", description="spans: fill in what was taken out of text; pairs: fine-tune on pairs of texts"
    )
    data_dir: str | list[str] | None = Field(
        None,
        description="a prepared store, or folders of *.h5, *.parquet, *.arrow, *.csv, *.jsonl, *.txt; for pairs "
        "*.tsv, *.csv, *.jsonl, *.parquet, *.arrow, or *.src with *.tgt; without it, what comes with the package",
    )
    tgt_max_sequence_length: PositiveInt | None = Field(
        None, description="tokens of a target; left out: as many as the input's spans need, or 32 for pairs"
    )
    src_data_dir: str | None = Field(None, description="pairs: a text file with a source a line")
    tgt_data_dir: str | None = Field(None, description="pairs: a text file with their targets, line by line")
    source_key: str = Field("source", description="pairs: column or key of the source")
    target_key: str = Field("target", description="pairs: column or key of the target")
