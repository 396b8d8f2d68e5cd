"""Where a section's text is, and which tokenizer goes with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from portwright.data.manifest import MANIFEST, read_manifest
from portwright.errors import UserError
from portwright.job.atomic import atomic_write_text
from portwright.text.evaluation import TRAINING
from portwright.text.inputs import find_inputs, total_bytes
from portwright.text.number_words import number_pairs
from portwright.text.objectives import Objective
from portwright.text.pairs import Pairs
from portwright.text.prepare import PrepareOptions, sample_texts
from portwright.text.prepare_folder import TOKENIZER_FILE
from portwright.text.ready import HDF5_ENDINGS, csv_columns, is_ready_csv
from portwright.text.shipped import shipped_documents, split_held_out
from portwright.text.tokenizer import Tokenizer
from portwright.text.tokenizer_files import load_tokenizer
from portwright.text.tokenizer_training import train_tokenizer

MOST_TEXT_BYTES = 512 << 20  # that are tokenized when a run begins; more is prepared before


@dataclass(frozen=True)
class Source:
    """Text of a section: that of the package, a prepared store, files of samples, or files of text."""

    section: str
    kind: Literal["shipped", "store", "hdf5", "csv", "text"]
    places: tuple[Path, ...] = ()

    @property
    def training(self) -> bool:
        return self.section != "eval_input"


def find_source(options: Mapping[str, Any], section: str) -> Source:
    """Looks at data_dir; the places of files of samples are the files."""
    given = options.get("data_dir")
    if given is None or given == []:
        return Source(section, "shipped")
    if "" in ([given] if isinstance(given, str | Path) else given):
        raise UserError(
            f"{section}.data_dir is empty.", "Name a folder, or leave it out for the shipped text."
        )
    places = tuple(Path(each).expanduser() for each in ([given] if isinstance(given, str | Path) else given))
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
    """The tokenizer that options name, or that of the store, or one that is trained on the text.

    None: samples in files that need none, and none is named.
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
    """Refuses text that takes too long to tokenize whenever a run begins."""
    total = total_bytes(find_inputs(source.places))
    if total > MOST_TEXT_BYTES:
        raise UserError(
            f"{source.section}.data_dir holds {total >> 20} MiB of text, too much to tokenize at every start.",
            f"Prepare it once: portwright data prepare {' '.join(map(str, source.places))} --out FOLDER ..., "
            "and name FOLDER as data_dir.",
        )


def _training_tokenizer(
    section: str, kind: str, vocab_size: int, num_sentinels: int, training: Mapping[str, Any]
) -> Tokenizer | None:
    """The one that training on these options uses; None where samples in files need none."""
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
    """The one that an earlier run kept beside the text; else training trains it, the same in every process."""
    kept = _kept_file(source.places[0], kind, vocab_size, num_sentinels)
    if kept.is_file():
        return load_tokenizer(kept)
    if not source.training:
        raise _no_tokenizer(source.section, kept)
    check_text_size(source)
    chosen = PrepareOptions(
        Objective("causal", 1), split=options.get("split"), text_key=options.get("text_key", "text")
    )
    texts = sample_texts(find_inputs(source.places), chosen)
    tokenizer = train_tokenizer(
        kind, texts, vocab_size, num_sentinels=num_sentinels, do_lower=options.get("do_lower", True)
    )
    atomic_write_text(kept, tokenizer.to_json() + "\n")
    return load_tokenizer(kept)


def pair_tokenizer(
    options: Mapping[str, Any], section: str, kind: str, vocab_size: int, pairs: Pairs
) -> Tokenizer:
    """One for both languages of a translation; `kind` is that of one that is trained."""
    if options.get("tokenizer") is not None:
        return load_tokenizer(options["tokenizer"])
    if TRAINING in options:
        return _kept_by_training(section, _kept_beside_pairs(options[TRAINING], kind, vocab_size))
    if not options.get("src_data_dir") and not options.get("data_dir"):
        return _number_tokenizer(kind, vocab_size)
    kept = _kept_beside_pairs(options, kind, vocab_size)
    if not kept.is_file():
        if section == "eval_input":
            raise _no_tokenizer(section, kept)
        tokenizer = train_tokenizer(kind, [*pairs.sources, *pairs.targets], vocab_size)
        atomic_write_text(kept, tokenizer.to_json() + "\n")
    return load_tokenizer(kept)


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


def _no_tokenizer(section: str, kept: Path) -> UserError:
    return UserError(
        f"{section} has text of its own and no tokenizer ('{kept}' does not exist).",
        f"Set {section}.tokenizer to that of training, which keeps it beside its text as {kept.name}.",
    )


def _files_ending(places: tuple[Path, ...], endings: tuple[str, ...]) -> tuple[Path, ...]:
    found: list[Path] = []
    for place in places:
        inside = sorted(place.iterdir()) if place.is_dir() else [place]
        found += [path for path in inside if path.suffix.lower() in endings and path.is_file()]
    return tuple(found)
