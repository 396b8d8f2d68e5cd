"""Where portwright.tensorflow has the names of tf.estimator, TPU estimators and the vendor's estimators."""

from __future__ import annotations

from portwright.port.tree import words

# tf.estimator's names, which portwright.tensorflow has under the same name.
ESTIMATOR = words("""
    BaselineClassifier BaselineEstimator BaselineRegressor BestExporter BinaryClassHead CheckpointSaverHook
    CheckpointSaverListener DNNClassifier DNNEstimator DNNLinearCombinedClassifier DNNLinearCombinedEstimator
    DNNLinearCombinedRegressor DNNRegressor Estimator EstimatorSpec EvalSpec Exporter FeedFnHook FinalExporter FinalOpsHook
    GlobalStepWaiterHook Head LatestExporter LinearClassifier LinearEstimator LinearRegressor LoggingTensorHook
    LogisticRegressionHead ModeKeys MultiClassHead MultiHead MultiLabelHead NanLossDuringTrainingError NanTensorHook
    PoissonRegressionHead ProfilerHook RegressionHead RunConfig SecondOrStepTimer SessionRunArgs SessionRunContext
    SessionRunHook SessionRunValues StepCounterHook StopAtStepHook SummarySaverHook TrainSpec VocabInfo
    WarmStartSettings add_metrics classifier_parse_example_spec regressor_parse_example_spec train_and_evaluate
    """)
# Those of which TensorFlow 1 and 2 have different versions: other optimizers, and the sum or the mean of the losses.
CANNED = words("""
    BaselineClassifier BaselineEstimator BaselineRegressor DNNClassifier DNNEstimator DNNLinearCombinedClassifier
    DNNLinearCombinedEstimator DNNLinearCombinedRegressor DNNRegressor LinearClassifier LinearEstimator LinearRegressor
    """)
# Names in submodules of tf.estimator, which portwright.tensorflow has too.
INNER = {
    "export": words(
        "ClassificationOutput EvalOutput ExportOutput PredictOutput RegressionOutput ServingInputReceiver "
        "TensorServingInputReceiver build_parsing_serving_input_receiver_fn build_raw_serving_input_receiver_fn"
    ),
    "inputs": frozenset({"numpy_input_fn", "pandas_input_fn"}),
    "experimental": words(
        "InMemoryEvaluatorHook build_raw_supervised_input_receiver_fn call_logit_fn dnn_logit_fn_builder "
        "linear_logit_fn_builder make_early_stopping_hook make_stop_at_checkpoint_step_hook stop_if_higher_hook "
        "stop_if_lower_hook stop_if_no_decrease_hook stop_if_no_increase_hook"
    ),
}
# The vendor's classes, in any of its modules.
VENDOR = frozenset({"CerebrasEstimator", "CSEstimatorSpec", "CSRunConfig"})
VENDOR_MODULES = ("cerebras.tf.", "modelzoo.common.tf.estimator.", "common.tf.estimator.")
TPU = words(
    "TPUEstimator TPUEstimatorSpec TPUConfig InputPipelineConfig RunConfig ExportSavedModelApiVersion"
)


def estimator_home(name: str) -> str | None:
    """The name below portwright.tensorflow for one below tf.estimator; "" for the module itself."""
    if not name:
        return ""
    first, _, rest = name.partition(".")
    if first in ESTIMATOR:
        return name
    if first in INNER and rest.partition(".")[0] in INNER[first]:
        return name
    return None
