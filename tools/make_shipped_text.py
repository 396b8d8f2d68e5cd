"""Freezes the text that the reference models train on without a download: our own documentation, a section a document.

    python tools/make_shipped_text.py            writes src/portwright/text/shipped.txt.gz

Run it seldom: golden losses are those of the text as it is frozen now.
"""

from __future__ import annotations

import gzip
import io
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
OUTPUT = ROOT / "src/portwright/text/shipped.txt.gz"
SHORTEST = 500  # characters; a shorter section stays with the one before it
LEFT_OUT = {"corpus.md", "benchmarks.md"}  # tables of figures teach nothing but figures
MOST_BYTES = 400_000


def sections(page: str) -> list[str]:
    """The page cut before its headings; code blocks stay whole."""
    parts: list[list[str]] = [[]]
    in_code = False
    for line in page.splitlines():
        in_code ^= line.startswith("```")
        if not in_code and re.match(r"#{1,2} ", line) and len("\n".join(parts[-1])) >= SHORTEST:
            parts.append([])
        parts[-1].append(line.rstrip())
    return [text for part in parts if (text := "\n".join(part).strip())]


def main() -> None:
    pages = [ROOT / "README.md"]
    pages += sorted(page for page in (ROOT / "docs").glob("*.md") if page.name not in LEFT_OUT)
    pages += sorted((ROOT / "docs/decisions").glob("*.md")) + sorted((ROOT / "docs/rules").glob("*.md"))
    documents = [
        text for page in pages for text in sections(page.read_text(encoding="utf-8").replace("\f", " "))
    ]
    chosen: list[str] = []
    num_bytes = 0
    for text in documents:
        num_bytes += len(text.encode()) + 3
        if num_bytes > MOST_BYTES:
            break
        chosen.append(text)
    raw = "\n\f\n".join(chosen).encode()
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, compresslevel=9, mtime=0) as stream:
        stream.write(raw)
    OUTPUT.write_bytes(buffer.getvalue())
    print(
        f"{OUTPUT.relative_to(ROOT)}: {len(chosen)} documents, {len(raw)} bytes, {len(buffer.getvalue())} packed"
    )


if __name__ == "__main__":
    main()
