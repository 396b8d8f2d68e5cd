"""Heads on BERT's encoder: masked tokens and the next sentence, and those of fine-tuning.

All name the encoder `bert`, so that a pre-trained encoder's weights have the same names everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from portwright.errors import UserError, suggest
from portwright.layers import get_activation
from portwright.losses import chunked_cross_entropy, token_cross_entropy
from portwright.networks.bert import Bert, make_linear, truncated_normal

Batch = Mapping[str, Tensor]
MLM_LOSS_SCALINGS = ("num_masked", "batch_size", "precomputed_num_masked")
PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")
_LOSS_INPUTS = (
    "input_ids",
    "attention_mask",
    "token_type_ids",
    "masked_lm_positions",
    "masked_lm_weights",
    "labels",
    "next_sentence_label",
    "mlm_loss_scale",
)
_TINY = 1e-12


def take_positions(hidden: Tensor, positions: Tensor) -> Tensor:
    """The states at `positions` [batch, taken] of [batch, sequence, width]."""
    # A gather with an index of the result's size, since every target's front end takes that.
    index = positions.long()[:, :, None].expand(-1, -1, hidden.shape[-1])
    return hidden.gather(1, index)


class MaskedTokenHead(nn.Module):
    """Scores for each word of the vocabulary, by the embedding's matrix if `share_embedding_weights`."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__()
        width, drawn = params["hidden_size"], truncated_normal(params)
        self.dense = make_linear(width, width, drawn)
        self.activation = get_activation(params.get("mlm_nonlinearity") or params["encoder_nonlinearity"])
        self.norm = nn.LayerNorm(width, eps=params["layer_norm_epsilon"])
        self.bias = nn.Parameter(torch.zeros(params["vocab_size"]))
        is_tied = params.get("share_embedding_weights", True)
        self.decoder = None if is_tied else make_linear(width, params["vocab_size"], drawn, bias=False)

    def transform(self, hidden: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(hidden)))


class BertForPreTraining(nn.Module):
    """The encoder with a head for masked tokens and, unless `disable_nsp`, one for the next sentence."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__()
        scaling = params.get("mlm_loss_scaling", "num_masked")
        if scaling not in MLM_LOSS_SCALINGS:
            raise UserError(
                f"model.mlm_loss_scaling is {scaling!r}.", suggest(str(scaling), MLM_LOSS_SCALINGS)
            )
        self.mlm_loss_scaling: str = scaling
        self.mlm_loss_weight: float = params.get("mlm_loss_weight", 1.0)
        self.has_nsp = not params["disable_nsp"]
        self.bert = Bert(params, add_pooler=self.has_nsp)
        self.mlm = MaskedTokenHead(params)
        self.nsp = make_linear(params["hidden_size"], 2, truncated_normal(params)) if self.has_nsp else None

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        masked_lm_positions: Tensor | None = None,
        position_ids: Tensor | None = None,
        **truth: Tensor | None,
    ) -> Any:
        """Scores of the tokens at `masked_lm_positions` (None: at all), and of the next sentence.

        With `labels` (and masked_lm_weights, next_sentence_label, mlm_loss_scale) the training loss instead, which never
        holds more logits than those of a chunk of masked tokens.
        """
        hidden = self.bert.encode(input_ids, attention_mask, token_type_ids, position_ids)
        chosen = hidden if masked_lm_positions is None else take_positions(hidden, masked_lm_positions)
        labels = truth.get("labels")
        if labels is None:
            return self.score_tokens(chosen), self.score_sentences(hidden)
        chosen = self.mlm.transform(chosen)
        weights = truth.get("masked_lm_weights")
        wide = torch.promote_types(chosen.dtype, torch.float32)
        counted = torch.ones_like(labels, dtype=wide) if weights is None else weights.to(wide)
        scaled = self.scale_weights(counted, truth.get("mlm_loss_scale"))
        weight, bias = self.head_weight()
        loss = chunked_cross_entropy(chosen, weight, labels, bias, weights=scaled, reduction="sum")
        return loss + self.sentence_loss(self.score_sentences(hidden), truth.get("next_sentence_label"))

    def head_weight(self) -> tuple[Tensor, Tensor]:
        """The output layer's matrix and biases."""
        decoder = self.mlm.decoder
        return (self.bert.embeddings.weight if decoder is None else decoder.weight), self.mlm.bias

    def score_tokens(self, hidden: Tensor) -> Tensor:
        weight, bias = self.head_weight()
        return F.linear(self.mlm.transform(hidden), weight, bias)

    def score_sentences(self, hidden: Tensor) -> Tensor | None:
        if self.nsp is None or self.bert.pooler is None:
            return None
        return self.nsp(self.bert.pooler(hidden))

    def loss(self, batch: Batch) -> Tensor:
        """The training loss of a batch; inputs that the batch lacks are not used."""
        return self(**{name: batch[name] for name in _LOSS_INPUTS if name in batch})

    def scale_weights(self, weights: Tensor, mlm_loss_scale: Tensor | None) -> Tensor:
        """The factors of the masked tokens' losses, whose weighted sum is the training loss."""
        if self.mlm_loss_scaling == "num_masked":
            return weights * (self.mlm_loss_weight / weights.sum().clamp(min=_TINY))
        if self.mlm_loss_scaling == "batch_size":
            return weights * (self.mlm_loss_weight / weights.shape[0])
        if mlm_loss_scale is None:
            raise UserError(
                "model.mlm_loss_scaling is precomputed_num_masked, and the batch has no mlm_loss_scale.",
                "Let the data give it, or set model.mlm_loss_scaling to num_masked or batch_size.",
            )
        return weights * mlm_loss_scale.reshape(weights.shape[0], -1) / weights.shape[0]

    def sentence_loss(self, scores: Tensor | None, labels: Tensor | None) -> Tensor | float:
        if scores is None:
            return 0.0
        if labels is None:
            raise UserError(
                "The batch has no next_sentence_label.",
                "Give pairs of sentences, or set model.disable_nsp to true.",
            )
        return token_cross_entropy(scores, labels.reshape(-1)).mean()


class BertForSequenceClassification(nn.Module):
    """Scores of classes, of independent labels, or numbers (`problem_type`), from the pooled first token.

    With `num_labels` of 1 the default problem_type is regression. `task_dropout_before_pooler` adds a dropout before the
    pooler, as in RoBERTa's head.
    """

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__()
        num_labels, chosen = params["num_labels"], params.get("problem_type")
        if chosen is not None and chosen not in PROBLEM_TYPES:
            raise UserError(f"model.problem_type is {chosen!r}.", suggest(str(chosen), PROBLEM_TYPES))
        if chosen == "single_label_classification" and num_labels < 2:
            raise UserError(
                f"model.num_labels is {num_labels} for a classification.",
                "Give 2 or more, or problem_type regression.",
            )
        self.num_labels: int = num_labels
        self.problem_type: str = chosen or (PROBLEM_TYPES[0] if num_labels > 1 else PROBLEM_TYPES[2])
        self.bert = Bert(params)
        rate = task_dropout_rate(params)
        before = params.get("task_dropout_before_pooler", False)
        self.pooler_dropout = nn.Dropout(rate if before else 0.0)
        self.dropout = nn.Dropout(rate)
        self.classifier = make_linear(params["hidden_size"], num_labels, truncated_normal(params))

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """Scores [batch, labels]."""
        hidden = self.bert.encode(input_ids, attention_mask, token_type_ids, position_ids)
        assert self.bert.pooler is not None
        return self.classifier(self.dropout(self.bert.pooler(self.pooler_dropout(hidden[:, :1]))))

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if self.problem_type == "regression":
            return F.mse_loss(wide, labels.reshape(scores.shape).to(wide.dtype))
        if self.problem_type == "multi_label_classification":
            return F.binary_cross_entropy_with_logits(wide, labels.to(wide.dtype))
        return token_cross_entropy(scores, labels.reshape(-1)).mean()


class BertForTokenClassification(nn.Module):
    """A class for each token."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__()
        self.bert = Bert(params, add_pooler=False)
        self.dropout = nn.Dropout(task_dropout_rate(params))
        self.classifier = make_linear(params["hidden_size"], params["num_classes"], truncated_normal(params))

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """Scores [batch, sequence, classes]."""
        hidden = self.bert.encode(input_ids, attention_mask, token_type_ids, position_ids)
        return self.classifier(self.dropout(hidden))

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The mean over tokens whose label is not -100."""
        return mean_over(token_cross_entropy(scores, labels), labels != -100)


class BertForQuestionAnswering(nn.Module):
    """Scores for where in the text an answer starts and ends."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__()
        self.bert = Bert(params, add_pooler=False)
        self.qa_outputs = make_linear(params["hidden_size"], 2, truncated_normal(params))

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Scores of each token as the start and as the end, [batch, sequence] each."""
        hidden = self.bert.encode(input_ids, attention_mask, token_type_ids, position_ids)
        start, end = self.qa_outputs(hidden).unbind(-1)
        return start, end

    def loss(self, scores: tuple[Tensor, Tensor], start_positions: Tensor, end_positions: Tensor) -> Tensor:
        """The mean of the two cross-entropies; answers beyond the sequence are ignored."""
        parts = []
        for score, position in zip(scores, (start_positions, end_positions), strict=True):
            target = position.reshape(-1).long()
            is_inside = target < score.shape[1]
            target = torch.where(is_inside, target.clamp(min=0), -100)
            parts.append(mean_over(token_cross_entropy(score, target), is_inside))
        return (parts[0] + parts[1]) / 2


class BertForSummarization(nn.Module):
    """Scores, from each sentence's [CLS], for whether it belongs to the summary (BertSum, arXiv 1903.10318)."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__()
        self.bert = Bert(params, add_pooler=False)
        bias = params.get("use_cls_bias", True)
        self.loss_weight: float | None = params.get("loss_weight")
        self.classifier = make_linear(params["hidden_size"], 1, truncated_normal(params), bias=bias)

    def forward(
        self,
        input_ids: Tensor,
        cls_indices: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """Scores [batch, sentences]; above 0 the sentence belongs to the summary."""
        hidden = self.bert.encode(input_ids, attention_mask, token_type_ids, position_ids)
        return self.classifier(take_positions(hidden, cls_indices)).squeeze(-1)

    def loss(self, scores: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """The mean over sentences, or with `loss_weight` the sum in each document times that weight."""
        wide = torch.promote_types(scores.dtype, torch.float32)
        losses = F.binary_cross_entropy_with_logits(scores.to(wide), labels.to(wide), reduction="none")
        if self.loss_weight is None:
            return mean_over(losses, weights)
        return (losses * weights.to(wide)).sum() * (self.loss_weight / scores.shape[0])


def mean_over(losses: Tensor, weights: Tensor) -> Tensor:
    """The weighted mean; 0 where all weights are 0, so that an empty batch does not end a run with NaN."""
    weights = weights.to(losses.dtype)
    return (losses * weights).sum() / weights.sum().clamp(min=_TINY)


def task_dropout_rate(params: Mapping[str, Any]) -> float:
    rate = params.get("task_dropout")
    return float(params["dropout_rate"] if rate is None else rate)
