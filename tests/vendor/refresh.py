"""Asks the real front end again and keeps what it says: verdicts/*.tsv, and with --page docs/fidelity.md.

Runs in the SDK's environment: PYTHONPATH=src <its python> tests/vendor/refresh.py. Killed, it goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from vendor import fidelity, verdicts
from vendor.cases import all_cases
from vendor.fidelity import Question
from vendor.opinfo import draw
from vendor.verdicts import Said

KEPT_SEED, HELD_OUT_SEED = 1, 7
PAGE = Path(__file__).parents[2] / "docs" / "fidelity.md"


def kept_draw() -> list[Question]:
    """The drawn cases whose verdicts are committed: one of every operator."""
    return list(draw(KEPT_SEED, 1))


def ask_all(cases: Sequence[Question], path: Path, again: bool) -> dict[str, Said]:
    """Asks about what the file does not have yet, or about everything; the file is written after each answer."""
    from vendor.front_end import ask

    known = verdicts.read(path) if path.exists() and not again else {}
    for number, case in enumerate(cases, start=1):
        if case.name not in known:
            said = ask(case.make_model, case.batch, case.train)
            known[case.name] = Said(case.name, case.train, said.accepted, said.message)
            verdicts.write(path, known)
            print(
                f"{number}/{len(cases)} {case.name}: {'accepted' if said.accepted else said.message}",
                flush=True,
            )
    wanted = {case.name: known[case.name] for case in cases}
    verdicts.write(path, wanted)
    return wanted


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--again", action="store_true", help="ask about every case, not only about new ones")
    parser.add_argument("--page", action="store_true", help="write docs/fidelity.md")
    options = parser.parse_args(list(arguments) if arguments is not None else None)
    sets: dict[str, tuple[str, Sequence[Question]]] = {
        "hand-picked": ("csx", all_cases()),
        f"OpInfo, seed {KEPT_SEED} (rules were learned from this seed)": ("opinfo", kept_draw()),
        f"OpInfo, seed {HELD_OUT_SEED}": ("opinfo-held-out", list(draw(HELD_OUT_SEED, 1))),
    }
    scores = {}
    for name, (kind, cases) in sets.items():
        said = ask_all(cases, verdicts.path_of(kind), options.again)
        if options.page:
            scores[name] = fidelity.score(cases, said)
            print(f"{name}: {scores[name]}", flush=True)
    if options.page:
        PAGE.write_text(fidelity.make_page(scores), encoding="utf-8")


if __name__ == "__main__":
    main()
