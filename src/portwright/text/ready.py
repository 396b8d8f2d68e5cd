"""Samples that were made before: HDF5 files and CSV files as the model zoo's scripts write them, into memory."""

from __future__ import annotations

import ast
import csv
import importlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from portwright.errors import UserError, suggest
from portwright.job.long_cells import begin_long_cells, end_long_cells
from portwright.text.packing import pad_rows
from portwright.text.tokenizer import Tokenizer

Arrays = dict[str, npt.NDArray[Any]]

HDF5_ENDINGS = (".h5", ".hdf5")
MOST_BYTES = 16 << 30  # of files that are read into memory

# What a batch holds, by objective, and what it may hold beside.
FIELDS = {
    "causal": ("input_ids", "attention_mask", "labels"),
    "masked": ("input_ids", "attention_mask", "masked_lm_positions", "masked_lm_weights", "labels"),
    "spans": ("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask", "labels"),
}
FIELDS["pairs"] = (*FIELDS["masked"], "token_type_ids", "next_sentence_label")
_OPTIONAL = {"causal": ("document_ids", "position_ids")}
_ID_FIELDS = ("input_ids", "labels", "decoder_input_ids")
_TOKEN_COLUMNS = ("tokens", "segment_ids", "is_random_next")


def read_hdf5(files: Sequence[Path], objective: str, vocab_size: int) -> Arrays:
    """Fields by name; or [n, 3, length] as `data`, or [3, length] as `example_N`: input_ids, attention_mask, labels."""
    check_size(files)
    parts: list[Arrays] = []
    for path in files:
        part = _read_hdf5_file(path, objective)
        _check_part(path, part, parts[0] if parts else None, vocab_size)
        parts.append(part)
    return _stack(parts)


def csv_columns(path: Path) -> list[str]:
    """The heading of a CSV file."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return next(csv.reader(file), [])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"'{path}' cannot be read: {error}.", "Give a UTF-8 file of CSV.") from error


def is_ready_csv(columns: Sequence[str]) -> bool:
    """Whether these are columns of samples, and not of text."""
    return "tokens" in columns or {"input_ids", "labels"} <= set(columns)


def read_csv_samples(files: Sequence[Path], objective: str, vocab_size: int) -> Arrays:
    """A column a field, lists of numbers in brackets: what create_csv_static_masking.py writes."""
    check_size(files)
    parts: list[Arrays] = []
    for path in files:
        columns = csv_columns(path)
        names = _names_found(path, columns, objective)
        values: dict[str, list[Any]] = {name: [] for name in names}
        for number, row in _csv_rows(path, columns):
            for name in names:
                values[name].append(_numbers(path, number, name, row[name]))
        part = {}
        for name, rows in values.items():
            lengths = {np.size(row) for row in rows}
            if len(lengths) > 1:
                raise UserError(
                    f"'{path}': '{name}' is of {len(lengths)} different lengths.", "Pad it to one."
                )
            kind = np.float32 if name == "masked_lm_weights" else np.int32
            part[name] = np.asarray(rows, kind)
        _check_part(path, part, parts[0] if parts else None, vocab_size)
        parts.append(part)
    return _stack(parts)


def read_csv_tokens(
    files: Sequence[Path], width: int, tokenizer: Tokenizer, *, pairs: bool, do_lower: bool
) -> Arrays:
    """Rows of tokens that are spelled out, to be masked in training: what create_csv.py and create_csv_mlm_only.py write."""
    check_size(files)
    unknown = tokenizer.id_of("unk")
    ids = {
        str(token): number for token, number in tokenizer.backend.get_vocab(with_added_tokens=True).items()
    }
    special = {str(tokenizer.backend.id_to_token(number)) for number in tokenizer.special_ids.tolist()}
    rows: list[list[int]] = []
    first_lengths: list[int] = []
    labels: list[int] = []
    for path in files:
        columns = csv_columns(path)
        for name in _TOKEN_COLUMNS if pairs else _TOKEN_COLUMNS[:1]:
            if name not in columns:
                raise UserError(
                    f"'{path}' has no column '{name}'.",
                    f"{suggest(name, columns)} Without pairs of sentences, set model.disable_nsp.",
                )
        for number, row in _csv_rows(path, columns):
            tokens = _list(path, number, "tokens", row["tokens"])
            spelled = [
                token.lower() if do_lower and token not in special else token for token in map(str, tokens)
            ]
            if len(spelled) > width and pairs:
                raise UserError(
                    f"'{path}', record {number}: {len(spelled)} tokens and max_sequence_length is {width}.",
                    "Raise max_sequence_length, or make shorter pairs.",
                )
            rows.append([ids.get(token, unknown) for token in spelled[:width]])
            if pairs:
                segments = np.asarray(_numbers(path, number, "segment_ids", row["segment_ids"]))
                first_lengths.append(int((segments[: len(spelled)] == 0).sum()))
                labels.append(_flag(path, number, "is_random_next", row["is_random_next"]))
    made: Arrays = pad_rows(rows, width, tokenizer.pad_id)
    if pairs:
        made["first_length"] = np.asarray(first_lengths, np.int32)
        made["next_sentence_label"] = np.asarray(labels, np.int32)
    return made


def check_size(files: Sequence[Path]) -> None:
    total = sum(path.stat().st_size for path in files)
    if total > MOST_BYTES:
        raise UserError(
            f"{len(files)} files of samples hold {total >> 30} GiB, and they are read into memory.",
            "Prepare the text itself (`portwright data prepare`): a store is read from the disk.",
        )


def _read_hdf5_file(path: Path, objective: str) -> Arrays:
    h5py: Any = importlib.import_module("h5py")  # it has no types
    try:
        with h5py.File(path, "r") as file:
            names = list(file.keys())
            if "data" in names and objective == "causal":
                return _thirds(path, np.asarray(file["data"]))
            if "n_examples" in file.attrs and objective == "causal":
                count = int(file.attrs["n_examples"])
                examples = []
                for number in range(count):
                    if f"example_{number}" not in file:
                        raise UserError(
                            f"'{path}' has no example_{number} of {count}.",
                            "It may be cut off; write it anew.",
                        )
                    examples.append(np.asarray(file[f"example_{number}"]))
                return _thirds(path, np.stack(examples) if examples else np.zeros((0, 3, 1), np.int32))
            return {
                name: np.asarray(file[name]).astype(np.float32 if name == "masked_lm_weights" else np.int32)
                for name in _names_found(path, names, objective)
            }
    except UserError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise UserError(
            f"'{path}' cannot be read: {error}.", "It may be cut off, or be no HDF5 file; write it anew."
        ) from error


def _thirds(path: Path, data: npt.NDArray[Any]) -> Arrays:
    if data.ndim != 3 or data.shape[1] != 3:
        raise UserError(
            f"'{path}': samples have shape {data.shape[1:]}.",
            "Give [3, length] each: input_ids, attention_mask and labels.",
        )
    return {name: data[:, number].astype(np.int32) for number, name in enumerate(FIELDS["causal"])}


def _names_found(path: Path, names: Sequence[str], objective: str) -> list[str]:
    for name in FIELDS[objective]:
        if name not in names:
            raise UserError(
                f"'{path}' has no '{name}' (it has {', '.join(names[:8]) or 'nothing'}).",
                f"{objective} needs {', '.join(FIELDS[objective])}.",
            )
    return [name for name in (*FIELDS[objective], *_OPTIONAL.get(objective, ())) if name in names]


def _check_part(path: Path, part: Arrays, first: Arrays | None, vocab_size: int) -> None:
    lengths = {len(array) for array in part.values()}
    if len(lengths) > 1:
        shown = ", ".join(f"{name}: {len(array)}" for name, array in part.items())
        raise UserError(
            f"'{path}': its fields differ in their number of samples ({shown}).", "Write it anew."
        )
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


def _stack(parts: Sequence[Arrays]) -> Arrays:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _csv_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    begin_long_cells()
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for number, row in enumerate(csv.reader(file, strict=True)):
                if number == 0 or not row:
                    continue
                if len(row) != len(columns):
                    raise UserError(
                        f"'{path}', record {number}: {len(row)} columns where the heading has {len(columns)}.",
                        "Write it anew; it may be cut off.",
                    )
                yield number, dict(zip(columns, row, strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"'{path}' cannot be read: {error}.", "Write it anew as UTF-8.") from error
    finally:
        end_long_cells()


def _numbers(path: Path, number: int, name: str, text: str) -> Any:
    try:
        value = np.asarray(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise _no_value(path, number, name, text, "numbers") from error
    if value.dtype.kind not in "iufb" or value.ndim > 1:
        raise _no_value(path, number, name, text, "numbers")
    return value


def _list(path: Path, number: int, name: str, text: str) -> list[Any]:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise _no_value(path, number, name, text, "tokens") from error
    if not isinstance(value, list | tuple):
        raise _no_value(path, number, name, text, "tokens")
    return list(value)


def _flag(path: Path, number: int, name: str, text: str) -> int:
    known = {"true": 1, "1": 1, "false": 0, "0": 0}
    if text.strip().lower() not in known:
        raise _no_value(path, number, name, text, "True or False")
    return known[text.strip().lower()]


def _no_value(path: Path, number: int, name: str, text: str, what: str) -> UserError:
    shown = text if len(text) <= 40 else f"{text[:40]}..."
    return UserError(f"'{path}', record {number}: '{name}' is {shown!r}, not {what}.", "Mend the record.")
