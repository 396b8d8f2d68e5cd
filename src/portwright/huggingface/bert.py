"""BERT with its pre-training heads, and the fine-tuning heads that HuggingFace has too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from portwright.errors import UnsupportedError, UserError, suggest
from portwright.huggingface.mapping import Entry, Family, Params
from portwright.networks.bert_heads import (
    PROBLEM_TYPES,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)

# HuggingFace's name of an activation: ours; of two names for one of ours, the first is written.
_ACTIVATIONS = {
    **{
        name: name
        for name in ("gelu", "relu", "silu", "tanh", "sigmoid", "mish", "relu6", "leaky_relu", "linear")
    },
    **{name: name for name in ("gelu_new", "gelu_fast", "quick_gelu", "swish")},
    "gelu_pytorch_tanh": "gelu_new",
    "relu2": "squared_relu",
}
_SAME_KEYS = {  # theirs: ours
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_hidden_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "filter_size",
    "hidden_dropout_prob": "dropout_rate",
    "attention_probs_dropout_prob": "attention_dropout_rate",
    "max_position_embeddings": "max_position_embeddings",
    "type_vocab_size": "num_segments",
    "initializer_range": "initializer_range",
    "layer_norm_eps": "layer_norm_epsilon",
    "pad_token_id": "pad_token_id",
}
CONFIG_DEFAULTS: dict[str, Any] = {  # for keys that a config.json leaves out
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
_NOT_MODELLED = {  # keys whose other values make another network
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
    "is_encoder_decoder": False,
}


def encoder_params(
    config: Mapping[str, Any], defaults: Mapping[str, Any] = CONFIG_DEFAULTS
) -> dict[str, Any]:
    """The encoder's part of the model section; refuses settings of a different network."""
    for key, modelled in _NOT_MODELLED.items():
        value = config.get(key, modelled)
        if value != modelled and value is not None:
            raise UnsupportedError(
                f"config.json has {key}: {value!r}, which this BERT does not model.",
                f"Only {modelled!r} converts.",
            )
    params = {ours: config.get(theirs, defaults[theirs]) for theirs, ours in _SAME_KEYS.items()}
    has_padding = params["pad_token_id"] is not None
    if not has_padding:  # no embedding is kept at zero; without a padding token its id does not matter
        params["pad_token_id"] = 0
    name = config.get("hidden_act", "gelu")
    if name not in _ACTIVATIONS:
        raise UserError(f"config.json has hidden_act: {name!r}.", suggest(str(name), _ACTIVATIONS))
    return {
        **params,
        "encoder_nonlinearity": _ACTIVATIONS[name],
        "use_segment_embedding": True,
        "positions_after_padding": False,
        "freeze_padding_embedding": has_padding,
    }


def encoder_config(params: Params, positions_after_padding: bool = False) -> dict[str, Any]:
    """HuggingFace's config of the encoder; refuses settings that it lacks."""
    if params["positions_after_padding"] is not positions_after_padding:
        raise UnsupportedError(
            f"model.positions_after_padding is {str(params['positions_after_padding']).lower()}, and HuggingFace's "
            f"{'RoBERTa counts' if positions_after_padding else 'BERT does not count'} positions from padding's.",
            "Only models with it convert to RoBERTa, and only those without it to BERT.",
        )
    if params.get("attention_style") is not None:
        raise UnsupportedError(
            f"model.attention_style is {params['attention_style']!r}, and HuggingFace's BERT has no Linformer.",
            "Only models without it convert.",
        )
    if not params["use_segment_embedding"]:
        raise UnsupportedError(
            "model.use_segment_embedding is false, and HuggingFace's BERT always adds a segment.",
            "Only models with segments convert.",
        )
    name = params["encoder_nonlinearity"]
    theirs = next((key for key, ours in _ACTIVATIONS.items() if ours == name), None)
    if theirs is None:
        raise UnsupportedError(
            f"model.encoder_nonlinearity is {name!r}, which HuggingFace's BERT does not know.",
            suggest(str(name), _ACTIVATIONS.values()),
        )
    return {**{key: params[ours] for key, ours in _SAME_KEYS.items()}, "hidden_act": theirs}


def encoder_entries(params: Params, root: str = "bert", pooler: str | None = None) -> list[Entry]:
    """The encoder's tensors; in HuggingFace `root` is the encoder's name, `pooler` that of the dense layer over the first token."""
    base, count = f"{root}.embeddings", params["num_hidden_layers"]
    entries = [
        Entry("bert.embeddings.word_embeddings.weight", f"{base}.word_embeddings.weight"),
        Entry("bert.embeddings.position_embeddings.weight", f"{base}.position_embeddings.weight"),
        Entry("bert.embeddings.segment_embeddings.weight", f"{base}.token_type_embeddings.weight"),
    ]
    ours, theirs = "bert.encoder.layers.{i}", f"{root}.encoder.layer.{{i}}"
    for kind in ("weight", "bias"):
        parts = tuple(f"{theirs}.attention.self.{part}.{kind}" for part in ("query", "key", "value"))
        entries += [
            Entry(f"bert.embeddings_norm.{kind}", f"{base}.LayerNorm.{kind}"),
            Entry(f"{ours}.self_attn.in_proj_{kind}", parts, count=count),
            Entry(
                f"{ours}.self_attn.out_proj.{kind}", f"{theirs}.attention.output.dense.{kind}", count=count
            ),
            Entry(f"{ours}.norm1.{kind}", f"{theirs}.attention.output.LayerNorm.{kind}", count=count),
            Entry(f"{ours}.linear1.{kind}", f"{theirs}.intermediate.dense.{kind}", count=count),
            Entry(f"{ours}.linear2.{kind}", f"{theirs}.output.dense.{kind}", count=count),
            Entry(f"{ours}.norm2.{kind}", f"{theirs}.output.LayerNorm.{kind}", count=count),
        ]
    return entries + (same_layer("bert.pooler.dense", pooler) if pooler else [])


def same_layer(ours: str, theirs: str) -> list[Entry]:
    return [Entry(f"{ours}.{kind}", f"{theirs}.{kind}") for kind in ("weight", "bias")]


def mlm_entries(params: Params, dense: str, norm: str, head: str) -> list[Entry]:
    """The head for masked tokens; where it is untied, its biases are the decoder's, and the other name is unused."""
    entries = [*same_layer("mlm.dense", dense), *same_layer("mlm.norm", norm)]
    if params.get("share_embedding_weights", True):
        return [*entries, Entry("mlm.bias", f"{head}.bias")]
    return [
        *entries,
        Entry("mlm.decoder.weight", f"{head}.decoder.weight"),
        Entry("mlm.bias", f"{head}.decoder.bias"),
    ]


def check_head_activation(params: Params, theirs: str) -> None:
    """Refuses a head for masked tokens with another activation than HuggingFace's fixed one."""
    ours = params.get("mlm_nonlinearity") or params["encoder_nonlinearity"]
    if ours != theirs:
        raise UnsupportedError(
            f"The head for masked tokens has the activation {ours!r}, and HuggingFace's has {theirs!r}.",
            f"Only models with model.mlm_nonlinearity {theirs} convert.",
        )


def _pretraining_entries(params: Params) -> list[Entry]:
    entries = mlm_entries(
        params, "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions"
    )
    if params["disable_nsp"]:
        return [*encoder_entries(params), *entries]
    encoder = encoder_entries(params, pooler="bert.pooler.dense")
    return [*encoder, *entries, *same_layer("nsp", "cls.seq_relationship")]


def _pretraining_params(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **encoder_params(config),
        "share_embedding_weights": config.get("tie_word_embeddings", True),
        "disable_nsp": "BertForMaskedLM" in (config.get("architectures") or ()),
    }


def _pretraining_config(params: Params) -> dict[str, Any]:
    check_head_activation(params, params["encoder_nonlinearity"])
    return {
        **encoder_config(params),
        "tie_word_embeddings": params.get("share_embedding_weights", True),
        "architectures": ["BertForMaskedLM" if params["disable_nsp"] else "BertForPreTraining"],
    }


def label_params(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The number of labels, their names unless these are only numbered, and the head's dropout."""
    names: Mapping[Any, str] | None = config.get("id2label")
    count = config.get("num_labels", 2) if names is None else len(names)
    found: dict[str, Any] = {key: count, "task_dropout": config.get("classifier_dropout")}
    if names is not None:
        ordered = [names.get(i, names.get(str(i))) for i in range(count)]
        if None in ordered:
            raise UserError(
                f"config.json has id2label {dict(names)!r}.", f"Number its labels from 0 to {count - 1}."
            )
        found["label_names"] = None if ordered == [f"LABEL_{i}" for i in range(count)] else ordered
    return found


def label_config(params: Params, key: str) -> dict[str, Any]:
    names = params.get("label_names") or [f"LABEL_{i}" for i in range(params[key])]
    if len(names) != params[key]:
        raise UserError(f"model.label_names has {len(names)} names.", f"model.{key} is {params[key]}.")
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
        "classifier_dropout": params.get("task_dropout"),
    }


def problem_params(config: Mapping[str, Any]) -> dict[str, Any]:
    problem = config.get("problem_type")
    if problem is not None and problem not in PROBLEM_TYPES:
        raise UserError(f"config.json has problem_type {problem!r}.", suggest(str(problem), PROBLEM_TYPES))
    return {"problem_type": problem}


def head_families(
    root: str,
    class_prefix: str,
    params_of: Callable[[Mapping[str, Any]], dict[str, Any]],
    config_of: Callable[[Params], dict[str, Any]],
    *,
    pooler: str,
    classifier: str,
    dropout_before_pooler: bool,
) -> tuple[Family, ...]:
    """The fine-tuning heads over an encoder that HuggingFace names `root`.

    `pooler` is its name of the classifier's dense layer over the first token, `classifier` that of its last layer.
    """

    def make(head: str, their_class: str, network: type, labels: str | None, **of_classifier: Any) -> Family:
        parts = {"classifier": classifier, "token_classifier": "classifier", "qa": "qa_outputs"}
        is_classifier = head == "classifier"

        def params_with_labels(config: Mapping[str, Any]) -> dict[str, Any]:
            found = params_of(config)
            if labels:
                found |= label_params(config, labels)
            return {**found, **problem_params(config), **of_classifier} if is_classifier else found

        def config_with_labels(params: Params) -> dict[str, Any]:
            made = {**config_of(params), "architectures": [their_class]}
            if labels:
                made |= label_config(params, labels)
            return {**made, "problem_type": params.get("problem_type")} if is_classifier else made

        return Family(
            name=f"{root}_{head}",
            model_type=root,
            architectures={f"bert_{head}": their_class},
            entries=lambda params: [
                *encoder_entries(params, root, pooler=pooler if is_classifier else None),
                *same_layer("qa_outputs" if head == "qa" else "classifier", parts[head]),
            ],
            params_of=params_with_labels,
            config_of=config_with_labels,
            ignored=ignored_of(root, with_pooler=not (is_classifier and pooler.startswith(root))),
            prefix=f"{root}.",
            network=network,
        )

    return (
        make(
            "classifier",
            f"{class_prefix}ForSequenceClassification",
            BertForSequenceClassification,
            "num_labels",
            task_dropout_before_pooler=dropout_before_pooler,
        ),
        make(
            "token_classifier",
            f"{class_prefix}ForTokenClassification",
            BertForTokenClassification,
            "num_classes",
        ),
        make("qa", f"{class_prefix}ForQuestionAnswering", BertForQuestionAnswering, None),
    )


def ignored_of(root: str, with_pooler: bool) -> tuple[str, ...]:
    buffers = (f"{root}.embeddings.position_ids", f"{root}.embeddings.token_type_ids")
    return (*buffers, f"{root}.pooler.dense.*") if with_pooler else buffers


FAMILIES = (
    Family(
        name="bert",
        model_type="bert",
        architectures={"bert": ("BertForPreTraining", "BertForMaskedLM")},
        entries=_pretraining_entries,
        params_of=_pretraining_params,
        config_of=_pretraining_config,
        # Published files of a BertForMaskedLM also have the next-sentence head, which that class ignores.
        ignored=(*ignored_of("bert", True), "cls.seq_relationship.*", "cls.predictions.bias"),
        tied=(
            ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
            ("cls.predictions.bias", "cls.predictions.decoder.bias"),
        ),
        copies={"cls.predictions.bias": "cls.predictions.decoder.bias"},  # unused where the head is not tied
        prefix="bert.",
        network=BertForPreTraining,
    ),
    *head_families(
        "bert",
        "Bert",
        encoder_params,
        encoder_config,
        pooler="bert.pooler.dense",
        classifier="classifier",
        dropout_before_pooler=False,
    ),
)
