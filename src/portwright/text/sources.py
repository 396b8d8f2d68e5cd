"""Where a section's text is, and which tokenizer goes with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from portwright.errors import UserError
from portwright.text.number_words import number_pairs
from portwright.text.shipped import shipped_documents, split_held_out
from portwright.text.tokenizer import Tokenizer
from portwright.text.tokenizer_files import load_tokenizer
from portwright.text.tokenizer_training import train_tokenizer


@dataclass(frozen=True)
class Source:
    """Text of a section: that of the package, a prepared store, or files."""

    section: str
    kind: Literal["shipped", "store", "files"]
    places: tuple[Path, ...] = ()

    @property
    def training(self) -> bool:
        return self.section != "eval_input"


def find_source(options: Mapping[str, Any], section: str) -> Source:
    """Looks at data_dir."""
    given = options.get("data_dir")
    if given is None or given == []:
        return Source(section, "shipped")
    places = tuple(Path(each).expanduser() for each in ([given] if isinstance(given, str | Path) else given))
    for place in places:
        if not place.exists():
            raise UserError(f"{section}.data_dir: '{place}' does not exist.", "Correct the path.")
    if any((place / "manifest.json").is_file() for place in places):
        if len(places) > 1:
            raise UserError(
                f"{section}.data_dir names {len(places)} folders, and one of them is a prepared store.",
                "Name one store; prepare all texts into it.",
            )
        return Source(section, "store", places)
    return Source(section, "files", places)


def choose_tokenizer(source: Source, kind: str, vocab_size: int, options: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that options name, or that of the store, or one that is trained on the text."""
    given = options.get("tokenizer")
    num_sentinels = options.get("extra_ids", 0) if kind == "t5" else 0
    if given is not None:
        return load_tokenizer(given, do_lower=options.get("do_lower")).with_sentinels(num_sentinels)
    if source.kind == "shipped":
        return _shipped_tokenizer(kind, vocab_size, num_sentinels, options.get("do_lower", True))
    if source.kind == "store":
        return load_tokenizer(source.places[0] / "tokenizer.json")
    raise UserError(f"{source.section} has files and no tokenizer.", "Give one.")


@cache  # training, evaluation and tests ask for it again and again
def _shipped_tokenizer(kind: str, vocab_size: int, num_sentinels: int, do_lower: bool) -> Tokenizer:
    texts = split_held_out(shipped_documents(), training=True)
    return train_tokenizer(kind, texts, vocab_size, num_sentinels=num_sentinels, do_lower=do_lower)


def pair_tokenizer(options: Mapping[str, Any], section: str, vocab_size: int) -> Tokenizer:
    """One for both languages of a translation."""
    if options.get("tokenizer") is not None:
        return load_tokenizer(options["tokenizer"])
    if not (options.get("src_data_dir") or options.get("data_dir")):
        return _number_tokenizer(vocab_size)
    raise UserError(f"{section} has files and no tokenizer.", "Give one.")


@cache
def _number_tokenizer(vocab_size: int) -> Tokenizer:
    sources, targets = number_pairs(5000)
    return train_tokenizer("translation", [*sources, *targets], vocab_size)


def texts_of(documents: Iterable[Any]) -> Iterable[str]:
    return (document.text for document in documents)
