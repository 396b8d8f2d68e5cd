"""Writes src/portwright/models/sizes.json: how many parameters each config of each reference model has.

python tools/make_model_sizes.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "models"))

from zoo import NAMES, count_parameters  # noqa: E402

from portwright.discover import models_folder  # noqa: E402
from portwright.job.model_list import SIZES_FILE  # noqa: E402


def main() -> None:
    sizes = {name: count_parameters(name) for name in NAMES}
    (models_folder() / SIZES_FILE).write_text(json.dumps(sizes, indent=1) + "\n")


if __name__ == "__main__":
    main()
