"""Finds a section's text and its tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from portwright.data.hdf5 import HDF5_ENDINGS
from portwright.data.manifest import MANIFEST, read_manifest
from portwright.errors import UserError
from portwright.job.atomic import atomic_write_text
from portwright.text.inputs import find_inputs, total_bytes
from portwright.text.objectives import Objective
from portwright.text.pairs import Pairs
from portwright.text.prepare import sample_texts
from portwright.text.preparing import TOKENIZER_FILE, PrepareOptions
from portwright.text.ready import csv_columns, is_ready_csv
from portwright.text.shipped import number_pairs, shipped_documents, split_held_out
from portwright.text.tokenizer import Tokenizer
from portwright.text.tokenizer_files import load_tokenizer
from portwright.text.tokenizer_training import train_tokenizer

TRAINING = "training"  # the key under which eval_input holds train_input, whose tokenizer it takes
MOST_TEXT_BYTES = 512 << 20  # tokenized when a run begins; larger text must be prepared before


@dataclass(frozen=True)
class Source:
    """A section's text: the package's own, a prepared store, files of samples, or files of text."""

    section: str
    kind: Literal["shipped", "store", "hdf5", "csv", "text"]
    places: tuple[Path, ...] = ()


def section_options(params: Mapping[str, Any], section: str) -> dict[str, Any]:
    """The options of a section of params; evaluation gets training's tokenizer unless it names one.

    Training on a user's text and evaluating on the package's is refused: the texts would not match.
    """
    options = dict(params[section])
    training = params.get("train_input") or {}
    if section != "eval_input" or options.get("tokenizer") is not None:
        return options
    if _has_text(training) and not _has_text(options):
        raise UserError(
            "eval_input names no data and no tokenizer, and train_input names data of its own.",
            "Set eval_input.data_dir, or eval_input.tokenizer to the one of training.",
        )
    if training.get("tokenizer") is not None:
        return {**options, "tokenizer": training["tokenizer"]}
    return {**options, TRAINING: training} if _has_text(training) else options


def _has_text(options: Mapping[str, Any]) -> bool:
    return any(options.get(name) for name in ("data_dir", "src_data_dir"))


def find_source(options: Mapping[str, Any], section: str) -> Source:
    """Finds out what data_dir holds; for files of samples, `places` lists the files."""
    given = options.get("data_dir")
    if given is None or given == []:
        return Source(section, "shipped")
    listed = [given] if isinstance(given, str | Path) else given
    if "" in listed:
        raise UserError(
            f"{section}.data_dir is empty.", "Name a folder, or leave it out for the shipped text."
        )
    places = tuple(Path(each).expanduser() for each in listed)
    for place in places:
        if not place.exists():
            raise UserError(f"{section}.data_dir: '{place}' does not exist.", "Correct the path.")
    if any((place / MANIFEST).is_file() or any(place.glob("shard-*.json")) for place in places):
        if len(places) > 1:
            raise UserError(
                f"{section}.data_dir names {len(places)} folders, and one of them is a prepared store.",
                "Name one store; prepare all texts into it.",
            )
        return Source(section, "store", places)
    if hdf5 := _files_ending(places, HDF5_ENDINGS):
        return Source(section, "hdf5", hdf5)
    tables = _files_ending(places, (".csv",))
    if (
        tables
        and is_ready_csv(csv_columns(tables[0]))
        and options.get("text_key") not in csv_columns(tables[0])
    ):
        return Source(section, "csv", tables)
    return Source(section, "text", places)


def choose_tokenizer(
    source: Source, kind: str, vocab_size: int, options: Mapping[str, Any]
) -> Tokenizer | None:
    """The tokenizer that the options name, or the store's, or one trained on the text.

    None: the files hold samples that need no tokenizer, and none is named.
    """
    given = options.get("tokenizer")
    num_sentinels = options.get("extra_ids", 0) if kind == "t5" else 0
    named: Tokenizer | None = None
    if given is not None:
        named = load_tokenizer(given, do_lower=options.get("do_lower")).with_sentinels(num_sentinels)
    elif TRAINING in options and source.kind not in ("hdf5", "csv"):
        named = _training_tokenizer(source.section, kind, vocab_size, num_sentinels, options[TRAINING])
    if source.kind == "store":
        return _store_tokenizer(source, named, is_given=given is not None)
    if named is not None or source.kind in ("hdf5", "csv"):
        return named
    if source.kind == "shipped":
        return _shipped_tokenizer(kind, vocab_size, num_sentinels, options.get("do_lower", True))
    return _text_tokenizer(source, kind, vocab_size, num_sentinels, options)


def check_text_size(source: Source) -> None:
    """Refuses text that is too large to tokenize at the beginning of each run."""
    total = total_bytes(find_inputs(source.places))
    if total > MOST_TEXT_BYTES:
        raise UserError(
            f"{source.section}.data_dir holds {total >> 20} MiB of text, too much to tokenize at every start.",
            f"Prepare it once: portwright data prepare {' '.join(map(str, source.places))} --out FOLDER ..., "
            "and name FOLDER as data_dir.",
        )


def text_options(objective: Objective, options: Mapping[str, Any]) -> PrepareOptions:
    """The options to read a section's text with when a run begins."""
    return PrepareOptions(objective, split=options.get("split"), text_key=options.get("text_key", "text"))


def _training_tokenizer(
    section: str, kind: str, vocab_size: int, num_sentinels: int, training: Mapping[str, Any]
) -> Tokenizer | None:
    """The tokenizer that training uses with these options; None where the files' samples need none."""
    source = find_source(training, "train_input")
    if source.kind in ("hdf5", "csv"):
        return None
    if source.kind == "store":
        return _store_tokenizer(source, None)
    return _kept_by_training(section, _kept_file(source.places[0], kind, vocab_size, num_sentinels))


def _kept_by_training(section: str, kept: Path) -> Tokenizer:
    if not kept.is_file():
        raise UserError(
            f"{section} names no tokenizer, and that of training, '{kept}', does not exist.",
            f"Train first, with the same model, or set {section}.tokenizer.",
        )
    return load_tokenizer(kept)


def _store_tokenizer(source: Source, named: Tokenizer | None, is_given: bool = True) -> Tokenizer | None:
    folder = source.places[0]
    noted = read_manifest(folder).header.tokenizer
    own = folder / TOKENIZER_FILE
    tokenizer = named if named is not None else load_tokenizer(own) if own.is_file() else None
    if tokenizer is None and noted is not None:
        raise UserError(
            f"{source.section}: '{own}' is missing, and no tokenizer is named.",
            f"Name the tokenizer that made these data (fingerprint {noted.get('fingerprint')}).",
        )
    if tokenizer is not None and noted is not None and tokenizer.fingerprint != noted.get("fingerprint"):
        raise UserError(
            f"{source.section}: {tokenizer.source} is not the one that made '{folder}' "
            f"(fingerprint {tokenizer.fingerprint}, not {noted.get('fingerprint')}).",
            "Leave `tokenizer` out to take the store's own, or prepare the data with this one."
            if named is not None and is_given
            else "Training has that one: prepare these data with it (--tokenizer)."
            if named is not None
            else "Put the store's own tokenizer.json back.",
        )
    return tokenizer


@cache  # training, evaluation and tests ask for it again and again
def _shipped_tokenizer(kind: str, vocab_size: int, num_sentinels: int, do_lower: bool) -> Tokenizer:
    texts = split_held_out(shipped_documents(), training=True)
    return train_tokenizer(kind, texts, vocab_size, num_sentinels=num_sentinels, do_lower=do_lower)


def _text_tokenizer(
    source: Source, kind: str, vocab_size: int, num_sentinels: int, options: Mapping[str, Any]
) -> Tokenizer:
    """The tokenizer that an earlier run kept beside the text; else training trains one, equal in every process."""

    def train() -> Tokenizer:
        check_text_size(source)
        texts = sample_texts(find_inputs(source.places), text_options(Objective("causal", 1), options))
        return train_tokenizer(
            kind, texts, vocab_size, num_sentinels=num_sentinels, do_lower=options.get("do_lower", True)
        )

    kept = _kept_file(source.places[0], kind, vocab_size, num_sentinels)
    return _load_or_train(kept, source.section, train)


def pair_tokenizer(
    options: Mapping[str, Any], section: str, kind: str, vocab_size: int, pairs: Pairs
) -> Tokenizer:
    """One tokenizer for both languages of a translation; `kind` is the kind to train."""
    if options.get("tokenizer") is not None:
        return load_tokenizer(options["tokenizer"])
    if TRAINING in options:
        return _kept_by_training(section, _kept_beside_pairs(options[TRAINING], kind, vocab_size))
    if not options.get("src_data_dir") and not options.get("data_dir"):
        return _number_tokenizer(kind, vocab_size)
    return _load_or_train(
        _kept_beside_pairs(options, kind, vocab_size),
        section,
        lambda: train_tokenizer(kind, [*pairs.sources, *pairs.targets], vocab_size),
    )


def _kept_beside_pairs(options: Mapping[str, Any], kind: str, vocab_size: int) -> Path:
    place = options.get("src_data_dir") or options["data_dir"]
    return _kept_file(Path(place if isinstance(place, str | Path) else place[0]), kind, vocab_size, 0)


@cache
def _number_tokenizer(kind: str, vocab_size: int) -> Tokenizer:
    sources, targets = number_pairs(5000)
    return train_tokenizer(kind, [*sources, *targets], vocab_size)


def _kept_file(place: Path, kind: str, vocab_size: int, num_sentinels: int) -> Path:
    folder = place.expanduser()
    folder = folder if folder.is_dir() else folder.parent
    sentinels = f"-{num_sentinels}" if num_sentinels else ""
    return folder / f"tokenizer-{kind}-{vocab_size}{sentinels}.json"


def _load_or_train(kept: Path, section: str, train: Callable[[], Tokenizer]) -> Tokenizer:
    if not kept.is_file():
        if section == "eval_input":
            raise UserError(
                f"{section} has text of its own and no tokenizer ('{kept}' does not exist).",
                f"Set {section}.tokenizer to that of training, which keeps it beside its text as {kept.name}.",
            )
        atomic_write_text(kept, train().to_json() + "\n")
    return load_tokenizer(kept)


def _files_ending(places: tuple[Path, ...], endings: tuple[str, ...]) -> tuple[Path, ...]:
    found: list[Path] = []
    for place in places:
        inside = sorted(place.iterdir()) if place.is_dir() else [place]
        found += [path for path in inside if path.suffix.lower() in endings and path.is_file()]
    return tuple(found)
