"""The base of networks with an encoder and a decoder: from ids to logits or a loss, and caches."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from portwright.errors import UserError
from portwright.job.model_params import Seq2SeqLossParams
from portwright.layers import TransformerDecoder
from portwright.layers.cache import DecoderLayerCache
from portwright.networks.token_loss import head_loss


class EncoderDecoder(nn.Module):
    """An encoder and a decoder; a subclass gives `encode`, `decode_hidden` and `head_weight`.

    attention_mask and decoder_attention_mask are 1 for a token and 0 for padding.
    """

    decoder: TransformerDecoder

    def __init__(self, options: Seq2SeqLossParams) -> None:
        super().__init__()
        self.decoder_start_token_id = options.decoder_start_token_id
        self.label_smoothing = options.label_smoothing
        self.loss_scaling: str = options.loss_scaling
        self.loss_weight = options.loss_weight

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """The memory [batch, source, width] that the decoder attends to."""
        raise NotImplementedError

    def decode_hidden(
        self,
        decoder_input_ids: Tensor,
        memory: Tensor,
        attention_mask: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        past_kv: Sequence[DecoderLayerCache] | None = None,
    ) -> Tensor:
        """The states that the output layer is applied to; arguments as those of `decode`."""
        raise NotImplementedError

    def head_weight(self) -> tuple[Tensor, Tensor | None]:
        """The output layer's matrix [vocabulary, width] and bias; None: it has no bias."""
        raise NotImplementedError

    def decode(
        self,
        decoder_input_ids: Tensor,
        memory: Tensor,
        attention_mask: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        past_kv: Sequence[DecoderLayerCache] | None = None,
    ) -> Tensor:
        """Logits [batch, target, vocabulary] of the token after each of decoder_input_ids.

        With `past_kv` (of `make_cache`) decoder_input_ids are only the new tokens, and decoder_attention_mask covers
        these or all tokens.
        """
        hidden = self.decode_hidden(
            decoder_input_ids, memory, attention_mask, decoder_attention_mask, past_kv
        )
        return nn.functional.linear(hidden, self.head_weight()[0])

    def hidden(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        decoder_input_ids: Tensor,
        decoder_attention_mask: Tensor | None = None,
    ) -> Tensor:
        """The states before the output layer, from encoder and decoder."""
        memory = self.encode(input_ids, attention_mask)
        return self.decode_hidden(decoder_input_ids, memory, attention_mask, decoder_attention_mask)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        decoder_input_ids: Tensor,
        decoder_attention_mask: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        label_weights: Tensor | None = None,
    ) -> Tensor:
        """Logits of the token after each of decoder_input_ids; with `labels` their loss, without holding all logits.

        `label_weights` says how much each label counts; a label of -100 does not. Labels are smoothed in training only.
        """
        hidden = self.hidden(input_ids, attention_mask, decoder_input_ids, decoder_attention_mask)
        weight, _ = self.head_weight()
        if labels is None:
            return nn.functional.linear(hidden, weight)
        if labels.shape != decoder_input_ids.shape:
            raise UserError(
                f"labels have the shape {tuple(labels.shape)} and decoder_input_ids {tuple(decoder_input_ids.shape)}.",
                "Give a label for each.",
            )
        return head_loss(
            hidden,
            weight,
            None,
            labels,
            label_weights,
            label_smoothing=self.label_smoothing if self.training else 0.0,
            loss_scaling=self.loss_scaling,
            loss_weight=self.loss_weight,
        )

    def make_cache(self) -> list[DecoderLayerCache]:
        """Empty caches, to pass to every `decode` of one generation."""
        return self.decoder.make_cache()
