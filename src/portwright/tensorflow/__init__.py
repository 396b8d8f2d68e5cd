"""Estimator-style training on today's TensorFlow.

Importing this package loads nothing; each name is loaded when it is first used, and TensorFlow with it. TensorFlow is loaded with its legacy
Keras, since the layers of Keras 3 neither keep their names from graph to graph nor hand out BatchNorm's updates.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any

from portwright.errors import UserError

_PLACES: dict[str, str] = {  # public name: module of this package
    "BaselineClassifier": "canned.estimators",
    "BaselineEstimator": "canned.estimators",
    "BaselineRegressor": "canned.estimators",
    "BestExporter": "exporters",
    "BinaryClassHead": "canned.class_heads",
    "CSEstimatorSpec": "spec",
    "CSRunConfig": "run_config",
    "CerebrasEstimator": "cerebras_estimator",
    "CheckpointInputPipelineHook": "hooks",
    "CheckpointSaverHook": "hooks",
    "CheckpointSaverListener": "hooks",
    "DNNClassifier": "canned.estimators",
    "DNNEstimator": "canned.estimators",
    "DNNLinearCombinedClassifier": "canned.estimators",
    "DNNLinearCombinedEstimator": "canned.estimators",
    "DNNLinearCombinedRegressor": "canned.estimators",
    "DNNRegressor": "canned.estimators",
    "Estimator": "estimator",
    "EstimatorSpec": "spec",
    "EvalSpec": "train_eval",
    "Exporter": "exporters",
    "FeedFnHook": "hooks",
    "FinalExporter": "exporters",
    "FinalOpsHook": "hooks",
    "GlobalStepWaiterHook": "hooks",
    "Head": "canned.head",
    "LatestExporter": "exporters",
    "LinearClassifier": "canned.estimators",
    "LinearEstimator": "canned.estimators",
    "LinearRegressor": "canned.estimators",
    "LoggingTensorHook": "hooks",
    "LogisticRegressionHead": "canned.regression_head",
    "ModeKeys": "mode_keys",
    "MultiClassHead": "canned.class_heads",
    "MultiHead": "canned.multi_head",
    "MultiLabelHead": "canned.multi_label_head",
    "NanLossDuringTrainingError": "hooks",
    "NanTensorHook": "hooks",
    "PoissonRegressionHead": "canned.regression_head",
    "ProfilerHook": "hooks",
    "RegressionHead": "canned.regression_head",
    "RunConfig": "run_config",
    "SecondOrStepTimer": "hooks",
    "SessionRunArgs": "hooks",
    "SessionRunContext": "hooks",
    "SessionRunHook": "hooks",
    "SessionRunValues": "hooks",
    "StepCounterHook": "hooks",
    "StopAtStepHook": "hooks",
    "SummarySaverHook": "hooks",
    "TrainSpec": "train_eval",
    "VocabInfo": "warm_start",
    "WarmStartSettings": "warm_start",
    "add_metrics": "more_metrics",
    "classifier_parse_example_spec": "canned.parsing",
    "make_learning_rate": "schedules",
    "make_optimizer": "optimizers",
    "make_train_op": "optimizers",
    "model_to_estimator": "keras_model",
    "regressor_parse_example_spec": "canned.parsing",
    "run": "entry",  # not of its own name: a module of that name would take its place in the package
    "train_and_evaluate": "train_eval",
}

__all__ = sorted(_PLACES)


_MODULES = (
    "experimental",
    "export",
    "inputs",
    "layers",
    "tpu",
)  # whose names are reached through them, since the package has others of the same name

if "tensorflow" not in sys.modules:  # `import portwright.tensorflow` before `import tensorflow` is enough
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        load()
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _PLACES:
        raise AttributeError(f"module '{__name__}' has no '{name}'")
    if name == "run":
        _prepare_script()
    load()
    found = getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})


def prepare() -> None:
    """Makes sure that TensorFlow is there and comes, or came, with the legacy Keras; imports nothing."""
    missing = [package for package in ("tensorflow", "tf_keras") if not _is_there(package)]
    if missing:
        raise UserError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed.",
            "pip install 'portwright[tensorflow]'",
        )
    if "tensorflow" in sys.modules and _has_keras_3():
        raise UserError(
            "TensorFlow was imported before portwright.tensorflow, and with Keras 3.",
            "Import portwright.tensorflow first, or set TF_USE_LEGACY_KERAS=1.",
        )
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # its start-up notes; warnings and errors stay


def load() -> None:
    """Imports TensorFlow as this package needs it, and quietly."""
    prepare()
    from portwright.tensorflow.loading import load_quietly

    load_quietly()


def _prepare_script() -> None:
    """A script that asks for run() is told in one line what is missing, as run() itself would."""
    try:
        prepare()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(int(error.status)) from error


def _is_there(package: str) -> bool:
    return package in sys.modules or importlib.util.find_spec(package) is not None


def _has_keras_3() -> bool:
    """Whether the TensorFlow that is loaded has chosen its Keras, which it does when that is first used, and chose version 3."""
    if os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True"):
        return False
    names = ("keras", "losses", "metrics", "optimizers", "initializers")
    found = [vars(sys.modules["tensorflow"]).get(name) for name in names]
    return "tensorflow.keras" in sys.modules or any(
        getattr(module, "_tfll_initialized", True) for module in found if module is not None
    )
