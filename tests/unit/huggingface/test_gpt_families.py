"""GPT-2 and GPT-J against transformers itself: logits, loss and every gradient, and weights that come back bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers.models.gptj import modeling_gptj

from portwright.errors import UserError
from portwright.huggingface import gpt
from portwright.huggingface.mapping import Family, same_bits, to_ours, to_theirs
from portwright.networks import Gpt

TOKENS = {"bos_token_id": 1, "eos_token_id": 2}
GPT2 = {"vocab_size": 61, "n_positions": 24, "n_embd": 24, "n_layer": 2, "n_head": 4, **TOKENS}
GPTJ = {**GPT2, "rotary_dim": 4}
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": GPT2,
    "gpt2_untied": {**GPT2, "tie_word_embeddings": False},
    "gpt2_odd": {**GPT2, "vocab_size": 37, "n_embd": 15, "n_head": 3, "n_layer": 3, "n_inner": 17},
    "gpt2_unscaled": {**GPT2, "scale_attn_weights": False, "activation_function": "relu"},
    "gpt2_one": {**GPT2, "n_layer": 1, "n_head": 1, "layer_norm_epsilon": 1e-3},
    "gptj": GPTJ,
    "gptj_tied": {**GPTJ, "tie_word_embeddings": True},
    "gptj_odd": {**GPTJ, "vocab_size": 53, "n_embd": 35, "n_head": 5, "n_inner": 11, "rotary_dim": 6},
    "gptj_whole": {**GPTJ, "rotary_dim": 6, "n_layer": 1, "activation_function": "gelu"},
}


def make_pair(name: str, dtype: torch.dtype) -> tuple[Family, dict[str, Any], Any, Gpt]:
    """Theirs with random weights, biases and norms included, and ours with the same."""
    torch.manual_seed(0)
    theirs: Any
    if name.startswith("gpt2"):
        family, theirs = gpt.GPT2, transformers.GPT2LMHeadModel(transformers.GPT2Config(**CONFIGS[name]))
    else:
        family, theirs = gpt.GPTJ, transformers.GPTJForCausalLM(transformers.GPTJConfig(**CONFIGS[name]))
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.2)
    theirs = theirs.to(dtype).eval()
    params = family.params_of(theirs.config.to_dict())
    ours = Gpt(params).to(dtype).eval()
    ours.load_state_dict(to_ours(state_of(theirs), family, params))
    return family, params, theirs, ours


def state_of(theirs: Any) -> dict[str, Tensor]:
    """Their state as `save_pretrained` writes it: a tied weight once."""
    state = dict(theirs.state_dict())
    if theirs.config.tie_word_embeddings:
        del state["lm_head.weight"]
    return state


def make_ids(name: str, length: int = 11) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, CONFIGS[name]["vocab_size"], (3, length), generator=generator)


def gradients_by_our_names(theirs: Any, family: Family, params: dict[str, Any]) -> dict[str, Tensor]:
    state = state_of(theirs)
    grads = {name: p.grad for name, p in theirs.named_parameters() if name in state}
    return to_ours(grads, family, params)


@pytest.fixture
def _double_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' GPT-J takes scores in float32 whatever the type of the model; here they stay float64."""

    def attend(self: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor) -> Any:
        scores = query @ key.transpose(-1, -2) / self.scale_attn + attention_mask
        return scores.softmax(-1) @ value, None

    monkeypatch.setattr(modeling_gptj.GPTJAttention, "_attn", attend)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_loss_and_gradients_equal_in_float32(name: str) -> None:
    family, params, theirs, ours = make_pair(name, torch.float32)
    ids = make_ids(name)
    labels = F.pad(ids[:, 1:], (0, 1), value=-100)
    output = theirs(ids, labels=ids)
    output.loss.backward()
    torch.testing.assert_close(ours(ids), output.logits, rtol=1e-5, atol=1e-5)
    loss = ours(ids, labels=labels)
    torch.testing.assert_close(loss, output.loss, rtol=1e-5, atol=1e-6)
    loss.backward()
    for key, grad in gradients_by_our_names(theirs, family, params).items():
        torch.testing.assert_close(
            ours.get_parameter(key).grad, grad, rtol=1e-5, atol=1e-5, msg=lambda m, key=key: f"{key}: {m}"
        )


@pytest.mark.usefixtures("_double_scores")
@pytest.mark.parametrize("name", ["gpt2", "gpt2_odd", "gpt2_untied", "gptj", "gptj_odd", "gptj_tied"])
def test_float64_equal_to_ten_digits(name: str) -> None:
    family, params, theirs, ours = make_pair(name, torch.float64)
    ids = make_ids(name)
    labels = F.pad(ids[:, 1:], (0, 1), value=-100)
    logits = theirs(ids).logits
    # Theirs would round to float32 in its loss.
    expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    expected.backward()
    torch.testing.assert_close(ours(ids), logits, rtol=1e-10, atol=1e-10)
    loss = ours(ids, labels=labels)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
    loss.backward()
    expected_grads = gradients_by_our_names(theirs, family, params)
    assert expected_grads.keys() == dict(ours.named_parameters()).keys()
    for key, grad in expected_grads.items():
        torch.testing.assert_close(ours.get_parameter(key).grad, grad, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["gpt2", "gptj"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_equals_theirs_where_tokens_are(name: str, side: str) -> None:
    _, _, theirs, ours = make_pair(name, torch.float32)
    ids = make_ids(name)
    mask = torch.ones_like(ids)
    for row, padding in enumerate((4, 0, 7)):
        columns = slice(0, padding) if side == "left" else slice(ids.shape[1] - padding, None)
        mask[row, columns] = 0
    for positions in (None, (mask.cumsum(1) - 1).clamp(min=0)):
        expected = theirs(ids, attention_mask=mask, position_ids=positions).logits
        got = ours(ids, attention_mask=mask, position_ids=positions)
        torch.testing.assert_close(got[mask == 1], expected[mask == 1], rtol=1e-5, atol=1e-5)
        assert got.isfinite().all()


@pytest.mark.parametrize("name", CONFIGS)
def test_weights_come_back_bit_for_bit(name: str) -> None:
    family, params, theirs, ours = make_pair(name, torch.float32)
    back = to_theirs(ours.state_dict(), family, params)
    state = state_of(theirs)
    assert back.keys() == state.keys()
    assert all(same_bits(back[key], state[key]) for key in state)


@pytest.mark.parametrize("name", CONFIGS)
def test_config_goes_there_and_back(name: str) -> None:
    family = gpt.GPT2 if name.startswith("gpt2") else gpt.GPTJ
    kind = transformers.GPT2Config if family is gpt.GPT2 else transformers.GPTJConfig
    config = kind(**CONFIGS[name]).to_dict()
    back = family.config_of(family.params_of(config))
    assert {key: config[key] for key in back} == back
    unsaid = kind().to_dict().keys() - back.keys()
    assert not {
        key for key in unsaid if key.startswith(("n_", "attn", "rotary", "layer_norm", "scale_attn_w"))
    }
    assert family.params_of(back) == family.params_of(config)


@pytest.mark.parametrize("kind", [transformers.GPT2Config, transformers.GPTJConfig])
def test_what_an_old_config_leaves_out_is_the_class_default(kind: Any) -> None:
    family = gpt.GPT2 if kind is transformers.GPT2Config else gpt.GPTJ
    assert family.params_of({}) == family.params_of(kind().to_dict())


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ({"reorder_and_upcast_attn": True}, "reorder_and_upcast_attn"),
        ({"activation_function": "gelu_neu"}, "gelu_new"),
    ],
)
def test_config_that_is_not_modelled_is_refused(config: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        gpt.GPT2.params_of({**GPT2, **config})


def test_rotary_over_the_whole_model_is_refused() -> None:
    with pytest.raises(UserError, match="rotary_dim"):
        gpt.GPTJ.params_of({**GPTJ, "rotary_dim": None})


@pytest.mark.parametrize(
    ("family", "params", "named"),
    [
        (gpt.GPT2, {"rotary_dim": 4}, "rotary_dim"),
        (gpt.GPT2, {"attention_sliding_window_length": 8}, "attention_sliding_window_length"),
        (gpt.GPT2, {"use_bias_in_output": True}, "use_bias_in_output"),
        (gpt.GPT2, {"use_ffn_bias_in_attention": False}, "use_ffn_bias_in_attention"),
        (gpt.GPT2, {"nonlinearity": "swiglu"}, "swiglu"),
        (gpt.GPTJ, {}, "rotary_dim"),
        (gpt.GPTJ, {"rotary_dim": 4}, "use_bias_in_output"),
        (
            gpt.GPTJ,
            {"rotary_dim": 4, "use_bias_in_output": True, "use_projection_bias_in_attention": True},
            "use_projection_bias_in_attention",
        ),
    ],
)
def test_model_that_transformers_has_not_is_refused(
    family: Family, params: dict[str, Any], named: str
) -> None:
    with pytest.raises(UserError, match=named):
        family.config_of(params)


def test_files_of_the_hub_are_read() -> None:
    """OpenAI's own files have no prefix and carry the causal mask; others have the tied head a second time."""
    family, params, theirs, ours = make_pair("gpt2", torch.float32)
    bare = {name.removeprefix("transformer."): tensor for name, tensor in state_of(theirs).items()}
    bare["h.0.attn.bias"] = torch.ones(1, 1, 24, 24)
    twice = {**state_of(theirs), "lm_head.weight": theirs.lm_head.weight.detach().clone()}
    for state in (bare, twice):
        read = to_ours(state, family, params)
        assert all(same_bits(read[key], tensor) for key, tensor in ours.state_dict().items())
    twice["lm_head.weight"][0, 0] += 1
    with pytest.raises(UserError, match="differ"):
        to_ours(twice, family, params)


@pytest.mark.parametrize("name", ["gpt2", "gptj"])
def test_bfloat16_is_close(name: str) -> None:
    _, _, theirs, ours = make_pair(name, torch.bfloat16)
    ids = make_ids(name)
    with torch.no_grad():
        got, expected = ours(ids).float(), theirs(ids).logits.float()
    assert F.cosine_similarity(got.flatten(), expected.flatten(), dim=0) > 0.999
    assert (got - expected).abs().mean() < 0.02 * expected.abs().mean()


@pytest.fixture(autouse=True)
def _no_transformers_noise() -> Iterator[None]:
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)
