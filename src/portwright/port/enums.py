"""The project's enumerations and their members, across files."""

from __future__ import annotations

from portwright.port.rule import File

_ENUMS = ("enum.Enum", "enum.IntEnum", "enum.StrEnum", "enum.Flag", "enum.IntFlag")
_INHERITED = frozenset({"name", "value", "mro"})


def members_of_enum(file: File, reference: str) -> frozenset[str] | None:
    """Names that an enumeration of the project has; None for anything else, or where its bases are not all known."""
    definition = file.names.definition(reference)
    if definition is None or definition.kind != "class":
        return None
    bases = file.names.base_names(reference)
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
