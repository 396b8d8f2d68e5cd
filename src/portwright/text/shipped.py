"""The package's own text, so that a model trains without a download: documents, and pairs of numbers in two languages."""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path

import numpy as np

HELD_OUT = 10  # every tenth document is for evaluation

_FILE = Path(__file__).parent / "shipped.txt.gz"
_ENGLISH = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
_ENGLISH_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_GERMAN = [
    "null", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf",
    "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn",
]  # fmt: skip
_GERMAN_TENS = ["zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]


@cache
def shipped_documents() -> tuple[str, ...]:
    """Sections of Portwright's documentation, as tools/make_shipped_text.py saved them."""
    return tuple(gzip.decompress(_FILE.read_bytes()).decode("utf-8").split("\n\f\n"))


def split_held_out(documents: tuple[str, ...], *, training: bool) -> list[str]:
    """The documents of training, or those held out for evaluation."""
    return [text for number, text in enumerate(documents) if (number % HELD_OUT == HELD_OUT - 1) != training]


def number_pairs(num_samples: int) -> tuple[list[str], list[str]]:
    """Numbers in English and in German; German says the ones before the tens, so that the order of words differs."""
    random = np.random.default_rng(1)
    numbers = random.integers(10 ** random.integers(1, 7, num_samples)).tolist()
    return [english(number) for number in numbers], [german(number) for number in numbers]


def english(number: int) -> str:
    words = []
    for size, name in ((1000, "thousand"), (100, "hundred")):
        if number >= size:
            words += [english(number // size), name]
            number %= size
    if number >= 20:
        words.append(_ENGLISH_TENS[number // 10 - 2])
        number %= 10
    return " ".join(words if words and not number else [*words, _ENGLISH[number]])


def german(number: int) -> str:
    """A number's German word, its parts separated by blanks as a tokenizer would cut them."""
    words = []
    for size, name in ((1000, "tausend"), (100, "hundert")):
        if number >= size:
            words += [german(number // size), name]
            number %= size
    if number >= 20:
        ones, tens = number % 10, _GERMAN_TENS[number // 10 - 2]
        words += [_GERMAN[ones], "und", tens] if ones else [tens]
    elif number or not words:
        words.append("eins" if number == 1 else _GERMAN[number])
    # The one before a thousand or a hundred has no s.
    return " ".join(words).replace("eins tausend", "ein tausend").replace("eins hundert", "ein hundert")
