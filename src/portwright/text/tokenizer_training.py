"""Trains tokenizers: the same text gives the same tokens, whatever the order of threads."""

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
from portwright.text.tokenizer import Tokenizer, as_byte_pairs, as_word_pieces

Kind = Literal["gpt", "bert", "roberta", "t5", "translation"]
KINDS: tuple[str, ...] = get_args(Kind)

_SPECIAL = {
    "gpt": ("<|endoftext|>",),
    "bert": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "roberta": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    "t5": ("<pad>", "</s>", "<unk>"),
    "translation": ("<pad>", "<unk>", "<s>", "</s>"),
}
# The most frequent letters that are kept; BERT's and sentencepiece's trainers have the same limit.
_MAX_LETTERS = 1000
_LONG_WORD = re.compile(r"[^ ]{1000}")


def train_tokenizer(
    kind: str, texts: Iterable[str], vocab_size: int, *, num_sentinels: int = 0, do_lower: bool = True
) -> Tokenizer:
    """Learns at most `vocab_size` tokens, special ones included.

    gpt and roberta: byte-level BPE; bert: WordPiece; t5 and translation: BPE over words marked by ▁, with `num_sentinels` tokens
    <extra_id_N> at the end, the first one last. `do_lower` is for bert.
    """
    if kind not in KINDS:
        raise UserError(f"'{kind}' is no kind of tokenizer.", suggest(kind, KINDS))
    special = list(_SPECIAL[kind])
    backend = _backend(kind, do_lower)
    letters: list[str]
    texts = [piece for text in texts for piece in _cut_long_words(text)]
    if kind in ("gpt", "roberta"):
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    else:
        # Scripts of many letters may have more, but words need room too.
        letters = _alphabet(backend, texts, max(_MAX_LETTERS, vocab_size // 4))
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


def _cut_long_words(text: str) -> list[str]:
    """Cuts the text inside very long words: a trainer's time grows with the square of a word's length."""
    cuts = [0, *(match.end() for match in _LONG_WORD.finditer(text)), len(text)]
    return [text[low:high] for low, high in pairwise(cuts)]


def _backend(kind: str, do_lower: bool) -> tokenizers.Tokenizer:
    if kind == "bert":
        return as_word_pieces(models.WordPiece(unk_token="[UNK]"), do_lower)
    if kind in ("t5", "translation"):
        backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
        backend.normalizer = normalizers.NFKC()
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        backend.decoder = decoders.Metaspace()
        return backend
    return as_byte_pairs(models.BPE(), add_prefix_space=False)


def _alphabet(backend: tokenizers.Tokenizer, texts: Iterable[str], most: int) -> list[str]:
    """The `most` most frequent letters of the text as the trainer sees them, sorted."""
    counts: Counter[str] = Counter()
    for text in texts:
        normalized = backend.normalizer.normalize_str(text)
        counts.update(normalized)
    mark = "▁" if isinstance(backend.pre_tokenizer, pre_tokenizers.Metaspace) else ""
    letters = [
        letter
        for letter in counts
        if letter != " " and (mark or not letter.isspace()) and unicodedata.category(letter) != "Cs"
    ]
    by_frequency = sorted(letters, key=lambda letter: (-counts[letter], letter))[:most]
    return sorted({*by_frequency, *mark})


def _without_special_letters(
    backend: tokenizers.Tokenizer, special: list[str], do_lower: bool
) -> tokenizers.Tokenizer:
    """The same vocabulary with only `special` as special tokens; "##e" was one for the trainer alone."""
    model = models.WordPiece(vocab=backend.get_vocab(), unk_token="[UNK]", max_input_chars_per_word=100)
    fresh = as_word_pieces(model, do_lower)
    fresh.add_special_tokens(special)
    return fresh
