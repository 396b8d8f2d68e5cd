"""What BERT's network must hold beside equality with transformers: Linformer's equations, losses, heads, refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from portwright.errors import UserError
from portwright.job.model_params import (
    BertClassifierParams,
    BertPretrainParams,
    BertQaParams,
    BertSummarizationParams,
    LinformerParams,
    RobertaParams,
)
from portwright.networks import Bert
from portwright.networks.bert import ZOO_SHARE_STYLES
from portwright.networks.bert_heads import (
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForSummarization,
    take_positions,
)

SIZES = {
    "vocab_size": 37,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_heads": 3,
    "filter_size": 20,
    "max_position_embeddings": 11,
    "dropout_rate": 0.0,
    "attention_dropout_rate": 0.0,
}


def make_params(schema: Any, **options: Any) -> dict[str, Any]:
    made: dict[str, Any] = schema(**{**SIZES, **options}).model_dump()
    return made


def make_batch(batch: int = 2, length: int = 9, taken: int = 3) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    mask = torch.ones(batch, length, dtype=torch.int32)
    mask[0, 6:] = 0
    return {
        "input_ids": torch.randint(5, 37, (batch, length), generator=generator, dtype=torch.int32) * mask,
        "attention_mask": mask,
        "token_type_ids": (torch.arange(length) > 3).int().expand(batch, -1).contiguous(),
        "masked_lm_positions": torch.randint(0, 6, (batch, taken), generator=generator, dtype=torch.int32),
        "masked_lm_weights": torch.tensor([[1, 1, 0], [1, 0, 0]], dtype=torch.int32)[:batch, :taken],
        "labels": torch.randint(0, 37, (batch, taken), generator=generator, dtype=torch.int32),
        "next_sentence_label": torch.tensor([0, 1], dtype=torch.int32)[:batch],
    }


def linformer_by_the_paper(network: Bert, ids: Tensor, mask: Tensor | None, style: str) -> Tensor:
    """arXiv 2006.04768, equation 7, head by head and sample by sample, in BERT's layer."""
    weights = dict(network.named_parameters(remove_duplicate=False))
    width, heads, length = network.hidden_size, 3, ids.shape[1]
    size = width // heads
    rows = []
    for sample, row in enumerate(ids.long()):
        x = (
            weights["embeddings.word_embeddings.weight"][row]
            + weights["embeddings.position_embeddings.weight"][:length]
        )
        x = F.layer_norm(
            x, (width,), weights["embeddings_norm.weight"], weights["embeddings_norm.bias"], 1e-5
        )
        for index in range(2):
            part = {
                name.removeprefix(f"encoder.layers.{index}."): w
                for name, w in weights.items()
                if f"layers.{index}." in name
            }
            q, k, v = (
                x @ w.t() + b
                for w, b in zip(
                    part["self_attn.in_proj_weight"].chunk(3),
                    part["self_attn.in_proj_bias"].chunk(3),
                    strict=True,
                )
            )
            if mask is not None:
                k, v = k * mask[sample, :, None], v * mask[sample, :, None]
            outputs = []
            for head in range(heads):
                columns = slice(head * size, (head + 1) * size)
                keys = part["self_attn.key_projection_kernel"]
                values = part.get("self_attn.value_projection_kernel", keys)
                assert (keys is values) == (style in ("linformer-shared-kv", "linformer-shared-layers"))
                e = keys[head if style == "linformer" else 0][:, :length]
                f = values[head if style == "linformer" else 0][:, :length]
                scores = q[:, columns] @ (e @ k[:, columns]).t() / math.sqrt(size)
                outputs.append(torch.softmax(scores, -1) @ (f @ v[:, columns]))
            attended = (
                torch.cat(outputs, -1) @ part["self_attn.out_proj.weight"].t()
                + part["self_attn.out_proj.bias"]
            )
            x = F.layer_norm(x + attended, (width,), part["norm1.weight"], part["norm1.bias"], 1e-5)
            fed = F.gelu(x @ part["linear1.weight"].t() + part["linear1.bias"]) @ part["linear2.weight"].t()
            x = F.layer_norm(
                x + fed + part["linear2.bias"], (width,), part["norm2.weight"], part["norm2.bias"], 1e-5
            )
        rows.append(x)
    return torch.stack(rows)


@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("style", list(ZOO_SHARE_STYLES))
@pytest.mark.parametrize("length", [11, 7])
def test_linformer_is_the_papers(style: str, is_padded: bool, length: int) -> None:
    torch.manual_seed(0)
    params = make_params(LinformerParams, attention_style=style, projected_dims=4)
    network = Bert(params, add_pooler=False).double()
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    ids = torch.randint(1, 37, (3, length))
    mask = torch.ones(3, length, dtype=torch.int32)
    mask[0, 4:] = mask[1, 2] = 0
    given = mask if is_padded else None
    ours, paper = network.encode(ids, given), linformer_by_the_paper(network, ids, given, style)
    torch.testing.assert_close(ours, paper, atol=1e-12, rtol=1e-12)
    names = [name for name, _ in network.named_parameters()]
    coefficients = torch.randn_like(ours)
    of_ours = torch.autograd.grad((ours * coefficients).sum(), list(network.parameters()))
    of_paper = torch.autograd.grad((paper * coefficients).sum(), list(network.parameters()))
    for name, one, two in zip(names, of_ours, of_paper, strict=True):
        if name == "embeddings.word_embeddings.weight":
            one, two = one[1:], two[1:]  # padding's row is not trained
        torch.testing.assert_close(one, two, atol=1e-11, rtol=1e-11, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(
    ("style", "per_layer", "shared"),
    [
        ("linformer", 2, 0),
        ("linformer-shared-heads", 2, 0),
        ("linformer-shared-kv", 1, 0),
        ("linformer-shared-layers", 0, 1),
    ],
)
def test_linformer_has_as_many_projections_as_it_says(style: str, per_layer: int, shared: int) -> None:
    network = Bert(make_params(LinformerParams, attention_style=style, projected_dims=4))
    kernels = [weight for name, weight in network.named_parameters() if "projection_kernel" in name]
    assert len(kernels) == 2 * per_layer + shared
    assert all(weight.shape[0] == (3 if style == "linformer" else 1) for weight in kernels)


@pytest.mark.parametrize("scaling", ["num_masked", "batch_size", "precomputed_num_masked"])
def test_losses_divide_as_asked(scaling: str) -> None:
    torch.manual_seed(0)
    model = BertForPreTraining(make_params(BertPretrainParams, mlm_loss_scaling=scaling, mlm_loss_weight=0.5))
    batch = make_batch()
    scores, sentences = model(
        batch["input_ids"], batch["attention_mask"], batch["token_type_ids"], batch["masked_lm_positions"]
    )
    losses = F.cross_entropy(scores.flatten(0, 1), batch["labels"].flatten().long(), reduction="none").view(
        2, 3
    )
    counted = losses * batch["masked_lm_weights"]
    batch["mlm_loss_scale"] = torch.tensor([[0.25], [2.0]])
    expected = {
        "num_masked": counted.sum() / 3 * 0.5,
        "batch_size": counted.sum() / 2 * 0.5,
        "precomputed_num_masked": (counted * batch["mlm_loss_scale"]).sum() / 2,
    }[scaling]
    assert sentences is not None
    expected = expected + F.cross_entropy(sentences, batch["next_sentence_label"].long())
    torch.testing.assert_close(model.loss(batch), expected)


def test_batch_without_masked_tokens_gives_no_nan() -> None:
    model = BertForPreTraining(make_params(BertPretrainParams, disable_nsp=True))
    batch = make_batch()
    batch["masked_lm_weights"] = torch.zeros_like(batch["masked_lm_weights"])
    loss = model.loss(batch)
    loss.backward()
    assert loss.item() == 0.0
    assert all(weight.grad is None or bool(weight.grad.isfinite().all()) for weight in model.parameters())


def test_precomputed_scale_that_is_missing_is_told() -> None:
    model = BertForPreTraining(make_params(BertPretrainParams, mlm_loss_scaling="precomputed_num_masked"))
    with pytest.raises(UserError, match="mlm_loss_scale"):
        model.loss(make_batch())


def test_pairs_without_their_label_are_told() -> None:
    batch = make_batch()
    del batch["next_sentence_label"]
    with pytest.raises(UserError, match="next_sentence_label"):
        BertForPreTraining(make_params(BertPretrainParams)).loss(batch)


def test_masks_are_only_made_where_padding_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    attend = F.scaled_dot_product_attention

    def watch(*args: Any, **kwargs: Any) -> Tensor:
        given.append(kwargs.get("attn_mask"))
        return attend(*args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watch)
    network = Bert(make_params(BertPretrainParams))
    batch = make_batch()
    network.encode(batch["input_ids"])
    assert given == [None, None]
    network.encode(batch["input_ids"], batch["attention_mask"])
    assert [mask.shape for mask in given[2:]] == [(2, 1, 1, 9)] * 2


def test_padding_changes_nothing_that_is_read() -> None:
    torch.manual_seed(0)
    model = BertForPreTraining(make_params(RobertaParams, max_position_embeddings=13)).eval()
    ids = torch.randint(5, 37, (1, 5))
    longer = F.pad(ids, (0, 4))
    mask = F.pad(torch.ones_like(ids), (0, 4))
    torch.testing.assert_close(model(longer, mask)[0][:, :5], model(ids)[0])


def test_first_weights_are_as_published() -> None:
    torch.manual_seed(0)
    model = BertForPreTraining(
        make_params(BertPretrainParams, vocab_size=2000, hidden_size=96, filter_size=300)
    )
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            kept = weight[1:] if "word_embeddings" in name else weight
            assert kept.abs().max() <= 0.04 + 1e-6, name
            if kept.numel() > 1000:
                assert 0.016 < kept.std() < 0.0195, (name, kept.std())  # 0.02 cut off at two deviations
        elif "norm" in name and name.endswith("weight"):
            assert torch.equal(weight, torch.ones_like(weight))
        else:
            assert torch.equal(weight, torch.zeros_like(weight)), name
    first, second = (layer.linear1.weight for layer in model.bert.encoder.layers)
    assert not torch.equal(first, second)


def test_summarization_reads_each_sentence_at_its_cls() -> None:
    torch.manual_seed(0)
    params = make_params(BertSummarizationParams)
    model = BertForSummarization(params)
    batch = make_batch()
    at = torch.tensor([[0, 3, 0], [0, 4, 7]], dtype=torch.int32)
    weights, labels = torch.tensor([[1, 1, 0], [1, 1, 1.0]]), torch.tensor([[1, 0, 0], [0, 0, 1]])
    scores = model(batch["input_ids"], at, batch["attention_mask"], batch["token_type_ids"])
    hidden = model.bert.encode(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"])
    by_hand = (
        torch.stack([hidden[row, at[row].long()] for row in range(2)]) @ model.classifier.weight[0]
        + model.classifier.bias
    )
    torch.testing.assert_close(scores, by_hand)
    chances = torch.sigmoid(by_hand)
    losses = -(labels * chances.log() + (1 - labels) * (1 - chances).log())
    torch.testing.assert_close(model.loss(scores, labels, weights), (losses * weights).sum() / 5)
    model.loss_weight = 0.3
    torch.testing.assert_close(model.loss(scores, labels, weights), (losses * weights).sum() / 2 * 0.3)


def test_answers_beyond_the_text_do_not_count() -> None:
    torch.manual_seed(0)
    model = BertForQuestionAnswering(make_params(BertQaParams))
    scores = model(make_batch()["input_ids"])
    start, end = torch.tensor([2, 9]), torch.tensor([3, 50])
    expected = (F.cross_entropy(scores[0][:1], start[:1]) + F.cross_entropy(scores[1][:1], end[:1])) / 2
    torch.testing.assert_close(model.loss(scores, start, end), expected)
    assert model.loss(scores, torch.tensor([9, 9]), torch.tensor([9, 9])).item() == 0.0


@pytest.mark.parametrize(
    ("network", "schema", "options", "word"),
    [
        (Bert, BertPretrainParams, {"num_heads": 5}, "num_heads"),
        (
            BertForSequenceClassification,
            BertClassifierParams,
            {"num_labels": 1, "problem_type": "single_label_classification"},
            "num_labels",
        ),
        (Bert, LinformerParams, {"projected_dims": 9, "max_position_embeddings": 8}, "projected_dims is 9"),
        (Bert, RobertaParams, {"pad_token_id": 20, "max_position_embeddings": 20}, "max_position_embeddings"),
    ],
)
def test_wrong_sizes_are_told(network: Any, schema: Any, options: dict[str, Any], word: str) -> None:
    with pytest.raises(UserError, match=word):
        network(make_params(schema, **options))


def test_too_long_samples_are_told() -> None:
    with pytest.raises(UserError, match="max_position_embeddings"):
        Bert(make_params(RobertaParams)).encode(torch.ones(1, 11, dtype=torch.int32))
    with pytest.raises(UserError):
        Bert(make_params(BertPretrainParams)).encode(torch.ones(1, 12, dtype=torch.int32))
    with pytest.raises(UserError, match="37"):
        Bert(make_params(BertPretrainParams)).encode(torch.full((1, 3), 37))


def test_gather_takes_what_positions_say() -> None:
    hidden = torch.arange(24.0).view(2, 4, 3).requires_grad_()
    taken = take_positions(hidden, torch.tensor([[3, 0], [1, 1]], dtype=torch.int32))
    assert taken[:, :, 0].tolist() == [[9.0, 0.0], [15.0, 15.0]]
    taken.sum().backward()
    assert hidden.grad is not None
    assert hidden.grad[:, :, 0].tolist() == [[1.0, 0.0, 0.0, 1.0], [0.0, 2.0, 0.0, 0.0]]


def test_compiles_without_a_break() -> None:
    torch.manual_seed(0)
    model = BertForPreTraining(make_params(BertPretrainParams))
    batch = make_batch()
    plain = model.loss(batch)
    model.compile(backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(model.loss(batch), plain)
