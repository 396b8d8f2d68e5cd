"""Writes tests/unit/tf/golden_canned.json: what the canned estimators of the real tf.estimator compute.

Run it with the Python of an environment that has TensorFlow 2.15:
    python tools/make_estimator_goldens.py
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import tensorflow as tf

TESTS = Path(__file__).parents[1] / "tests" / "unit" / "tf"
sys.path.insert(0, str(TESTS))

from canned_cases import cases, run_case  # noqa: E402


def main() -> None:
    tf.compat.v1.logging.set_verbosity("ERROR")
    found: dict[str, dict[str, object]] = {}
    for kind, estimators in (("v2", tf.estimator), ("v1", tf.compat.v1.estimator)):
        found[kind] = {}
        for name in cases(estimators, kind == "v1"):
            with tempfile.TemporaryDirectory() as folder:
                found[kind][name] = run_case(estimators, kind == "v1", name, folder)
            print(kind, name, flush=True)
    (TESTS / "golden_canned.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
