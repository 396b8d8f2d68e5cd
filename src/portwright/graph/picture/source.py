"""Lines of the user's code: a link that a browser opens, `path:line` that an editor takes, and the lines around it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from portwright.graph.picture.text import esc, number

_AROUND = 2  # lines before and after
_LARGEST_BYTES = 4_000_000
_WIDEST = 200


def link(file: Any, line: Any) -> str:
    """`path:line`, linked to the file where its path is absolute; what is not known says so."""
    if not isinstance(file, str) or not file:
        return '<span class="faint">no line known</span>'
    at = number(line)
    where = f"{file}:{at:.0f}" if at is not None else file
    shown = f"<code>{breakable(where)}</code>"
    if not file.startswith("/"):
        return shown
    # Bytes that are no UTF-8 came in as surrogates; the address has them as they were.
    address = quote(
        file.encode("utf-8", "surrogateescape") if _is_encodable(file) else file.encode("utf-8", "replace")
    )
    return f'<a class="source" href="file://{esc(address)}" title="{esc(where)}">{shown}</a>'


def breakable(path: str) -> str:
    """Text that a narrow column may break behind a slash or a dot rather than inside a word."""
    return esc(path).replace("/", "/<wbr>").replace(".", ".<wbr>").replace("_", "_<wbr>")


def excerpt(file: Any, line: Any) -> str:
    """The line with its neighbours, if the file is Python that can be read here and has that line; else ''."""
    at = number(line)
    if not isinstance(file, str) or at is None:
        return ""
    lines = _read(file)
    index = int(at) - 1
    if not 0 <= index < len(lines):
        return ""
    first, last = max(0, index - _AROUND), min(len(lines), index + _AROUND + 1)
    width, indent = len(str(last)), _common_indent(lines[first:last])
    rows = []
    for i in range(first, last):
        text = lines[i][indent:]
        text = text if len(text) <= _WIDEST else f"{text[:_WIDEST]} …"
        row = f"{i + 1:>{width}}  {text}"
        rows.append(f"<mark>{esc(row)}</mark>" if i == index else esc(row))
    return f'<pre class="excerpt" tabindex="0" aria-label="source lines">{chr(10).join(rows)}</pre>'


def _common_indent(lines: Sequence[str]) -> int:
    return min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)


def _read(file: str) -> tuple[str, ...]:
    # Only Python: a plan may come from elsewhere, and the page may go elsewhere; neither should carry off other files.
    try:
        path = Path(file)
        if path.suffix != ".py" or not path.is_file():
            return ()
        found = path.stat()
        return _read_lines(path, found.st_mtime_ns) if found.st_size <= _LARGEST_BYTES else ()
    except (OSError, ValueError):  # gone, forbidden, or no path at all (a null character)
        return ()


@lru_cache(maxsize=64)
def _read_lines(path: Path, changed_ns: int) -> tuple[str, ...]:
    """`changed_ns` makes a changed file another one."""
    return tuple(path.read_text(encoding="utf-8", errors="replace").expandtabs(4).splitlines())


def _is_encodable(text: str) -> bool:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True
