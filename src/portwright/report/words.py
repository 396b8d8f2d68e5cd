"""Formats names and numbers for a page: short, never empty, without unsafe characters."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from markupsafe import Markup, escape

from portwright.job.sizes import show_bytes, show_count

NONE = "—"
# Control characters, marks of writing direction, lone surrogates, and code points that are not characters.
_UNFIT = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufeff"
    + "".join(chr(0x10000 * plane + last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
    + "]"
)


def clean(value: Any) -> str:
    """Any value as text that HTML and XML can hold; our own markup is unchanged, and None is a dash.

    Names of modules and files may hold any character: a placeholder replaces those that cannot be shown or that would
    change the direction of the text around them.
    """
    if isinstance(value, Markup):
        return value
    return NONE if value is None else _UNFIT.sub("\ufffd", str(value))


def breakable(path: str) -> Markup:
    """Text that breaks after a slash or a dot in a narrow column, rather than inside a word."""
    return Markup(re.sub(r"([/._])", r"\1<wbr>", str(escape(clean(path)))))


def elide(text: str, most: int) -> str:
    """Shortens a text to `most` characters by cutting the middle, since names differ at their ends."""
    if len(text) <= most:
        return text
    head = (most - 1) // 2
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


def fit(text: str, width: float, size: float) -> str:
    """Cuts a text to about `width` in a font of `size`; wide characters, as in Asian scripts, count double."""
    text = clean(text)
    widths = [size * (1.05 if unicodedata.east_asian_width(c) in "WF" else 0.62) for c in text]
    return text if sum(widths) <= width else elide(text, int(width / max(widths)))


def several(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def size(value: float | None) -> str:
    return NONE if value is None else show_bytes(value)


def number(value: float) -> str:
    """All digits of a small whole number, three of others."""
    if abs(value) < 1e6 and float(value).is_integer():
        return f"{value:,.0f}"
    return show_count(value) if value >= 1000 else f"{value:.3g}"


def share(value: float) -> str:
    """A fraction as a percentage; a small one that would round to 0 is marked as such."""
    if value >= 10:
        return f"{value:,.0f} times"
    percent = 100 * value
    if 0 < percent < 0.01:
        return "< 0.01 %"
    digits = 0 if percent == 0 or percent >= 99.95 else 1 if percent >= 10 else 2
    return f"{percent:.{digits}f} %"
