"""BERT and RoBERTa beside transformers' own: scores, losses, every gradient, and weights both ways bit for bit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from portwright.errors import PortwrightError
from portwright.huggingface import bert as bert_file
from portwright.huggingface import roberta as roberta_file
from portwright.huggingface.mapping import Family, to_ours, to_theirs
from portwright.networks.bert_heads import BertForPreTraining

FAMILIES = {family.name: family for family in (*bert_file.FAMILIES, *roberta_file.FAMILIES)}
SMALL = {
    "vocab_size": 53,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 19,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
ODD = {**SMALL, "hidden_size": 15, "num_attention_heads": 5, "intermediate_size": 17, "vocab_size": 31}


def make_theirs(architecture: str, **options: Any) -> Any:
    torch.manual_seed(0)
    kind: Any = transformers.RobertaConfig if architecture.startswith("Roberta") else transformers.BertConfig
    config = kind(**{**SMALL, **options}, architectures=[architecture])
    model = getattr(transformers, architecture)(config).double()
    with torch.no_grad():  # biases of zero and scales of one would hide a tensor that is left out
        for name, weight in model.named_parameters():
            if name.endswith("bias") or "LayerNorm" in name or "layer_norm" in name:
                weight.add_(torch.randn_like(weight) * 0.1)
    return model


def convert(theirs: Any, family: Family) -> tuple[Any, dict[str, Any]]:
    params = family.params_of(theirs.config.to_dict())
    assert family.network is not None
    ours = family.network(params).double()
    ours.load_state_dict(to_ours(theirs.state_dict(), family, params))
    return ours, params


def make_batch(vocab: int, pad: int, padding: str = "end", length: int = 14) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(3, vocab, (3, length), generator=generator)
    mask = torch.ones(3, length, dtype=torch.long)
    if padding == "end":
        mask[0, 9:] = mask[2, 3:] = 0
    elif padding == "inside":
        mask[0, 4:6] = mask[1, 0] = mask[2, 11] = 0
    ids[mask == 0] = pad
    batch = {"input_ids": ids}
    return batch if padding == "none" else {**batch, "attention_mask": mask}


def compare_gradients(
    ours: Any, theirs: Any, family: Family, params: dict[str, Any], tolerance: float
) -> None:
    """Moves our gradients to their names, as weights are moved, and compares every one of theirs."""
    named = {name: weight.grad for name, weight in ours.named_parameters()}
    assert all(grad is not None for grad in named.values()), [n for n, g in named.items() if g is None]
    moved = to_theirs(named, family, params)
    seen = 0
    for name, weight in theirs.named_parameters():
        if name in ("cls.predictions.bias", "lm_head.bias") and weight.grad is None:
            continue  # untied, it is read by nothing
        assert weight.grad is not None, name
        torch.testing.assert_close(
            moved[name].to(weight.grad.dtype),
            weight.grad,
            atol=tolerance,
            rtol=tolerance,
            msg=lambda m, n=name: f"{n}: {m}",
        )
        seen += 1
    assert seen >= len(named)


def close(one: Tensor, two: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(one, two, atol=tolerance, rtol=tolerance)


PRETRAINING = [
    ("bert", "BertForPreTraining", {}),
    ("bert", "BertForPreTraining", {"hidden_act": "gelu_new", "type_vocab_size": 3}),
    ("bert", "BertForPreTraining", {"tie_word_embeddings": False}),
    ("bert", "BertForMaskedLM", {**ODD, "hidden_act": "relu"}),
    ("bert", "BertForMaskedLM", {"tie_word_embeddings": False, "pad_token_id": 7}),
    ("roberta", "RobertaForMaskedLM", {"type_vocab_size": 1}),
    # Their head for masked tokens has gelu, whatever hidden_act says.
    ("roberta", "RobertaForMaskedLM", {"hidden_act": "relu"}),
    ("roberta", "RobertaForMaskedLM", {**ODD, "tie_word_embeddings": False, "pad_token_id": 3}),
]


@pytest.mark.parametrize("padding", ["none", "end", "inside"])
@pytest.mark.parametrize(("name", "architecture", "options"), PRETRAINING)
def test_pretraining_equals_transformers(
    name: str, architecture: str, options: dict[str, Any], padding: str
) -> None:
    family, theirs = FAMILIES[name], make_theirs(architecture, **options)
    ours, params = convert(theirs, family)
    batch = make_batch(params["vocab_size"], params["pad_token_id"], padding)
    if params["num_segments"] > 1:
        batch["token_type_ids"] = (torch.arange(14) > 5).long().expand(3, -1).contiguous()
    # The masked positions as ours are given, and the same as labels that are -100 elsewhere; padding of positions counts nothing.
    positions = torch.tensor([[1, 4, 0, 0], [2, 3, 8, 13], [2, 0, 0, 0]])
    weights = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]])
    tokens = torch.randint(0, params["vocab_size"], (3, 4), generator=torch.Generator().manual_seed(4))
    labels = torch.full((3, 14), -100)
    for row in range(3):
        for column in range(4):
            if weights[row, column]:
                labels[row, positions[row, column]] = tokens[row, column]
    is_pair = architecture == "BertForPreTraining"
    sentences = torch.tensor([0, 1, 1])
    told = theirs(**batch, labels=labels, **({"next_sentence_label": sentences} if is_pair else {}))
    mlm_scores, nsp_scores = ours(**batch)
    close(mlm_scores, told.prediction_logits if is_pair else told.logits)
    close(
        ours(**batch, masked_lm_positions=positions)[0],
        mlm_scores.gather(1, positions[:, :, None].expand(-1, -1, mlm_scores.shape[-1])),
    )
    assert (nsp_scores is not None) == is_pair
    if is_pair:
        close(nsp_scores, told.seq_relationship_logits)
    loss = ours.loss(
        {
            **{key: value.int() for key, value in batch.items()},
            "masked_lm_positions": positions.int(),
            "masked_lm_weights": weights.int(),
            "labels": tokens.int(),
            "next_sentence_label": sentences.int(),
        }
    )
    close(loss, told.loss)
    loss.backward()
    told.loss.backward()
    compare_gradients(ours, theirs, family, params, 1e-10)


HEADS = [
    ("bert_classifier", "BertForSequenceClassification", {"num_labels": 4}),
    ("bert_classifier", "BertForSequenceClassification", {**ODD, "num_labels": 1}),
    ("bert_classifier", "BertForSequenceClassification", {"num_labels": 3, "problem_type": "regression"}),
    (
        "bert_classifier",
        "BertForSequenceClassification",
        {"num_labels": 3, "problem_type": "multi_label_classification"},
    ),
    ("roberta_classifier", "RobertaForSequenceClassification", {"num_labels": 2, "type_vocab_size": 1}),
    ("bert_token_classifier", "BertForTokenClassification", {"num_labels": 5}),
    ("roberta_token_classifier", "RobertaForTokenClassification", {**ODD, "num_labels": 3}),
    ("bert_qa", "BertForQuestionAnswering", {}),
    ("roberta_qa", "RobertaForQuestionAnswering", {}),
]


def make_labels(name: str, options: dict[str, Any], length: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(6)
    count = options.get("num_labels", 2)
    if name.endswith("_qa"):
        return {
            "start_positions": torch.tensor([1, 5, length + 3]),
            "end_positions": torch.tensor([4, 5, length]),
        }
    if name.endswith("token_classifier"):
        labels = torch.randint(0, count, (3, length), generator=generator)
        labels[:, 0] = labels[1, 5:] = -100
        return {"labels": labels}
    if count == 1:
        return {"labels": torch.randn(3, generator=generator, dtype=torch.float64)}
    if options.get("problem_type") == "regression":
        return {"labels": torch.randn(3, count, generator=generator, dtype=torch.float64)}
    if options.get("problem_type") == "multi_label_classification":
        return {"labels": torch.randint(0, 2, (3, count), generator=generator).double()}
    return {"labels": torch.randint(0, count, (3,), generator=generator)}


@pytest.mark.parametrize("padding", ["none", "end", "inside"])
@pytest.mark.parametrize(("name", "architecture", "options"), HEADS)
def test_heads_equal_transformers(
    name: str, architecture: str, options: dict[str, Any], padding: str
) -> None:
    family, theirs = FAMILIES[name], make_theirs(architecture, **options)
    ours, params = convert(theirs, family)
    batch = make_batch(params["vocab_size"], params["pad_token_id"], padding)
    labels = make_labels(name, options, 14)
    told = theirs(**batch, **labels)
    scores = ours(**{key: value.int() for key, value in batch.items()})
    if name.endswith("_qa"):
        close(scores[0], told.start_logits)
        close(scores[1], told.end_logits)
    else:
        close(scores, told.logits)
    loss = ours.loss(scores, *labels.values())
    close(loss, told.loss)
    loss.backward()
    told.loss.backward()
    compare_gradients(ours, theirs, family, params, 1e-10)


@pytest.mark.parametrize(("name", "architecture", "options"), PRETRAINING + HEADS)
def test_weights_and_config_come_back(name: str, architecture: str, options: dict[str, Any]) -> None:
    family, theirs = FAMILIES[name], make_theirs(architecture, **options)
    ours, params = convert(theirs, family)
    state = theirs.state_dict()
    back = to_theirs(ours.state_dict(), family, params)
    dead = (
        {"cls.predictions.bias", "lm_head.bias"} if not params.get("share_embedding_weights", True) else set()
    )
    for key in back:
        assert torch.equal(back[key], state[key]), key
    held = {tensor.data_ptr() for key, tensor in state.items() if key in back}
    assert {key for key, tensor in state.items() if tensor.data_ptr() not in held} <= dead
    again = type(theirs.config)(**family.config_of(params))
    kept, first = again.to_dict(), theirs.config.to_dict()
    assert {
        key: (kept[key], first[key])
        for key in first
        if key in kept and kept[key] != first[key] and key != "dtype"
    } == {}
    again_model = getattr(transformers, architecture)(again).double()
    missing = again_model.load_state_dict(back, strict=False)
    aliases = {other for _, other in family.tied}
    assert set(missing.missing_keys) <= aliases | dead
    assert not missing.unexpected_keys


def test_float32_is_close() -> None:
    family, theirs = FAMILIES["bert"], make_theirs("BertForPreTraining").float()
    ours, params = convert(theirs, family)
    ours.float()
    batch = make_batch(53, 0)
    told = theirs(**batch)
    mlm, nsp = ours(**batch)
    close(mlm, told.prediction_logits, 1e-5)
    close(nsp, told.seq_relationship_logits, 1e-5)
    (mlm.square().mean() + nsp.square().mean()).backward()
    (told.prediction_logits.square().mean() + told.seq_relationship_logits.square().mean()).backward()
    compare_gradients(ours, theirs, family, params, 1e-5)


def test_dropout_stands_where_theirs_does() -> None:
    """With everything dropped, only biases and norms are left: a dropout at another place would leave something else."""
    theirs = make_theirs("BertForPreTraining").train()
    ours, _ = convert(theirs, FAMILIES["bert"])
    ours.train()
    for model in (ours, theirs):
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 1.0
            if hasattr(module, "dropout") and isinstance(module.dropout, float):
                module.dropout = 1.0
    batch = make_batch(53, 0)
    close(ours(**batch)[0], theirs(**batch).prediction_logits)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("is_decoder", True),
        ("add_cross_attention", True),
        ("position_embedding_type", "relative_key"),
        ("hidden_act", "laplace"),
        ("problem_type", "ranking"),
        ("id2label", {"0": "a", "2": "b"}),
    ],
)
def test_what_is_not_modelled_is_refused(key: str, value: Any) -> None:
    config = {**transformers.BertConfig(**SMALL).to_dict(), key: value}
    with pytest.raises(PortwrightError, match=key):
        FAMILIES["bert_classifier"].params_of(config)


def test_without_a_padding_token() -> None:
    theirs = make_theirs("BertForQuestionAnswering", pad_token_id=None)
    family = FAMILIES["bert_qa"]
    ours, params = convert(theirs, family)
    batch = make_batch(53, 0)  # padding is scored too, and its embedding learns from that
    labels = make_labels("bert_qa", {}, 14)
    loss = ours.loss(ours(**batch), *labels.values())
    told = theirs(**batch, **labels).loss
    loss.backward()
    told.backward()
    compare_gradients(ours, theirs, family, params, 1e-10)
    assert ours.bert.embeddings.word_embeddings.weight.grad[0].abs().sum() > 0
    config = transformers.RobertaConfig(**SMALL).to_dict()
    with pytest.raises(PortwrightError, match="pad_token_id"):
        FAMILIES["roberta"].params_of({**config, "pad_token_id": None})


def test_what_theirs_lacks_is_refused() -> None:
    params = FAMILIES["bert"].params_of(transformers.BertConfig(**SMALL).to_dict())
    with pytest.raises(PortwrightError, match="attention_style"):
        FAMILIES["bert"].config_of({**params, "attention_style": "linformer"})
    with pytest.raises(PortwrightError, match="use_segment_embedding"):
        FAMILIES["bert"].config_of({**params, "use_segment_embedding": False})
    with pytest.raises(PortwrightError, match="squared_gelu"):
        FAMILIES["bert"].config_of({**params, "encoder_nonlinearity": "squared_gelu"})
    with pytest.raises(PortwrightError, match="positions_after_padding"):
        FAMILIES["roberta"].config_of(params)
    with pytest.raises(PortwrightError, match="mlm_nonlinearity"):
        FAMILIES["bert"].config_of({**params, "mlm_nonlinearity": "relu"})
    with pytest.raises(PortwrightError, match="mlm_nonlinearity"):
        FAMILIES["roberta"].config_of({**params, "positions_after_padding": True, "mlm_nonlinearity": "tanh"})


def test_published_file_of_masked_lm_with_more_parts() -> None:
    """bert-base-uncased says BertForMaskedLM and holds the pooler and the next sentence's layer too."""
    theirs = make_theirs("BertForPreTraining")
    family = FAMILIES["bert"]
    params = family.params_of({**theirs.config.to_dict(), "architectures": ["BertForMaskedLM"]})
    ours = BertForPreTraining(params).double()
    ours.load_state_dict(to_ours(theirs.state_dict(), family, params))
    batch = make_batch(53, 0)
    close(ours(**batch)[0], theirs(**batch).prediction_logits)


def test_label_names_travel() -> None:
    theirs = make_theirs("BertForTokenClassification", id2label={0: "O", 1: "B"}, label2id={"O": 0, "B": 1})
    params = FAMILIES["bert_token_classifier"].params_of(theirs.config.to_dict())
    assert params["label_names"] == ["O", "B"]
    assert params["num_classes"] == 2
    told = copy.deepcopy(FAMILIES["bert_token_classifier"].config_of(params))
    assert told["id2label"] == {"0": "O", "1": "B"}
