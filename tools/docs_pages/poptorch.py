"""The page about the emulated PopTorch; its tables come from the marks on the emulator's own functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

_TEXT = """# The emulated PopTorch

`portwright emulate ipu script.py` (or `--emulate` with the target IPU) runs a script that says `import poptorch` on this
machine's CPU, under the rules of PopTorch 3.4. Every name has the signature of the real one, held against the facts by
`tests/unit/emulate/test_poptorch_signatures.py`. No IPU is used and none of Graphcore's code; times say nothing.

- **emulated**: does what the real one does, as far as results and refusals go.
- **emulated in part**: the last column says what is refused.
- **accepted, no effect**: checked and recorded; on hardware it tunes speed or memory.
- **refused**: raises `poptorch.Error` when it is called, and says why.

"""
_SECTIONS = {
    "__init__": "Wrapping, data and the package itself",
    "_poplar_executor": "The executor",
    "options": "Options and execution strategies",
    "ops": "Functions for use in models",
    "optim": "Optimizers",
    "enums": "Enumerations",
}
_REST = "The rest"


def poptorch_page(head: str) -> str:
    """The whole page."""
    return head + _TEXT + "\n".join(_tables()) + "\n"


def _tables() -> Iterator[str]:
    from docs_pages.poptorch_names import rows

    by_section: dict[str, list[str]] = {title: [] for title in (*_SECTIONS.values(), _REST)}
    counts: Counter[str] = Counter()
    for row in rows():
        counts[row.status] += 1
        line = f"| `{row.name}` | {row.status} | {row.why.replace('|', chr(92) + '|')} |"
        by_section[_SECTIONS.get(row.module, _REST)].append(line)
    said = "; ".join(f"{number} {status}" for status, number in counts.most_common())
    yield f"Of {counts.total()} public names: {said}."
    for title, lines in by_section.items():
        yield f"\n## {title}\n\n| `poptorch.` | here | why, or what is left out |\n| --- | --- | --- |"
        yield from lines
