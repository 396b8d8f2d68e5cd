"""The type of a line of the user's code, and whose a file of code is."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import portwright

USER, LIBRARY, HIDDEN = 2, 1, 0
INSTALLED = ("/site-packages/", "/dist-packages/")

_OURS = f"{Path(portwright.__file__).parent}/"
_STANDARD = tuple(
    {f"{Path(sysconfig.get_path(name)).resolve()}/" for name in ("stdlib", "platstdlib")}
    | {f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")}
)


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's code."""

    file: str
    line: int
    function: str = ""
    code: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Owners:
    """Tells whose a file is: USER, LIBRARY (an installed package, or `blocks` of ours), or HIDDEN.

    Hidden are files of the framework, of Python and of Portwright, but for `models` of ours, which count as the user's. So does
    what lies under `root`.
    """

    def __init__(
        self,
        root: Path | None,
        is_framework: Callable[[str], bool],
        models: tuple[str, ...],
        blocks: tuple[str, ...],
    ) -> None:
        # The path as given and the resolved one: Python names a file by the path through which it was imported.
        self._roots = () if root is None else (f"{root.resolve()}/", f"{root.absolute()}/")
        self._is_framework = is_framework
        self._models, self._blocks = (tuple(_OURS + name for name in names) for names in (models, blocks))

    def of(self, file: str) -> int:
        if self._is_framework(file):
            return HIDDEN
        for root in self._roots:
            if file.startswith(root) and not any(part in file[len(root) - 1 :] for part in INSTALLED):
                return USER
        if file.startswith(self._models):
            return USER
        if file.startswith(_OURS):
            return LIBRARY if file.startswith(self._blocks) else HIDDEN
        if any(part in file for part in INSTALLED):
            return LIBRARY
        return HIDDEN if file.startswith(_STANDARD) else USER
