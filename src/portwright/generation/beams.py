"""Beam search, whose sequences and scores are those of transformers.

Each step looks at more candidates than there are beams, so that enough go on where the best of them end. Sums and
their order are as there, ties between candidates that a huge penalty has made equal included; hence the penalty
itself, and no infinity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from portwright.errors import UserError
from portwright.generation.options import GenerationOptions
from portwright.generation.scores import Processor, refuse_nan
from portwright.generation.source import TokenSource
from portwright.generation.stopping import StopRule

_OUT_OF_THE_RUNNING = -1.0e9


@dataclass
class _Ended:
    """The best sequences of every prompt that have ended, best first; tensors are [batch, beams, ...]."""

    sequences: Tensor
    scores: Tensor
    num_new: Tensor
    is_real: Tensor  # else a place that no sequence has taken yet

    def take_in(self, sequences: Tensor, scores: Tensor, num_new: int, is_real: Tensor) -> None:
        """Keeps the best of what there was and of new ones."""
        new_lengths = torch.full_like(is_real, num_new, dtype=torch.long)
        all_scores = torch.cat((self.scores, scores), dim=1)
        best = all_scores.topk(self.scores.shape[1]).indices
        self.scores = all_scores.gather(1, best)
        self.sequences = _pick(torch.cat((self.sequences, sequences), dim=1), best)
        self.num_new = torch.cat((self.num_new, new_lengths), dim=1).gather(1, best)
        self.is_real = torch.cat((self.is_real, is_real), dim=1).gather(1, best)


def search_beams(
    source: TokenSource, options: GenerationOptions, processors: Sequence[Processor], stop: StopRule
) -> tuple[Tensor, Tensor]:
    """The best sequences [batch * num_return_sequences, length] and their scores, each prompt's best first."""
    logits = source.start()
    refuse_nan(logits)
    num_beams, prompt = options.num_beams, source.prompt
    batch, prompt_length = prompt.shape
    max_length = prompt_length + options.max_new_tokens
    vocabulary = logits.shape[-1]
    num_candidates = max(2, 1 + len(options.eos_ids)) * num_beams
    if num_candidates > num_beams * vocabulary:
        raise UserError(
            f"A vocabulary of {vocabulary} tokens, {len(options.eos_ids)} of which end a sequence, leaves nothing to search.",
            "Name fewer tokens in eos_token_id.",
        )
    source.expand(num_beams)
    logits = logits.repeat_interleave(num_beams, dim=0)  # all beams begin alike
    device = prompt.device
    running = prompt.new_full((batch, num_beams, max_length), _fill_token(options))
    running[:, :, :prompt_length] = prompt[:, None]
    # Only the first beam counts at first, or all would take the same tokens.
    running_scores = torch.zeros(batch, num_beams, device=device)
    running_scores[:, 1:] = _OUT_OF_THE_RUNNING
    ended = _Ended(
        running.clone(),
        torch.full_like(running_scores, _OUT_OF_THE_RUNNING),
        torch.zeros_like(running_scores, dtype=torch.long),
        torch.zeros_like(running_scores, dtype=torch.bool),
    )
    can_improve = torch.ones(batch, 1, dtype=torch.bool, device=device)
    is_of_the_best = torch.arange(num_candidates, device=device) < num_beams
    first_rows = torch.arange(batch, device=device)[:, None] * num_beams
    same_rows = torch.arange(batch * num_beams, device=device)

    for length in range(prompt_length, max_length):
        if length > prompt_length:
            logits = source.step(running[:, :, length - 1].flatten())
        log_probs = logits.float().log_softmax(dim=-1)
        for process in processors:
            log_probs = process(log_probs, running[:, :, :length].flatten(0, 1))
        sums = log_probs.view(batch, num_beams, vocabulary) + running_scores[:, :, None]
        scores, places = sums.flatten(1).topk(num_candidates)
        parents = places // vocabulary
        candidates = _pick(running, parents)
        candidates[:, :, length] = places % vocabulary

        num_new = length + 1 - prompt_length
        ends = stop(candidates[:, :, prompt_length : length + 1].flatten(0, 1)).view(batch, num_candidates)
        if length + 1 == max_length:
            ends = torch.ones_like(ends)

        going_on = scores + ends.float() * _OUT_OF_THE_RUNNING
        chosen = going_on.topk(num_beams).indices
        running, running_scores = _pick(candidates, chosen), going_on.gather(1, chosen)

        ends_well = ends & is_of_the_best
        final = scores / _length_factor(num_new, options)
        is_full = ended.is_real.all(dim=1, keepdim=True) & (options.early_stopping is True)
        for is_out in (is_full, ~can_improve, ~ends_well):
            final = final + is_out.float() * _OUT_OF_THE_RUNNING
        ended.take_in(candidates, final, num_new, ends_well)

        can_improve = can_improve & _may_improve(running_scores, ended, num_new, options)
        goes_on = can_improve.any() & ~ends.all()
        if options.early_stopping is True:
            goes_on &= ~ended.is_real.all()
        if not bool(goes_on):
            break
        rows = (parents.gather(1, chosen) + first_rows).flatten()
        if device.type != "cpu" or not torch.equal(
            rows, same_rows
        ):  # elsewhere asking costs more than moving
            source.reorder(rows)

    num_returned = options.num_return_sequences
    num_new_returned = int(ended.num_new[:, :num_returned].max())
    sequences = ended.sequences[:, :num_returned, : prompt_length + num_new_returned]
    return sequences.flatten(0, 1), ended.scores[:, :num_returned].flatten()


def _may_improve(running_scores: Tensor, ended: _Ended, num_new: int, options: GenerationOptions) -> Tensor:
    """Whether a running beam may yet beat the worst of a prompt's ended sequences; [batch, 1]."""
    is_for_long = options.early_stopping == "never" and options.length_penalty > 0.0
    best_length = options.max_new_tokens if is_for_long else num_new
    best_running = running_scores[:, :1] / _length_factor(best_length, options)
    worst = ended.scores.min(dim=1, keepdim=True).values
    to_beat = torch.where(ended.is_real, worst, _OUT_OF_THE_RUNNING)
    return (best_running > to_beat).any(dim=1, keepdim=True)


def _length_factor(num_new: int, options: GenerationOptions) -> float:
    return float(num_new**options.length_penalty)


def _fill_token(options: GenerationOptions) -> int:
    """What stands behind a sequence's end; like transformers, a padding token of 0 gives way to the end token."""
    if options.eos_ids:
        return options.pad_token_id or options.eos_ids[0]
    return options.pad_token_id or 0


def _pick(tensor: Tensor, places: Tensor) -> Tensor:
    """Of each prompt's entries [batch, entries, length] those at `places`."""
    picked: Tensor = tensor.take_along_dim(places[:, :, None], dim=1)
    return picked
