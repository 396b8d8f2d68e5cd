"""The table of the names lent as tf.contrib: each points to its new place in TensorFlow, or to a module of Portwright."""

from __future__ import annotations

from portwright.compat.finder import Attributes, names_from
from portwright.tensorflow import _PLACES

_HERE = "portwright.compat"
_OURS = "portwright.tensorflow"
_V1 = "tensorflow.compat.v1"


def _of_ours(*names: str, **renamed: str) -> dict[str, str]:
    """Public names of portwright.tensorflow, each from the module that defines it."""
    there = {**dict(zip(names, names, strict=True)), **renamed}
    return {name: f"{_OURS}.{_PLACES[own]}:{own}" for name, own in there.items()}


_INITIALIZERS_AND_REGULARIZERS = names_from(
    f"{_HERE}.contrib_initializers",
    "xavier_initializer", "xavier_initializer_conv2d", "variance_scaling_initializer", "l1_regularizer",
    "l2_regularizer", "apply_regularization",
)  # fmt: skip
_LAYERS = {
    **_INITIALIZERS_AND_REGULARIZERS,
    **names_from(
        f"{_HERE}.contrib_layers",
        "fully_connected", "linear", "flatten", "dropout", "one_hot_encoding", "embed_sequence",
        "optimize_loss", "OPTIMIZER_SUMMARIES", "repeat", "softmax", "stack",
    ),
    **names_from(
        f"{_HERE}.contrib_convolutions",
        "conv2d", "convolution2d", "conv2d_transpose", "separable_conv2d", "separable_convolution2d", "max_pool2d",
        "avg_pool2d",
    ),
    **names_from(f"{_HERE}.contrib_norms", "batch_norm", "layer_norm", "instance_norm", "group_norm"),
}  # fmt: skip
_FRAMEWORK = {
    **names_from(f"{_HERE}.contrib_scopes", "arg_scope", "add_arg_scope", "arg_scope_func_key", "has_arg_scope"),
    **names_from(
        f"{_HERE}.contrib_variables",
        "assign_from_checkpoint", "assign_from_checkpoint_fn", "filter_variables", "get_model_variables", "get_variables",
        "get_trainable_variables", "get_variables_by_name", "get_variables_by_suffix", "get_variables_to_restore",
        "get_unique_variable", "model_variable", "variable", "add_model_variable",
    ),
    **names_from(_V1 + ":train", "get_global_step", "get_or_create_global_step", "create_global_step", "assert_global_step",
            "init_from_checkpoint", "load_checkpoint", "load_variable", "list_variables"),
    **names_from(_V1, "argsort", "sort"),
    **names_from(_V1, "is_tensor", "nest"),
    "zero_initializer": f"{_V1}:zeros_initializer",
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
    "autograph": names_from(f"{_V1}:autograph", "to_code", "to_graph"),
    "cluster_resolver": names_from(
        f"{_V1}:distribute:cluster_resolver",
        "ClusterResolver", "GCEClusterResolver", "KubernetesClusterResolver", "SimpleClusterResolver", "SlurmClusterResolver",
        "TFConfigClusterResolver", "TPUClusterResolver", UnionClusterResolver="UnionResolver",
    ),
    "compiler": {},
    "compiler.jit": {"experimental_jit_scope": "tensorflow.xla.experimental:jit_scope"},
    "crf": names_from(
        f"{_HERE}.contrib_crf",
        "crf_decode", "crf_log_likelihood", "viterbi_decode",
    ),
    "data": {
        **names_from(
            f"{_V1}:data:experimental",
            "map_and_batch", "parallel_interleave", "shuffle_and_repeat", "unbatch", "group_by_window", "scan", "unique",
            "bucket_by_sequence_length", "ignore_errors", "sample_from_datasets", "choose_from_datasets", "enumerate_dataset",
            "prefetch_to_device", "copy_to_device", "make_batched_features_dataset", "make_csv_dataset", "CsvDataset",
            "SqlDataset", "RandomDataset", "Counter", "Optional", "get_next_as_optional", "get_single_element",
            "make_saveable_from_iterator", "rejection_resample", "dense_to_sparse_batch", "AUTOTUNE",
        ),
        **names_from(f"{_V1}:data", "Dataset", "TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset", "Iterator"),
        **names_from(f"{_HERE}.contrib_data", "batch_and_drop_remainder"),
        **_of_ours("CheckpointInputPipelineHook"),
    },
    "distribute": {
        **names_from(f"{_V1}:distribute", "MirroredStrategy", "OneDeviceStrategy", DistributionStrategy="Strategy"),
        **names_from(
            f"{_V1}:distribute:experimental", "ParameterServerStrategy", "TPUStrategy",
            CollectiveAllReduceStrategy="MultiWorkerMirroredStrategy",
        ),
        "AllReduceCrossDeviceOps": f"{_V1}:distribute:HierarchicalCopyAllReduce",
    },
    "eager": names_from(_V1, "enable_eager_execution", "GradientTape", "Variable", "executing_eagerly", py_func="py_function", defun="function"),
    "estimator": {
        **names_from(f"{_OURS}.experimental", *_STOPPING),
        **_of_ours("add_metrics", "DNNEstimator", "LinearEstimator", "DNNLinearCombinedEstimator"),
        **_of_ours(multi_class_head="MultiClassHead", binary_classification_head="BinaryClassHead",
            regression_head="RegressionHead", multi_label_head="MultiLabelHead", multi_head="MultiHead",
            poisson_regression_head="PoissonRegressionHead", logistic_regression_head="LogisticRegressionHead",
        ),
        **names_from(f"{_HERE}.contrib_estimator", "clip_gradients_by_norm"),
    },
    "framework": _FRAMEWORK,
    "framework.nest": names_from(f"{_V1}:nest", "assert_same_structure", "flatten", "map_structure", "pack_sequence_as"),
    "hooks": names_from(f"{_V1}:train", "ProfilerHook"),
    "layers": {**_LAYERS, "initializers": f"{_HERE}.contrib_initializers", "regularizers": f"{_HERE}.contrib_initializers"},
    "learn": _of_ours("RunConfig", "ModeKeys"),
    "lookup": {
        **names_from("tensorflow.python.ops.lookup_ops", *_LOOKUP),
        "MutableDenseHashTable": "tensorflow.python.ops.lookup_ops:DenseHashTable",
    },
    "losses": names_from(
        f"{_HERE}.contrib_losses", "get_losses", "get_regularization_losses", "get_total_loss", "log_loss",
        "mean_squared_error", "softmax_cross_entropy",
    ),
    "metrics": names_from(
        f"{_HERE}.contrib_metrics",
        "accuracy", "aggregate_metric_map", "streaming_accuracy", "streaming_concat", "streaming_mean", "streaming_mean_iou",
        "streaming_mean_squared_error", "streaming_pearson_correlation",
    ),
    "opt": names_from(
        f"{_HERE}.contrib_optimizers",
        "AdamWOptimizer", "LazyAdamOptimizer", "extend_with_decoupled_weight_decay",
    ),
    "predictor": names_from(f"{_HERE}.contrib_predictor", "from_estimator", "from_saved_model"),
    "rnn": {
        **names_from(f"{_V1}:nn:rnn_cell", *_RNN_CELLS, LayerRNNCell="RNNCell"),
        **names_from(f"{_V1}:nn", "static_bidirectional_rnn", "static_rnn", "static_state_saving_rnn"),
        **names_from(
            f"{_HERE}.contrib_rnn",
            "LSTMBlockCell", "LSTMBlockFusedCell", "TimeReversedFusedRNN", "stack_bidirectional_dynamic_rnn",
        ),
    },
    "seq2seq": names_from(f"{_HERE}.contrib_rnn", "sequence_loss"),
    "slim": {
        **_LAYERS,
        **_FRAMEWORK,
        "layers": "tensorflow.contrib.layers",
        "losses": "tensorflow.contrib.losses",
        "metrics": "tensorflow.contrib.metrics",
        "model_analyzer": f"{_HERE}.contrib_variables",
        "utils": f"{_HERE}.contrib_variables",
    },
    "summary": names_from(
        f"{_HERE}.contrib_summary",
        "all_summary_ops", "always_record_summaries", "audio", "create_file_writer", "flush", "histogram", "image", "initialize",
        "record_summaries_every_n_global_steps", "scalar",
    ),
    "tpu": {
        **names_from(
            f"{_OURS}.tpu",
            "CrossShardOptimizer", "InputPipelineConfig", "RunConfig", "TPUConfig", "TPUEstimator", "TPUEstimatorSpec",
        ),
        **names_from(
            f"{_V1}:tpu", "batch_parallel", "bfloat16_scope", "core", "initialize_system", "outside_compilation", "replicate",
            "rewrite", "shard", "shutdown_system",
        ),
        "cross_replica_sum": f"{_HERE}.contrib_tpu:cross_replica_sum",
        "AsyncCheckpointSaverHook": f"{_V1}:train:CheckpointSaverHook",
    },
    "training": {
        **names_from(f"{_HERE}.contrib_training", "HParams", "create_train_op"),
        **names_from(f"{_V1}:train", "checkpoints_iterator"),
    },
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


_CURES = {  # beginning of a name below tf.contrib (the longest match counts): its replacement
    "seq2seq": "Write the decoder with tf.while_loop, or with tf.keras.layers.",
    "cudnn_rnn": "Use tf.keras.layers.LSTM or GRU, which choose cuDNN themselves.",
    "crf": "Compute it from crf_log_likelihood and crf_decode, which are lent.",
    "data.assert_element_shape": "Use dataset.map with tf.ensure_shape.",
    "data.padded_batch_and_drop_remainder": "Use dataset.padded_batch(..., drop_remainder=True).",
    "estimator.TowerOptimizer": "Leave it out, and pass train_distribute=tf.distribute.MirroredStrategy() to RunConfig.",
    "estimator.replicate_model_fn": "Leave it out, and pass train_distribute=tf.distribute.MirroredStrategy() to RunConfig.",
    "layers": "Use tf.compat.v1.layers or tf.feature_column.",
    "layers.convolution": "Use conv2d of the same package.",
    "layers.convolution2d_transpose": "Use conv2d_transpose of the same package.",
    "layers.l1_l2_regularizer": "Use tf.keras.regularizers.L1L2.",
    "layers.relu": "Use tf.contrib.layers.fully_connected, whose activation is relu.",
    "layers.relu6": "Use tf.contrib.layers.fully_connected(..., activation_fn=tf.nn.relu6).",
    "layers.unit_norm": "Use tf.math.l2_normalize.",
    "losses": "Use the loss of this name in tf.compat.v1.losses, whose labels come first.",
    "metrics": "Use tf.compat.v1.metrics, whose labels come first.",
    "metrics.confusion_matrix": "Use tf.math.confusion_matrix.",
    "metrics.f1_score": "Compute it from tf.compat.v1.metrics.precision and recall.",
    "opt": "Use an optimizer of tf.compat.v1.train, or extend_with_decoupled_weight_decay, which is lent.",
    "rnn.transpose_batch_time": "Use tf.transpose(x, [1, 0, 2]).",
    "summary": "Use tf.compat.v1.summary.",
    "training.clip_gradient_norms": "Use tf.clip_by_norm on each gradient.",
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
    """The cure in the error for a part of tf.contrib that is not lent."""
    inner = name.removeprefix("tensorflow.contrib.") if name.startswith("tensorflow.contrib.") else ""
    while inner:
        if inner in _CURES:
            return _CURES[inner]
        inner = inner.rpartition(".")[0]
    return "Write this part with what TensorFlow has today; docs/compat.md says what is lent."
