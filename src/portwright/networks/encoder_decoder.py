"""The base of networks with an encoder and a decoder: from ids to logits or a loss, caches, and masks (True is masked)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from portwright.errors import UserError
from portwright.job.model_params import Seq2SeqLossParams
from portwright.layers import TransformerDecoder
from portwright.layers.bias import to_bias
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

    @abstractmethod
    def encode(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """The memory [batch, source, width] that the decoder attends to."""

    @abstractmethod
    def decode_hidden(
        self,
        decoder_input_ids: Tensor,
        memory: Tensor,
        attention_mask: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        past_kv: Sequence[DecoderLayerCache] | None = None,
    ) -> Tensor:
        """The states that the output layer is applied to; arguments as those of `decode`."""

    @abstractmethod
    def head_weight(self) -> tuple[Tensor, Tensor | None]:
        """The output layer's matrix [vocabulary, width] and bias; None: it has no bias."""

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


def padding_mask(attention_mask: Tensor | None) -> Tensor | None:
    """The mask [batch, 1, 1, keys] of padding, from [batch, keys]."""
    return None if attention_mask is None else (attention_mask == 0)[:, None, None, :]


def causal_mask(
    length: int, num_past: int, attention_mask: Tensor | None, device: torch.device
) -> Tensor | None:
    """The mask of later positions and padding for `length` new queries after `num_past`; None where nothing is masked.

    `attention_mask` is [batch, new] or [batch, past and new].
    """
    mask: Tensor | None = None
    if length > 1:
        # A comparison, not triu, which some targets' compilers refuse.
        keys, queries = torch.arange(num_past + length, device=device), torch.arange(length, device=device)
        mask = (keys[None, :] > queries[:, None] + num_past)[None, None]
    if attention_mask is None:
        return mask
    if attention_mask.shape[1] not in (length, num_past + length):
        raise UserError(
            f"decoder_attention_mask has shape {tuple(attention_mask.shape)} for {length} tokens after {num_past}.",
            "Let it cover the new tokens, or all of them.",
        )
    if attention_mask.shape[1] != num_past + length:
        attention_mask = torch.nn.functional.pad(attention_mask, (num_past, 0), value=1)
    padding = (attention_mask == 0)[:, None, None, :]
    return padding if mask is None else mask | padding


def past_of(past_kv: Sequence[DecoderLayerCache] | None) -> int:
    """The number of positions in a decoder's caches."""
    return 0 if not past_kv else past_kv[0].self_attn.length


def shared_bias(positions: Tensor, mask: Tensor | None) -> Tensor:
    """Adds position bias and mask once for all layers of a stack, in the type of their scores.

    If each layer did so, each would keep a copy for backward.
    """
    bias = positions if mask is None else positions + to_bias(mask, positions.dtype)
    device = bias.device.type
    if device in ("cpu", "cuda") and torch.is_autocast_enabled(device):
        return bias.to(torch.get_autocast_dtype(device))
    return bias
