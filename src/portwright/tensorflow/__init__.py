"""Estimator-style training on today's TensorFlow.

Importing this package loads nothing: the first use of a name loads its module and TensorFlow. TensorFlow is loaded with its legacy
Keras, since the layers of Keras 3 change their names from graph to graph and do not return BatchNorm's updates.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any

from portwright.errors import UserError

_NAMES = {  # module of this package: its public names
    "canned.estimators": (
        "BaselineClassifier BaselineEstimator BaselineRegressor DNNClassifier DNNEstimator "
        "DNNLinearCombinedClassifier DNNLinearCombinedEstimator DNNLinearCombinedRegressor DNNRegressor "
        "LinearClassifier LinearEstimator LinearRegressor"
    ),
    "canned.head": "Head",
    "canned.heads": (
        "BinaryClassHead LogisticRegressionHead MultiClassHead MultiLabelHead PoissonRegressionHead RegressionHead"
    ),
    "canned.multi_head": "MultiHead",
    "canned.parsing": "classifier_parse_example_spec regressor_parse_example_spec",
    "cerebras_estimator": "CerebrasEstimator",
    "entry": "run",  # the module is not called `run`: importing it would replace the function in the package
    "estimator": "Estimator",
    "estimator_setup": "VocabInfo WarmStartSettings",
    "exporters": "BestExporter Exporter FinalExporter LatestExporter",
    "hooks": (
        "CheckpointInputPipelineHook CheckpointSaverHook CheckpointSaverListener FeedFnHook FinalOpsHook "
        "GlobalStepWaiterHook LoggingTensorHook NanLossDuringTrainingError NanTensorHook ProfilerHook "
        "SecondOrStepTimer SessionRunArgs SessionRunContext SessionRunHook SessionRunValues "
        "StepCounterHook StopAtStepHook SummarySaverHook"
    ),
    "keras_model": "model_to_estimator",
    "mode_keys": "ModeKeys",
    "more_metrics": "add_metrics",
    "optimizers": "make_optimizer make_train_op",
    "run_config": "CSRunConfig RunConfig",
    "schedules": "make_learning_rate",
    "spec": "CSEstimatorSpec EstimatorSpec",
    "train_eval": "EvalSpec TrainSpec train_and_evaluate",
}
_PLACES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_PLACES)


# Used as `portwright.tensorflow.tpu.RunConfig`: the package itself has other objects of the same names.
_MODULES = ("experimental", "export", "inputs", "layers", "tpu")

_NOTES = (b"All log messages before absl::InitializeLog()", b"oneDNN custom operations are on")

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
    """Checks that TensorFlow is installed, and makes it use the legacy Keras; imports nothing."""
    missing = [
        package
        for package in ("tensorflow", "tf_keras")
        if package not in sys.modules and importlib.util.find_spec(package) is None
    ]
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
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # hides start-up notes; warnings and errors stay


def load() -> None:
    """Imports TensorFlow with the legacy Keras, without its start-up notes; where tf.estimator is missing (since 2.16), sets it to this package."""
    prepare()
    _import_quietly()
    tensorflow = sys.modules["tensorflow"]
    if not hasattr(tensorflow, "estimator"):
        vars(tensorflow)["estimator"] = sys.modules[__name__]


def _import_quietly() -> None:
    """Imports TensorFlow; what the import writes to stderr is printed afterwards, without the known notes."""
    if "tensorflow" in sys.modules:
        return
    import tempfile

    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)
        try:
            import tensorflow  # noqa: F401
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            written.seek(0)
            for line in written:
                if not any(note in line for note in _NOTES):
                    os.write(2, line)


def _prepare_script() -> None:
    """Ends the script with one line that says what is not installed, as run() itself would."""
    try:
        prepare()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(int(error.status)) from error


def _has_keras_3() -> bool:
    """Whether the loaded TensorFlow has chosen Keras 3; TensorFlow chooses when Keras is first used."""
    if os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True"):
        return False
    names = ("keras", "losses", "metrics", "optimizers", "initializers")
    found = [vars(sys.modules["tensorflow"]).get(name) for name in names]
    return "tensorflow.keras" in sys.modules or any(
        getattr(module, "_tfll_initialized", True) for module in found if module is not None
    )
