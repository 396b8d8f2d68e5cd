"""Adapts our networks to transformers' `generate`: scores of the next token, and a cache of keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    PreTrainedConfig,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

from portwright.errors import NonFiniteError
from portwright.generation.inputs import Decode, is_encoder_decoder
from portwright.generation.options import GenerationOptions
from portwright.layers.cache import DecoderLayerCache

_SPARE_TOKENS = (
    8  # tokens that may stand for no text (special ones, halves of a character) beside those of a string
)


class Past:
    """A network's caches with the methods that `generate` calls."""

    is_compileable = is_croppable = False

    def __init__(self, layers: Sequence[DecoderLayerCache]) -> None:
        self.layers = layers

    def get_seq_length(self) -> int:
        return self.layers[0].self_attn.length

    def reorder_cache(self, rows: Tensor) -> None:
        for layer in self.layers:
            # The memory's keys and values stay: beams only change places within one prompt.
            layer.self_attn.reorder(rows)


class NextTokens(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """A network's decoder; an encoder has read its inputs before, so that `generate` sees only a decoder.

    `times` is the number of rows that `generate` makes for each of `input_ids`.
    """

    config_class = PreTrainedConfig

    def __init__(self, network: Any, input_ids: Tensor, attention_mask: Tensor | None, times: int) -> None:
        super().__init__(PreTrainedConfig())
        self.network = network
        self.prompt, self.prompt_mask = input_ids, attention_mask
        self._memory: tuple[Tensor, Tensor | None] | None = None
        if is_encoder_decoder(network):
            self.prompt = input_ids.new_full((len(input_ids), 1), network.decoder_start_token_id)
            self.prompt_mask = None
            memory = network.encode(input_ids, attention_mask).repeat_interleave(times, dim=0)
            mask = None if attention_mask is None else attention_mask.repeat_interleave(times, dim=0)
            self._memory = memory, mask

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        **_: Any,
    ) -> CausalLMOutputWithPast:
        past, is_first = past_key_values, past_key_values.get_seq_length() == 0
        if self._memory is not None:
            logits = self.network.decode(input_ids, *self._memory, past_kv=past.layers)
        else:
            # Without padding, positions count from the cache's end.
            positions = None if attention_mask is None else position_ids
            hidden = self.network.hidden(
                input_ids, attention_mask=attention_mask, position_ids=positions, past_kv=past.layers
            )
            # Scores of all positions would be as large as prompt times vocabulary.
            logits = F.linear(hidden[:, -1:], *self.network.head_weight())
        if is_first and bool(logits.isnan().any()):
            raise NonFiniteError(
                "The network's scores of the first token are NaN.",
                "Take an earlier checkpoint, or a wider dtype.",
            )
        return CausalLMOutputWithPast(logits=logits, past_key_values=past)


class Ends(StoppingCriteria):  # type: ignore[misc]
    """Stops rows whose last token is an end token or completes a stop string.

    `ended` says, without beams, which rows have ended so far.
    """

    def __init__(self, options: GenerationOptions, prompt_length: int, decode: Decode | None) -> None:
        self.eos_token_id = options.eos_ids  # makes `generate` pad rows that have ended
        self.ended: Tensor | None = None
        self._strings, self._decode, self._prompt_length = options.stops, decode, prompt_length
        longest = max((len(each.encode()) for each in self._strings), default=0)
        self._num_looked_at = longest + _SPARE_TOKENS

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        new = input_ids[:, self._prompt_length :]
        ends = torch.isin(new[:, -1], torch.tensor(self.eos_token_id, dtype=new.dtype, device=new.device))
        if self._decode is not None and self._strings:
            # A token has at least one byte of text, so that older ones cannot be part of a stop string that ends now.
            texts = [self._decode(tail) for tail in new[:, -self._num_looked_at :].tolist()]
            has_string = [any(stop in text for stop in self._strings) for text in texts]
            ends |= torch.tensor(has_string, device=new.device)
        self.ended = ends if self.ended is None or len(ends) != len(self.ended) else self.ended | ends
        return ends


class Choice(LogitsProcessor):  # type: ignore[misc]
    """The last processor: keeps one token a row, the likeliest or a drawn one, and sums the log probabilities."""

    def __init__(self, ends: Ends, prompt_length: int, uniforms: Tensor | None) -> None:
        self.totals: Any = 0.0
        self._ends, self._prompt_length, self._uniforms = ends, prompt_length, uniforms

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self._uniforms is None:
            tokens = scores.argmax(dim=-1)
        else:
            tokens = choose(scores, self._uniforms[input_ids.shape[1] - self._prompt_length])
        gained = scores.gather(1, tokens[:, None]).squeeze(1) - scores.logsumexp(dim=-1)
        if self._ends.ended is not None:
            gained = gained.masked_fill(self._ends.ended, 0.0)
        self.totals = self.totals + gained
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens[:, None], 0.0)


def choose(scores: Tensor, uniforms: Tensor) -> Tensor:
    """One token a row with the probabilities softmax(scores), where its uniform number falls."""
    up_to = scores.softmax(dim=-1).double().cumsum(dim=-1)
    # The first token whose cumulated probability exceeds the draw: never one of probability 0.
    point = uniforms[:, None].to(up_to.dtype) * up_to[:, -1:]
    return torch.searchsorted(up_to, point, right=True).squeeze(1).clamp_(max=scores.shape[1] - 1)


def run_generate(
    network: nn.Module,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    options: GenerationOptions,
    uniforms: Tensor | None,
    decode: Decode | None,
    streamer: Any,
) -> tuple[Tensor, Tensor, int]:
    """Gives sequences with their prompts, a score for each, and the length of the prompts.

    We draw the tokens, from `uniforms` [steps, rows], so that a sample depends only on its seed: `generate` takes the
    likeliest token, and the last processor leaves only the drawn one.
    """
    is_search = options.num_beams > 1
    if not is_search and options.num_return_sequences > 1:
        input_ids = input_ids.repeat_interleave(options.num_return_sequences, dim=0)
        if attention_mask is not None:
            attention_mask = attention_mask.repeat_interleave(options.num_return_sequences, dim=0)
    model = NextTokens(network, input_ids, attention_mask, options.num_beams)
    ends = Ends(options, model.prompt.shape[1], decode)
    choice = Choice(ends, model.prompt.shape[1], uniforms)
    pad = 0 if options.pad_id is None else options.pad_id
    config = GenerationConfig(
        max_new_tokens=options.max_new_tokens,
        min_new_tokens=options.min_new_tokens or None,
        repetition_penalty=options.repetition_penalty,
        no_repeat_ngram_size=options.no_repeat_ngram_size,
        eos_token_id=list(options.eos_ids) or None,
        pad_token_id=pad,
        do_sample=False,
        return_dict_in_generate=True,
    )
    if is_search:
        config.update(
            num_beams=options.num_beams,
            num_return_sequences=options.num_return_sequences,
            length_penalty=options.length_penalty,
            early_stopping=options.early_stopping,
            output_scores=True,  # else sequences get no score
        )
    made = model.generate(
        input_ids=model.prompt,
        attention_mask=torch.ones_like(model.prompt) if model.prompt_mask is None else model.prompt_mask,
        past_key_values=Past(model.network.make_cache()),
        generation_config=config,
        logits_processor=None if is_search else LogitsProcessorList([*_filters(options), choice]),
        stopping_criteria=StoppingCriteriaList([ends]),
        streamer=streamer,
    )
    # a search without end tokens pads with -1
    sequences = made.sequences.masked_fill(made.sequences < 0, pad)
    scores = made.sequences_scores if is_search else choice.totals
    return sequences, scores, model.prompt.shape[1]


def _filters(options: GenerationOptions) -> list[LogitsProcessor]:
    """The filters of the tokens to draw from, in the order of `generate`."""
    made: list[LogitsProcessor] = []
    if options.temperature != 1.0:
        made.append(TemperatureLogitsWarper(float(options.temperature)))
    if options.top_k:
        made.append(TopKLogitsWarper(options.top_k))
    if options.top_p < 1.0:
        made.append(TopPLogitsWarper(options.top_p))
    if options.min_p is not None:
        made.append(MinPLogitsWarper(options.min_p))
    return made
