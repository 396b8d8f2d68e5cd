"""What a model hands out under a signature of its saved model.

TensorFlow still has the classes that tf.estimator used, only no public name for them. They are used as they are, since
EstimatorSpec and the functions that make signatures check for exactly these.
"""

from __future__ import annotations

from tensorflow.python.saved_model.model_utils.export_output import (
    ClassificationOutput,
    EvalOutput,
    ExportOutput,
    PredictOutput,
    RegressionOutput,
    TrainOutput,
)
from tensorflow.python.saved_model.model_utils.export_utils import (
    build_all_signature_defs,
    export_outputs_for_mode,
)

__all__ = [
    "ClassificationOutput",
    "EvalOutput",
    "ExportOutput",
    "PredictOutput",
    "RegressionOutput",
    "TrainOutput",
    "build_all_signature_defs",
    "export_outputs_for_mode",
]
