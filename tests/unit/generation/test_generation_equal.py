"""Sequences equal those of the installed transformers, token for token.

Weights are random and in float64 on both sides: both round the same numbers to float32 before they choose, so that no
near tie is decided by the order of a sum.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from portwright.generation import GenerationOptions, generate
from portwright.huggingface.mapping import to_ours
from portwright.huggingface.registry import find_families

transformers = pytest.importorskip("transformers")

_VOCABULARIES = (7, 13, 40)


def _gpt2(rng: random.Random) -> Any:
    config = transformers.GPT2Config(
        vocab_size=rng.choice(_VOCABULARIES),
        n_positions=48,
        n_embd=16,
        n_layer=2,
        n_head=2,
        initializer_range=0.4,
        tie_word_embeddings=rng.choice((True, False)),
        bos_token_id=None,
        eos_token_id=None,
    )
    return transformers.GPT2LMHeadModel(config)


def _gptj(rng: random.Random) -> Any:
    config = transformers.GPTJConfig(
        vocab_size=rng.choice(_VOCABULARIES),
        n_positions=48,
        n_embd=16,
        n_layer=2,
        n_head=2,
        rotary_dim=rng.choice((4, 8)),
        initializer_range=0.4,
        bos_token_id=None,
        eos_token_id=None,
    )
    return transformers.GPTJForCausalLM(config)


def _t5(rng: random.Random) -> Any:
    config = transformers.T5Config(
        vocab_size=rng.choice(_VOCABULARIES),
        d_model=16,
        d_kv=4,
        d_ff=24,
        num_layers=2,
        num_decoder_layers=rng.choice((1, 2)),
        num_heads=2,
        feed_forward_proj=rng.choice(("relu", "gated-gelu")),
        initializer_factor=rng.choice((1.0, 2.0)),
        tie_word_embeddings=rng.choice((True, False)),
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config)


_MAKERS = {"gpt2": _gpt2, "gptj": _gptj, "t5": _t5}


def make_pair(folder: str, rng: random.Random) -> tuple[Any, torch.nn.Module]:
    """transformers' model and ours with the same random weights."""
    torch.manual_seed(rng.randrange(10**6))
    theirs = _MAKERS[folder](rng).double().eval()
    theirs.generation_config = transformers.GenerationConfig(
        decoder_start_token_id=0 if folder == "t5" else None
    )
    family = find_families()[folder]
    params = family.params_of(theirs.config.to_dict())
    assert family.network is not None
    ours = family.network(params).double()
    ours.load_state_dict(to_ours(theirs.state_dict(), family, params))
    return theirs, ours


def make_prompts(
    folder: str, rng: random.Random, vocabulary: int, pad: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts of different lengths: padded on the left for decoders, on the right for encoders."""
    batch, length = rng.choice((1, 2, 3)), rng.choice((1, 4, 9))
    ids = torch.tensor([[rng.randrange(vocabulary) for _ in range(length)] for _ in range(batch)])
    mask = torch.ones_like(ids)
    for row in range(batch):
        num_pads = rng.choice((0, rng.randrange(length)))
        if num_pads:
            where = slice(length - num_pads, None) if folder == "t5" else slice(0, num_pads)
            ids[row, where], mask[row, where] = pad, 0
    return ids, mask


def draw_options(rng: random.Random, is_beam: bool) -> dict[str, Any]:
    options: dict[str, Any] = {
        "max_new_tokens": rng.choice((1, 6, 14)),
        "repetition_penalty": rng.choice((1.0, 1.0, 1.7, 0.6)),
        "no_repeat_ngram_size": rng.choice((0, 0, 1, 2, 3)),
        "eos_token_id": rng.choice((None, 1, [1, 3], [5, 0, 2])),
        "pad_token_id": rng.choice((0, 4)),
    }
    options["min_new_tokens"] = min(options["max_new_tokens"], rng.choice((0, 0, 3)))
    if is_beam:
        options["num_beams"] = rng.choice((2, 3, 5))
        options["length_penalty"] = rng.choice((1.0, 0.0, -1.0, 2.0))
        options["early_stopping"] = rng.choice((True, False, "never"))
        options["num_return_sequences"] = rng.randint(1, options["num_beams"])
    return options


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("is_beam", [False, True], ids=["greedy", "beam"])
@pytest.mark.parametrize("folder", _MAKERS)
def test_sequences_are_those_of_transformers(folder: str, is_beam: bool, seed: int) -> None:
    rng = random.Random(f"{folder} {is_beam} {seed}")
    theirs, ours = make_pair(folder, rng)
    for _ in range(4):
        options = draw_options(rng, is_beam)
        ids, mask = make_prompts(folder, rng, theirs.config.vocab_size, options["pad_token_id"])
        expected = theirs.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
        got = generate(ours, ids, mask, GenerationOptions(**options))
        assert got.sequences.tolist() == expected.sequences.tolist(), options
        if is_beam:
            torch.testing.assert_close(got.scores, expected.sequences_scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "chosen",
    [{}, {"temperature": 0.6}, {"temperature": 1.8, "top_k": 6}, {"top_p": 0.8}, {"min_p": 0.2, "top_k": 20}],
    ids=str,
)
def test_samples_are_as_frequent_as_transformers_says_they_are_likely(chosen: dict[str, Any]) -> None:
    rng = random.Random(5)
    theirs, ours = make_pair("gpt2", rng)
    prompt = torch.tensor([[1, 2, 3]])
    asked = {"top_k": 0, **chosen}  # transformers has a top_k of 50 unless told otherwise
    expected = theirs.generate(
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=True,
        max_new_tokens=1,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
        **asked,
    )
    shares = expected.scores[0][0].softmax(-1)
    num_samples = 20_000
    options = GenerationOptions(
        do_sample=True, max_new_tokens=1, seed=8, num_return_sequences=num_samples, **chosen
    )
    drawn = generate(ours, prompt, None, options).new_tokens[:, 0].bincount(minlength=len(shares))
    assert bool((drawn[shares == 0] == 0).all())
    # Each count is within four and a half of its standard deviations, which all of forty are with near certainty.
    deviation = (num_samples * shares * (1 - shares)).sqrt()
    assert bool(((drawn - num_samples * shares).abs() <= 4.5 * deviation + 1e-9).all())
