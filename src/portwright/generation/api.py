"""`generate`: checks what it is given, runs the search that the options ask for, and leaves no trace on the network."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from portwright.errors import UserError
from portwright.generation.beams import search_beams
from portwright.generation.inputs import check_inputs
from portwright.generation.options import GenerationOptions
from portwright.generation.sampling import OnTokens, decode_rows
from portwright.generation.scores import make_processors
from portwright.generation.source import make_source
from portwright.generation.stopping import Decode, StopRule


@dataclass(frozen=True)
class Generated:
    """Token ids [sequences, length] with their prompts, and a score for each sequence.

    Sequences of one prompt stand together, a beam search's best first. The score of a beam search is the sum of log
    probabilities over length ** length_penalty; else it is the sum. An encoder-decoder's sequences begin with its
    start token; `prompt_length` counts what comes before the new tokens.
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
    on_tokens: OnTokens | None = None,
) -> Generated:
    """Continues prompts, or answers an encoder's inputs, token by token.

    `attention_mask` is 1 at tokens and 0 at padding, which for a decoder is on the left; without one, padding is found
    by `pad_token_id` unless that ends sequences too. `first_sample` numbers the samples of prompts that come in several
    batches, so that none draws as another does. `decode` turns ids into text, for `stop_strings`. `on_tokens` is
    called with every step's tokens [rows]. The network's training flags and torch's generators stay as they are.
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
    if on_tokens is not None and options.num_beams > 1:
        raise UserError(
            f"on_tokens was given with num_beams={options.num_beams}.",
            "A beam search knows its tokens only at its end: leave one of them off.",
        )
    with torch.inference_mode(), _evaluating(network):
        ids, mask = check_inputs(network, input_ids, attention_mask, options)
        source = make_source(network, ids, mask, options.max_new_tokens)
        processors = make_processors(options, source.prompt.shape[1], ids.device)
        stop = StopRule(options, ids.device, decode)
        seed: int | None = None
        if options.num_beams > 1:
            sequences, scores = search_beams(source, options, processors, stop)
        else:
            seed = options.seed
            if options.do_sample and seed is None:
                seed = secrets.randbits(32)
            sequences, scores = decode_rows(
                source, options, processors, stop, seed or 0, first_sample, on_tokens
            )
    # Out of inference mode again, so that they can be computed with like any tensor.
    return Generated(
        sequences.clone(), scores.clone(), source.prompt.shape[1], seed if options.do_sample else None
    )


@contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        yield
    finally:
        for module in training:  # one by one: parts may have been set apart
            module.training = True
