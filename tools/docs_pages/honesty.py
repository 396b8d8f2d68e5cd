"""The page of programs that check was held to: its verdict beside what then happened, as tests/honesty/runner.py found it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

_HONESTY = Path(__file__).parents[2] / "tests" / "honesty"
_TEXT = """# Programs that check is held to

[check](cli.md) gives one verdict for an entry and a target. Here each verdict stands beside what happened when somebody believed it,
or tried in spite of it:

- *port*: the command that check names, or `--style layout` where it names none: written, how many findings it left, or refused.
- *step*: one validate step of the written folder on the CPU; the whole script where the verdict for the CPU needs no port.
- *judge*: Cerebras's own front end for csx (SDK 2.10.0; lowered, not placed on a wafer), the emulator of [PopTorch](emulated-poptorch.md) or
  [SambaFlow](emulated-sambaflow.md) for ipu and rdu. No device was used.
- *proof*: `portwright verify` of the original and the written folder over 8 steps, with their evaluation data.

A row **held** unless check promised a run that failed, or a port that claims to leave nothing failed or computes something else.
"""


def honesty_page(head: str) -> str:
    own, public = (json.loads((_HONESTY / f"{name}.json").read_text()) for name in ("results", "public"))
    lines = [
        f"{head}{_TEXT}",
        "## Small programs\n",
        "They are in [tests/honesty/programs](../tests/honesty/programs), over the owners of training loops and their idioms. "
        f"{_counts(own)}\n",
        *_table(own),
        "\n## Public entry points\n",
        f"None of their files is here, and check was written before they were chosen. What was false of them when they were first tried is mended, and these rows come after that. {_counts(public)}\n",
        *_table(public),
        "\nTo repeat it: unpack the repositories at the commits in [public.toml](../tests/honesty/public.toml), each into a folder of its own "
        "name below DIR, and run `python tests/honesty/runner.py --corpus DIR`; without `--corpus` it runs the small programs. Data that a "
        "project downloads were made, and packages that it lacks had stand-ins. Tried on 2026-11-19.",
    ]
    return "\n".join(lines) + "\n"


def _counts(rows: Sequence[dict[str, Any]]) -> str:
    num_programs = len({row["program"] for row in rows})
    verdicts = sorted({row["verdict"] for row in rows})
    each = ", ".join(f"{sum(row['verdict'] == v for row in rows)} *{v}*" for v in verdicts)
    lost = sum(not row["held"] for row in rows)
    return f"{num_programs} programs, {len(rows)} verdicts: {each}; {lost} did not hold."


def _table(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    yield "| program | target | files | owners | verdict | why | port | step | judge | proof | held |"
    yield "| --- " * 11 + "|"
    for row in rows:
        program = (
            f"{row['repository']}, {row['program'].partition('/')[2]} `{row['commit'][:10]}`"
            if "repository" in row
            else row["program"]
        )
        cells = [
            program, row["target"], row["files"], ", ".join(row["owners"]) or "nobody found", row["verdict"], row["reason"],
            *(row[name] for name in ("port", "step", "judge", "proof")), "yes" if row["held"] else "**no**",
        ]  # fmt: skip
        yield "| " + " | ".join(_plain(str(cell)) for cell in cells) + " |"


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*") if text != "**no**" else text
