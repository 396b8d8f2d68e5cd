from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from portwright.errors import UserError
from portwright.losses import (
    BertPretrainModelLoss,
    GPTLMHeadModelLoss,
    T5ForConditionalGenerationLoss,
    smooth_loss,
)

BATCH, LENGTH, VOCAB = 3, 5, 11
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def make_batch(dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    logits = (torch.randn(BATCH, LENGTH, VOCAB) * 2).to(dtype).requires_grad_()
    labels = torch.randint(0, VOCAB, (BATCH, LENGTH), dtype=torch.int32)
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int32)
    mask[0, 3:] = 0
    mask[2, 1:] = 0
    return logits, labels, mask


def token_losses(logits, labels, smoothing=0.0):
    """Cross-entropy written out, with none of the functions under test."""
    log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32))
    log_probs = log_probs - log_probs.exp().sum(dim=-1, keepdim=True).log()
    right = -log_probs.gather(-1, labels.long().unsqueeze(-1)).squeeze(-1)
    return (1 - smoothing) * right - smoothing * log_probs.mean(dim=-1)


def assert_same_with_gradients(loss, expected, logits):
    torch.testing.assert_close(loss, expected)
    (ours,) = torch.autograd.grad(loss, [logits], retain_graph=True)
    (theirs,) = torch.autograd.grad(expected, [logits], retain_graph=True)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight", [1.0, 0.25, 1 / 26])
def test_gpt_loss_is_the_masked_sum_over_the_batch_times_the_weight(dtype, weight):
    logits, labels, mask = make_batch(dtype)
    expected = (token_losses(logits, labels) * mask).sum() / BATCH * weight
    for loss_fn in (
        GPTLMHeadModelLoss(VOCAB, weight),
        GPTLMHeadModelLoss(VOCAB, loss_weight=weight),
        GPTLMHeadModelLoss(VOCAB, "batch_size", weight),
        GPTLMHeadModelLoss(vocab_size=VOCAB, loss_scaling="batch_size", loss_weight=weight),
    ):
        assert_same_with_gradients(loss_fn(logits, labels, mask), expected, logits)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gpt_loss_by_tokens_divides_by_the_mask(dtype):
    logits, labels, mask = make_batch(dtype)
    expected = (token_losses(logits, labels) * mask).sum() / mask.sum()
    assert_same_with_gradients(
        GPTLMHeadModelLoss(VOCAB, "num_tokens", 1.0)(logits, labels, mask), expected, logits
    )


@pytest.mark.parametrize("mask_type", [torch.bool, torch.float32, torch.bfloat16, torch.int64])
def test_gpt_loss_takes_masks_of_every_type(mask_type):
    logits, labels, mask = make_batch()
    loss_fn = GPTLMHeadModelLoss(VOCAB, 1.0)
    torch.testing.assert_close(loss_fn(logits, labels, mask.to(mask_type)), loss_fn(logits, labels, mask))
    torch.testing.assert_close(loss_fn(logits, labels), loss_fn(logits, labels, torch.ones_like(mask)))


def test_gpt_loss_of_flat_logits_and_ignored_labels():
    logits, labels, mask = make_batch()
    loss_fn = GPTLMHeadModelLoss(VOCAB, 1.0)
    expected = loss_fn(logits, labels, mask)
    torch.testing.assert_close(loss_fn(logits.reshape(-1, VOCAB), labels, mask.reshape(-1)), expected)
    ignored = labels.masked_fill(mask == 0, -100)
    torch.testing.assert_close(loss_fn(logits, ignored), expected)


def test_gpt_loss_can_be_had_for_each_sequence():
    logits, labels, mask = make_batch()
    sums = (token_losses(logits, labels) * mask).sum(dim=-1)
    loss_fn = GPTLMHeadModelLoss(VOCAB, "num_tokens", 1.0)
    torch.testing.assert_close(loss_fn(logits, labels, mask, reduce_batch=False), sums)
    means = loss_fn(logits, labels, mask, reduce_batch=False, average_logps=True)
    torch.testing.assert_close(means, sums / mask.sum(dim=-1))


def test_a_batch_of_padding_alone_costs_nothing():
    logits, labels, mask = make_batch()
    for loss_fn in (
        GPTLMHeadModelLoss(VOCAB, "num_tokens", 1.0),
        T5ForConditionalGenerationLoss(1.0, "num_masked"),
    ):
        loss = loss_fn(logits, labels, mask * 0)
        loss.backward()
        assert loss == 0
        assert not logits.grad.any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("disable_nsp", [True, False])
def test_bert_loss(dtype, smoothing, training, disable_nsp):
    logits, labels, mask = make_batch(dtype)
    weights = mask * 0.5
    nsp_logits, nsp_labels = torch.randn(BATCH, 2).to(dtype), torch.tensor([0, 1, 1])
    loss_fn = BertPretrainModelLoss(disable_nsp, 0.3, smoothing).train(training)
    losses = token_losses(logits, labels, smoothing if training else 0.0)
    expected = (losses * weights).sum() / BATCH * 0.3
    scaled = (losses * weights * torch.tensor([[1.0], [2.0], [3.0]])).sum() / BATCH
    if not disable_nsp:
        nsp = token_losses(nsp_logits, nsp_labels).mean()
        expected, scaled = expected + nsp, scaled + nsp
    arguments = (logits, VOCAB, labels, nsp_logits, nsp_labels, weights)
    assert_same_with_gradients(loss_fn(*arguments), expected, logits)
    for scale in (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([[1.0], [2.0], [3.0]])):
        assert_same_with_gradients(loss_fn(*arguments, mlm_loss_scale=scale), scaled, logits)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scaling", ["num_masked", "precomputed_num_masked", "batch_size"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_t5_loss(dtype, scaling, smoothing):
    logits, labels, mask = make_batch(dtype)
    batch_weight = torch.rand(BATCH, 1)
    loss_fn = T5ForConditionalGenerationLoss(0.7, scaling, smoothing)
    losses = token_losses(logits, labels, smoothing)
    expected = {
        "num_masked": (losses * mask).sum() / mask.sum(),
        "precomputed_num_masked": (losses * mask * batch_weight).sum() / BATCH,
        "batch_size": (losses * mask).sum() / BATCH * 0.7,
    }[scaling]
    assert_same_with_gradients(loss_fn(logits, labels, mask, batch_weight), expected, logits)
    assert loss_fn.mlm_loss_scaling == scaling


def test_t5_loss_asks_for_its_weights_in_training_and_has_a_fixed_one_in_evaluation():
    logits, labels, mask = make_batch()
    loss_fn = T5ForConditionalGenerationLoss(None, "precomputed_num_masked")
    with pytest.raises(UserError, match="loss_weight"):
        loss_fn(logits, labels, mask)
    expected = (token_losses(logits, labels) * mask).sum() / BATCH
    torch.testing.assert_close(loss_fn.eval()(logits, labels, mask), expected)


def test_smooth_loss_mixes_in_the_mean_of_all_words():
    logits, labels, _ = make_batch()
    rough = F.cross_entropy(logits.reshape(-1, VOCAB), labels.reshape(-1).long(), reduction="none")
    smooth = smooth_loss(logits, rough, 0.1, VOCAB)
    torch.testing.assert_close(smooth, token_losses(logits, labels, 0.1).reshape(-1))


def test_losses_of_half_logits_are_not_rounded_to_half():
    torch.manual_seed(0)
    logits = torch.randn(64, 8, 50).bfloat16()
    labels = torch.randint(0, 50, (64, 8))
    loss = GPTLMHeadModelLoss(50, "num_tokens", 1.0)(logits, labels)
    exact = token_losses(logits.double(), labels).mean()
    assert loss.dtype == torch.float32
    assert math.isclose(loss.item(), exact.item(), rel_tol=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda: GPTLMHeadModelLoss(VOCAB, 0.5),
        lambda: GPTLMHeadModelLoss(VOCAB, "num_tokens", 1.0),
        lambda: T5ForConditionalGenerationLoss(1.0, "num_masked", 0.1),
        lambda: BertLoss(),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_losses_compile_and_export(make, dtype):
    logits, labels, mask = make_batch(dtype)
    loss_fn = make()
    expected = loss_fn(logits, labels, mask)
    compiled = torch.compile(loss_fn, fullgraph=True, backend="aot_eager")
    assert_same_with_gradients(compiled(logits, labels, mask), expected, logits)
    program = torch.export.export(loss_fn, (logits.detach(), labels, mask))
    torch.testing.assert_close(program.module()(logits, labels, mask), expected)


class BertLoss(nn.Module):
    """BERT's loss with the arguments of the others."""

    def __init__(self):
        super().__init__()
        self.loss_fn = BertPretrainModelLoss(label_smoothing=0.1)

    def forward(self, logits, labels, mask):
        return self.loss_fn(logits, VOCAB, labels, logits[:, 0, :2], labels[:, 0] % 2, mask)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GPTLMHeadModelLoss(VOCAB, "num_token", 1.0), "Did you mean 'num_tokens'"),
        (lambda: GPTLMHeadModelLoss(VOCAB, "num_tokens", 0.5), "0.5"),
        (lambda: GPTLMHeadModelLoss(VOCAB, 0.5, 0.5), "loss_scaling is 0.5"),
        (lambda: T5ForConditionalGenerationLoss(1.0, "masked"), "num_masked"),
        (lambda: T5ForConditionalGenerationLoss(None, "batch_size"), "lm_loss_weight"),
        (lambda: T5ForConditionalGenerationLoss(1.0, "num_masked", 2.0), "label_smoothing is 2.0"),
        (lambda: BertPretrainModelLoss(label_smoothing=-0.1), "label_smoothing is -0.1"),
    ],
)
def test_bad_options_are_named(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_shapes_that_do_not_fit_are_named_and_not_reshaped():
    logits, labels, mask = make_batch()
    with pytest.raises(UserError, match="vocabulary 5"):
        GPTLMHeadModelLoss(5, 1.0)(logits, labels, mask)
    with pytest.raises(UserError, match="attention_mask"):
        GPTLMHeadModelLoss(VOCAB, 1.0)(logits, labels, mask[:, :2])
    with pytest.raises(UserError, match="reduce_batch"):
        GPTLMHeadModelLoss(VOCAB, 1.0)(logits, labels, mask, average_logps=True)
    with pytest.raises(UserError, match="disable_nsp"):
        BertPretrainModelLoss()(logits, VOCAB, labels, None, None, mask)
    with pytest.raises(UserError, match=r"mlm_loss_scale.*\(2,\)"):
        BertPretrainModelLoss(True)(logits, VOCAB, labels, None, None, mask, torch.ones(2))
