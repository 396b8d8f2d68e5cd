"""What the real front end said of each case, kept by SDK version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "verdicts"
SDK_VERSION = "2.10.0"
_HEADER = "case\tpass\tverdict\twords"


@dataclass(frozen=True)
class Said:
    """The front end's verdict on a case; `words` are its own, empty where it accepted."""

    case: str
    train: bool
    accepted: bool
    words: str = ""


def path_of(kind: str, sdk_version: str = SDK_VERSION) -> Path:
    """The file of the hand-picked ('csx') or drawn ('opinfo') cases."""
    return FOLDER / f"{kind}-{sdk_version}.tsv"


def read(path: Path) -> dict[str, Said]:
    first, *lines = path.read_text(encoding="utf-8").splitlines()
    assert first == _HEADER, f"{path} starts with {first!r}"
    rows = [line.split("\t") for line in lines]
    return {
        name: Said(name, step == "train", verdict == "accepted", words) for name, step, verdict, words in rows
    }


def write(path: Path, said: Iterable[Said] | Mapping[str, Said]) -> None:
    rows = said.values() if isinstance(said, Mapping) else said
    lines = [
        "\t".join(
            (
                s.case,
                "train" if s.train else "forward",
                "accepted" if s.accepted else "refused",
                _flat(s.words),
            )
        )
        for s in rows
    ]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join((_HEADER, *lines)) + "\n", encoding="utf-8")


def _flat(words: str) -> str:
    return " ".join(words.split())[:160]
