"""Sizes as people read and write them."""

from __future__ import annotations

import pytest

from portwright.errors import UserError
from portwright.job.sizes import parse_bytes, show_bytes, show_count


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (999_999, "1.00 MB"),
        (37_059_231_744, "37.1 GB"),
        (7.01e11, "701 GB"),
    ],
)
def test_bytes_are_shown_in_three_digits(count: int, text: str) -> None:
    assert show_bytes(count) == text


def test_counts_have_no_unit() -> None:
    assert show_count(0) == "0"
    assert show_count(17_226) == "17.2 k"
    assert show_count(0.5) == "0.5"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GB", 24 * 10**9),
        ("24 GiB", 24 * 2**30),
        ("1.5g", 1_500_000_000),
        ("512", 512),
        ("80gb", 80 * 10**9),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "lots", "-3GB", "0", "3 XB", "GB", "1e9", "nan"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UserError, match="24GB"):
        parse_bytes(text)
