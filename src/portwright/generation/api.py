"""`generate`: checks its arguments, generates by transformers, and leaves the network unchanged."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from portwright.errors import UserError
from portwright.extras import import_transformers
from portwright.generation.inputs import Decode, check_inputs, require_generating
from portwright.generation.options import GenerationOptions

_RESOLUTION = 2.0**32  # coarse enough that rounding in a sum of probabilities changes no draw


@dataclass(frozen=True)
class Generated:
    """Token ids [sequences, length] with their prompts, and a score for each sequence.

    Sequences of one prompt are together, a beam search's best first. The score is the sum of log probabilities, in a
    beam search divided by length ** length_penalty. An encoder-decoder's sequences begin with its start token;
    `prompt_length` is the number of tokens before the new ones.
    """

    sequences: Tensor
    scores: Tensor
    prompt_length: int
    seed: int | None = None

    @property
    def new_tokens(self) -> Tensor:
        return self.sequences[:, self.prompt_length :]


def generate(
    network: nn.Module,
    input_ids: Tensor | Sequence[Sequence[int]],
    attention_mask: Tensor | None = None,
    options: GenerationOptions | None = None,
    *,
    first_sample: int = 0,
    decode: Decode | None = None,
    streamer: Any = None,
) -> Generated:
    """Continues prompts, or answers an encoder's inputs, token by token.

    `attention_mask` is 1 at tokens and 0 at padding, which for a decoder is on the left; without one, padding is found
    by `pad_token_id` unless that ends sequences too. `first_sample` numbers the samples of prompts given in several
    batches, so that each has draws of its own. `decode` turns ids into text, for `stop_strings`. `streamer` is one of
    transformers', which gets each step's tokens. The network's training flags and torch's generators are not changed.
    """
    options = GenerationOptions() if options is None else options
    if not isinstance(network, nn.Module):
        raise UserError(
            f"generate got a {type(network).__name__}, which is no nn.Module.",
            "Give the network itself: a model's .model.",
        )
    if not isinstance(options, GenerationOptions):
        raise UserError(f"options is a {type(options).__name__}.", "Give GenerationOptions(...).")
    if options.stops and decode is None:
        raise UserError(
            f"stop_strings={options.stop_strings!r} needs text.",
            "Give decode=, such as a tokenizer's decode.",
        )
    if streamer is not None and options.num_beams > 1:
        raise UserError(
            f"streamer was given with num_beams={options.num_beams}.",
            "A beam search knows its tokens only at its end: leave one of them off.",
        )
    require_generating(network)
    import_transformers("Generating text")
    from portwright.generation.adapter import run_generate

    with torch.no_grad(), _evaluating(network):
        ids, mask = check_inputs(network, input_ids, attention_mask, options)
        seed: int | None = None
        uniforms: Tensor | None = None
        if options.do_sample:
            seed = secrets.randbits(32) if options.seed is None else options.seed
            num_rows = len(ids) * options.num_return_sequences
            uniforms = draw_uniforms(seed, num_rows, options.max_new_tokens, ids.device, first_sample)
        sequences, scores, prompt_length = run_generate(
            network, ids, mask, options, uniforms, decode, streamer
        )
    if options.do_sample and bool(scores.isnan().any()):
        raise UserError(
            f"Nothing was left to draw: no_repeat_ngram_size={options.no_repeat_ngram_size} or another option bans every token.",
            "Ask for fewer new tokens, or ban less.",
        )
    return Generated(sequences, scores, prompt_length, seed)


@contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        yield
    finally:
        for module in training:  # one by one: some modules may have been in evaluation mode
            module.training = True


def draw_uniforms(
    seed: int, num_rows: int, num_steps: int, device: torch.device, first_row: int = 0
) -> Tensor:
    """Numbers in [0, 1) of shape [steps, rows]; a row's numbers do not depend on the other rows."""
    drawn = np.empty((num_rows, num_steps))
    for row in range(num_rows):
        # numpy's counter-based generator, so that neither torch's generators nor the device matter.
        key = np.array([seed, first_row + row], dtype=np.uint64)
        drawn[row] = np.random.Generator(np.random.Philox(key=key)).random(num_steps)
    return torch.from_numpy(np.floor(drawn.T * _RESOLUTION) / _RESOLUTION).to(device)
