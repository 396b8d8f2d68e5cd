"""Finds and reads the files of sites: those shipped, and the user's own."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from portwright.errors import UserError, suggest
from portwright.job.problems import KeyPath, Problem, check_model, raise_problems, show
from portwright.launch.site import CHANGES_BY_TARGET, NAME, Site, merge_tables

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SHIPPED = Path(__file__).parent / "sites"
_TOML_CURES = (
    ("twice", "Say each key and each table once."),
    ("overwrite", "Say each key and each table once."),
    ("'='", "Write key = value."),
    ("value", 'Text stands in quotes: time = "4:00:00".'),
    ("after a statement", 'One key a line, and text in quotes: time = "4:00:00".'),
)
_EXTENDS = "extends"
_HEADER = re.compile(r"\s*\[\[?(?P<key>[^\[\]]+)\]\]?\s*(#.*)?")
_KEY = re.compile(r"""\s*(?P<key>(?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")


@dataclass(frozen=True)
class SiteFile:
    """The file of a site's name, and the files of the same name that it replaces."""

    name: str
    path: Path
    hidden: tuple[Path, ...] = ()

    @property
    def is_shipped(self) -> bool:
        return self.path.parent == SHIPPED


@dataclass(frozen=True)
class _Source:
    """One file of a chain: its values, and its text for line numbers."""

    path: Path
    text: str
    values: dict[str, Any] = field(default_factory=dict)


def load_site(name_or_path: str | os.PathLike[str]) -> Site:
    """The site of this name or TOML file; a path has a slash in it or ends with .toml."""
    given = os.fspath(name_or_path)
    return _load(find_site(given).path, None if _is_path(given) else given)


def find_site(name_or_path: str) -> SiteFile:
    """The file that a name or a path stands for; the file is not read."""
    if _is_path(name_or_path):
        path = _expanded(name_or_path)
        return SiteFile(path.stem, path)
    files = find_sites()
    for file in files:
        if file.name == name_or_path:
            return file
    names = [file.name for file in files]
    raise UserError(
        f"unknown site '{name_or_path}'.", f"{suggest(name_or_path, names)} Your own go into {user_folder()}."
    )


def find_sites() -> list[SiteFile]:
    """The files of all names, valid or not; a user's own file goes before a shipped one."""
    found: dict[str, list[Path]] = {}
    for folder in site_folders():
        for path in _toml_files(folder):
            found.setdefault(path.stem, []).append(path)
    return [SiteFile(name, paths[0], tuple(paths[1:])) for name, paths in sorted(found.items())]


def _toml_files(folder: Path) -> list[Path]:
    try:
        paths = sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:  # otherwise a shipped site would silently replace the user's own
        variable = "XDG_CONFIG_HOME" if folder == user_folder() else "PORTWRIGHT_SITES"
        raise UserError(
            f"cannot look for sites in {folder}: {(error.strerror or str(error)).lower()}.",
            f"Mend its permissions, or set {variable} to another folder.",
        ) from error
    # One that begins with a dot was left by an editor.
    return [path for path in paths if path.suffix == ".toml" and not path.name.startswith(".")]


def is_folder(path: Path) -> bool:
    """Whether a folder is there for this user; `is_dir` raises where one above it may not be entered."""
    try:
        return path.is_dir()
    except OSError:
        return False


def site_folders() -> list[Path]:
    """Where sites are looked for, the first first: $PORTWRIGHT_SITES, the user's config folder, those shipped."""
    folders = []
    named = os.environ.get("PORTWRIGHT_SITES")
    if named:
        folder = _expanded(named)
        if not is_folder(folder):
            raise UserError(
                f"PORTWRIGHT_SITES is no folder, received '{named}'.", "Make it, or unset the variable."
            )
        folders.append(folder)
    return [*folders, user_folder(), SHIPPED]


def user_folder() -> Path:
    """The user's own sites lie here."""
    configured = os.environ.get("XDG_CONFIG_HOME", "")
    # The XDG base directory specification has relative paths ignored.
    base = Path(configured) if configured.startswith("/") else _expanded("~/.config")
    return base / "portwright" / "sites"


def complete_sites(incomplete: str) -> list[str]:
    """Names of sites that a shell may complete."""
    try:
        return [file.name for file in find_sites() if file.name.startswith(incomplete)]
    except (UserError, OSError):  # completion cannot show errors
        return []


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # no such user, or a container without the user's name
        return Path(path)


def _is_path(given: str) -> bool:
    return "/" in given or given.endswith(".toml")


def _load(path: Path, name: str | None) -> Site:
    """Reads a site; `name` is the required name of a file that was found by name, None for a path."""
    chain = _read_chain(path)
    values: dict[str, Any] = {}
    for source in reversed(chain):
        values = merge_tables(values, {key: value for key, value in source.values.items() if key != _EXTENDS})
    # An inherited name is the other site's.
    values["name"] = chain[0].values.get("name", path.stem)
    site, problems = check_model(Site, values, ())
    problems += _problems_by_target(values, site)
    given = values["name"]
    if name is not None and isinstance(given, str) and NAME.fullmatch(given) and given != name:
        what = f"the file is called {name}.toml, received {given!r}"
        problems.append(Problem(("name",), what, "Call both the same."))
    # TOML has tables and no null.
    texts = [problem.message.replace("a mapping", "a table").replace(" or null", "") for problem in problems]
    in_toml = [replace(problem, message=text) for problem, text in zip(problems, texts, strict=True)]
    raise_problems(in_toml, lambda key: _place(chain, key))
    assert site is not None
    return site


def _read_chain(path: Path) -> list[_Source]:
    """The file, the one that it extends, and so on; `extends` never finds a file of the chain again."""
    chain = [_read(path)]
    while _EXTENDS in (values := chain[-1].values):
        base, here = values[_EXTENDS], chain[-1]
        place = _place(chain[-1:], (_EXTENDS,))
        if not isinstance(base, str) or not base:
            raise UserError(f"{place}: extends: expected the name of a site, received {show(base)}.")
        seen = [source.path.resolve() for source in chain]
        candidates = _files_meant(base, here.path.parent)
        following = next((each for each in candidates if each.resolve() not in seen), None)
        if following is None and candidates:
            names = " -> ".join([source.path.stem for source in chain] + [base])
            raise UserError(
                f"{place}: extends: the sites form a circle, received '{base}' ({names}).", "Break it."
            )
        if following is None:
            raise UserError(
                f"{place}: extends: unknown site '{base}'.",
                suggest(base, [file.name for file in find_sites() if file.path.resolve() not in seen]),
            )
        chain.append(_read(following))
    return chain


def _files_meant(base: str, folder: Path) -> list[Path]:
    if _is_path(base):
        return [folder / _expanded(base)]
    return [path for file in find_sites() if file.name == base for path in (file.path, *file.hidden)]


def _read(path: Path) -> _Source:
    text = read_text(path)
    try:
        return _Source(path, text, _with_capitals(tomllib.loads(text)))
    except tomllib.TOMLDecodeError as error:
        raise UserError(*_explain_toml(error, path, text)) from error
    except RecursionError as error:
        raise UserError(f"{path}: nested too deeply.", "Write it with fewer brackets.") from error


def _with_capitals(values: dict[str, Any]) -> dict[str, Any]:
    """Puts the names of targets in capitals, so that `on.gpu` changes `on.GPU`."""
    if not isinstance(values.get("on"), dict):
        return values
    changes: dict[str, Any] = {}
    for target, value in values["on"].items():
        changes = merge_tables(changes, {target.upper(): value})
    return {**values, "on": changes}


def read_text(path: Path) -> str:
    """The text of a site's file."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # reading a pipe would wait for ever
            raise UserError(f"cannot read {path}: no plain file.", "Name a TOML file.")
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8, byte {error.start}.", "Save it as UTF-8.") from error
    except FileNotFoundError as error:
        names = [file.name for file in find_sites()]
        raise UserError(f"no file {path}.", suggest(path.stem, names)) from error
    except (OSError, ValueError) as error:  # a path with a null byte in it is a ValueError
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"cannot read {path}: {reason.lower()}.", "Name a TOML file that you may read."
        ) from error


def _explain_toml(error: Exception, path: Path, text: str) -> tuple[str, str]:
    said = re.fullmatch(
        r"(?P<what>.*?)(?: \(at (?:line (?P<line>\d+), column \d+|end of document)\))?", str(error), re.DOTALL
    )
    what, line = (said["what"], said["line"]) if said else (str(error), None)
    place = f"{path}:{line or max(1, len(text.splitlines()))}"
    cure = next((cure for words, cure in _TOML_CURES if words in what.lower()), "See https://toml.io.")
    return f"{place}: not TOML: {what[:1].lower()}{what[1:]}.", cure


def _problems_by_target(values: Mapping[str, Any], site: Site | None) -> Iterator[Problem]:
    """Problems of the site with the changes of `on` for each target."""
    if site is None:
        return
    plain = {key: value for key, value in values.items() if key != "on"}
    for target, changes in values.get("on", {}).items():
        for key, value in changes.items():
            if key not in CHANGES_BY_TARGET:
                message = f"a target cannot change this key, received {show(value)}"
                yield Problem(("on", target, key), message, suggest(key, CHANGES_BY_TARGET))
        allowed = {key: value for key, value in changes.items() if key in CHANGES_BY_TARGET}
        _, problems = check_model(Site, merge_tables(plain, allowed), ())
        for problem in problems:
            others = tuple(("on", target, *other) for other in problem.others)
            yield replace(problem, path=("on", target, *problem.path), others=others)


def _place(chain: list[_Source], key: KeyPath) -> str:
    """file:line of a key, or of a table that leads to it, in the first file of the chain that has it."""
    for length in range(len(key), 0, -1):
        for source in chain:
            line = _line_of(source.text, key[:length])
            if line is not None:
                return f"{source.path}:{line}"
    return str(chain[0].path)


def _line_of(text: str, key: KeyPath) -> int | None:
    """The line that sets a key, found in the text, since tomllib keeps no lines."""
    table: KeyPath = ()
    for number, line in enumerate(text.splitlines(), start=1):
        header, setting = _HEADER.fullmatch(line), _KEY.match(line)
        if header is not None:
            table = _parts(header["key"])
            if _same(table[: len(key)], key):
                return number
        elif setting is not None and _same((*table, *_parts(setting["key"]))[: len(key)], key):
            return number
    return None


def _same(written: KeyPath, key: KeyPath) -> bool:
    return [str(part).upper() for part in written] == [str(part).upper() for part in key]


def _parts(key: str) -> KeyPath:
    """The parts of a dotted key, quotes and all."""
    parts: list[str] = []
    try:
        here: Any = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        return ()
    while isinstance(here, dict):
        part, here = next(iter(here.items()))
        parts.append(part)
    return tuple(parts)
