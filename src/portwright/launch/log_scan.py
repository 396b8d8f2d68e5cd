"""Looks through a log of any size for known texts, in constant memory.

A log may have any bytes: progress bars that end in a carriage return, colours, lines of
megabytes, remains of a torn write. It is read in blocks; each block is searched for the hints of all entries, which
takes no Python code a line, and only lines with a hint are examined. Only those hints are searched for whose
words occur in the block, since a log repeats few words.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Literal

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BLOCK_BYTES = 1 << 20
_OVERLAP_BYTES = 4096  # kept from a line that is longer than a block
_AROUND_BYTES = 2000  # kept from a long line, on each side of a hint
_SHOWN_CHARS = 400
_TAIL_BYTES = 32 << 10
_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])")
_WORD = re.compile(rb"[A-Za-z]{4,}")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]+")
# srun -l, torchrun, mpirun and torch itself begin lines with the task that wrote them.
_LABEL = re.compile(
    r"^\s*(?:\d{1,5}: |\[rank ?\d+\]:? |\[default\d+\]:|\[\d+,\d+\]<std(?:err|out)>:"
    r"|(?:process|worker|chief|evaluator|ps|task)[ -]?\d*: )\s?"
)
_NOTE = "note: "  # how Portwright begins a line about something that needs no action


@dataclass(frozen=True)
class Hit:
    """A line that matches an entry."""

    error: KnownError
    line: int  # from 1, as editors count
    text: str
    groups: dict[str, str]


class LogScan:
    """Reads a log once; `hits` gives lines in their order, and afterwards `tail` and `num_lines` are known."""

    def __init__(self, file: BinaryIO, errors: tuple[KnownError, ...]) -> None:
        self._file = file
        self._errors = errors
        encoded = [
            (order, hint.encode("utf-8")) for order, error in enumerate(errors) for hint in error.hints
        ]
        self._hints = [(order, hint, _WORD.findall(hint)) for order, hint in encoded]
        self._last_bytes: deque[bytes] = deque()
        self.num_lines = 0

    def hits(self) -> Iterator[Hit]:
        block, line, torn, is_ended = b"", 1, 0, True
        while True:
            more = self._file.read(BLOCK_BYTES)
            self._remember(more)
            is_ended = more.endswith(b"\n") if more else is_ended
            block += more
            end = len(block) if not more else max(block.rfind(b"\n"), block.rfind(b"\r")) + 1
            if more and end <= torn and len(block) < BLOCK_BYTES:
                continue
            if end <= torn:  # a line longer than a block
                end = len(block)
            piece = block[:end]
            yield from self._hits_in(piece, line, torn)
            line += piece.count(b"\n")
            if not more:
                break
            is_torn = not piece.endswith((b"\n", b"\r"))
            kept = piece[-_OVERLAP_BYTES:] if is_torn else b""
            kept = kept[max(kept.rfind(b"\n"), kept.rfind(b"\r")) + 1 :]
            torn = len(kept)  # already searched, unless a hint goes on after it
            block = kept + block[end:]
        self.num_lines = line - is_ended

    def tail(self, num_lines: int = 12) -> list[str]:
        """The last lines that are not empty; of a progress bar its last state."""
        data = _ESCAPES.sub(b"", b"".join(self._last_bytes)[-_TAIL_BYTES:])
        lines = [_cut(_readable(raw.rstrip(b"\r").rsplit(b"\r", 1)[-1])) for raw in data.split(b"\n")]
        return [text for text in lines if text.strip()][-num_lines:]

    def _remember(self, block: bytes) -> None:
        self._last_bytes.append(block[-_TAIL_BYTES:])
        while (
            len(self._last_bytes) > 1
            and sum(map(len, self._last_bytes)) - len(self._last_bytes[0]) >= _TAIL_BYTES
        ):
            self._last_bytes.popleft()

    def _hits_in(self, piece: bytes, first_line: int, torn: int) -> Iterator[Hit]:
        if b"\x1b" in piece:
            # Colours are taken out of the part that was seen already as well, so that its length stays known.
            seen = _ESCAPES.sub(b"", piece[:torn])
            piece, torn = seen + _ESCAPES.sub(b"", piece[torn:]), len(seen)
        flat = piece.replace(b"\r", b"\n")  # one kind of line end, at the same places
        words = b" ".join(set(_WORD.findall(flat)))
        # else the search for words takes as long as that for hints
        is_repetitive = len(words) < len(flat) // 8
        places: dict[
            int, tuple[int, int, set[int]]
        ] = {}  # by where its text begins: a hint's ends, the entries
        for order, hint, needed in self._hints:
            if is_repetitive and not all(word in words for word in needed):
                continue
            at = flat.find(hint, max(0, torn - len(hint) + 1))
            while at >= 0:
                start, end = flat.rfind(b"\n", 0, at) + 1, _end_of_line(flat, at)
                start = max(start, at - _AROUND_BYTES)
                places.setdefault(start, (at, at + len(hint), set()))[2].add(order)
                at = flat.find(hint, end)
        line, counted = first_line, 0
        for start in sorted(places):
            at, stop, orders = places[start]
            line += piece.count(b"\n", counted, start)
            counted = start
            text = _readable(piece[start : min(_end_of_line(flat, at), stop + _AROUND_BYTES)])
            is_begin = flat[start - 1 : start] == b"\n" if start else torn == 0
            bare = _LABEL.sub("", text) if is_begin else f"…{text}"
            for order in sorted(orders):
                error = self._errors[order]
                groups = error.match(bare)
                if groups is not None and (not bare.startswith(_NOTE) or error.is_of_notes):
                    yield Hit(error, line, _cut(text), groups)
                    break


def _end_of_line(flat: bytes, at: int) -> int:
    end = flat.find(b"\n", at)
    return len(flat) if end < 0 else end


def _readable(raw: bytes) -> str:
    return _CONTROL.sub(" ", raw.decode("utf-8", errors="replace")).strip()


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


FILE = Path(__file__).with_name("log_errors.toml")
Kind = Literal["cause", "event", "symptom", "note", "region", "well", "done", "hidden"]
_KEYS = {"name", "kind", "hint", "pattern", "meaning", "cure", "source", "example", "undone_by", "within"}


@dataclass(frozen=True)
class KnownError:
    """One entry; the comment at the head of the file explains the keys."""

    name: str
    kind: Kind
    hints: tuple[str, ...]
    pattern: re.Pattern[str] | None
    meaning: str
    cure: str
    source: str
    examples: tuple[str, ...]
    undone_by: str | None = None
    within: str | None = None

    @property
    def is_of_notes(self) -> bool:
        """Whether the entry explains notes of Portwright's; no other entry matches a note, which is no failure."""
        return self.pattern is not None and "note: " in self.pattern.pattern

    def match(self, line: str) -> dict[str, str] | None:
        """The pattern's groups in a line that has one of the hints; None where the pattern does not match."""
        if self.pattern is None:
            return {}
        found = self.pattern.search(line)
        return None if found is None else {k: v or "" for k, v in found.groupdict().items()}


@cache
def load_errors() -> tuple[KnownError, ...]:
    """All entries, in the file's order: of two that fit a line the first counts."""
    return tuple(_entry(raw) for raw in tomllib.loads(FILE.read_text(encoding="utf-8"))["error"])


def _entry(raw: dict[str, Any]) -> KnownError:
    if unknown := set(raw) - _KEYS:
        raise ValueError(f"{FILE.name}: {raw.get('name')}: unknown keys {sorted(unknown)}")
    return KnownError(
        name=raw["name"],
        kind=raw.get("kind", "cause"),
        hints=_words(raw["hint"]),
        pattern=re.compile(raw["pattern"]) if "pattern" in raw else None,
        meaning=raw["meaning"],
        cure=raw["cure"],
        source=raw["source"],
        examples=_words(raw["example"]),
        undone_by=raw.get("undone_by"),
        within=raw.get("within"),
    )


def _words(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
