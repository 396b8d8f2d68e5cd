"""The names of the real PopTorch, and what this emulator does with each: for the table of the docs and for the tests.

The names and signatures are facts of PopTorch 3.4, in poptorch_api.json beside this package.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

from portwright.emulate.poptorch._names import Mark, is_made, mark_of, read_table

PACKAGE = "portwright.emulate.poptorch"
_PUBLIC_MODULES = ("__init__", "ops", "options", "optim", "enums", "profiling", "testing")
_REACHABLE = {  # private classes whose methods are called on a public object
    "_JitOptions": "Options.Jit",
    "_PrecisionOptions": "Options.Precision",
    "_TrainingOptions": "Options.Training",
    "_PopartOptions": "Options._Popart",
    "_DistributedOptions": "Options.Distributed",
    "_TensorLocationOptions": "Options.TensorLocations",
}


class Entry(NamedTuple):
    """A function, a class (`bases` is not None) or a member of a class; `signature` is text, or `property`."""

    module: str
    name: str
    member: str | None
    signature: str
    bases: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return ".".join(part for part in (self.module, self.name, self.member) if part)


def read_api() -> list[Entry]:
    """What the real package defines in its public modules, and what it exports of the others."""
    entries = []
    exported = set(importlib.import_module(PACKAGE).__all__)
    seen: set[str] = set()
    for module, names in read_table().items():
        for name, what in names.items():
            is_named = name in _REACHABLE or not name.startswith("_")
            if not is_named or (module not in _PUBLIC_MODULES and name not in exported - seen):
                continue
            seen.add(name)
            if isinstance(what, str):
                entries.append(Entry(module, name, None, what))
                continue
            entries.append(Entry(module, name, None, "", tuple(what["bases"])))
            if is_made(find(entries[-1])):
                continue  # cannot be made, so that nothing in it can be reached
            members = [
                (member, sig)
                for member, sig in what["members"].items()
                if (member, sig) != ("__init__", "(self)")
            ]
            entries += [Entry(module, name, member, sig) for member, sig in members]
    return entries


def find(entry: Entry) -> Any:
    """Our object of that name, as it stands in its class or module; AttributeError where there is none."""
    module = f"{PACKAGE}.{entry.module}" if entry.module in _PUBLIC_MODULES[1:] else PACKAGE
    thing = getattr(importlib.import_module(module), entry.name)
    if entry.member is None:
        return thing
    if entry.member not in vars(thing):
        raise AttributeError(f"{entry} is not defined here.")
    return vars(thing)[entry.member]


def is_public(entry: Entry) -> bool:
    """Whether a script can come by the name without an underscore, or as a part of `poptorch.Options`."""
    return entry.member is None or not entry.member.startswith("_")


def public_name(entry: Entry) -> str:
    """How a script writes the name, without `poptorch.`."""
    prefix = f"{entry.module}." if entry.module in ("optim", "profiling", "testing") else ""
    name = _REACHABLE.get(entry.name, entry.name)
    return prefix + (f"{name}.{entry.member}" if entry.member else name)


def mark(entry: Entry) -> Mark:
    """What the emulator does with a name; a class is what its constructor is, if it says nothing itself."""
    thing = find(entry)
    found = mark_of(thing)
    if inspect.isclass(thing) and found.status == "emulated" and "__init__" in vars(thing):
        return mark_of(vars(thing)["__init__"])
    return found


_WORDS = {
    "emulated": "emulated",
    "partly": "emulated in part",
    "accepted": "accepted, no effect",
    "refused": "refused",
}


class Row(NamedTuple):
    """A line of the table: the name as a script writes it, and what the emulator does with it."""

    module: str
    name: str
    status: str
    why: str


def rows() -> Iterator[Row]:
    """Every public name."""
    for entry in read_api():
        if is_public(entry) and not (entry.bases is not None and entry.name in _REACHABLE):
            status, why = mark(entry)
            yield Row(entry.module, public_name(entry), _WORDS[status], why)
