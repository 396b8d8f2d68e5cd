"""The file of outcomes that docs/models.md is made from."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
UPDATE = "PORTWRIGHT_UPDATE_MODELS"
CURE = f"If that is meant: {UPDATE}=1 python -m pytest tests/models, then python tools/make_models_table.py."


def read_results() -> dict[str, dict[str, Any]]:
    """Of each model its checks, of each check its outcome."""
    found: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


def note(model: str, check: str, outcome: Any) -> None:
    """Holds an outcome against the one that is written down, or writes it down where that is asked for."""
    if os.environ.get(UPDATE) != "1":
        known = read_results().get(model, {}).get(check, "nothing")
        assert outcome == known, f"{check} of {model} is {outcome!r}, and results.json has {known!r}. {CURE}"
        return
    with Path(__file__).open() as lock:  # several processes test at a time
        fcntl.flock(lock, fcntl.LOCK_EX)
        results = read_results()
        results.setdefault(model, {})[check] = outcome
        ordered = {name: dict(sorted(results[name].items())) for name in sorted(results)}
        temporary = RESULTS.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")
        temporary.replace(RESULTS)
