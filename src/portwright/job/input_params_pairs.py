"""The keys of train_input and eval_input of models that learn from pairs of texts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from portwright.job.input_params import SpanInputParams, TranslationInputParams


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
