"""The project's enumerations and their members, across files."""

from __future__ import annotations

from portwright.port.rule import File

_ENUMS = ("enum.Enum", "enum.IntEnum", "enum.StrEnum", "enum.Flag", "enum.IntFlag")
_INHERITED = frozenset({"name", "value", "mro"})


def members_of_enum(file: File, reference: str) -> frozenset[str] | None:
    """Names that an enumeration of the project has; None for anything else, or where its bases are not all known."""
    if not _is_enum(file, reference, 0):
        return None
    bases = file.names.base_names(reference)
    definition = file.names.definition(reference)
    if definition is None or definition.kind != "class":
        return None
    if len(bases) < len([base for base in definition.bases if base not in ("str", "int")]):
        return None
    found = set(definition.members)
    is_enum = False
    for base in bases:
        if base in _ENUMS:
            is_enum = True
        elif "::" in base:
            inherited = members_of_enum(file, base) if base != reference else None
            if inherited is None:
                return None
            is_enum = True
            found |= inherited
        else:
            return None
    return frozenset(found | _INHERITED) if is_enum else None


def _is_enum(file: File, reference: str, hops: int) -> bool:
    """Whether a class comes from Enum, by its bases alone, for which no file has to be parsed."""
    if hops > 5:
        return False
    bases = file.names.base_names(reference)
    return any(base in _ENUMS or ("::" in base and _is_enum(file, base, hops + 1)) for base in bases)
