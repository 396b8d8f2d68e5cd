"""Writes tests/unit/tf/estimator_signatures.json: every public name of tf.estimator and tf.compat.v1.estimator, with signatures.

Run it with the Python of an environment that has TensorFlow 2.15:
    python tools/make_estimator_signatures.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf

TESTS = Path(__file__).parents[1] / "tests" / "unit" / "tf"
sys.path.insert(0, str(TESTS))

from signatures import describe, public_names  # noqa: E402


def main() -> None:
    found: dict[str, Any] = {}
    for prefix, module in (
        ("tf.estimator", tf.estimator),
        ("tf.compat.v1.estimator", tf.compat.v1.estimator),
    ):
        for name, value in public_names(module):
            found[f"{prefix}.{name}"] = describe(value)
    for prefix, module in (("tf.keras.estimator", tf.keras.estimator),):
        found[f"{prefix}.model_to_estimator"] = describe(module.model_to_estimator)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found))
    (TESTS / "estimator_signatures.json").write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    main()
