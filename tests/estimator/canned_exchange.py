"""Canned estimators, made by one tf.estimator and taken up by the other.

`python canned_exchange.py WHICH '[[ACTION, KIND, NAME, FOLDER], ...]'`: WHICH is `real` or `ours`; ACTION is `make` (train,
and export a SavedModel) or `take` (evaluate the checkpoint, train two steps more, and run the SavedModel). The outcomes
are one JSON list, on the last line.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import types
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
if sys.argv[1] == "ours":
    import portwright.tensorflow as ours

    ours.prepare()
    from portwright.tensorflow.canned import v1 as ours_v1

    V1 = types.SimpleNamespace(**{**vars(ours_v1), "RunConfig": ours.RunConfig, "export": ours.export})
    ESTIMATORS: dict[str, Any] = {"v2": ours, "v1": V1}
    import tensorflow as tf
else:
    import tensorflow as tf

    ESTIMATORS = {"v2": tf.estimator, "v1": tf.compat.v1.estimator}

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "tf"))
import numpy as np
from canned_cases import FEATURES, Losses, _raw, cases, make_input_fn, run_case


def make(kind: str, name: str, folder: str) -> dict[str, Any]:
    outcome = run_case(ESTIMATORS[kind], kind == "v1", name, f"{folder}/model")
    estimator, _ = _open(kind, name, folder)
    receiver = ESTIMATORS[kind].export.build_raw_serving_input_receiver_fn(_features())
    estimator.export_saved_model(f"{folder}/saved", receiver)
    return {"metrics": outcome["metrics"], **_run_saved(folder), "losses": _train(kind, name, folder)}


def take(kind: str, name: str, folder: str) -> dict[str, Any]:
    estimator, label = _open(kind, name, folder)
    metrics = estimator.evaluate(make_input_fn(label, FEATURES, repeat=False), steps=None)
    found = {"metrics": {key: float(value) for key, value in sorted(metrics.items())}, **_run_saved(folder)}
    return {**found, "losses": _train(kind, name, folder)}


def _train(kind: str, name: str, folder: str) -> list[float]:
    """From the same checkpoint for both: the folder is copied."""
    copy = f"{folder}/copy_{sys.argv[1]}"
    shutil.copytree(f"{folder}/model", copy)
    make_estimator, label = cases(ESTIMATORS[kind], kind == "v1")[name]
    estimator = make_estimator(model_dir=copy, config=ESTIMATORS[kind].RunConfig(tf_random_seed=1))
    losses = Losses()
    estimator.train(make_input_fn(label, FEATURES), hooks=[losses], steps=2)
    return losses.seen


def _open(kind: str, name: str, folder: str) -> tuple[Any, Any]:
    make_estimator, label = cases(ESTIMATORS[kind], kind == "v1")[name]
    config = ESTIMATORS[kind].RunConfig(tf_random_seed=1)
    return make_estimator(model_dir=f"{folder}/model", config=config), label


def _features() -> dict[str, Any]:
    return {name: tf.constant(_raw()[name]) for name in FEATURES}


def _run_saved(folder: str) -> dict[str, Any]:
    (path,) = Path(folder, "saved").iterdir()
    predict = tf.saved_model.load(str(path)).signatures["predict"]
    found = predict(**_features())
    numbers = {key: value for key, value in found.items() if value.dtype.is_floating}
    return {"saved": {key: np.asarray(value).reshape(-1).tolist() for key, value in sorted(numbers.items())}}


if __name__ == "__main__":
    tf.compat.v1.logging.set_verbosity("ERROR")
    print(
        json.dumps([{"make": make, "take": take}[action](*rest) for action, *rest in json.loads(sys.argv[2])])
    )
