"""Every layer compiles into one graph and exports, in training and in evaluation, with every kind of mask."""

import shutil

import pytest
import torch
from torch import nn

from portwright.layers import (
    FeedForwardNetwork,
    GPTJDecoderLayer,
    LinformerAttention,
    MultiheadAttention,
    MultiQueryAttention,
    RotaryPositionEmbeddingHelper,
    Transformer,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
    create_autoregressive_mask,
    generate_square_subsequent_mask,
)


class Attend(nn.Module):
    """Attention of a tensor to itself, which is one argument to a compiler."""

    def __init__(self, attention, **kwargs):
        super().__init__()
        self.attention = attention
        self.kwargs = kwargs

    def forward(self, x, **masks):
        return self.attention(x, x, x, **self.kwargs, **masks)[0]


class Cross(nn.Module):
    """Attention of one tensor to another."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, x, memory, **masks):
        return self.attention(x, memory, memory, need_weights=False, **masks)[0]


class WithOwnMask(nn.Module):
    """Makes its mask in the graph."""

    def __init__(self):
        super().__init__()
        self.encoder = TransformerEncoder(TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2)

    def forward(self, x):
        mask = generate_square_subsequent_mask(x.shape[1], device=x.device)
        hidden = create_autoregressive_mask(x.shape[1], dtype=torch.bool, device=x.device)
        return self.encoder(x, mask=mask) + self.encoder(x, mask=hidden)


class Generate(nn.Module):
    """Two steps of a generation."""

    def __init__(self, pairs):
        super().__init__()
        layer = TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.decoder = TransformerDecoder(layer, 2)
        self.pairs = pairs

    def forward(self, x):
        past = None if self.pairs else self.decoder.make_cache()
        outputs = []
        for piece in (x[:, :3], x[:, 3:]):
            output, past = self.decoder(piece, x, tgt_is_causal=True, past_kv=past, cache_present_kv=True)
            outputs.append(output)
        return torch.cat(outputs, dim=1)


def bool_mask():
    return torch.ones(5, 5).triu(1).bool()


def padding():
    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[1, 3:] = True
    return mask


X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
SMALL = {"dim_feedforward": 16, "dropout": 0.0, "batch_first": True}
ROTARY = RotaryPositionEmbeddingHelper(16, 4)
ENCODER = TransformerEncoder(TransformerEncoderLayer(8, 2, **SMALL), 2, nn.LayerNorm(8))
DECODER = TransformerDecoder(TransformerDecoderLayer(8, 2, **SMALL), 2, nn.LayerNorm(8))

CASES = {
    "attention": (Attend(MultiheadAttention(8, 2, batch_first=True)), (X,), {}),
    "attention, no weights": (
        Attend(MultiheadAttention(8, 2, batch_first=True), need_weights=False),
        (X,),
        {},
    ),
    "attention, seq first": (Attend(MultiheadAttention(8, 2), need_weights=False), (X,), {}),
    "attention, causal": (
        Attend(MultiheadAttention(8, 2, batch_first=True), need_weights=False, is_causal=True),
        (X,),
        {"key_padding_mask": padding()},
    ),
    "attention, cross": (
        Cross(MultiheadAttention(8, 2, batch_first=True)),
        (X, X + 1),
        {"attn_mask": bool_mask()},
    ),
    "attention, extra keys": (
        Attend(
            MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True, add_zero_attn=True),
            need_weights=False,
        ),
        (X,),
        {"attn_mask": bool_mask()},
    ),
    "attention, unbatched": (
        Attend(MultiheadAttention(8, 2), need_weights=False, is_causal=True),
        (X[0],),
        {},
    ),
    "attention, cosine": (
        Attend(MultiheadAttention(8, 2, attention_type="scaled_cosine"), need_weights=False),
        (X,),
        {},
    ),
    "attention, rotary": (
        Attend(MultiheadAttention(8, 2, batch_first=True), rotary_position_embedding_helper=ROTARY),
        (X,),
        {},
    ),
    "multi-query": (Attend(MultiQueryAttention(8, 4, batch_first=True), need_weights=False), (X,), {}),
    "grouped": (
        Attend(
            MultiQueryAttention(8, 4, num_kv_groups=2, batch_first=True), need_weights=False, is_causal=True
        ),
        (X,),
        {},
    ),
    "linformer": (
        Attend(LinformerAttention(8, 2, kv_len=6, reduced_kv_len_dim=3, batch_first=True)),
        (X,),
        {"key_padding_mask": padding()},
    ),
    "feed forward": (FeedForwardNetwork(8, [16, 8], ["swiglu", None]), (X,), {}),
    "encoder layer": (TransformerEncoderLayer(8, 2, **SMALL), (X,), {}),
    "encoder layer, bool masks": (
        TransformerEncoderLayer(8, 2, **SMALL),
        (X,),
        {"src_mask": bool_mask(), "src_key_padding_mask": padding()},
    ),
    "encoder layer, float mask": (
        TransformerEncoderLayer(8, 2, **SMALL),
        (X,),
        {"src_mask": generate_square_subsequent_mask(5)},
    ),
    "encoder layer, gated, norm first": (
        TransformerEncoderLayer(8, 2, norm_first=True, activation="swiglu", norm_layer="rmsnorm", **SMALL),
        (X,),
        {"src_key_padding_mask": padding()},
    ),
    "decoder layer": (TransformerDecoderLayer(8, 2, **SMALL), (X, X + 1), {"tgt_mask": bool_mask()}),
    "decoder layer, alone": (TransformerDecoderLayer(8, 2, add_cross_attention=False, **SMALL), (X,), {}),
    "gptj": (GPTJDecoderLayer(8, 2, **SMALL), (X,), {"tgt_mask": bool_mask()}),
    "encoder": (ENCODER, (X,), {"mask": bool_mask(), "src_key_padding_mask": padding()}),
    "encoder, padding": (ENCODER, (X,), {"src_key_padding_mask": padding()}),
    "decoder": (DECODER, (X, X + 1), {"tgt_mask": bool_mask(), "memory_key_padding_mask": padding()}),
    "transformer": (Transformer(8, 2, 1, 1, **SMALL), (X, X + 1), {"tgt_mask": bool_mask()}),
    "own mask": (WithOwnMask(), (X,), {}),
    "generation": (Generate(pairs=True), (X,), {}),
    "generation with caches": (Generate(pairs=False), (X,), {}),
}


pytestmark = pytest.mark.filterwarnings(  # of torch's own compilers
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()


@pytest.mark.parametrize("name", CASES)
def test_compiles_into_one_graph_for_training(name):
    module, args, kwargs = CASES[name]
    module.train()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    leaf = args[0].clone().requires_grad_()
    results = []
    for function in (module, compiled):
        output = function(leaf, *args[1:], **kwargs)
        gradients = torch.autograd.grad(
            output.square().sum(), [leaf, *module.parameters()], allow_unused=True
        )
        results.append((output, gradients))
    torch.testing.assert_close(results[1][0], results[0][0], atol=1e-5, rtol=1e-4)
    for received, expected in zip(results[1][1], results[0][1], strict=True):
        assert (received is None) == (expected is None)
        if expected is not None:
            torch.testing.assert_close(received, expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", ["encoder, padding", "grouped", "generation with caches"])
def test_compiles_into_one_graph_for_evaluation(name):
    module, args, kwargs = CASES[name]
    module.eval()
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(*args, **kwargs), without_zeroed_padding(module, args, kwargs))


def without_zeroed_padding(module, args, kwargs):
    """torch's encoder zeroes padding in eager evaluation only, and ours with it."""
    with torch.enable_grad():
        return module(*args, **kwargs).detach()


@pytest.mark.parametrize("name", [name for name in CASES if name != "generation with caches"])
def test_exports(name):
    module, args, kwargs = CASES[name]
    module.eval()
    program = torch.export.export(module, args, kwargs)
    expected = without_zeroed_padding(module, args, kwargs)
    torch.testing.assert_close(program.module()(*args, **kwargs), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["encoder, padding", "decoder layer, alone"])
def test_exports_with_batch_and_length_left_open(name):
    module, args, kwargs = CASES[name]
    module.eval()
    dims = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("length", min=2, max=64)}
    shapes = {"src" if kwargs else "tgt": dims, **dict.fromkeys(kwargs, dims)}
    program = torch.export.export(module, args, kwargs, dynamic_shapes=shapes)
    other = torch.randn(7, 11, 8)
    kwargs = {key: torch.arange(11).expand(7, 11) > 8 for key in kwargs}
    expected = without_zeroed_padding(module, (other,), kwargs)
    torch.testing.assert_close(program.module()(other, **kwargs), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")),
    reason="inductor needs a C++ compiler, and none is here",
)
def test_inductor_gives_the_same_training_step():
    torch.manual_seed(0)
    layer = TransformerEncoderLayer(8, 2, **SMALL)
    compiled = torch.compile(layer, fullgraph=True)
    wholly = padding()
    wholly[0] = True
    for kwargs in ({"is_causal": True}, {"src_key_padding_mask": wholly}):
        expected = torch.autograd.grad(layer(X, **kwargs).square().sum(), list(layer.parameters()))
        received = torch.autograd.grad(compiled(X, **kwargs).square().sum(), list(layer.parameters()))
        for one, other in zip(received, expected, strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)
