"""Penalties and filters equal transformers' logits processors, bit for bit; draws follow the filtered distribution."""

from __future__ import annotations

import itertools

import pytest
import torch

from portwright.generation.draws import choose, draw_uniforms
from portwright.generation.options import GenerationOptions
from portwright.generation.scores import make_processors

logits_process = pytest.importorskip("transformers.generation.logits_process")


def _theirs(options: GenerationOptions, prompt_length: int):
    """The processors that transformers makes of the same options, in its order."""
    made = logits_process.LogitsProcessorList()
    if options.repetition_penalty != 1.0:
        made.append(logits_process.RepetitionPenaltyLogitsProcessor(options.repetition_penalty))
    if options.no_repeat_ngram_size:
        made.append(logits_process.NoRepeatNGramLogitsProcessor(options.no_repeat_ngram_size))
    if options.min_new_tokens and options.eos_ids:
        made.append(
            logits_process.MinNewTokensLengthLogitsProcessor(
                prompt_length, options.min_new_tokens, list(options.eos_ids)
            )
        )
    if options.temperature != 1.0:
        made.append(logits_process.TemperatureLogitsWarper(options.temperature))
    if options.top_k:
        made.append(logits_process.TopKLogitsWarper(options.top_k))
    if options.top_p < 1.0:
        made.append(logits_process.TopPLogitsWarper(options.top_p))
    if options.min_p is not None:
        made.append(logits_process.MinPLogitsWarper(options.min_p))
    return made


_CHOICES = list(
    itertools.product((1.0, 0.4, 2.5), (None, 1, 5, 1000), (1.0, 0.3, 0.97), (None, 0.0, 0.1, 1.0))
)


@pytest.mark.parametrize("vocabulary", [2, 30])
def test_filtered_scores_are_those_of_transformers(vocabulary: int) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    for number, (temperature, top_k, top_p, min_p) in enumerate(_CHOICES):
        options = GenerationOptions(
            do_sample=True,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=(1.0, 1.3, 0.7)[number % 3],
            no_repeat_ngram_size=number % 4,
            min_new_tokens=number % 3,
            eos_token_id=[0, 1] if vocabulary > 2 else 0,
        )
        length = 1 + number % 9
        ids = torch.randint(0, vocabulary, (3, length), generator=generator)
        scores = torch.randn(3, vocabulary, generator=generator) * 4
        if number % 5 == 0:
            scores = scores.round()  # ties
        prompt_length = max(1, length - number % 4)
        got = scores
        for process in make_processors(options, prompt_length, torch.device("cpu")):
            got = process(got, ids)
        assert torch.equal(got, _theirs(options, prompt_length)(ids, scores)), options


def test_draws_follow_the_probabilities() -> None:
    scores = torch.tensor([[2.0, float("-inf"), 0.0, 1.0, -30.0]])
    num_draws = 40_000
    uniforms = draw_uniforms(11, 1, num_draws, torch.device("cpu"))
    tokens = choose(scores.expand(num_draws, -1), uniforms[:, 0])
    shares = tokens.bincount(minlength=5) / num_draws
    # Four standard deviations of a share: a right draw of this seed is far inside, a wrong one is not.
    assert (shares - scores.softmax(-1)[0]).abs().max() < 4 * (0.25 / num_draws) ** 0.5
    assert shares[1] == 0


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2.0**-32])
def test_the_ends_of_the_draw_are_tokens_that_can_be(uniform: float) -> None:
    can = torch.tensor([[float("-inf"), 1.0, 0.5, float("-inf")]])
    assert int(choose(can, torch.tensor([uniform], dtype=torch.float64))) == (1 if uniform == 0 else 2)


def test_a_rows_draws_do_not_depend_on_other_rows_or_on_torchs_seed() -> None:
    torch.manual_seed(1)
    many = draw_uniforms(5, 4, 10, torch.device("cpu"))
    torch.manual_seed(2)
    few = draw_uniforms(5, 2, 6, torch.device("cpu"))
    assert torch.equal(many[:6, :2], few)
    assert not torch.equal(many[:, 0], many[:, 1])
    assert not torch.equal(many, draw_uniforms(6, 4, 10, torch.device("cpu")))
    assert draw_uniforms(2**64 - 1, 1, 3, torch.device("cpu")).shape == (3, 1)
