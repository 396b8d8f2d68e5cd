"""Tokenizers trained on the spot: the same text gives the same tokens, in whatever order threads come."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Literal, get_args

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from portwright.errors import UserError, suggest
from portwright.text.tokenizer import Tokenizer

Kind = Literal["gpt", "bert", "roberta", "t5", "translation"]
KINDS: tuple[str, ...] = get_args(Kind)

_SPECIAL = {
    "gpt": ("<|endoftext|>",),
    "bert": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "roberta": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    "t5": ("<pad>", "</s>", "<unk>"),
    "translation": ("<pad>", "<unk>", "<s>", "</s>"),
}
_MOST_LETTERS = (
    1000  # of a text's alphabet, the most frequent; BERT's and sentencepiece's trainers have the same bound
)


_LONG_WORD = re.compile(r"[^ ]{1000}")


def train_tokenizer(
    kind: str, texts: Iterable[str], vocab_size: int, *, num_sentinels: int = 0, do_lower: bool = True
) -> Tokenizer:
    """Learns `vocab_size` tokens at most, special ones among them.

    gpt and roberta: byte-level BPE; bert: WordPiece; t5 and translation: BPE over words marked by ▁, with `num_sentinels` tokens
    <extra_id_N> at the end, the first one last. `do_lower` is for bert.
    """
    if kind not in KINDS:
        raise UserError(f"'{kind}' is no kind of tokenizer.", suggest(kind, KINDS))
    special = list(_SPECIAL[kind])
    backend = _backend(kind, do_lower)
    letters: list[str]
    texts = [piece for text in texts for piece in _without_long_words(text)]
    if kind in ("gpt", "roberta"):
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    else:
        # Scripts of many letters get more, but never so many that there is no room for words.
        letters = _alphabet(backend, texts, max(_MOST_LETTERS, vocab_size // 4))
    # Given as special tokens, they get their numbers first and in this order. Left to itself the trainer numbers them
    # as a hash map of random order yields them, and numbers decide between pairs of equal frequency.
    first = [*special, *(f"##{letter}" for letter in letters)] if kind == "bert" else special
    least = len(first) + len(letters) + num_sentinels
    if vocab_size < least:
        raise UserError(
            f"vocab_size is {vocab_size}, and special tokens and letters alone are {least}.",
            f"Give at least {least}; some thousands serve a small text.",
        )
    shared: dict[str, Any] = {
        "vocab_size": vocab_size - num_sentinels,
        "special_tokens": first,
        "initial_alphabet": letters,
        "limit_alphabet": len(letters),
        "show_progress": False,
    }
    trainer = trainers.WordPieceTrainer(**shared) if kind == "bert" else trainers.BpeTrainer(**shared)
    backend.train_from_iterator(texts, trainer)
    if kind == "bert":
        backend = _without_special_letters(backend, special, do_lower)
    tokenizer = Tokenizer(backend, f"the tokenizer trained here ({kind})")
    return tokenizer.with_sentinels(num_sentinels)


def _without_long_words(text: str) -> list[str]:
    """The text in pieces: the time of a trainer grows with the square of a word's length, and millions would be years."""
    cuts = [0, *(match.end() for match in _LONG_WORD.finditer(text)), len(text)]
    return [text[low:high] for low, high in pairwise(cuts)]


def _backend(kind: str, do_lower: bool) -> tokenizers.Tokenizer:
    if kind == "bert":
        backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        backend.normalizer = normalizers.BertNormalizer(lowercase=do_lower)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece()
    elif kind in ("t5", "translation"):
        backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
        backend.normalizer = normalizers.NFKC()
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        backend.decoder = decoders.Metaspace()
    else:
        backend = tokenizers.Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
    return backend


def _alphabet(backend: tokenizers.Tokenizer, texts: Iterable[str], most: int) -> list[str]:
    """The letters of the text as the trainer sees them, sorted; of very many the most frequent."""
    counts: Counter[str] = Counter()
    for text in texts:
        normalized = backend.normalizer.normalize_str(text)
        counts.update(normalized)
    mark = "▁" if isinstance(backend.pre_tokenizer, pre_tokenizers.Metaspace) else ""
    for letter in [letter for letter in counts if letter == " " or (not mark and letter.isspace())]:
        del counts[letter]
    for letter in [letter for letter in counts if unicodedata.category(letter) == "Cs"]:
        del counts[letter]
    by_frequency = sorted(counts, key=lambda letter: (-counts[letter], letter))[:most]
    return sorted({*by_frequency, *mark})


def _without_special_letters(
    backend: tokenizers.Tokenizer, special: list[str], do_lower: bool
) -> tokenizers.Tokenizer:
    """The same vocabulary in which only `special` are special; "##e" was so to the trainer alone."""
    fresh = _backend("bert", do_lower)
    fresh.model = models.WordPiece(vocab=backend.get_vocab(), unk_token="[UNK]", max_input_chars_per_word=100)
    fresh.add_special_tokens(special)
    return fresh
