"""Quotes the words of a command for bash and SLURM."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from portwright.errors import UserError

_WIDTH = 110
_VARIABLE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")


def quote(word: str | Path) -> str:
    """Quotes a word for bash, so that nothing in it is expanded."""
    text = str(word)
    # Double quotes: shellcheck warns of a $ in single quotes, and a single quote inside would need three more.
    return f'"{_inside_quotes(text)}"' if set("'$`") & set(text) else shlex.quote(text)


def quote_expanding(word: str) -> str:
    """Quotes a word for bash, so that each ${NAME} is expanded and nothing else."""
    pieces = []
    end = 0
    for found in _VARIABLE.finditer(word):
        pieces += [_inside_quotes(word[end : found.start()]), found.group()]
        end = found.end()
    return '"' + "".join([*pieces, _inside_quotes(word[end:])]) + '"'


def variables_in(word: str) -> list[str]:
    """Names of the variables that `quote_expanding` lets bash expand."""
    return [found[2:-1] for found in _VARIABLE.findall(word)]


def _inside_quotes(text: str) -> str:
    return re.sub(r'([\\"$`])', r"\\\1", text)


def wrap(words: Sequence[str], indent: str = "") -> str:
    """Quoted words as one command, over several lines where it is long; a flag stays with what follows it."""
    lines = [indent]
    for unit in _units(words):
        if len(lines[-1]) + len(unit) > _WIDTH and lines[-1].strip():
            lines[-1] = lines[-1].rstrip() + " \\"
            lines.append(indent + "    ")
        lines[-1] += unit + " "
    return "\n".join(line.rstrip() for line in lines)


def _units(words: Sequence[str]) -> Iterable[str]:
    unit = ""
    for word in words:
        if unit and (word.startswith("-") or not unit.startswith("--") or "=" in unit or " " in unit):
            yield unit
            unit = ""
        unit = f"{unit} {word}" if unit else word
    if unit:
        yield unit


def directive(flag: str, value: str | int | None = None) -> str:
    """One #SBATCH line; sbatch knows double quotes, and the backslash inside them."""
    word = flag if value is None else f"{flag}={value}"
    if "\n" in word or "\r" in word or "\0" in word:
        raise UserError(
            f"{word!r} has a line break in it, which an #SBATCH line cannot hold.", "Choose another name."
        )
    if re.fullmatch(r"[\w@%+=:,./-]+", word):
        return f"#SBATCH {word}"
    name, sign, rest = word.partition("=")
    text = rest if sign else name
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'#SBATCH {name}="{escaped}"' if sign else f'#SBATCH "{escaped}"'


def file_pattern(path: Path) -> str:
    """The path for a flag in which SLURM replaces %j and the like: %% stands for %, but not in a name with a backslash."""
    text = str(path)
    return text.replace("\\", "\\\\") if "\\" in text else text.replace("%", "%%")
