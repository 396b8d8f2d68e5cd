"""Logits and losses equal HuggingFace's torch models with the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from forward import run_with
from model_folder import load, params_of

from portwright.errors import UserError
from portwright.tensorflow import Estimator
from portwright.tensorflow.models_common.bert import Bert
from portwright.tensorflow.models_common.gpt import Gpt
from portwright.tensorflow.models_common.huggingface import from_huggingface, write_checkpoint

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

VOCABULARY, WIDTH, HEADS, FILTER, LENGTH, BATCH = 60, 32, 4, 48, 12, 3
RANDOM = np.random.default_rng(0)
IDS = RANDOM.integers(5, VOCABULARY, (BATCH, LENGTH)).astype(np.int32)
LENGTHS = np.array([12, 9, 5])
MASK = (np.arange(LENGTH) < LENGTHS[:, None]).astype(np.int32)
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_heads": HEADS,
    "num_hidden_layers": 2,
    "filter_size": FILTER,
    "max_position_embeddings": 20,
}


def shake(model: Any) -> Any:
    """Other weights than the first ones, whose biases of 0 and norms of 1 would hide errors."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval()


def long(array: Any) -> Any:
    return torch.tensor(np.asarray(array, np.int64))


def close(ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=2e-4, atol=2e-5)


POSITIONS = np.array([[1, 4, 7], [0, 3, 8], [2, 4, 0]], np.int32)
RANDOM_LABELS = RANDOM.integers(5, VOCABULARY, (BATCH, 3)).astype(np.int32)
WEIGHTS = np.array([[1, 1, 1], [1, 1, 1], [1, 1, 0]], np.float32)


def masked(input_ids: Any) -> dict[str, Any]:
    return {
        "input_ids": input_ids,
        "input_mask": MASK,
        "masked_lm_positions": POSITIONS,
        "masked_lm_ids": RANDOM_LABELS,
        "masked_lm_weights": WEIGHTS,
    }


def constants(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: tf.constant(array) for name, array in arrays.items()}


def labels_in_place() -> Any:
    """Masked tokens as HuggingFace has them: -100 where nothing is predicted."""
    labels = np.full((BATCH, LENGTH), -100)
    for row in range(BATCH):
        for position, label, weight in zip(POSITIONS[row], RANDOM_LABELS[row], WEIGHTS[row], strict=True):
            if weight:
                labels[row, position] = label
    return long(labels)


def test_bert() -> None:
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        intermediate_size=FILTER,
        max_position_embeddings=20,
    )
    theirs = shake(transformers.BertForPreTraining(config))
    model = params_of("bert")["model"] | SIZES
    segments = (np.arange(LENGTH) > 5).astype(np.int32) * MASK
    labels = np.array([0, 1, 1], np.int32)

    features = masked(IDS) | {"segment_ids": segments}

    def build() -> Any:
        network = Bert(model)
        hidden = network.encode(constants(features), False)
        return network.mlm_logits(hidden, tf.constant(POSITIONS)), network.nsp_logits(hidden, False)

    weights = from_huggingface("bert", theirs.state_dict())
    mlm, nsp = run_with(weights, build)
    found = theirs(
        long(IDS),
        attention_mask=long(MASK),
        token_type_ids=long(segments),
        labels=labels_in_place(),
        next_sentence_label=long(labels),
    )
    expected = found.prediction_logits[torch.arange(BATCH)[:, None], long(POSITIONS)]
    close(mlm, expected)
    close(nsp, found.seq_relationship_logits)
    close(loss_of("bert", model, weights, features, labels), found.loss)


def loss_of(model_name: str, model: Any, weights: Any, features: Any, labels: Any) -> Any:
    """The loss that model_fn gives in evaluation, where there is no dropout."""

    def build() -> Any:
        truth = None if labels is None else tf.constant(labels)
        params = params_of(model_name) | {"model": model}
        return load(model_name, "model").model_fn(constants(features), truth, "eval", params).loss

    return run_with(weights, build)


def test_roberta() -> None:
    config = transformers.RobertaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        intermediate_size=FILTER,
        max_position_embeddings=20,
        type_vocab_size=1,
        pad_token_id=1,
        layer_norm_eps=1e-5,
    )
    theirs = shake(transformers.RobertaForMaskedLM(config))
    ids = np.where(MASK == 1, IDS, 1).astype(np.int32)
    model = params_of("roberta")["model"] | SIZES | {"pad_token_id": 1}
    weights = from_huggingface("roberta", theirs.state_dict())
    features = masked(ids)

    def build() -> Any:
        network = Bert(model)
        return network.mlm_logits(network.encode(constants(features), False), tf.constant(POSITIONS))

    found = theirs(long(ids), attention_mask=long(MASK), labels=labels_in_place())
    close(run_with(weights, build), found.logits[torch.arange(BATCH)[:, None], long(POSITIONS)])
    close(loss_of("roberta", model, weights, features, None), found.loss)


def next_tokens() -> tuple[Any, Any]:
    """Labels as ours has them, shifted, and as HuggingFace wants them, which shifts them itself."""
    labels = np.concatenate([IDS[:, 1:], IDS[:, :1]], 1).astype(np.int32)
    counted = MASK * np.concatenate([MASK[:, 1:], np.zeros_like(MASK[:, :1])], 1)
    return labels, counted


def compare_gpt(name: str, theirs: Any, model: Any) -> None:
    weights = from_huggingface(name, theirs.state_dict())
    labels, counted = next_tokens()
    found = theirs(long(IDS), attention_mask=long(MASK), labels=long(np.where(MASK == 1, IDS, -100)))
    ours = run_with(weights, lambda: Gpt(model).logits(tf.constant(IDS), False))
    for row, length in enumerate(LENGTHS):  # what follows is padding, where theirs hides more
        close(ours[row, :length], found.logits[row, :length])
    features = {"input_ids": IDS, "input_mask": counted}
    close(loss_of(name, model, weights, features, labels), found.loss)


@pytest.mark.parametrize("name", ["gpt2", "gpt3"])
def test_gpt2(name: str) -> None:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=20,
        n_embd=WIDTH,
        n_layer=2,
        n_head=HEADS,
        n_inner=FILTER,
        bos_token_id=0,
        eos_token_id=0,
    )
    theirs = shake(transformers.GPT2LMHeadModel(config))
    model = params_of(name)["model"] | SIZES
    compare_gpt("gpt2", theirs, model)


def test_gptj() -> None:
    config = transformers.GPTJConfig(
        vocab_size=VOCABULARY,
        n_positions=20,
        n_embd=WIDTH,
        n_layer=2,
        n_head=HEADS,
        n_inner=FILTER,
        rotary_dim=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    theirs = shake(transformers.GPTJForCausalLM(config))
    compare_gpt("gptj", theirs, params_of("gptj")["model"] | SIZES | {"rotary_dim": 4})


@pytest.mark.parametrize("gated", [False, True], ids=["t5", "t5-1.1"])
def test_t5(gated: bool) -> None:
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        d_kv=6,
        d_ff=FILTER,
        num_layers=2,
        num_decoder_layers=3,
        num_heads=HEADS,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=10,
        feed_forward_proj="gated-gelu" if gated else "relu",
        tie_word_embeddings=not gated,
        decoder_start_token_id=0,
    )
    theirs = transformers.T5ForConditionalGeneration(config)
    if gated:  # HuggingFace ties the output layer again, which T5 1.1's checkpoints do not
        theirs.lm_head.weight = torch.nn.Parameter(theirs.lm_head.weight.detach().clone())
    shake(theirs)
    model = params_of("t5")["model"] | {
        "vocab_size": VOCABULARY,
        "d_model": WIDTH,
        "d_kv": 6,
        "d_ff": FILTER,
        "num_heads": HEADS,
        "decoder_num_hidden_layers": 3,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 10,
        "feed_forward_nonlinearity": "geglu_new" if gated else "relu",
        "share_embedding_weights": not gated,
    }
    labels = RANDOM.integers(5, VOCABULARY, (BATCH, 7)).astype(np.int32)
    counted = (np.arange(7) < np.array([7, 3, 5])[:, None]).astype(np.int32)
    decoder_ids = np.concatenate([np.zeros((BATCH, 1), np.int32), labels[:, :-1]], 1)
    weights = from_huggingface("t5", theirs.state_dict())
    arrays = {
        "encoder_input_ids": IDS,
        "encoder_mask": MASK,
        "decoder_input_ids": decoder_ids,
        "decoder_mask": counted,
    }

    def build() -> Any:
        return load("t5", "model").T5(model).logits(constants(arrays), False)

    found = theirs(long(IDS), attention_mask=long(MASK), decoder_input_ids=long(decoder_ids))
    close(run_with(weights, build), found.logits)
    loss = torch.nn.functional.cross_entropy(
        found.logits.flatten(0, 1), long(np.where(counted == 1, labels, -100)).flatten()
    )
    close(loss_of("t5", model, weights, arrays, labels), loss)


def test_names_that_do_not_fit_are_told() -> None:
    with pytest.raises(UserError, match="no table of names for 'gpt-2'") as error:
        from_huggingface("gpt-2", {})
    assert "gpt2" in error.value.cure
    with pytest.raises(UserError, match=r"'classifier\.weight' is no weight of bert"):
        from_huggingface("bert", {"classifier.weight": np.zeros((2, 2))})


def test_an_estimator_starts_from_weights_of_huggingface(tmp_path: Path) -> None:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=20,
        n_embd=WIDTH,
        n_layer=2,
        n_head=HEADS,
        n_inner=FILTER,
        bos_token_id=0,
        eos_token_id=0,
    )
    weights = from_huggingface("gpt2", shake(transformers.GPT2LMHeadModel(config)).state_dict())
    write_checkpoint(weights, tmp_path / "pretrained" / "model.ckpt")
    params = params_of("gpt2", model=SIZES) | {"optimizer": {"optimizer_type": "SGD", "learning_rate": 1e-12}}
    labels, counted = next_tokens()

    def input_fn() -> Any:
        return constants({"input_ids": IDS, "input_mask": counted}), tf.constant(labels)

    estimator = Estimator(
        load("gpt2", "model").model_fn,
        str(tmp_path / "run"),
        params=params,
        warm_start_from=str(tmp_path / "pretrained" / "model.ckpt"),
    )
    estimator.train(input_fn, steps=1)
    for name, array in weights.items():
        np.testing.assert_allclose(estimator.get_variable_value(name), array, atol=1e-9)


def test_a_checkpoint_of_weights_can_be_read(tmp_path: Path) -> None:
    weights = {
        "encoder_0/linear1/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
        "final_norm/beta": np.ones(2),
    }
    write_checkpoint(weights, tmp_path / "new" / "model.ckpt")
    reader = tf.train.load_checkpoint(str(tmp_path / "new" / "model.ckpt"))
    assert sorted(reader.get_variable_to_shape_map()) == sorted(weights)
    np.testing.assert_array_equal(
        reader.get_tensor("encoder_0/linear1/kernel"), weights["encoder_0/linear1/kernel"]
    )
