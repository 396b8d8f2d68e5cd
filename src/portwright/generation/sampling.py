"""One token at a time: the likeliest, or one drawn from what the filters leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from portwright.errors import UserError
from portwright.generation.draws import choose, draw_uniforms
from portwright.generation.options import GenerationOptions
from portwright.generation.scores import Processor, refuse_nan
from portwright.generation.source import TokenSource
from portwright.generation.stopping import StopRule

OnTokens = Callable[[Tensor], None]

_STEPS_BETWEEN_LOOKS = (
    8  # an accelerator is asked whether all rows have ended this often, since asking waits for it
)


def decode_rows(
    source: TokenSource,
    options: GenerationOptions,
    processors: Sequence[Processor],
    stop: StopRule,
    seed: int,
    first_sample: int = 0,
    on_tokens: OnTokens | None = None,
) -> tuple[Tensor, Tensor]:
    """Sequences [rows, length], prompts included, and the sum of the log probabilities of each one's new tokens."""
    logits = source.start()
    refuse_nan(logits)
    num_copies = options.num_return_sequences if options.do_sample else 1
    source.expand(num_copies)
    logits = logits.repeat_interleave(num_copies, dim=0)
    prompt = source.prompt.repeat_interleave(num_copies, dim=0)
    num_rows, prompt_length = prompt.shape
    device = prompt.device

    sequences = prompt.new_empty(num_rows, prompt_length + options.max_new_tokens)
    sequences[:, :prompt_length] = prompt
    totals = torch.zeros(num_rows, dtype=torch.float32, device=device)
    ended = torch.zeros(num_rows, dtype=torch.bool, device=device)
    length_when_ended = torch.full((num_rows,), sequences.shape[1], device=device)
    uniforms: Tensor | None = None
    if options.do_sample:
        uniforms = draw_uniforms(seed, num_rows, options.max_new_tokens, device, first_sample)
    steps_between_looks = _steps_between_looks(device, must_read=on_tokens is not None or stop.reads_text)
    pad = options.pad_id if options.pad_id is not None else 0

    length = prompt_length
    for step in range(options.max_new_tokens):
        if step:
            logits = source.step(sequences[:, length - 1])
        scores = logits.float()
        for process in processors:
            scores = process(scores, sequences[:, :length])
        tokens = scores.argmax(dim=-1) if uniforms is None else choose(scores, uniforms[step])
        gained = scores.gather(1, tokens[:, None]).squeeze(1) - scores.logsumexp(dim=-1)
        if stop.can_stop:
            tokens = tokens.masked_fill(ended, pad)
            gained = gained.masked_fill(ended, 0.0)
        totals += gained
        sequences[:, length] = tokens
        length += 1
        if stop.can_stop:
            ends_now = stop(sequences[:, prompt_length:length]) & ~ended
            length_when_ended.masked_fill_(ends_now, length)
            ended |= ends_now
        if on_tokens is not None:
            on_tokens(tokens)
        if stop.can_stop and (step + 1) % steps_between_looks == 0 and bool(ended.all()):
            break
    if stop.can_stop:  # steps after the last row's end, before that was looked at, have written padding alone
        length = min(length, int(length_when_ended.max()))
    if options.do_sample and bool(totals.isnan().any()):
        raise UserError(
            f"Nothing was left to draw: no_repeat_ngram_size={options.no_repeat_ngram_size} or another option bans every token.",
            "Ask for fewer new tokens, or ban less.",
        )
    return sequences[:, :length], totals


def _steps_between_looks(device: torch.device, must_read: bool) -> int:
    """How often to ask whether all rows have ended: asking an accelerator waits for it."""
    return 1 if device.type == "cpu" or must_read else 8
