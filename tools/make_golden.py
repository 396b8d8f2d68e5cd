"""Writes tests/models/golden.json: the first losses of every reference model, and where its one-minute config ends.

python tools/make_golden.py [MODEL...] [--keep-ends] [--steps=N]

On one thread in float32. The first losses are of the config as tests/models/small.py changes it; the ends are of the config as
it is, and take about a minute a model: --keep-ends leaves those that are known, --steps ends earlier.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "models"))

import torch  # noqa: E402
from results import HERE  # noqa: E402
from small import as_words, overrides_of  # noqa: E402
from zoo import NAMES, run  # noqa: E402

from portwright.job.model_list import make_model_folder  # noqa: E402

GOLDEN = HERE / "golden.json"
NUM_STEPS = 5
AVERAGED = 10  # losses at either end of a whole run


def main() -> None:
    torch.set_num_threads(1)
    chosen = [word for word in sys.argv[1:] if not word.startswith("-")] or NAMES
    for name in chosen:
        keep(name, {"losses": first_losses(name)})
    if "--keep-ends" in sys.argv:
        return
    limits = [int(word.removeprefix("--steps=")) for word in sys.argv if word.startswith("--steps=")]
    for name in chosen:
        keep(name, run_whole(name, *limits))


def keep(name: str, found: dict[str, Any]) -> None:
    """Reads the file again before it writes it: two of us may each have half of the models."""
    golden: dict[str, Any] = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    golden[name] = {**golden.get(name, {}), **found}
    shown = {each: golden[each] for each in sorted(golden) if each in NAMES}
    GOLDEN.write_text(json.dumps(shown, indent=1) + "\n")


def first_losses(name: str) -> list[float]:
    with tempfile.TemporaryDirectory() as place:
        folder = make_model_folder(Path(place) / "mine", "pytorch", name)
        return run(folder, *as_words(overrides_of(name)), num_steps=NUM_STEPS)


def run_whole(name: str, num_steps: int | None = None) -> dict[str, float]:
    """The one-minute config as a user runs it, to its end where no other is given."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        folder = make_model_folder(Path(place) / "mine", "pytorch", name)
        losses = run(folder, num_steps=num_steps)
    print(f"{name}: {len(losses)} steps in {time.monotonic() - started:.0f} s", file=sys.stderr)
    mean = [sum(part) / len(part) for part in (losses[:AVERAGED], losses[-AVERAGED:])]
    return {"num_steps": len(losses), "first_loss": round(mean[0], 4), "last_loss": round(mean[1], 4)}


if __name__ == "__main__":
    main()
