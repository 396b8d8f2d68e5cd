"""Reads ready samples into memory, from HDF5 and CSV files as the model zoo's scripts write them."""

from __future__ import annotations

import ast
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from portwright.data.columns import Arrays
from portwright.data.files import read_numbers
from portwright.data.hdf5 import Hdf5Columns, open_hdf5, reading
from portwright.data.tables import Row, check_column, read_rows, shorten
from portwright.errors import UserError
from portwright.text.packing import pad_rows
from portwright.text.tokenizer import Tokenizer

MOST_BYTES = 16 << 30  # of files that are read into memory

# The fields of a batch by objective; _OPTIONAL: the fields that it may also have.
FIELDS = {
    "causal": ("input_ids", "attention_mask", "labels"),
    "masked": ("input_ids", "attention_mask", "masked_lm_positions", "masked_lm_weights", "labels"),
    "spans": ("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask", "labels"),
}
FIELDS["pairs"] = (*FIELDS["masked"], "token_type_ids", "next_sentence_label")
_OPTIONAL = {"causal": ("document_ids", "position_ids")}
_ID_FIELDS = ("input_ids", "labels", "decoder_input_ids")
_TOKEN_COLUMNS = ("tokens", "segment_ids", "is_random_next")
_FLAGS = {"true": 1, "1": 1, "false": 0, "0": 0}


def csv_columns(path: Path) -> list[str]:
    """The heading of a CSV file."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return next(csv.reader(file), [])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"'{path}' cannot be read: {error}.", "Give a UTF-8 file of CSV.") from error


def is_ready_csv(columns: Sequence[str]) -> bool:
    """Whether these columns hold samples rather than text."""
    return "tokens" in columns or {"input_ids", "labels"} <= set(columns)


def read_samples(files: Sequence[Path], objective: str, vocab_size: int) -> Arrays:
    """Reads fields from HDF5, or from CSV with lists in brackets as create_csv_static_masking.py writes it.

    HDF5 may hold input_ids, attention_mask and labels as one `data` [n, 3, length] or as `example_N` [3, length].
    """
    _check_size(files)
    parts: list[Arrays] = []
    for path in files:
        if path.suffix.lower() == ".csv":
            found = read_numbers(path, _names_found(path, csv_columns(path), objective))
        else:
            found = _read_hdf5(path, objective)
        part = {
            name: array.astype(np.float32 if name == "masked_lm_weights" else np.int32, copy=False)
            for name, array in found.items()
        }
        _check_part(path, part, parts[0] if parts else None, vocab_size)
        parts.append(part)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def read_csv_tokens(
    files: Sequence[Path], width: int, tokenizer: Tokenizer, *, pairs: bool, do_lower: bool
) -> Arrays:
    """Rows of tokens written as text, to be masked in training, as create_csv.py and create_csv_mlm_only.py write them."""
    _check_size(files)
    unknown = tokenizer.id_of("unk")
    ids = {
        str(token): number for token, number in tokenizer.backend.get_vocab(with_added_tokens=True).items()
    }
    special = {str(tokenizer.backend.id_to_token(number)) for number in tokenizer.special_ids.tolist()}
    rows: list[list[int]] = []
    first_lengths: list[int] = []
    labels: list[int] = []
    for path in files:
        for name in _TOKEN_COLUMNS if pairs else _TOKEN_COLUMNS[:1]:
            check_column(path, name, csv_columns(path), "Without pairs of sentences, set model.disable_nsp.")
        for row in read_rows(path):
            spelled = [
                token.lower() if do_lower and token not in special else token
                for token in map(str, _list(path, row, "tokens"))
            ]
            if len(spelled) > width and pairs:
                raise UserError(
                    f"'{path}', {row.place}: {len(spelled)} tokens and max_sequence_length is {width}.",
                    "Raise max_sequence_length, or make shorter pairs.",
                )
            rows.append([ids.get(token, unknown) for token in spelled[:width]])
            if pairs:
                segments = _list(path, row, "segment_ids")
                if not all(isinstance(each, int | float) for each in segments):
                    raise _no_value(path, row, "segment_ids", "numbers")
                first_lengths.append(segments[: len(spelled)].count(0))
                flag = _FLAGS.get(row.values["is_random_next"].strip().lower())
                if flag is None:
                    raise _no_value(path, row, "is_random_next", "True or False")
                labels.append(flag)
    made: Arrays = pad_rows(rows, width, tokenizer.pad_id)
    if pairs:
        made["first_length"] = np.asarray(first_lengths, np.int32)
        made["next_sentence_label"] = np.asarray(labels, np.int32)
    return made


def _check_size(files: Sequence[Path]) -> None:
    total = sum(path.stat().st_size for path in files)
    if total > MOST_BYTES:
        raise UserError(
            f"{len(files)} files of samples hold {total >> 30} GiB, and they are read into memory.",
            "Prepare the text itself (`portwright data prepare`): a store is read from the disk.",
        )


def _read_hdf5(path: Path, objective: str) -> Arrays:
    with open_hdf5(path) as file:
        names = list(file)
        if objective == "causal" and "data" not in names and "n_examples" in file.attrs:
            with reading(path, "examples"):
                numbers = range(int(file.attrs["n_examples"]))
                samples = np.stack([file[f"example_{number}"][()] for number in numbers])
                return {name: samples[:, place] for place, name in enumerate(FIELDS["causal"])}
    is_zoo = objective == "causal" and "data" in names
    columns = Hdf5Columns(path, FIELDS["causal"] if is_zoo else _names_found(path, names, objective))
    return columns.gather(np.arange(len(columns)))


def _names_found(path: Path, names: Sequence[str], objective: str) -> list[str]:
    for name in FIELDS[objective]:
        if name not in names:
            raise UserError(
                f"'{path}' has no '{name}' (it has {', '.join(names[:8]) or 'nothing'}).",
                f"{objective} needs {', '.join(FIELDS[objective])}.",
            )
    return [name for name in (*FIELDS[objective], *_OPTIONAL.get(objective, ())) if name in names]


def _check_part(path: Path, part: Arrays, first: Arrays | None, vocab_size: int) -> None:
    for name, array in part.items():
        if first is not None and (name not in first or array.shape[1:] != first[name].shape[1:]):
            raise UserError(
                f"'{path}': '{name}' has samples of another shape than the files before, {array.shape[1:]}.",
                "Keep samples of different lengths in different folders.",
            )
        if name in _ID_FIELDS and array.size:
            bad = (array < 0) | (array >= vocab_size)
            if bad.any():
                record = int(np.flatnonzero(bad.reshape(len(array), -1).any(axis=1))[0])
                raise UserError(
                    f"'{path}', record {record}: the id {array[bad].flat[0]} in '{name}', and the model knows ids 0 to "
                    f"{vocab_size - 1}.",
                    "Set model.vocab_size to that of the tokenizer which made these samples.",
                )


def _list(path: Path, row: Row, name: str) -> list[Any]:
    try:
        value = ast.literal_eval(row.values[name])
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise _no_value(path, row, name, name) from error
    if not isinstance(value, list | tuple):
        raise _no_value(path, row, name, name)
    return list(value)


def _no_value(path: Path, row: Row, name: str, what: str) -> UserError:
    found = shorten(row.values[name])
    return UserError(f"'{path}', {row.place}: '{name}' is {found}, not {what}.", "Mend the record.")
