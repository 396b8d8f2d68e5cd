"""Tensors as an IPU prints them: brackets, separator, digits and line width are the caller's."""

from __future__ import annotations

from typing import Any

from torch import Tensor

FORMATS = ("auto", "fixed", "scientific", "none")


def format_tensor(
    tensor: Tensor,
    title: str,
    summarise_threshold: int,
    edge_items: int,
    max_line_width: int,
    digits: int,
    float_format: str,
    separator: str,
    open_bracket: str,
    close_bracket: str,
) -> str:
    """The title and the values; large tensors show their edges."""
    is_long = 0 < summarise_threshold < tensor.numel()
    edge = edge_items if is_long else max(tensor.shape, default=1)
    values: Any = tensor.tolist()
    shown: list[str] = []

    def write(value: Any, depth: int) -> str:
        indent = " " * depth
        if not isinstance(value, list):
            return _number(value, digits, float_format)
        parts = value if len(value) <= 2 * edge else [*value[:edge], None, *value[-edge:]]
        written = ["..." if part is None else write(part, depth + 1) for part in parts]
        if value and isinstance(value[0], list):
            inner = "\n".join(f"{indent} {line}" for line in written)
            return f"{open_bracket}\n{inner}\n{indent}{close_bracket}"
        return f"{open_bracket}{_wrap(written, separator, max_line_width, indent)}{close_bracket}"

    shown.append(write(values, 0))
    return f"{title}: {shown[0]}" if title else shown[0]


def _number(value: Any, digits: int, float_format: str) -> str:
    if not isinstance(value, float):
        return str(value)
    precision = max(digits - 1, 0)
    if float_format == "scientific":
        return f"{value:.{precision}e}"
    if float_format == "none" or value != value or value in (float("inf"), float("-inf")):
        return f"{value:g}"
    if float_format == "auto" and value and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{precision}e}"
    return f"{value:.{precision}f}"


def _wrap(parts: list[str], separator: str, width: int, indent: str) -> str:
    if width <= 0:
        return separator.join(parts)
    lines, line = [], ""
    for number, part in enumerate(parts):
        piece = part if number == 0 else separator + part
        if line and len(indent) + len(line) + len(piece) > width:
            lines.append(line + separator.rstrip())
            line = part
        else:
            line += piece
    lines.append(line)
    return f"\n{indent}  ".join(lines)
