"""The table of the names lent as the model zoo's, and its finder."""

from __future__ import annotations

from importlib.util import find_spec

from portwright.compat.finder import Attributes, LendingFinder, names_from

_HERE = "portwright.compat"
_ZOO = "modelzoo.common.pytorch"  # release 1.6
_METRICS = "portwright.runtime.metrics"

# The modules that held layers, in release 1.6 and in 2.x, and their classes.
_LAYERS_1 = {
    "AttentionLayer": ("MultiheadAttention",),
    "EmbeddingLayer": ("EmbeddingLayer",),
    "FeedForwardNetwork": ("FeedForwardNetwork", "SingleFeedForwardLayer"),
    "RelativePositionEmbeddingLayer": ("RelativePositionEmbeddingLayer",),
    "Transformer": ("Transformer",),
    "TransformerDecoder": ("TransformerDecoder",),
    "TransformerDecoderLayer": ("TransformerDecoderLayer",),
    "TransformerEncoder": ("TransformerEncoder",),
    "TransformerEncoderLayer": ("TransformerEncoderLayer",),
}
_LAYERS_2 = {
    **_LAYERS_1,
    "GPTJDecoderLayer": ("GPTJDecoderLayer",),
    "MultiQueryAttentionLayer": ("MultiQueryAttention",),
}
# The layers of 2.x whose defaults are Portwright's.
_PLAIN_LAYERS_2 = names_from(
    "portwright.layers",
    "AlibiPositionEmbeddingLayer", "FixedPositionEmbeddingLayer", "RMSNorm", "RotaryPositionEmbeddingHelper",
)  # fmt: skip
_MASKS_2 = names_from(
    "portwright.layers",
    "create_2D_autoregressive_mask", "create_broadcasted_autoregressive_mask", "get_extended_attention_mask",
    "make_key_padding_mask_broadcastable", "make_sparse_mask_broadcastable",
)  # fmt: skip
_ACTIVATIONS = {
    "ACT2FN": "portwright.layers.activations:ACTIVATIONS",
    "get_activation": "portwright.layers:get_activation",
}
_INITIALIZERS = {"create_initializer": "portwright.layers:get_initializer"}
_WEIGHT_INITIALIZERS = {
    **names_from("torch.nn.init", "trunc_normal_"),
    **names_from(f"{_HERE}.modelzoo_layers", "variance_scaling_", "lecun_normal_", "lecun_uniform_"),
}
_LOSSES = names_from(
    "portwright.losses", "GPTLMHeadModelLoss", "BertPretrainModelLoss", "T5ForConditionalGenerationLoss"
)

_METRIC_MODULES = {
    "accuracy": names_from(_METRICS, "AccuracyMetric"),
    "fbeta_score": names_from(_METRICS, "FBetaScoreMetric"),
    "perplexity": names_from(_METRICS, "PerplexityMetric"),
    "rouge_score": names_from(f"{_HERE}.modelzoo_metrics", "RougeScoreMetric"),
    "cb_metric": names_from(
        f"{_HERE}.modelzoo_metrics",
        "CBMetric", "DeviceOutputs", "compute_all_metrics", "get_all_metrics", "reset_all_metrics",
    ),
}  # fmt: skip

_OPTIMIZERS = (
    "ASGD", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "CSOptimizer", "Lamb", "NAdam",
    "RAdam", "RMSprop", "Rprop",
)  # fmt: skip
_SCHEDULERS = (
    "Constant", "CosineAnnealing", "CosineDecay", "Exponential", "InverseExponentialTimeDecay", "LRScheduler",
    "MultiStep", "PiecewiseConstant", "Polynomial", "Step",
)  # fmt: skip
_OPTIMIZER_MODULES = {
    **{name: (name,) for name in _OPTIMIZERS if not name.startswith("Adam")},
    "AdamBase": ("Adam", "AdamW"),
    "Adamax": ("Adamax",),
}

_DATA = (
    "BufferedShuffleDataset", "get_input_dtype", "get_params", "group_optimizer_params", "read_params_file", "to_tensor",
    "update_defaults", "visit_structure",
)  # fmt: skip


# Names that packages dropped after release 1.6, and that its code still imports.
_DROPPED: dict[str, Attributes] = {
    "huggingface_hub": names_from(f"{_HERE}.old_calls", "HfFolder", "Repository"),
    "transformers.utils.versions": {"importlib_metadata": "importlib.metadata"},
}


def _layers(package: str, modules: dict[str, tuple[str, ...]], table: str) -> dict[str, Attributes]:
    """A package of layers: every class is in the package itself, and in the module that defined it."""
    places = {name: f"{_HERE}.modelzoo_layers:{table}:{name}" for names in modules.values() for name in names}
    found: dict[str, Attributes] = {package: places}
    for module, names in modules.items():
        found[f"{package}.{module}"] = {name: places[name] for name in names}
    return found


def _optim(package: str) -> dict[str, Attributes]:
    """The optimizers and schedules in release 1.6's modules, from which the demo of 2.2 imports them too."""
    ours = "portwright.optim"
    return {
        f"{package}.optim": {**names_from(ours, *_OPTIMIZERS), "lr_scheduler": f"{ours}.lr_scheduler"},
        f"{package}.optim.lr_scheduler": names_from(f"{ours}.lr_scheduler", *_SCHEDULERS),
        **{
            f"{package}.optim.{module}": names_from(ours, *names)
            for module, names in _OPTIMIZER_MODULES.items()
        },
    }


def _release_1() -> dict[str, Attributes]:
    return {
        **_optim(_ZOO),
        _ZOO: {
            "cb_model": f"{_HERE}.modelzoo_cb_model",
            **names_from(
                f"{_HERE}.modelzoo_cb_model", "modes", "amp", "cbtorch", "name_scope", "AP_DISABLED"
            ),
        },
        # The original would refuse today's versions of packages that the models do not need.
        "modelzoo.transformers.pytorch.huggingface_common.dependency_versions_check": names_from(
            f"{_HERE}.old_calls", "dep_version_check"
        ),
        f"{_ZOO}.PyTorchBaseModel": names_from(f"{_HERE}.modelzoo_base_model", "PyTorchBaseModel"),
        f"{_ZOO}.run_utils": names_from(f"{_HERE}.modelzoo_run", "run"),
        f"{_ZOO}.utils": {
            **names_from(f"{_HERE}.modelzoo_data", *_DATA),
            **names_from(f"{_HERE}.modelzoo_cb_model", "to_cpu"),
        },
        f"{_ZOO}.input_utils": names_from(f"{_HERE}.modelzoo_data", "bucketed_batch"),
        f"{_ZOO}.loss_utils": names_from(f"{_HERE}.modelzoo_data", "extract_loss"),
        **_layers(f"{_ZOO}.layers", _LAYERS_1, "LAYERS_1"),
        f"{_ZOO}.layers.utils": {
            "_get_clones": f"{_HERE}.modelzoo_layers:get_clones",
            "_get_activation_fn": "portwright.layers:get_activation",
        },
        f"{_ZOO}.model_utils": {},
        f"{_ZOO}.model_utils.GPTLMHeadModelLoss": {"GPTLMHeadModelLoss": _LOSSES["GPTLMHeadModelLoss"]},
        f"{_ZOO}.model_utils.RotaryPositionEmbeddingHelper": names_from(
            f"{_HERE}.modelzoo_layers", "RotaryPositionEmbeddingHelper"
        ),
        f"{_ZOO}.model_utils.activations": _ACTIVATIONS,
        f"{_ZOO}.model_utils.create_initializer": _INITIALIZERS,
        f"{_ZOO}.model_utils.weight_initializers": _WEIGHT_INITIALIZERS,
        f"{_ZOO}.metrics": {n: place for module in _METRIC_MODULES.values() for n, place in module.items()},
        **{f"{_ZOO}.metrics.{module}": names for module, names in _METRIC_MODULES.items()},
        f"{_ZOO}.metrics.metric_utils": names_from(
            f"{_HERE}.modelzoo_metrics", "divide_no_nan", "compute_confusion_matrix"
        ),
    }


def _release_2() -> dict[str, Attributes]:
    package = "cerebras.modelzoo"
    layers = _layers(f"{package}.layers", _LAYERS_2, "LAYERS_2")
    demo = f"{package}.models.nlp.layers_api_demo"
    return {
        **layers,
        f"{package}.layers": {**layers[f"{package}.layers"], **_PLAIN_LAYERS_2},
        **{f"{package}.layers.{name}": {name: place} for name, place in _PLAIN_LAYERS_2.items()},
        f"{package}.layers.activations": _ACTIVATIONS,
        f"{package}.layers.create_initializer": _INITIALIZERS,
        f"{package}.layers.weight_initializers": _WEIGHT_INITIALIZERS,
        f"{package}.losses": _LOSSES,
        **_optim(f"{package}.common.pytorch"),
        f"{package}.common.input_utils": names_from(
            f"{_HERE}.modelzoo_data", "bucketed_batch", "get_streaming_batch_size"
        ),
        f"{package}.common.pytorch_utils": names_from(f"{_HERE}.modelzoo_data", "BufferedShuffleDataset"),
        f"{package}.common.run_utils": {
            **names_from(f"{_HERE}.modelzoo_run", "main"),
            **names_from("portwright.runtime.run", "run"),
        },
        f"{package}.common.utils.run.cli_pytorch": names_from(
            f"{_HERE}.modelzoo_run", "get_params_from_args"
        ),
        f"{package}.common.utils.model.transformer_utils": {
            **names_from("portwright.losses", "smooth_loss"),
            **_MASKS_2,
        },
        **{f"{package}.losses.{name}": {name: place} for name, place in _LOSSES.items()},
        demo: {},
        f"{demo}.cb_transformer": names_from(
            "portwright.models.alphabet.literal_transformer", "TransformerModel"
        ),
        f"{demo}.pytorch_transformer": names_from(
            "portwright.models.alphabet.pytorch_transformer",
            "TransformerModel",
            "PositionalEncoding",
            "generate_square_subsequent_mask",
        ),
    }


def make_finder() -> LendingFinder:
    """The finder of all names: `modelzoo.common.pytorch` is lent whole, `cerebras.modelzoo` where its SDK is not.

    With the SDK installed its own model zoo works, and an import of `cerebras` means that one.
    """
    lent = {**_release_1(), **_release_2()}
    return LendingFinder(lent, whole=(_ZOO,), prefer_disk=_is_own_on_disk, added=_DROPPED)


def _is_own_on_disk(name: str) -> bool:
    if ".layers_api_demo" in name:
        return True
    try:
        return find_spec("cerebras.pytorch") is not None
    except ModuleNotFoundError:  # no package `cerebras` is installed
        return False
