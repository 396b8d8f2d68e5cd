"""The keys of train_input and eval_input that every model has, with the model zoo's names."""

from __future__ import annotations

from pydantic import Field, PositiveInt

from portwright.job import input_params
from portwright.job.input_params import fill_defaults

__all__ = ["InputParams", "TextInputParams", "fill_defaults"]


class InputParams(input_params.InputParams):
    batch_size: PositiveInt = Field(32, description="samples of a step; a short last batch is left out")
    data_dir: str | list[str] | None = Field(
        None, description="folders with your *.tfrecord* files; without it, data is generated"
    )
    shuffle_seed: int | None = Field(None, description="left out: runconfig's seed decides")
    shuffle_buffer: PositiveInt | None = Field(
        None,
        description="samples to choose from; left out: all of generated data and text, ten batches of files",
    )
    repeat: bool | None = Field(
        None, description="begin again at the end; left out: in training, not in evaluation"
    )
    cache: bool = Field(False, description="keep what was read in memory")
    n_parallel_reads: PositiveInt = Field(4, description="files read at once")


class TextInputParams(InputParams):
    data_dir: str | list[str] | None = Field(
        None,
        description="folders with your *.tfrecord* or *.txt files; without it, text of Python's own documentation",
    )
    vocab_file: str | None = Field(
        None, description="a token a line, for *.txt files; left out: learned from the text of train_input"
    )
    do_lower: bool = Field(True, description="text in lower case")
    max_sequence_length: PositiveInt = Field(64, description="tokens of a sample")
    num_samples: PositiveInt | None = Field(None, description="of text, take no more than these")
