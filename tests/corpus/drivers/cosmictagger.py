"""Runs CosmicTagger's bin/exec.py from its folder, seeded, and writes each step's loss in full to a JSON file.

usage: cosmictagger.py LOSSES [--lend PACKAGE] OVERRIDE...   (the working directory is CosmicTagger's own)
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path


def main(losses: str, *words: str) -> None:
    sys.path.insert(0, str(Path.cwd()))
    import torch

    overrides = list(words)
    if overrides[0] == "--lend":
        from portwright import emulate

        emulate.lend(overrides[1])
        overrides = overrides[2:]
    from src.utils.core.trainercore import trainercore

    found: list[float] = []
    written = trainercore.write_metrics

    def note(self: object, metrics: dict[str, object], kind: str, step: int) -> None:
        found.append(float(metrics["loss"]))  # type: ignore[arg-type]
        written(self, metrics, kind, step)

    trainercore.write_metrics = note
    torch.manual_seed(0)
    sys.argv = ["bin/exec.py", *overrides]
    try:
        runpy.run_path("bin/exec.py", run_name="__main__")
    finally:
        Path(losses).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
