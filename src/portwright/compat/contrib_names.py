"""What is lent of tf.contrib: data. Names that TensorFlow still has elsewhere point there, the rest to files of ours."""

from __future__ import annotations

from portwright.compat.finder import Attributes
from portwright.tensorflow import _PLACES

_HERE = "portwright.compat"
_OURS = "portwright.tensorflow"
_V1 = "tensorflow.compat.v1"


def _from(place: str, *names: str, **renamed: str) -> dict[str, str]:
    """Names at a place, and others that are called differently there."""
    if place == _OURS:
        return {
            name: f"{_OURS}.{_PLACES[there]}:{there}"
            for name, there in {**{n: n for n in names}, **renamed}.items()
        }
    return {name: f"{place}:{there}" for name, there in {**{n: n for n in names}, **renamed}.items()}


_INITIALIZERS_AND_REGULARIZERS = _from(
    f"{_HERE}.contrib_initializers",
    "xavier_initializer", "xavier_initializer_conv2d", "variance_scaling_initializer", "l1_regularizer",
    "l2_regularizer", "l1_l2_regularizer", "sum_regularizer", "apply_regularization",
)  # fmt: skip
_LAYERS = {
    **_INITIALIZERS_AND_REGULARIZERS,
    **_from(
        f"{_HERE}.contrib_layers",
        "fully_connected", "linear", "relu", "relu6", "flatten", "dropout", "one_hot_encoding", "embed_sequence",
        "optimize_loss", "OPTIMIZER_SUMMARIES", "repeat", "softmax", "stack", "unit_norm",
    ),
    **_from(
        f"{_HERE}.contrib_convolutions",
        "conv2d", "convolution", "convolution2d", "conv2d_transpose", "convolution2d_transpose", "separable_conv2d",
        "separable_convolution2d", "max_pool2d", "avg_pool2d",
    ),
    **_from(f"{_HERE}.contrib_norms", "batch_norm", "layer_norm", "instance_norm", "group_norm"),
}  # fmt: skip
_FRAMEWORK = {
    **_from(f"{_HERE}.contrib_scopes", "arg_scope", "add_arg_scope", "arg_scope_func_key", "has_arg_scope"),
    **_from(
        f"{_HERE}.contrib_variables",
        "assign_from_checkpoint", "assign_from_checkpoint_fn", "filter_variables", "get_model_variables", "get_variables",
        "get_trainable_variables", "get_variables_by_name", "get_variables_by_suffix", "get_variables_to_restore",
        "get_unique_variable", "model_variable", "variable", "add_model_variable",
    ),
    **_from(_V1 + ":train", "get_global_step", "get_or_create_global_step", "create_global_step", "assert_global_step",
            "init_from_checkpoint", "load_checkpoint", "load_variable", "list_variables"),
    **_from(_V1, "argsort", "sort"),
    **_from(_V1, "is_tensor", "nest"),
    "zero_initializer": f"{_HERE}.contrib_variables:zero_initializer",
}  # fmt: skip
_RNN_CELLS = (
    "BasicLSTMCell", "BasicRNNCell", "DeviceWrapper", "DropoutWrapper", "GRUCell", "LSTMCell", "LSTMStateTuple", "MultiRNNCell",
    "RNNCell", "ResidualWrapper",
)  # fmt: skip
_STOPPING = (
    "InMemoryEvaluatorHook", "make_early_stopping_hook", "make_stop_at_checkpoint_step_hook", "stop_if_higher_hook",
    "stop_if_lower_hook", "stop_if_no_decrease_hook", "stop_if_no_increase_hook",
)  # fmt: skip
_LOOKUP = (
    "HashTable", "IdTableWithHashBuckets", "KeyValueTensorInitializer", "LookupInterface", "MutableHashTable",
    "TextFileIdTableInitializer", "TextFileIndex", "TextFileInitializer", "TextFileStringTableInitializer",
    "index_table_from_file", "index_table_from_tensor", "index_to_string_table_from_file", "index_to_string_table_from_tensor",
)  # fmt: skip

_TABLE: dict[str, Attributes] = {
    "": {"keras": f"{_V1}:keras"},
    "autograph": _from(f"{_V1}:autograph", "to_code", "to_graph"),
    "cluster_resolver": _from(
        f"{_V1}:distribute:cluster_resolver",
        "ClusterResolver", "GCEClusterResolver", "KubernetesClusterResolver", "SimpleClusterResolver", "SlurmClusterResolver",
        "TFConfigClusterResolver", "TPUClusterResolver", UnionClusterResolver="UnionResolver",
    ),
    "compiler": {},
    "compiler.jit": {"experimental_jit_scope": "tensorflow.xla.experimental:jit_scope"},
    "crf": _from(
        f"{_HERE}.contrib_crf",
        "crf_binary_score", "crf_decode", "crf_log_likelihood", "crf_log_norm", "crf_sequence_score", "crf_unary_score",
        "viterbi_decode",
    ),
    "data": {
        **_from(
            f"{_V1}:data:experimental",
            "map_and_batch", "parallel_interleave", "shuffle_and_repeat", "unbatch", "group_by_window", "scan", "unique",
            "bucket_by_sequence_length", "ignore_errors", "sample_from_datasets", "choose_from_datasets", "enumerate_dataset",
            "prefetch_to_device", "copy_to_device", "make_batched_features_dataset", "make_csv_dataset", "CsvDataset",
            "SqlDataset", "RandomDataset", "Counter", "Optional", "get_next_as_optional", "get_single_element",
            "make_saveable_from_iterator", "rejection_resample", "dense_to_sparse_batch", "AUTOTUNE",
        ),
        **_from(f"{_V1}:data", "Dataset", "TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset", "Iterator"),
        **_from(
            f"{_HERE}.contrib_data",
            "batch_and_drop_remainder", "padded_batch_and_drop_remainder", "assert_element_shape",
        ),
        **_from(_OURS, "CheckpointInputPipelineHook"),
    },
    "distribute": {
        **_from(f"{_V1}:distribute", "MirroredStrategy", "OneDeviceStrategy", DistributionStrategy="Strategy"),
        **_from(
            f"{_V1}:distribute:experimental", "ParameterServerStrategy", "TPUStrategy",
            CollectiveAllReduceStrategy="MultiWorkerMirroredStrategy",
        ),
        "AllReduceCrossDeviceOps": f"{_V1}:distribute:HierarchicalCopyAllReduce",
    },
    "eager": _from(_V1, "enable_eager_execution", "GradientTape", "Variable", "executing_eagerly", "py_func", defun="function"),
    "estimator": {
        **_from(f"{_OURS}.experimental", *_STOPPING),
        **_from(_OURS, "add_metrics", "DNNEstimator", "LinearEstimator", "DNNLinearCombinedEstimator"),
        **_from(
            _OURS, multi_class_head="MultiClassHead", binary_classification_head="BinaryClassHead",
            regression_head="RegressionHead", multi_label_head="MultiLabelHead", multi_head="MultiHead",
            poisson_regression_head="PoissonRegressionHead", logistic_regression_head="LogisticRegressionHead",
        ),
        **_from(f"{_HERE}.contrib_estimator", "TowerOptimizer", "replicate_model_fn", "clip_gradients_by_norm"),
    },
    "framework": _FRAMEWORK,
    "hooks": _from(f"{_V1}:train", "ProfilerHook"),
    "layers": {**_LAYERS, "initializers": f"{_HERE}.contrib_initializers", "regularizers": f"{_HERE}.contrib_initializers"},
    "learn": _from(_OURS, "RunConfig", "ModeKeys"),
    "lookup": {
        **_from("tensorflow.python.ops.lookup_ops", *_LOOKUP),
        "MutableDenseHashTable": "tensorflow.python.ops.lookup_ops:DenseHashTable",
    },
    "losses": _from(
        f"{_V1}:losses", "absolute_difference", "add_loss", "compute_weighted_loss", "cosine_distance", "get_losses",
        "get_regularization_losses", "get_total_loss", "hinge_loss", "log_loss", "mean_squared_error",
    ),
    "metrics": _from(
        f"{_HERE}.contrib_metrics",
        "accuracy", "aggregate_metric_map", "aggregate_metrics", "confusion_matrix", "f1_score", "streaming_accuracy",
        "streaming_auc", "streaming_concat", "streaming_false_negatives", "streaming_false_positives", "streaming_mean",
        "streaming_mean_absolute_error", "streaming_mean_iou", "streaming_mean_squared_error", "streaming_mean_tensor", "streaming_pearson_correlation",
        "streaming_precision", "streaming_recall", "streaming_root_mean_squared_error", "streaming_true_negatives",
        "streaming_true_positives",
    ),
    "opt": _from(
        f"{_HERE}.contrib_optimizers",
        "AdamWOptimizer", "DecoupledWeightDecayExtension", "LazyAdamOptimizer", "MomentumWOptimizer",
        "extend_with_decoupled_weight_decay",
    ),
    "predictor": _from(f"{_HERE}.contrib_predictor", "from_estimator", "from_saved_model"),
    "rnn": {
        **_from(f"{_V1}:nn:rnn_cell", *_RNN_CELLS, LayerRNNCell="RNNCell"),
        **_from(f"{_V1}:nn", "static_bidirectional_rnn", "static_rnn", "static_state_saving_rnn"),
        **_from(
            f"{_HERE}.contrib_rnn",
            "FusedRNNCell", "LSTMBlockCell", "LSTMBlockFusedCell", "TimeReversedFusedRNN", "stack_bidirectional_dynamic_rnn",
            "transpose_batch_time",
        ),
    },
    "seq2seq": _from(f"{_HERE}.contrib_rnn", "sequence_loss"),
    "slim": {
        **_LAYERS,
        **_FRAMEWORK,
        "layers": "tensorflow.contrib.layers",
        "losses": "tensorflow.compat.v1:losses",
        "model_analyzer": f"{_HERE}.contrib_variables",
        "utils": f"{_HERE}.contrib_variables",
    },
    "summary": _from(
        f"{_HERE}.contrib_summary",
        "all_summary_ops", "always_record_summaries", "audio", "create_file_writer", "flush", "generic", "graph", "histogram",
        "image", "initialize", "never_record_summaries", "record_summaries_every_n_global_steps", "scalar",
        "should_record_summaries",
    ),
    "tpu": {
        **_from(
            f"{_OURS}.tpu",
            "CrossShardOptimizer", "InputPipelineConfig", "RunConfig", "TPUConfig", "TPUEstimator", "TPUEstimatorSpec",
        ),
        **_from(
            f"{_V1}:tpu", "batch_parallel", "bfloat16_scope", "core", "initialize_system", "outside_compilation", "replicate",
            "rewrite", "shard", "shutdown_system",
        ),
        "cross_replica_sum": f"{_HERE}.contrib_tpu:cross_replica_sum",
        "AsyncCheckpointSaverHook": f"{_V1}:train:CheckpointSaverHook",
    },
    "training": _from(
        f"{_HERE}.contrib_training", "HParams", "checkpoints_iterator", "clip_gradient_norms", "create_train_op"
    ),
}  # fmt: skip


def contrib_modules() -> dict[str, Attributes]:
    """The lent modules by name; each package holds those inside it."""
    names = {name: f"tensorflow.contrib.{name}".rstrip(".") for name in _TABLE}
    found: dict[str, Attributes] = {}
    for name, attributes in _TABLE.items():
        inside = {
            other.rpartition(".")[2]: names[other]
            for other in _TABLE
            if other and other != name and other.rpartition(".")[0] == name
        }
        found[names[name]] = {**attributes, **inside}
    return found


_CURES = {  # by the part of tf.contrib, what took its place
    "seq2seq": "Write the decoder with tf.while_loop, or with tf.keras.layers.",
    "cudnn_rnn": "Use tf.keras.layers.LSTM or GRU, which choose cuDNN themselves.",
    "layers": "Use tf.compat.v1.layers or tf.feature_column.",
    "slim": "pip install tf_slim and write 'import tf_slim as slim'.",
    "learn": "Use tf.estimator.",
    "lite": "Use tf.lite.",
    "gan": "pip install tensorflow-gan and write 'import tensorflow_gan as tfgan'.",
    "distributions": "pip install tensorflow-probability.",
    "image": "Use tf.image or tf.keras.layers.Random*.",
    "quantize": "Use tensorflow_model_optimization.",
    "tensorrt": "Use tf.experimental.tensorrt.",
}


def cure_for(name: str) -> str:
    """What to do where the code uses a part that is not lent."""
    parts = name.split(".")
    known = _CURES.get(parts[2], "") if parts[:2] == ["tensorflow", "contrib"] and len(parts) > 2 else ""
    return known or "Write this part with what TensorFlow has today; docs/compat.md says what is lent."
