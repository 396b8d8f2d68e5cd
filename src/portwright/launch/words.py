"""Words of a command as bash and SLURM read them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from portwright.errors import UserError

_WIDTH = 110
_VARIABLE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")


def quote(word: str | Path) -> str:
    """The word as bash reads it back, with nothing in it expanded."""
    text = str(word)
    # In single quotes a $ looks like a mistake, to shellcheck too, and a quote needs three more.
    return f'"{_inside_quotes(text)}"' if set("'$`") & set(text) else shlex.quote(text)


def quote_expanding(word: str) -> str:
    """The word with each ${NAME} replaced by bash, whatever its value holds, and nothing else expanded."""
    pieces = []
    end = 0
    for found in _VARIABLE.finditer(word):
        pieces += [_inside_quotes(word[end : found.start()]), found.group()]
        end = found.end()
    return '"' + "".join([*pieces, _inside_quotes(word[end:])]) + '"'


def variables_in(word: str) -> list[str]:
    """Names that `quote_expanding` leaves to bash."""
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
    """The path where SLURM would replace %j and its like: it reads %% as one %, but not in a name with a backslash."""
    text = str(path)
    return text.replace("\\", "\\\\") if "\\" in text else text.replace("%", "%%")
