"""The Transformer of 2017 beside the paper's equations, written out here, and beside torch.nn.Transformer."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from portwright.errors import UserError
from portwright.losses import chunked_cross_entropy
from portwright.networks import Seq2Seq

SMALL = {
    "src_vocab_size": 29,
    "tgt_vocab_size": 29,
    "hidden_size": 18,
    "num_heads": 3,
    "filter_size": 30,
    "encoder_num_hidden_layers": 2,
    "decoder_num_hidden_layers": 3,
    "max_position_embeddings": 15,
    "dropout_rate": 0.0,
}
CASES = {
    "paper": {},
    "two_embeddings": {"share_encoder_decoder_embedding": False, "tgt_vocab_size": 31},
    "own_head": {"share_embedding_weights": False},
    "all_biases": {"use_projection_bias_in_attention": True},
}


def make_net(**options):
    torch.manual_seed(0)
    net = Seq2Seq({**SMALL, **options}).double()
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if name.endswith("bias") or ".norm" in name:
                weight.add_(torch.randn_like(weight) / 3)
    return net


def make_batch(vocab_size=29):
    generator = torch.Generator().manual_seed(1)
    sources = torch.randint(4, 29, (3, 13), generator=generator)
    targets = torch.randint(4, vocab_size, (3, 9), generator=generator)
    mask, target_mask = torch.ones_like(sources), torch.ones_like(targets)
    mask[1, 5:], mask[2, 1:], target_mask[1, 4:] = 0, 0, 0
    return sources, mask, targets, target_mask


class Paper:
    """The equations of arXiv 1706.03762, sections 3.1 to 3.5, one head and one position after the other."""

    def __init__(self, net, options):
        self.weights = dict(net.named_parameters())
        self.heads, self.width = options["num_heads"], options["hidden_size"]

    def position(self, position):
        row = torch.empty(self.width, dtype=torch.float64)
        for i in range(self.width // 2):
            angle = position / 10000 ** (2 * i / self.width)
            row[2 * i], row[2 * i + 1] = math.sin(angle), math.cos(angle)
        return row

    def embed(self, table, ids):
        return torch.stack(
            [table[t] * math.sqrt(self.width) + self.position(p) for p, t in enumerate(ids.tolist())]
        )

    def linear(self, name, x, rows=None):
        weight, bias = self.weights[f"{name}weight"], self.weights.get(f"{name}bias")
        if rows is not None:
            weight, bias = weight[rows], None if bias is None else bias[rows]
        return x @ weight.T + (0 if bias is None else bias)

    def norm(self, name, x):
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
        return (x - mean) / torch.sqrt(variance + 1e-5) * self.weights[f"{name}.weight"] + self.weights[
            f"{name}.bias"
        ]

    def attention(self, name, x, memory, sees):
        d_k = self.width // self.heads
        heads = []
        for head in range(self.heads):
            q, k, v = (
                self.linear(
                    f"{name}.in_proj_",
                    y,
                    slice(part * self.width + head * d_k, part * self.width + (head + 1) * d_k),
                )
                for part, y in enumerate((x, memory, memory))
            )
            scores = (q @ k.T) / math.sqrt(d_k)
            weights = torch.exp(scores) * sees
            heads.append(weights / weights.sum(-1, keepdim=True) @ v)
        return self.linear(f"{name}.out_proj.", torch.cat(heads, -1))

    def feed(self, name, x):
        return self.linear(f"{name}.linear2.", torch.clamp(self.linear(f"{name}.linear1.", x), min=0))

    def logits(self, source, source_length, target):
        source_table = self.weights["encoder_embeddings.word_embeddings.weight"]
        target_table = self.weights.get("decoder_embeddings.word_embeddings.weight", source_table)
        x = self.embed(source_table, source)
        real = (torch.arange(len(source)) < source_length).double()
        for layer in range(2):
            name = f"encoder.layers.{layer}"
            x = self.norm(f"{name}.norm1", x + self.attention(f"{name}.self_attn", x, x, real))
            x = self.norm(f"{name}.norm2", x + self.feed(name, x))
        memory, y = x, self.embed(target_table, target)
        before = torch.ones(len(target), len(target)).tril().double()
        for layer in range(3):
            name = f"decoder.layers.{layer}"
            y = self.norm(f"{name}.norm1", y + self.attention(f"{name}.self_attn", y, y, before))
            y = self.norm(f"{name}.norm2", y + self.attention(f"{name}.multihead_attn", y, memory, real))
            y = self.norm(f"{name}.norm3", y + self.feed(name, y))
        return y @ self.weights.get("head.weight", target_table).T


@pytest.mark.parametrize("case", CASES)
def test_is_the_paper(case):
    options = {**SMALL, **CASES[case]}
    net = make_net(**CASES[case])
    sources, mask, targets, target_mask = make_batch(options["tgt_vocab_size"])
    logits = net(sources, mask, targets)
    paper = Paper(net, options)
    expected = torch.stack(
        [paper.logits(s, int(m.sum()), t) for s, m, t in zip(sources, mask, targets, strict=True)]
    )
    # Our sinusoids are made in float32.
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    masked = net(sources, mask, targets, target_mask)
    torch.testing.assert_close(masked[target_mask == 1], expected[target_mask == 1], rtol=1e-5, atol=1e-5)

    # Section 5.4: the target distribution gives 0.9 to the token and 0.1 to all.
    log_probs = torch.log_softmax(expected, -1)
    labels = (targets + 1) % options["tgt_vocab_size"]
    smooth = F.one_hot(labels, options["tgt_vocab_size"]) * 0.9 + 0.1 / options["tgt_vocab_size"]
    expected_loss = -((smooth * log_probs).sum(-1) * target_mask).sum() / target_mask.sum()
    weight, _ = net.head_weight()
    loss = chunked_cross_entropy(
        net.hidden(sources, mask, targets), weight, labels, weights=target_mask, label_smoothing=0.1
    )
    torch.testing.assert_close(loss, expected_loss, rtol=1e-5, atol=1e-5)
    names = list(dict(net.named_parameters()))
    wanted = torch.autograd.grad(expected_loss, list(net.parameters()))
    given = torch.autograd.grad(loss, list(net.parameters()))
    for name, ours, theirs in zip(names, given, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def test_equals_torch():
    net = make_net(use_projection_bias_in_attention=True)
    encoder_layer = nn.TransformerEncoderLayer(18, 3, 30, 0.0, batch_first=True)
    decoder_layer = nn.TransformerDecoderLayer(18, 3, 30, 0.0, batch_first=True)
    theirs = nn.Transformer(
        d_model=18,
        nhead=3,
        batch_first=True,
        custom_encoder=nn.TransformerEncoder(encoder_layer, 2, enable_nested_tensor=False),
        custom_decoder=nn.TransformerDecoder(decoder_layer, 3),
    ).double()
    theirs.load_state_dict(
        {
            name: weight
            for name, weight in net.state_dict().items()
            if name.startswith(("encoder.", "decoder."))
        }
    )
    sources, mask, targets, target_mask = make_batch()
    output = theirs(
        net.encoder_embeddings(sources),
        net.encoder_embeddings(targets),
        tgt_mask=torch.ones(9, 9, dtype=torch.bool).triu(1),
        src_key_padding_mask=mask == 0,
        tgt_key_padding_mask=target_mask == 0,
        memory_key_padding_mask=mask == 0,
    )
    hidden = net.hidden(sources, mask, targets, target_mask)
    torch.testing.assert_close(hidden, output, rtol=1e-10, atol=1e-10)
    wanted = torch.autograd.grad(output.square().sum(), list(theirs.parameters()))
    own = dict(net.named_parameters())
    given = torch.autograd.grad(hidden.square().sum(), [own[name] for name, _ in theirs.named_parameters()])
    for ours, expected in zip(given, wanted, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("positions", ["fixed", "learned"])
@pytest.mark.parametrize("steps", [(1, 1, 1, 1, 1), (2, 1, 2), (5,)])
def test_cached_steps_equal_the_whole(positions, steps):
    net = make_net(position_embedding_type=positions)
    sources, mask, targets, _ = make_batch()
    with torch.no_grad():
        memory = net.encode(sources, mask)
        whole = net.decode(targets[:, :5], memory, mask)
        cache, start, parts = net.make_cache(), 0, []
        for length in steps:
            parts.append(net.decode(targets[:, start : start + length], memory, mask, past_kv=cache))
            start += length
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-10, atol=1e-10)


def test_padding_changes_nothing():
    net = make_net()
    sources, mask, targets, _ = make_batch()
    padded = net(sources, mask, targets)
    alone = net(sources[1:2, :5], None, targets[1:2])
    torch.testing.assert_close(padded[1:2], alone, rtol=1e-10, atol=1e-10)


def test_embedding_is_one_or_two():
    assert (
        not {"decoder_embeddings.word_embeddings.weight", "head.weight"} & Seq2Seq(SMALL).state_dict().keys()
    )
    with pytest.raises(UserError, match="vocabularies of 29 and 30"):
        Seq2Seq({**SMALL, "tgt_vocab_size": 30})


def test_heads_that_do_not_divide_the_width_are_told():
    with pytest.raises(UserError, match=r"model\.hidden_size is 12 and num_heads 5"):
        Seq2Seq({**SMALL, "hidden_size": 12, "num_heads": 5})


def test_a_sequence_beyond_the_positions_is_refused():
    with pytest.raises(UserError, match="does not fit in 15 positions"):
        Seq2Seq(SMALL).encode(torch.ones(1, 16, dtype=torch.long))
