"""What holds for every generation: no trace is left, rows do not see each other, bad input is told."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import portwright.generation
from portwright.errors import NonFiniteError, UserError
from portwright.generation import GenerationOptions, generate, left_pad, right_pad
from portwright.networks import T5, Gpt, Seq2Seq

BaseStreamer = pytest.importorskip("transformers").generation.BaseStreamer

_GPT = {
    "vocab_size": 23,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_heads": 2,
    "filter_size": 32,
    "max_position_embeddings": 24,
    "initializer_range": 0.5,
    "dropout_rate": 0.5,
}
_T5 = {
    "vocab_size": 23,
    "d_model": 16,
    "d_kv": 4,
    "d_ff": 24,
    "num_heads": 2,
    "encoder_num_hidden_layers": 1,
    "decoder_num_hidden_layers": 2,
    "dropout_rate": 0.5,
}
_SEQ2SEQ = {
    "src_vocab_size": 23,
    "tgt_vocab_size": 23,
    "hidden_size": 16,
    "num_heads": 2,
    "filter_size": 24,
    "encoder_num_hidden_layers": 1,
    "decoder_num_hidden_layers": 2,
    "max_position_embeddings": 24,
}


def _make(kind: str) -> nn.Module:
    torch.manual_seed(3)
    if kind == "t5":
        return T5(_T5).double()
    if kind == "seq2seq":
        return Seq2Seq(_SEQ2SEQ).double()
    params = {**_GPT, "rotary_dim": 4} if kind == "gptj" else _GPT
    if kind == "window":
        params = {**_GPT, "attention_sliding_window_length": 3}
    return Gpt(params).double()


_KINDS = ("gpt2", "gptj", "window", "t5", "seq2seq")
_PROMPTS = [[3, 5, 7, 9], [4], [8, 2, 6]]


def _pad(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    return right_pad(_PROMPTS) if kind in ("t5", "seq2seq") else left_pad(_PROMPTS)


def _greedy_without_cache(network: Any, prompt: list[int], num_new: int) -> list[int]:
    """The plainest statement of greedy decoding: everything is computed anew for every token."""
    ids = torch.tensor([prompt])
    made = [network.decoder_start_token_id] if hasattr(network, "encode") else list(prompt)
    for _ in range(num_new):
        if hasattr(network, "encode"):
            logits = network.decode(torch.tensor([made]), network.encode(ids, torch.ones_like(ids)))
        else:
            logits = network(torch.tensor([made]))
        made.append(int(logits[0, -1].argmax()))
    return made


@pytest.mark.parametrize("kind", _KINDS)
def test_rows_of_a_padded_batch_are_what_each_prompt_gives_alone(kind: str) -> None:
    network = _make(kind).eval()
    ids, mask = _pad(kind)
    options = GenerationOptions(max_new_tokens=9)
    got = generate(network, ids, mask, options)
    for row, prompt in enumerate(_PROMPTS):
        expected = _greedy_without_cache(network, prompt, 9)
        assert got.sequences[row].tolist()[-9:] == expected[-9:]
        assert generate(network, [prompt], None, options).sequences[0].tolist() == expected


@pytest.mark.parametrize("kind", _KINDS)
def test_a_beam_searchs_scores_are_what_the_network_says_of_its_sequences(kind: str) -> None:
    network = _make(kind).eval().requires_grad_(False)
    ids, mask = _pad(kind)
    options = GenerationOptions(max_new_tokens=6, num_beams=4, length_penalty=0.0, num_return_sequences=4)
    beams = generate(network, ids, mask, options)
    scores = beams.scores.view(3, 4)
    assert bool((scores[:, :-1] >= scores[:, 1:]).all())
    for row in range(12):
        source = ids[row // 4][mask[row // 4] == 1][None]
        sequence = beams.sequences[row][None]
        if hasattr(network, "encode"):
            logits = network.decode(sequence, network.encode(source, torch.ones_like(source)))
        else:
            sequence = torch.cat((source, beams.new_tokens[row][None]), dim=1)
            logits = network(sequence)
        logged = logits[:, :-1].log_softmax(-1).gather(2, sequence[:, 1:, None])[0, -6:, 0].sum()
        assert float(beams.scores[row]) == pytest.approx(float(logged), abs=1e-4)


@pytest.mark.parametrize("kind", _KINDS)
def test_no_trace_is_left(kind: str) -> None:
    network = _make(kind).train()
    frozen = next(module for module in network.modules() if isinstance(module, nn.Dropout))
    frozen.eval()
    flags = [module.training for module in network.modules()]
    before = torch.get_rng_state()
    ids, mask = _pad(kind)
    for chosen in ({"do_sample": True, "seed": 1}, {"num_beams": 3}, {}):
        got = generate(network, ids, mask, GenerationOptions(max_new_tokens=4, **chosen))
        assert not got.sequences.is_inference()
        assert not got.scores.is_inference()
    assert torch.equal(before, torch.get_rng_state())
    assert flags == [module.training for module in network.modules()]
    # Nothing that inference mode made is left inside: a training step works.
    if hasattr(network, "encode"):
        network(ids, mask, ids).sum().backward()
    else:
        network(ids, attention_mask=mask).sum().backward()
    with pytest.raises(UserError):
        generate(network, torch.full((1, 2), 99), None, GenerationOptions())
    assert flags == [module.training for module in network.modules()]


def test_samples_are_reproducible_each_on_its_own() -> None:
    network = _make("gpt2")
    ids, mask = _pad("gpt2")
    options = GenerationOptions(
        max_new_tokens=8, do_sample=True, temperature=1.5, seed=7, num_return_sequences=3
    )
    first, again = (generate(network, ids, mask, options) for _ in range(2))
    assert torch.equal(first.sequences, again.sequences)
    assert first.seed == 7
    assert len({tuple(row) for row in first.new_tokens.tolist()}) == 9
    # The first prompt's samples do not change with the other prompts.
    alone = generate(network, [_PROMPTS[0]], None, options)
    assert torch.equal(alone.new_tokens, first.new_tokens[:3])
    unseeded = generate(network, ids, mask, GenerationOptions(max_new_tokens=8, do_sample=True))
    assert unseeded.seed is not None
    told = GenerationOptions(max_new_tokens=8, do_sample=True, seed=unseeded.seed)
    assert torch.equal(generate(network, ids, mask, told).sequences, unseeded.sequences)


def test_scores_of_a_sample_are_sums_of_log_probabilities_up_to_the_end_token() -> None:
    network = _make("gpt2").eval().requires_grad_(False)
    options = GenerationOptions(
        max_new_tokens=8, do_sample=True, seed=3, eos_token_id=list(range(12)), pad_token_id=22
    )
    got = generate(network, [[3, 5]] * 6, None, options)
    for row in range(6):
        new = got.new_tokens[row].tolist()
        end = next((i + 1 for i, token in enumerate(new) if token < 12), len(new))
        assert all(token == 22 for token in new[end:])
        sequence = got.sequences[row, : 2 + end][None]
        logged = network(sequence)[:, :-1].log_softmax(-1).gather(2, sequence[:, 1:, None])[0, 1:, 0].sum()
        assert float(got.scores[row]) == pytest.approx(float(logged), abs=1e-4)


def test_padding_is_found_by_its_token() -> None:
    network = _make("gpt2")
    ids, mask = left_pad(_PROMPTS, 22)
    options = GenerationOptions(max_new_tokens=5, pad_token_id=22)
    assert torch.equal(
        generate(network, ids, None, options).sequences, generate(network, ids, mask, options).sequences
    )
    ends = GenerationOptions(max_new_tokens=5, pad_token_id=22, eos_token_id=22)  # then 22 may be text
    plain = generate(network, ids, torch.ones_like(ids), ends)
    assert torch.equal(generate(network, ids, None, ends).sequences, plain.sequences)


def test_halves_and_bfloat16_generate() -> None:
    network = _make("gpt2").bfloat16()
    got = generate(network, *_pad("gpt2"), GenerationOptions(max_new_tokens=5, num_beams=2))
    assert got.sequences.shape == (3, 9)
    assert got.scores.dtype == torch.float32


def test_all_positions_can_be_used_and_no_more() -> None:
    network = _make("gpt2")
    assert generate(network, [[1] * 20], None, GenerationOptions(max_new_tokens=5)).sequences.shape == (1, 25)
    with pytest.raises(UserError, match="leave after a prompt of 20: 5"):
        generate(network, [[1] * 20], None, GenerationOptions(max_new_tokens=6))
    with pytest.raises(UserError, match="26 tokens, and the network has 24 positions"):
        generate(network, [[1] * 26], None, GenerationOptions(max_new_tokens=1))


def _letters(ids: list[int]) -> str:
    return "".join(chr(ord("a") + number) for number in ids)


@pytest.mark.parametrize("chosen", [{}, {"num_beams": 3}, {"do_sample": True, "seed": 2}])
def test_a_stop_string_ends_a_sequence(chosen: dict[str, Any]) -> None:
    network = _make("gpt2")
    free = generate(network, [[3, 5]], None, GenerationOptions(max_new_tokens=10, **chosen))
    text = _letters(free.new_tokens[0].tolist())
    options = GenerationOptions(max_new_tokens=10, stop_strings=[text[2:4], "never!"], **chosen)
    got = generate(network, [[3, 5]], None, options, decode=_letters)
    made = _letters(got.new_tokens[0].tolist())
    if not chosen.get("num_beams"):  # a search may prefer another sequence then
        assert made == text[: text.index(text[2:4]) + 2]
    assert text[2:4] not in made[:-1]
    with pytest.raises(UserError, match="decode="):
        generate(network, [[3, 5]], None, options)


class _Steps(BaseStreamer):
    """Keeps what each step made; the first thing that a streamer is given is the prompt."""

    def __init__(self) -> None:
        self.given: list[list[int]] = []

    def put(self, value: torch.Tensor) -> None:
        self.given.append(value.tolist())

    def end(self) -> None:
        self.given.append([])


def test_tokens_are_told_step_by_step() -> None:
    network = _make("gpt2")
    ids, mask = _pad("gpt2")
    steps = _Steps()
    got = generate(network, ids, mask, GenerationOptions(max_new_tokens=5), streamer=steps)
    prompt, *told, end = steps.given
    assert prompt == ids.tolist()
    assert torch.tensor(told).T.tolist() == got.new_tokens.tolist()
    assert end == []
    with pytest.raises(UserError, match="num_beams=2"):
        generate(network, [[1]], None, GenerationOptions(num_beams=2), streamer=_Steps())


def test_text_stream_is_told_to_be_gone() -> None:
    with pytest.raises(AttributeError, match="TextStreamer"):
        portwright.generation.TextStream  # noqa: B018


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"max_new_tokens": True}, "max_new_tokens=True"),
        ({"max_new_tokens": 2.0}, "max_new_tokens=2.0"),
        ({"min_new_tokens": 65}, "min_new_tokens=65"),
        ({"do_sample": 1}, "do_sample=1"),
        ({"do_sample": True, "temperature": 0.0}, "temperature=0.0"),
        ({"do_sample": True, "temperature": float("nan")}, "temperature=nan"),
        ({"do_sample": True, "top_p": 0.0}, "top_p=0.0"),
        ({"do_sample": True, "top_p": 1.1}, "top_p=1.1"),
        ({"do_sample": True, "top_k": -1}, "top_k=-1"),
        ({"do_sample": True, "min_p": 2}, "min_p=2"),
        ({"do_sample": True, "seed": -1}, "seed=-1"),
        ({"do_sample": True, "seed": 2**64}, "seed=18446744073709551616"),
        ({"temperature": 0.5}, "without do_sample"),
        ({"do_sample": True, "num_beams": 2}, "num_beams=2"),
        ({"num_beams": 0}, "num_beams=0"),
        ({"num_beams": 2, "num_return_sequences": 3}, "num_return_sequences=3"),
        ({"num_return_sequences": 2}, "num_return_sequences=2"),
        ({"early_stopping": "always"}, "early_stopping='always'"),
        ({"repetition_penalty": 0}, "repetition_penalty=0"),
        ({"length_penalty": float("inf")}, "length_penalty=inf"),
        ({"eos_token_id": -1}, "eos_token_id=-1"),
        ({"eos_token_id": "2"}, "eos_token_id='2'"),
        ({"eos_token_id": [1, 1]}, "once"),
        ({"eos_token_id": [1, "a"]}, "eos_token_id"),
        ({"stop_strings": [""]}, "stop_strings"),
        ({"stop_strings": 3}, "stop_strings=3"),
    ],
)
def test_options_are_checked(chosen: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as caught:
        GenerationOptions(**chosen)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("ids", "mask", "chosen", "says"),
    [
        (torch.zeros(1, 0, dtype=torch.long), None, {}, r"shape \(1, 0\)"),
        (torch.zeros(0, 3, dtype=torch.long), None, {}, r"shape \(0, 3\)"),
        (torch.zeros(3, dtype=torch.long), None, {}, r"shape \(3,\)"),
        (torch.zeros(1, 3), None, {}, "float32"),
        ([[1, 2], [3]], None, {}, "left_pad"),
        ([["a"]], None, {}, "left_pad"),
        (torch.tensor([[1, 23]]), None, {}, "the token 23, and the network knows 23"),
        (torch.tensor([[1, -1]]), None, {}, "the token -1"),
        (torch.tensor([[1, 2]]), torch.ones(1, 3), {}, r"shape \(1, 3\)"),
        (torch.tensor([[1, 2]]), torch.tensor([[1, 0]]), {}, "Pad on the left"),
        (torch.tensor([[1, 2, 3]]), torch.tensor([[1, 0, 1]]), {}, "Pad on the left"),
        (torch.tensor([[1, 2], [3, 4]]), torch.tensor([[1, 1], [0, 0]]), {}, "Prompt 1 is padding"),
        (torch.tensor([[1, 2]]), None, {"eos_token_id": 23}, "eos_token_id=23"),
        (torch.tensor([[1, 2]]), None, {"pad_token_id": 40}, "pad_token_id=40"),
        (
            torch.tensor([[1, 2]]),
            None,
            {"num_beams": 2, "eos_token_id": list(range(23))},
            "nothing to search",
        ),
    ],
)
def test_inputs_are_checked(ids: Any, mask: Any, chosen: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        generate(_make("gpt2"), ids, mask, GenerationOptions(**chosen, max_new_tokens=2))


@pytest.mark.parametrize("chosen", [{}, {"num_beams": 2}, {"do_sample": True}])
def test_weights_that_are_no_numbers_are_told(chosen: dict[str, Any]) -> None:
    network = _make("gpt2")
    with torch.no_grad():
        next(network.parameters()).fill_(float("nan"))
    with pytest.raises(NonFiniteError, match="NaN"):
        generate(network, [[1, 2]], None, GenerationOptions(max_new_tokens=2, **chosen))


def test_draws_from_nothing_are_told() -> None:
    options = GenerationOptions(max_new_tokens=23, do_sample=True, no_repeat_ngram_size=1)
    with pytest.raises(UserError, match="no_repeat_ngram_size=1"):
        generate(_make("gpt2"), [[1, 2]], None, options)


def test_a_network_that_cannot_generate_is_told() -> None:
    with pytest.raises(UserError, match="Linear cannot generate"):
        generate(nn.Linear(2, 2), [[1]], None, GenerationOptions())
    with pytest.raises(UserError, match=r"no nn\.Module"):
        generate("gpt2", [[1]])
    with pytest.raises(UserError, match="GenerationOptions"):
        generate(_make("gpt2"), [[1]], None, {"max_new_tokens": 3})
    with pytest.raises(UserError, match="No prompt"):
        left_pad([])
    with pytest.raises(UserError, match="empty prompt"):
        left_pad([[1], []])
