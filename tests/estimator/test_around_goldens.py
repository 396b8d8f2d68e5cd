"""The canned estimators that the unit tests leave out, against what TensorFlow 2.15 computed; they take minutes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    os.environ.get("PORTWRIGHT_TF_ESTIMATOR") is None, reason="run by `make test-estimator`"
)
pytest.importorskip("tensorflow")

from portwright.tensorflow import prepare  # noqa: E402

prepare()

from unit.tf.test_around_canned import CASES, GOLDEN, check_case  # noqa: E402

REST = [(kind, name) for kind, found in GOLDEN.items() for name in found if (kind, name) not in CASES]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "name"), REST)
def test_trains_evaluates_and_predicts_as_the_real_one(kind: str, name: str, tmp_path: Path) -> None:
    check_case(kind, name, tmp_path)
