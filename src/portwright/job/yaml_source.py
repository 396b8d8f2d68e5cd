"""Reads a YAML file and keeps the line of every value."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from portwright.errors import UserError
from portwright.job.problems import KeyPath, show

# Aliases of aliases can make a short file stand for more values than memory holds.
_MAX_VALUES = 1_000_000

_FLOAT_WITHOUT_DOT = re.compile(r"^[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$")
_MERGE_TAG = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """A safe loader in which 1e-3 is a number, as YAML 1.2 has it."""


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT_WITHOUT_DOT, list("-+.0123456789"))


@dataclass(frozen=True)
class YamlSource:
    """The values of a YAML file and, through `line_of`, where each one stands."""

    path: Path
    values: dict[Any, Any]
    _root: yaml.Node

    def line_of(self, keys: KeyPath) -> int | None:
        """The line of a key or list item; None where the file has no such key."""
        node, line = self._root, self._root.start_mark.line
        for key in keys:
            found = _child(node, key)
            if found is None:
                return None
            node, line = found
        return line + 1


def read_yaml(path: Path | str) -> YamlSource:
    """Reads a mapping from a YAML file; whatever hinders that is an error with its line."""
    path = Path(path)
    text = _read_text(path)
    node, values = _parse(text, str(path))
    if node is None or values is None:
        raise UserError(
            f"{path}: the file is empty.", "Write the sections of the params into it, such as optimizer:."
        )
    if not isinstance(values, dict):
        is_list = isinstance(values, list)
        kind = f"a list of {len(values)} items" if is_list else f"the single value {show(values)}"
        raise UserError(
            f"{path}:{node.start_mark.line + 1}: expected sections such as 'optimizer:', received {kind}.",
            "Put each value under a section.",
        )
    return YamlSource(path, values, node)


def parse_value(text: str, name: str) -> Any:
    """Parses one YAML value, such as the right side of an override; `name` stands for the file in errors."""
    return _parse(text, name, numbered=False)[1]


def write_yaml(values: Mapping[Any, Any]) -> str:
    """Values as YAML that `read_yaml` reads back; what YAML has no form for, such as a dtype, is written as its text."""
    return yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Quotes text that `read_yaml` would read as another value, such as '1e-3', or would change."""
    try:
        meant = parse_value(text, "")
    except UserError:
        meant = text  # the emitter sees that it needs quotes
    style = '"' if not text.isprintable() else None if isinstance(meant, str) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(tuple, lambda dumper, value: dumper.represent_list(value))
_Dumper.add_multi_representer(object, lambda dumper, value: dumper.represent_str(str(value)))


def _read_text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file.", _near_misses(path)) from error
    except IsADirectoryError as error:
        inside = sorted(item.name for item in path.iterdir() if item.suffix in (".yaml", ".yml"))[:5]
        cure = f"Give a file in it: {', '.join(inside)}." if inside else "Give a YAML file."
        raise UserError(f"{path}: this is a folder, not a file.", cure) from error
    except PermissionError as error:
        raise UserError(f"{path}: no permission to read this file.", f"Try: chmod u+r {path}") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the name
        raise UserError(f"{path}: cannot be read: {error}.", "Give a YAML file.") from error
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return _decode(data, "utf-16", path)
    if b"\x00" in data:
        raise UserError(f"{path}: this is a binary file, not YAML.", "Give a YAML file.")
    return _decode(data, "utf-8-sig", path)


def _decode(data: bytes, encoding: str, path: Path) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}:{line}: this is not {error.encoding} text: byte {data[error.start]:#04x}.",
            "Save the file as UTF-8.",
        ) from error


def _near_misses(path: Path) -> str:
    try:
        names = [item.name for item in path.parent.iterdir() if item.is_file()]
    except OSError:
        return f"There is no folder {path.parent} either."
    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.5)
    near = near or sorted(name for name in names if name.endswith((".yaml", ".yml")))[:3]
    return (
        f"Did you mean {' or '.join(str(path.parent / name) for name in near)}?"
        if near
        else "Check the path."
    )


def _parse(text: str, name: str, *, numbered: bool = True) -> tuple[yaml.Node | None, Any]:
    def place(line: int) -> str:
        return f"{name}:{line}" if numbered else name

    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None, None
            _check_nodes(node, loader, place)
            return node, _unshared(loader.construct_document(node))
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message, cure = _explain_syntax(error)
        raise UserError(f"{place(mark.line + 1 if mark else 1)}: {message}.", cure) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UserError(
            f"{place(line)}: the character {chr(error.character)!r} is not allowed in YAML.", "Remove it."
        ) from error
    except RecursionError as error:
        raise UserError(f"{name}: lists or mappings are nested too deeply.", "Flatten them.") from error


def _explain_syntax(error: yaml.MarkedYAMLError) -> tuple[str, str]:
    problem = str(error.problem)
    if "'\\t'" in problem:
        return "a tab character, which YAML does not allow for indentation", "Use spaces."
    if problem.startswith("could not determine a constructor for the tag"):
        tag = problem.rpartition("tag ")[2].strip("'").replace("tag:yaml.org,2002:", "!!")
        return (
            f"the tag {tag} is not allowed: params hold plain values only",
            "Write the value without a tag.",
        )
    if problem.startswith("but found another document"):
        return "a second document begins ('---')", "Keep one document a file."
    if problem.startswith("mapping values are not allowed"):
        cure = "Check the indentation, and quote texts that contain ': '."
        return "not valid YAML: a ':' where none may stand", cure
    begun = f" (line {error.context_mark.line + 1})" if error.context_mark else ""
    context = f"{error.context}{begun}: " if error.context else ""
    return f"not valid YAML: {context}{problem}", "Check indentation, brackets and quotes near this line."


def _check_nodes(root: yaml.Node, loader: _Loader, place: Callable[[int], str]) -> None:
    """Refuses nodes that would be lost, or would take too much memory, as values."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: yaml.Node) -> int:
        here = place(node.start_mark.line + 1)
        if id(node) in open_nodes:
            raise UserError(f"{here}: an alias refers to a value that contains it.", "Remove the alias.")
        if id(node) not in sizes:
            open_nodes.add(id(node))
            sizes[id(node)] = 1 + sum(size(child) for child in _children(node))
            open_nodes.discard(id(node))
            if isinstance(node, yaml.ScalarNode):
                _scalar(node, loader, here)
            elif isinstance(node, yaml.MappingNode):
                _refuse_duplicates(node, loader, place)
        return sizes[id(node)]

    total = size(root)
    if total > _MAX_VALUES:
        raise UserError(
            f"{place(1)}: with its aliases written out this is {show(total)} values.",
            f"Keep it under {_MAX_VALUES}.",
        )


def _scalar(node: yaml.ScalarNode, loader: _Loader, here: str) -> Any:
    try:
        return loader.construct_object(node) if node.tag != _MERGE_TAG else None
    except (ValueError, OverflowError) as error:  # a date such as 2024-13-45
        raise UserError(
            f"{here}: {show(node.value)} cannot be read: {error}.", "Put it in quotes if it is a text."
        ) from error


def _refuse_duplicates(node: yaml.MappingNode, loader: _Loader, place: Callable[[int], str]) -> None:
    lines: dict[Any, int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE_TAG:
            continue
        line = key.start_mark.line + 1
        name = loader.construct_object(key)
        if name in lines:
            first = place(lines[name])
            at = f", first at {first}" if first != place(line) else ""
            raise UserError(
                f"{place(line)}: the key '{key.value}' stands twice{at}.",
                "Remove one of them.",
            )
        lines[name] = line


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key
            yield value
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


def _child(node: yaml.Node, key: Any) -> tuple[yaml.Node, int] | None:
    if isinstance(node, yaml.SequenceNode):
        if isinstance(key, int) and 0 <= key < len(node.value):
            item = node.value[key]
            return item, item.start_mark.line
        return None
    if not isinstance(node, yaml.MappingNode):
        return None
    # Constructing the document has already written merged keys ('<<') into the node, before its own.
    for key_node, value in reversed(node.value):
        if isinstance(key_node, yaml.ScalarNode) and (
            key_node.value == str(key) or (not isinstance(key, str) and _constructs(key_node, key))
        ):
            return value, key_node.start_mark.line
    return None


def _constructs(node: yaml.ScalarNode, key: Any) -> bool:
    loader = _Loader("")
    try:
        return bool(loader.construct_object(node) == key)
    finally:
        loader.dispose()


def _unshared(value: Any) -> Any:
    """Copies what an alias shares, so that changing one place does not change another."""
    if isinstance(value, dict):
        return {key: _unshared(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_unshared(item) for item in value]
    return value
