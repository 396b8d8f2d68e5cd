"""Loads tokenizers: tokenizer.json, vocab.json with merges.txt, vocab.txt, or a HuggingFace folder of them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models

from portwright.data.tables import read_text
from portwright.errors import UserError
from portwright.text.tokenizer import ROLES, Tokenizer, as_byte_pairs, as_word_pieces

_FORMS = "Give tokenizer.json, vocab.json with merges.txt beside it, BERT's vocab.txt, or a folder that holds them."


def load_tokenizer(path: str | Path, *, do_lower: bool | None = None) -> Tokenizer:
    """Loads the tokenizer in a file or folder; `do_lower` is for vocab.txt, which does not say (default: lower case).

    The roles of special tokens come from tokenizer_config.json or special_tokens_map.json beside it.
    """
    place = Path(path).expanduser()
    if not place.exists():
        raise UserError(f"tokenizer '{path}' does not exist.", _FORMS)
    file = _in_folder(place) if place.is_dir() else place
    settings = _settings(file.parent)
    if file.suffix == ".txt":
        if file.name == "merges.txt":
            return _from_merges(file.parent / "vocab.json", settings)
        lower = do_lower if do_lower is not None else settings.get("do_lower_case", True)
        return _from_word_pieces(file, bool(lower), settings)
    if file.suffix != ".json":
        raise UserError(f"tokenizer '{file}' is of no form that is known here.", _FORMS)
    if not _is_whole(file):
        return _from_merges(file, settings)
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except BaseException as error:  # tokenizers raises plain Exception, and a panic of Rust is not even one
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise UserError(
            f"tokenizer '{file}' cannot be read: {error}.",
            "It may come from a newer release of `tokenizers`, or be cut off; save it anew.",
        ) from error
    return Tokenizer(backend, f"tokenizer '{file}'", _roles(settings))


def _in_folder(folder: Path) -> Path:
    for names in (("tokenizer.json",), ("vocab.json", "merges.txt"), ("vocab.txt",)):
        if all((folder / name).is_file() for name in names):
            return folder / names[0]
    others = [
        name
        for name in ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model")
        if (folder / name).is_file()
    ]
    if others:
        raise UserError(
            f"tokenizer '{folder}' holds {others[0]}, a sentencepiece model, and no tokenizer.json.",
            "Make one: transformers.AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER).",
        )
    raise UserError(f"tokenizer '{folder}' is a folder without a tokenizer.", _FORMS)


def _is_whole(file: Path) -> bool:
    """Whether the file is a tokenizer.json; a plain vocabulary is a map of tokens to numbers."""
    content = _read_json(file)
    if not isinstance(content, dict) or not content:
        raise UserError(f"tokenizer '{file}' holds no JSON object.", _FORMS)
    return isinstance(content.get("model"), dict)


def _from_merges(vocabulary_file: Path, settings: dict[str, Any]) -> Tokenizer:
    merges_file = vocabulary_file.with_name("merges.txt")
    for file in (vocabulary_file, merges_file):
        if not file.is_file():
            raise UserError(f"tokenizer: '{file}' is missing.", "vocab.json and merges.txt belong together.")
    vocabulary = _read_json(vocabulary_file)
    if not isinstance(vocabulary, dict) or not all(isinstance(number, int) for number in vocabulary.values()):
        raise UserError(f"tokenizer '{vocabulary_file}' is no map of tokens to numbers.", _FORMS)
    merges: list[tuple[str, str]] = []
    for number, line in enumerate(read_text(merges_file).split("\n"), start=1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        parts = line.rstrip("\r").split(" ")
        if len(parts) != 2:
            raise UserError(
                f"tokenizer '{merges_file}' line {number}: {line[:80]!r} is no pair of tokens.",
                "A merge is two tokens with one blank between them.",
            )
        merges.append((parts[0], parts[1]))
    for one, other in merges:  # tokenizers panics on these
        if not {one, other, one + other} <= vocabulary.keys():
            raise UserError(
                f"tokenizer '{merges_file}' does not go with '{vocabulary_file}': it merges {one!r} and {other!r}, which "
                "that does not know.",
                "Take both from the same model.",
            )
    backend = as_byte_pairs(
        models.BPE(vocab=vocabulary, merges=merges), bool(settings.get("add_prefix_space", False))
    )
    return Tokenizer(backend, f"tokenizer '{vocabulary_file}'", _roles(settings))


def _from_word_pieces(file: Path, lower: bool, settings: dict[str, Any]) -> Tokenizer:
    lines = read_text(file).split("\n")
    tokens = [line.rstrip("\r") for line in lines]
    while tokens and not tokens[-1]:
        tokens.pop()
    if not tokens:
        raise UserError(f"tokenizer '{file}' is empty.", "A vocab.txt has a token a line.")
    token, count = Counter(tokens).most_common(1)[0]
    if count > 1:
        raise UserError(
            f"tokenizer '{file}' has {token!r} {count} times, first on line {tokens.index(token) + 1}.",
            "Leave each token in once.",
        )
    unknown = next((name for name in ROLES["unk"] if name in tokens), None)
    if unknown is None:
        raise UserError(
            f"tokenizer '{file}' has no [UNK].", "A vocab.txt of BERT has [PAD] [UNK] [CLS] [SEP] [MASK]."
        )
    vocabulary = {token: number for number, token in enumerate(tokens)}
    model = models.WordPiece(vocab=vocabulary, unk_token=unknown, max_input_chars_per_word=100)
    backend = as_word_pieces(model, lower)
    return Tokenizer(backend, f"tokenizer '{file}'", _roles(settings))


def _settings(folder: Path) -> dict[str, Any]:
    """HuggingFace's settings beside a tokenizer; the second file is an older format and adds what the first lacks."""
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            content = _read_json(folder / name)
            settings |= content if isinstance(content, dict) else {}
    return settings


def _roles(settings: dict[str, Any]) -> dict[str, str]:
    roles = {}
    for role in ROLES:
        value = settings.get(f"{role}_token")
        name = value.get("content") if isinstance(value, dict) else value
        if isinstance(name, str):
            roles[role] = name
    return roles


def _read_json(file: Path) -> Any:
    try:
        return json.loads(read_text(file))
    except json.JSONDecodeError as error:
        raise UserError(
            f"tokenizer '{file}' is no JSON: {error.msg} at line {error.lineno}.",
            "Save it anew; it may be cut off.",
        ) from error
