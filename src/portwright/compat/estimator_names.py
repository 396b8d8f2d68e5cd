"""The table of the names lent as tf.estimator, Cerebras's TensorFlow packages and the model zoo, and its finder."""

from __future__ import annotations

from portwright.compat.contrib_names import contrib_modules, cure_for
from portwright.compat.finder import Attributes, LendingFinder, names_from
from portwright.tensorflow import _NAMES, _PLACES

_HERE = "portwright.compat"
_OURS = "portwright.tensorflow"

_BASE = (
    "Estimator", "EstimatorSpec", "EvalSpec", "ModeKeys", "RunConfig", "TrainSpec", "VocabInfo", "WarmStartSettings",
    "add_metrics", "classifier_parse_example_spec", "regressor_parse_example_spec", "train_and_evaluate",
)  # fmt: skip
_CANNED = tuple(_NAMES["canned.estimators"].split())
_HOOKS = tuple(name for name in _NAMES["hooks"].split() if name != "CheckpointInputPipelineHook")
_EXPORTERS = tuple(_NAMES["exporters"].split())
_HEADS = tuple(name for name in _PLACES if name.endswith("Head"))
_EXPORT = (
    "ClassificationOutput", "EvalOutput", "ExportOutput", "PredictOutput", "RegressionOutput", "ServingInputReceiver",
    "TensorServingInputReceiver", "build_parsing_serving_input_receiver_fn", "build_raw_serving_input_receiver_fn",
)  # fmt: skip
_STOPPING = (
    "make_early_stopping_hook", "stop_if_higher_hook", "stop_if_lower_hook", "stop_if_no_decrease_hook",
    "stop_if_no_increase_hook",
)  # fmt: skip
_EXPERIMENTAL = (
    *_STOPPING, "InMemoryEvaluatorHook", "make_stop_at_checkpoint_step_hook", "build_raw_supervised_input_receiver_fn",
    "call_logit_fn", "dnn_logit_fn_builder", "linear_logit_fn_builder",
)  # fmt: skip
_INPUTS = ("numpy_input_fn", "pandas_input_fn")
_PARTS = {  # name: its module, for names that portwright.tensorflow itself does not export
    **dict.fromkeys(_EXPERIMENTAL, "experimental"),
    **dict.fromkeys(_EXPORT, "export"),
    **dict.fromkeys(_INPUTS, "inputs"),
}
_TPU = names_from(
    f"{_OURS}.tpu", "InputPipelineConfig", "RunConfig", "TPUConfig", "TPUEstimator", "TPUEstimatorSpec"
)


def place_of(name: str) -> str:
    """The module that defines a public name; the package itself will not do, since a loaded module hides an object of its name."""
    return f"{_OURS}.{_PARTS.get(name) or _PLACES[name]}:{name}"


def _of_ours(*names: str) -> dict[str, str]:
    return {name: place_of(name) for name in names}


V1_ESTIMATOR = "tensorflow.compat.v1.estimator"  # what tf.estimator means in a file of TensorFlow 1
_CANNED_V1 = names_from(f"{_OURS}.canned.v1", *_CANNED)


def _tf_estimator(package: str, canned: Attributes) -> dict[str, Attributes]:
    """The modules of tf.estimator under a package's name; `canned` are its ready-made Estimators, of version 1 or 2."""
    parts = ("experimental", "export", "inputs", "tpu")
    return {
        package: {
            **_of_ours(*_BASE, *_HOOKS, *_HEADS, *_EXPORTERS),
            **canned,
            **{part: f"{package}.{part}" for part in parts},
        },
        f"{package}.experimental": _of_ours(*_EXPERIMENTAL),
        f"{package}.export": _of_ours(*_EXPORT),
        f"{package}.inputs": _of_ours(*_INPUTS),
        f"{package}.tpu": _TPU,
    }


def _private_estimator(package: str) -> dict[str, Attributes]:
    """The private modules that defined the classes: some code imports them from there."""
    modules: dict[str, Attributes] = {
        "canned.baseline": _of_ours(*(n for n in _CANNED if n.startswith("Baseline"))),
        "canned.dnn": _of_ours("DNNClassifier", "DNNRegressor", "DNNEstimator", "dnn_logit_fn_builder"),
        "canned.dnn_linear_combined": _of_ours(*(n for n in _CANNED if n.startswith("DNNLinear"))),
        "canned.linear": _of_ours(*(n for n in _CANNED if n.startswith("Linear")), "linear_logit_fn_builder"),
        "canned.parsing_utils": _of_ours("classifier_parse_example_spec", "regressor_parse_example_spec"),
        "early_stopping": _of_ours(*_STOPPING),
        "estimator": _of_ours("Estimator", "WarmStartSettings", "VocabInfo"),
        "export.export": _of_ours(*_EXPORT[5:]),
        "export.export_output": _of_ours(*_EXPORT[:5]),
        "export.export_lib": _of_ours(*_EXPORT),
        "exporter": _of_ours(*_EXPORTERS),
        "extenders": _of_ours("add_metrics"),
        "head.base_head": _of_ours("Head"),
        "head.binary_class_head": _of_ours("BinaryClassHead"),
        "head.multi_class_head": _of_ours("MultiClassHead"),
        "head.multi_head": _of_ours("MultiHead"),
        "head.multi_label_head": _of_ours("MultiLabelHead"),
        "head.regression_head": _of_ours("RegressionHead", "PoissonRegressionHead", "LogisticRegressionHead"),
        "hooks.hooks": _of_ours("InMemoryEvaluatorHook", "make_stop_at_checkpoint_step_hook"),
        "inputs.inputs": _of_ours(*_INPUTS),
        "inputs.numpy_io": _of_ours("numpy_input_fn"),
        "inputs.pandas_io": _of_ours("pandas_input_fn"),
        "keras_lib": {"model_to_estimator": f"{_HERE}.estimator_lend:keras_model_to_estimator"},
        "mode_keys": _of_ours("ModeKeys"),
        "model_fn": {**_of_ours("EstimatorSpec", "call_logit_fn"), "ModeKeys": place_of("ModeKeys")},
        "run_config": {**_of_ours("RunConfig"), "TaskType": f"{_HERE}.estimator_lend:TaskType"},
        "tpu.tpu_config": {n: _TPU[n] for n in ("InputPipelineConfig", "RunConfig", "TPUConfig")},
        "tpu.tpu_estimator": {n: _TPU[n] for n in ("TPUEstimator", "TPUEstimatorSpec")},
        "training": _of_ours("TrainSpec", "EvalSpec", "train_and_evaluate"),
        "estimator_lib": _of_ours(*_BASE, *_CANNED, *_EXPORTERS),
    }
    folders = {name.partition(".")[0] for name in modules if "." in name}
    held = {part: f"{package}.{part}" for part in {name.partition(".")[0] for name in modules}}
    found: dict[str, Attributes] = {package: held}
    for folder in sorted(folders):
        inside = {n.partition(".")[2] for n in modules if n.startswith(f"{folder}.")}
        found[f"{package}.{folder}"] = {part: f"{package}.{folder}.{part}" for part in inside}
    return {**found, **{f"{package}.{name}": held for name, held in modules.items()}}


def _cerebras() -> dict[str, Attributes]:
    helpers = f"{_HERE}.cerebras_tf"
    return {
        "cerebras.tf": {},
        "cerebras.tf.cs_estimator": _of_ours("CerebrasEstimator"),
        "cerebras.tf.cs_estimator_spec": _of_ours("CSEstimatorSpec"),
        "cerebras.tf.run_config": _of_ours("CSRunConfig"),
        "cerebras.tf.host_call": names_from(
            f"{_OURS}.spec", "host_call_to_eval_metric_ops", "validate_host_call"
        ),
        "cerebras.tf.summary": names_from(helpers, "cs1_disable_summaries", "cs1_enable_summaries"),
        "cerebras.tf.tf_helper": names_from(
            helpers, "GetWeights", "boundary_cast", "summarize_tensor", "summary_layer"
        ),
        "cerebras.pb": {},
        "cerebras.pb.common": {},
        "cerebras.pb.common.tri_state_pb2": names_from(helpers, "TS_DISABLED", "TS_ENABLED", "TS_UNSET"),
        "cerebras.pb.common.cerebras_type_pb2": names_from(helpers, "T_CB16", "T_FP16", "T_FP32"),
        "cerebras.pb.stack": {},
        "cerebras.pb.stack.autogen_pb2": names_from(helpers, "AP_DISABLED", "AP_ENABLED"),
        "cerebras.pb.stack.full_pb2": names_from(helpers, "FullConfig"),
        "cerebras.pb.tf": {},
        "cerebras.pb.tf.csconfig_pb2": names_from(helpers, "CSConfig"),
    }


def _zoo(package: str) -> dict[str, Attributes]:
    """The part of the model zoo that every run.py imports; before release 1.6 it was called `common`."""
    return {
        f"{package}.tf": {},
        f"{package}.tf.estimator": {},
        f"{package}.tf.estimator.cs_estimator": _of_ours("CerebrasEstimator"),
        f"{package}.tf.estimator.cs_estimator_spec": _of_ours("CSEstimatorSpec"),
        f"{package}.tf.estimator.run_config": _of_ours("CSRunConfig"),
        f"{package}.tf.estimator.utils": {
            "cs_disable_summaries": f"{_HERE}.cerebras_tf:cs1_disable_summaries",
            "cs_enable_summaries": f"{_HERE}.cerebras_tf:cs1_enable_summaries",
            **names_from(f"{_OURS}.spec", "host_call_to_eval_metric_ops", "validate_host_call"),
        },
        f"{package}.tf.run_utils": names_from(
            f"{_HERE}.cerebras_tf", "check_env", "create_warm_start_settings", "get_csconfig", "get_csrunconfig_dict",
            "get_params", "get_predict_directory", "is_cs", "save_params", "save_predictions", "update_params_from_args",
        ),
        f"{package}.tf.layers": {},
        f"{package}.tf.layers.utils": names_from(
            f"{_HERE}.cerebras_tf", "boundary_cast", "summarize_tensor", "summary_layer"
        ),
    }  # fmt: skip


_OLD_PRECISION = names_from(
    f"{_HERE}.keras_old_precision",
    "LossScaleOptimizer", "Policy", "get_layer_policy", "global_policy", "set_policy",
)  # fmt: skip
# keras_preprocessing was a separate package, which is now part of Keras.
_KERAS_PREPROCESSING = {
    part: names_from(f"tf_keras.preprocessing.{part}", *names)
    for part, names in {
        "image": ("ImageDataGenerator", "array_to_img", "img_to_array", "load_img", "save_img"),
        "sequence": ("TimeseriesGenerator", "make_sampling_table", "pad_sequences", "skipgrams"),
        "text": ("Tokenizer", "hashing_trick", "one_hot", "text_to_word_sequence", "tokenizer_from_json"),
    }.items()
}


def make_finder() -> LendingFinder:
    """tf.estimator and tf.contrib are lent whole; the model zoo and Cerebras's packages only where they are not on the disk."""
    private = ("tensorflow_estimator.python.estimator", "tensorflow.python.estimator")
    api = "tensorflow_estimator.python.estimator.api._v1.estimator"
    lent = {
        **_tf_estimator("tensorflow.estimator", _of_ours(*_CANNED)),
        **_tf_estimator(V1_ESTIMATOR, _CANNED_V1),
        **_tf_estimator(api, _CANNED_V1),
        **{name: held for package in private for name, held in _private_estimator(package).items()},
        "tensorflow_estimator": {
            "estimator": "tensorflow.estimator",
            "__version__": f"{_HERE}.estimator_lend:VERSION",
        },
        "tensorflow_estimator.python": {"estimator": private[0]},
        f"{private[0]}.api": {},
        f"{private[0]}.api._v1": {"estimator": api},
        **contrib_modules(),
        **_cerebras(),
        **_zoo("modelzoo.common"),
        **_zoo("common"),
        "tensorflow.keras.mixed_precision.experimental": _OLD_PRECISION,
        "keras_preprocessing": {
            part: f"keras_preprocessing.{part}" for part in ("image", "sequence", "text")
        },
        **{f"keras_preprocessing.{part}": held for part, held in _KERAS_PREPROCESSING.items()},
        "tensorflow.examples": {},
        "tensorflow.examples.tutorials": {},
        "tensorflow.examples.tutorials.mnist": {"input_data": f"{_HERE}.mnist_files"},
        "tensorflow.examples.tutorials.mnist.input_data": names_from(
            f"{_HERE}.mnist_files", "read_data_sets", "DataSet"
        ),
    }
    precision = {"experimental": f"{_HERE}.keras_old_precision"}
    return LendingFinder(
        lent,
        whole=(
            "tensorflow.estimator",
            V1_ESTIMATOR,
            "tensorflow.contrib",
            "tensorflow_estimator",
            "tensorflow.python.estimator",
        ),
        prefer_disk=_is_own_on_disk,
        added={
            f"{keras}.mixed_precision": precision
            for keras in ("tensorflow.keras", "tf_keras.api._v1.keras", "tf_keras.api._v2.keras")
        },
        cure=cure_for,
    )


def _is_own_on_disk(name: str) -> bool:
    """Whether a package on the disk is used instead: Cerebras's SDK for PyTorch has packages that begin with these names."""
    return name.partition(".")[0] in ("modelzoo", "common", "cerebras", "keras_preprocessing")
