"""T5 beside HuggingFace's, from the same random weights: logits, loss and every gradient."""

import pytest
import torch
import torch.nn.functional as F
from transformers import T5Config, T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5LayerNorm

from portwright.errors import UserError
from portwright.huggingface.mapping import to_ours, to_theirs
from portwright.huggingface.t5 import FAMILY
from portwright.losses import chunked_cross_entropy
from portwright.networks import T5

SMALL = {
    "vocab_size": 61,
    "d_model": 24,
    "d_kv": 7,  # odd, and heads that do not add up to d_model
    "d_ff": 40,
    "num_layers": 2,
    "num_heads": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
}
CASES = {
    "t5": {},
    "v1_1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "gated_tied": {"feed_forward_proj": "gated-gelu"},
    "silu_deep_decoder": {"feed_forward_proj": "gated-silu", "num_decoder_layers": 3, "num_layers": 1},
    "relu_untied": {"tie_word_embeddings": False, "d_kv": 1, "num_heads": 5},
    "wide_buckets": {"relative_attention_num_buckets": 5, "relative_attention_max_distance": 9},
}


def make_pair(dtype=torch.float32, **options):
    torch.manual_seed(0)
    theirs = T5ForConditionalGeneration(T5Config(**{**SMALL, **options})).to(dtype)
    if options.get("tie_word_embeddings") is False:  # transformers 5 ties all that it makes itself
        theirs.lm_head.weight = torch.nn.Parameter(torch.randn_like(theirs.shared.weight) / 5)
    with torch.no_grad():
        for name, weight in theirs.named_parameters():
            if "layer_norm" in name:
                weight.add_(torch.randn_like(weight) / 4)
    params = {**FAMILY.params_of(theirs.config.to_dict()), "dropout_rate": 0.0}
    ours = T5(params).to(dtype)
    ours.load_state_dict(to_ours(theirs.state_dict(), FAMILY, params))
    return theirs, ours, params


def make_batch(left_padded=False):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(2, 61, (3, 30), generator=generator)
    mask = torch.ones_like(ids)
    targets = torch.randint(2, 61, (3, 11), generator=generator)
    target_mask = torch.ones_like(targets)
    for row, (length, target_length) in enumerate(((30, 11), (17, 4), (1, 1))):
        here = slice(0, 30 - length) if left_padded else slice(length, None)
        mask[row, here] = 0
        target_mask[row, slice(0, 11 - target_length) if left_padded else slice(target_length, None)] = 0
    labels = targets.masked_fill(target_mask == 0, -100)
    starts = torch.cat((torch.zeros(3, 1, dtype=torch.long), targets[:, :-1]), dim=1)
    return {
        "input_ids": ids.masked_fill(mask == 0, 0),
        "attention_mask": mask,
        "decoder_input_ids": starts,
        "decoder_attention_mask": target_mask,
        "labels": labels,
    }


def losses_of(theirs, ours, batch):
    expected = theirs(**batch)
    memory = ours.encode(batch["input_ids"], batch["attention_mask"])
    given = (batch["decoder_input_ids"], memory, batch["attention_mask"], batch["decoder_attention_mask"])
    hidden = ours.decode_hidden(*given)
    weight, bias = ours.head_weight()
    loss = chunked_cross_entropy(hidden, weight, batch["labels"], bias)
    return expected, ours.decode(*given), loss


@pytest.fixture
def double_norm(monkeypatch):
    """Their norm rounds to float32 in every type; in double it is what its comment says."""

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))

    monkeypatch.setattr(T5LayerNorm, "forward", forward)


def compare(case, left_padded, dtype, tolerance):
    theirs, ours, params = make_pair(dtype, **CASES[case])
    batch = make_batch(left_padded)
    expected, logits, loss = losses_of(theirs, ours, batch)
    counts = batch["decoder_attention_mask"] == 1
    torch.testing.assert_close(logits[counts], expected.logits[counts], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(loss, expected.loss, rtol=tolerance, atol=tolerance)
    expected.loss.backward()
    loss.backward()
    gradients = {name: weight.grad for name, weight in theirs.named_parameters(remove_duplicate=False)}
    gradients = {name: grad for name, grad in gradients.items() if "embed_tokens" not in name}
    if params["share_embedding_weights"]:
        gradients.pop("lm_head.weight")
    expected_grads = to_ours(gradients, FAMILY, params)
    for name, weight in ours.named_parameters():
        torch.testing.assert_close(
            weight.grad,
            expected_grads[name],
            rtol=tolerance,
            atol=tolerance,
            msg=lambda m, n=name: f"{n}: {m}",
        )


@pytest.mark.parametrize("left_padded", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_equals_transformers(case, left_padded):
    compare(case, left_padded, torch.float32, 1e-5)


@pytest.mark.parametrize("case", ["t5", "v1_1"])
def test_equals_transformers_in_double(case, double_norm):
    compare(case, False, torch.float64, 1e-10)


@pytest.mark.parametrize("case", CASES)
def test_converts_back_bit_for_bit(case):
    theirs, ours, params = make_pair(**CASES[case])
    state = {name: tensor for name, tensor in theirs.state_dict().items() if "embed_tokens" not in name}
    if params["share_embedding_weights"]:
        del state["lm_head.weight"]
    back = to_theirs(ours.state_dict(), FAMILY, params)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)


@pytest.mark.parametrize("case", ["t5", "v1_1"])
@pytest.mark.parametrize("steps", [(1, 1, 1, 1, 1, 1, 1), (3, 1, 2, 1), (7,)])
def test_cached_steps_equal_the_whole(case, steps):
    _, ours, _ = make_pair(**CASES[case])
    batch = make_batch()
    ids = batch["decoder_input_ids"][:, :7]
    memory = ours.encode(batch["input_ids"], batch["attention_mask"])
    with torch.no_grad():
        whole = ours.decode(ids, memory, batch["attention_mask"])
        cache, start, parts = ours.make_cache(), 0, []
        for length in steps:
            new = ids[:, start : start + length]
            parts.append(ours.decode(new, memory, batch["attention_mask"], past_kv=cache))
            start += length
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("covers_all", [True, False])
def test_cached_steps_keep_to_the_decoder_mask(covers_all):
    _, ours, _ = make_pair()
    batch = make_batch()
    ids, mask = (
        batch["decoder_input_ids"][:, :6],
        torch.tensor([[0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1], [1] * 6]),
    )
    memory = ours.encode(batch["input_ids"], batch["attention_mask"])
    with torch.no_grad():
        whole = ours.decode(ids, memory, batch["attention_mask"], mask)
        if not covers_all:  # what is cached is then attended to
            whole = ours.decode(
                ids, memory, batch["attention_mask"], torch.cat((torch.ones(3, 3), mask[:, 3:]), 1)
            )
        cache = ours.make_cache()
        first = mask[:, :3] if covers_all else None
        parts = [ours.decode(ids[:, :3], memory, batch["attention_mask"], first, past_kv=cache)]
        for at in range(3, 6):
            now = mask[:, : at + 1] if covers_all else mask[:, at : at + 1]
            parts.append(
                ours.decode(ids[:, at : at + 1], memory, batch["attention_mask"], now, past_kv=cache)
            )
    counts = mask.bool()
    torch.testing.assert_close(torch.cat(parts, 1)[counts], whole[counts], rtol=1e-5, atol=1e-5)


def test_a_mask_of_another_length_is_refused():
    _, ours, _ = make_pair()
    batch = make_batch()
    memory = ours.encode(batch["input_ids"])
    with pytest.raises(UserError, match=r"decoder_attention_mask has shape \(3, 2\) for 4 tokens"):
        ours.decode(batch["decoder_input_ids"][:, :4], memory, None, batch["attention_mask"][:, :2])


def test_first_weights_are_published_ones():
    torch.manual_seed(0)
    net = T5(
        {
            "vocab_size": 500,
            "d_model": 64,
            "d_kv": 32,
            "num_heads": 8,
            "d_ff": 512,
            "share_embedding_weights": False,
        }
    )
    layer = net.decoder.layers[1]
    q, k, _ = layer.multihead_attn.in_proj_weight.chunk(3)
    expected = {
        net.embeddings.weight: 1.0,
        q: (64 * 32) ** -0.5,
        k: 64**-0.5,
        layer.multihead_attn.out_proj.weight: 256**-0.5,
        layer.linear1.weight: 64**-0.5,
        layer.linear2.weight: 512**-0.5,
        net.decoder_positions.relative_attention_bias.weight: 64**-0.5,
    }
    for weight, std in expected.items():
        assert weight.std().item() == pytest.approx(std, rel=0.12)
    assert not torch.equal(net.decoder.layers[0].linear1.weight, layer.linear1.weight)
    logits = net(torch.randint(0, 500, (4, 9)), None, torch.randint(0, 500, (4, 9)))
    loss = F.cross_entropy(logits.flatten(0, 1), torch.randint(0, 500, (36,)))
    assert loss.item() < 8  # ln 500 is 6.2
