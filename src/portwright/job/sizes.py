"""Sizes and counts as people read and write them."""

from __future__ import annotations

import math
import re

from portwright.errors import UserError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40, "pi": 2**50}
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([kmgtp]i?)?b?(?:ytes?)?\s*", re.IGNORECASE)


def show_bytes(count: float) -> str:
    """Decimal units, three significant digits: 40.0 GB."""
    return _scaled(count, "B", ("B", "kB", "MB", "GB", "TB", "PB", "EB"))


def show_count(count: float) -> str:
    """Three significant digits: 1.25 G."""
    return _scaled(count, "", ("", "k", "M", "G", "T", "P", "E")).strip()


def parse_bytes(text: str) -> int:
    """Reads 24GB, 24GiB, 512m or a plain number of bytes."""
    match = _SIZE.fullmatch(text)
    size = -1
    if match is not None:
        unit = (match[2] or "").lower()
        size = int(float(match[1]) * (_BINARY[unit] if unit in _BINARY else _UNITS[unit]))
    if size <= 0:
        raise UserError(f"'{text}' is not a size of memory.", "Write it as 24GB, 24GiB or a number of bytes.")
    return size


def _scaled(count: float, least: str, units: tuple[str, ...]) -> str:
    if count < 1000:
        number = f"{count:.0f}" if float(count).is_integer() else f"{count:.3g}"
        return f"{number} {least}"
    power = min(int(math.log10(count) / 3 + 1e-12), len(units) - 1)
    number = count / 1000**power
    if f"{number:.3g}" == "1e+03" and power + 1 < len(units):
        power, number = power + 1, number / 1000
    digits = 2 if number < 10 else 1 if number < 100 else 0
    return f"{number:.{digits}f} {units[power]}"
