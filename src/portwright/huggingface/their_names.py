"""Finds a model's tensors in a HuggingFace checkpoint, whose names may be old, prefixed or doubled."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

_WRAPPERS = ("module.", "_orig_mod.", "model.")  # DistributedDataParallel's, torch.compile's, Lightning's
_OLD_ENDINGS = (
    (".weight", ".gamma"),
    (".bias", ".beta"),
)  # LayerNorm's names in checkpoints that TensorFlow trained


@dataclass(frozen=True)
class Found:
    """The wanted names' names in the file, the surplus names, and pairs of names that must have equal tensors."""

    names: dict[str, str]
    surplus: list[str]
    equal: list[tuple[str, str]]


def find_names(
    available: Collection[str],
    wanted: Sequence[str],
    prefix: str,
    ignored: Sequence[str],
    tied: Sequence[tuple[str, str]],
) -> Found:
    """Matches the names; `available` are those of the checkpoint, `wanted` those of the family's entries."""
    there = set(available)
    used: set[str] = set()
    names: dict[str, str] = {}
    equal: list[tuple[str, str]] = []
    aliases = [pair for pair in tied if pair[1] not in set(wanted)]  # an untied head is a separate weight
    for name in dict.fromkeys(wanted):
        candidates = [name, *(other for kept, other in aliases if kept == name)]
        places = [place for each in candidates for place in _spellings(each, prefix) if place in there]
        if places:
            names[name] = places[0]
            used.update(places)
            equal += [(places[0], place) for place in places[1:]]
    rest = [name for name in available if name not in used]
    return Found(names, [name for name in rest if not is_ignored(name, prefix, ignored)], equal)


def _spellings(name: str, prefix: str) -> Iterator[str]:
    """Yields the names that a checkpoint may have for a tensor, the usual one first."""
    bare = name.removeprefix(prefix) if prefix else name
    for base in dict.fromkeys((name, bare, f"{prefix}{name}")):
        for wrapper in ("", *_WRAPPERS):
            yield wrapper + base
            for new, old in _OLD_ENDINGS:
                if base.endswith(new):
                    yield wrapper + base.removesuffix(new) + old


def is_ignored(name: str, prefix: str, ignored: Sequence[str]) -> bool:
    """Whether a name matches one of the patterns, with or without the base model's prefix."""
    spellings = (name, f"{prefix}{name}", name.removeprefix(prefix) if prefix else name)
    return any(fnmatchcase(each, pattern) for each in spellings for pattern in ignored)
