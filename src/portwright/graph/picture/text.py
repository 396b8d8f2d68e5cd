"""Words and numbers as they stand on the page: escaped, short, and never empty."""

from __future__ import annotations

import html
import re
import unicodedata
from typing import Any

from portwright.job.sizes import show_bytes, show_count

NONE = "—"
_BEYOND_MEASURE = 1e30  # larger ones would overflow when they are summed and drawn
_GONE = "\ufffd"
# Control characters, marks of writing direction, lone surrogates, and the code points that are no characters.
_UNFIT = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufeff"
    + "".join(chr(0x10000 * plane + last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
    + "]"
)


def clean(value: Any) -> str:
    """Any value as text that XML can hold; what cannot be shown, or would turn the text around it, becomes a sign.

    Module and file names are whatever a user or a file system made of them: control characters, lone surrogates and
    marks of writing direction would break the file or let a name pass for another.
    """
    return _UNFIT.sub(_GONE, str(value))


def esc(value: Any) -> str:
    """Text for HTML and XML, in elements and in attributes."""
    return html.escape(clean(value), quote=True)


def elide(text: str, most: int) -> str:
    """At most so many characters; the middle goes, since names differ at their ends."""
    text = clean(text)
    if len(text) <= most:
        return text
    head = (most - 1) // 2
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


def number(value: Any) -> float | None:
    """A number that can be one of a plan, or None: a truth value, a text, or one beyond all measure is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _BEYOND_MEASURE:
        return None
    return float(value)


def show_size(value: Any) -> str:
    found = number(value)
    return NONE if found is None else _signed(found, show_bytes)


def show_number(value: Any) -> str:
    """All digits of a small whole number, three of a large one."""
    found = number(value)
    if found is None:
        return NONE
    if abs(found) < 1e6 and found.is_integer():
        return f"{found:,.0f}"
    return _signed(found, show_count) if abs(found) >= 1000 else f"{found:.3g}"


def show_share(value: Any) -> str:
    """A fraction as a percentage; what rounds to nothing says so."""
    found = number(value)
    if found is None:
        return NONE
    if found >= 10:
        return f"{found:,.0f} times"
    percent = 100 * found
    if 0 < percent < 0.01:
        return "< 0.01 %"
    digits = 0 if percent == 0 or percent >= 99.95 else 1 if percent >= 10 else 2
    return f"{percent:.{digits}f} %"


def _signed(value: float, show: Any) -> str:
    return f"-{show(-value)}" if value < 0 else str(show(value))


def text_width(text: str, size: float) -> float:
    """About how wide text of a font size is, a little on the wide side: wide signs of Asian scripts count double."""
    ems = sum(1.05 if unicodedata.east_asian_width(c) in "WF" else 0.62 for c in text)
    return ems * size
