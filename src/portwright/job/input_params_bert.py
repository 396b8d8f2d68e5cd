"""The input sections of BERT's fine-tuning."""

from __future__ import annotations

from pydantic import Field, PositiveInt

from portwright.job.input_params import LoaderInputParams


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
