import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import portwright.layers as layers
from portwright.errors import UserError
from portwright.layers import (
    RotaryPositionEmbeddingHelper,
    Transformer,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)


def quiet(function, *args, **kwargs):
    """torch warns of what it will not nest and of masks of two types."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **kwargs)


def assert_same_state(theirs, ours):
    assert list(theirs.state_dict()) == list(ours.state_dict())
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], tensor), name


SMALL = {"d_model": 8, "nhead": 2, "num_encoder_layers": 2, "num_decoder_layers": 2, "dim_feedforward": 12}


@pytest.mark.parametrize(
    "options", [{}, {"norm_first": True, "bias": False, "batch_first": True, "activation": "gelu"}]
)
def test_the_same_seed_gives_the_same_transformer(options):
    torch.manual_seed(3)
    theirs = quiet(nn.Transformer, **SMALL, **options)
    torch.manual_seed(3)
    ours = Transformer(**SMALL, **options)
    assert_same_state(theirs, ours)
    assert isinstance(ours, nn.Transformer)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_transformer_equals_torchs(data):
    draw = data.draw
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    torch.manual_seed(draw(st.integers(0, 2**20)))
    batch_first, is_batched = draw(st.booleans()), draw(st.booleans())
    options = {**SMALL, "dropout": 0.0, "batch_first": batch_first, "norm_first": draw(st.booleans())}
    theirs = quiet(nn.Transformer, **options)
    ours = Transformer(**options)
    ours.load_state_dict(theirs.state_dict())
    batch, src_length, tgt_length = draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.integers(1, 5))

    def make_input(length):
        shape = (batch, length, 8) if batch_first else (length, batch, 8)
        return torch.randn(shape if is_batched else (length, 8), generator=generator)

    def make_mask(*shape):
        masked = torch.rand(shape, generator=generator) < 0.3
        masked[..., 0] = False
        floats = torch.zeros(shape).masked_fill(masked, float("-inf"))
        return draw(st.sampled_from([None, masked, floats]))

    padding_shape = (lambda length: (batch, length)) if is_batched else (lambda length: (length,))
    kwargs = {
        "src_mask": make_mask(src_length, src_length),
        "tgt_mask": draw(st.sampled_from([None, nn.Transformer.generate_square_subsequent_mask(tgt_length)])),
        "memory_mask": make_mask(tgt_length, src_length),
        "src_key_padding_mask": make_mask(*padding_shape(src_length)),
        "tgt_key_padding_mask": make_mask(*padding_shape(tgt_length)),
        "memory_key_padding_mask": make_mask(*padding_shape(src_length)),
    }
    src, tgt = make_input(src_length), make_input(tgt_length)
    results = []
    for model in (theirs, ours):
        leaves = src.clone().requires_grad_(), tgt.clone().requires_grad_()
        output = quiet(model, *leaves, **kwargs)
        output.square().sum().backward()
        results.append((output, [tensor.grad for tensor in (*leaves, *model.parameters())]))
    torch.testing.assert_close(results[1][0], results[0][0], atol=5e-6, rtol=1e-5)
    for received, expected in zip(results[1][1], results[0][1], strict=True):
        torch.testing.assert_close(received, expected, atol=5e-5, rtol=1e-4)
    theirs.eval()
    ours.eval()
    with torch.no_grad():
        torch.testing.assert_close(
            quiet(ours, src, tgt, **kwargs), quiet(theirs, src, tgt, **kwargs), atol=5e-6, rtol=1e-5
        )


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("as_float", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"norm_first": True}, {"activation": "gelu"}, {"activation": torch.tanh}, {"bias": False}]
)
@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("mode", ["train", "eval", "no_grad", "frozen"])
def test_padded_outputs_equal_torchs_in_every_mode(aligned, as_float, options, nested, mode):
    torch.manual_seed(0)
    norm = nn.LayerNorm(8)
    nn.init.ones_(norm.bias)
    options = {"dropout": 0.0, "batch_first": True, **options}
    theirs = quiet(nn.TransformerEncoder, nn.TransformerEncoderLayer(8, 2, 16, **options), 2, norm, nested)
    ours = TransformerEncoder(TransformerEncoderLayer(8, 2, 16, **options), 2, norm, nested)
    ours.load_state_dict(theirs.state_dict())
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 3:] = True
    padding[2, 1 if aligned else 2 : 5 if aligned else 4] = True
    padding = torch.zeros(3, 5).masked_fill(padding, float("-inf")) if as_float else padding
    x = torch.randn(3, 5, 8)
    for model in (theirs, ours):
        model.train(mode == "train").requires_grad_(mode != "frozen")
    with torch.set_grad_enabled(mode != "no_grad"):
        expected = quiet(theirs, x, src_key_padding_mask=padding)
        received = ours(x, src_key_padding_mask=padding)
    torch.testing.assert_close(received, expected, atol=2e-6, rtol=1e-5)


def test_rows_of_padding_alone_stay_finite():
    ours = TransformerEncoder(TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    padding = torch.tensor([[False, False, True], [True, True, True]])
    x = torch.randn(2, 3, 8)
    ours(x, src_key_padding_mask=padding).sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in ours.parameters())
    ours.eval()
    with torch.no_grad():
        assert torch.isfinite(ours(x, src_key_padding_mask=padding)).all()


def test_masks_are_merged_once_for_all_layers(monkeypatch):
    merges = []
    import portwright.layers.bias as bias

    combine = bias.combine_masks
    monkeypatch.setattr(bias, "combine_masks", lambda *masks: merges.append(1) or combine(*masks))
    x = torch.randn(2, 5, 8)
    padding = torch.zeros(2, 5, dtype=torch.bool)
    encoder = TransformerEncoder(TransformerEncoderLayer(8, 2, 16, batch_first=True), 4)
    decoder = TransformerDecoder(TransformerDecoderLayer(8, 2, 16, batch_first=True), 4)
    for kwargs in ({"mask": torch.ones(5, 5).triu(1).bool()}, {"is_causal": True}):
        merges.clear()
        encoder(x, src_key_padding_mask=padding, **kwargs)
        assert len(merges) == 1
    merges.clear()
    decoder(x, x, tgt_is_causal=True, tgt_key_padding_mask=padding)
    assert len(merges) == 1


@pytest.mark.parametrize("batch_first", [True, False])
def test_causal_flag_with_padding_equals_the_mask(batch_first):
    torch.manual_seed(0)
    encoder = TransformerEncoder(TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=batch_first), 2)
    x = torch.randn(3, 5, 8) if batch_first else torch.randn(5, 3, 8)
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 2:] = True
    mask = Transformer.generate_square_subsequent_mask(5)
    expected = encoder(x, mask=mask, src_key_padding_mask=padding)
    torch.testing.assert_close(encoder(x, src_key_padding_mask=padding, is_causal=True), expected)
    torch.testing.assert_close(encoder(x, mask=mask, is_causal=True), encoder(x, mask=mask))
    torch.testing.assert_close(encoder(x, is_causal=True), encoder(x, mask=mask.clone()))


class CustomLayer(nn.Module):
    """A layer written against torch.nn.TransformerEncoder, which gives float masks."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.self_attn = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, src, src_mask=None, src_key_padding_mask=None, is_causal=False):
        assert src_mask is None or src_mask.is_floating_point()
        assert src_key_padding_mask is None or src_key_padding_mask.is_floating_point()
        shift = 0.0 if src_key_padding_mask is None else src_key_padding_mask.clamp(min=-1)[..., None]
        return self.linear(src) + shift


def test_layers_of_ones_own_are_called_as_torch_calls_them():
    torch.manual_seed(0)
    theirs = quiet(nn.TransformerEncoder, CustomLayer(), 2)
    ours = TransformerEncoder(CustomLayer(), 2)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 8)
    padding = torch.tensor([[False, False, True], [False, False, False]])
    mask = torch.zeros(3, 3, dtype=torch.bool)
    torch.testing.assert_close(ours(x, mask, padding), quiet(theirs, x, mask, padding))


class PlainEncoder(nn.Module):
    """Takes no is_causal, unlike torch's."""

    def forward(self, src, mask=None, src_key_padding_mask=None):
        return src * 2


class PlainDecoder(nn.Module):
    def forward(
        self,
        tgt,
        memory,
        tgt_mask=None,
        memory_mask=None,
        tgt_key_padding_mask=None,
        memory_key_padding_mask=None,
    ):
        return tgt + memory


def test_custom_encoder_and_decoder():
    src, tgt = torch.randn(3, 2, 8), torch.randn(3, 2, 8)
    both = Transformer(8, 2, custom_encoder=PlainEncoder(), custom_decoder=PlainDecoder())
    torch.testing.assert_close(both(src, tgt), tgt + 2 * src)
    encoder_layer = nn.TransformerEncoderLayer(8, 2, 16)
    one = Transformer(8, 2, 1, 1, 16, custom_encoder=quiet(nn.TransformerEncoder, encoder_layer, 2))
    assert one(src, tgt).shape == tgt.shape
    assert isinstance(one.decoder, TransformerDecoder)


def test_initializers_survive_the_transformer_and_differ_from_layer_to_layer():
    model = Transformer(
        **SMALL,
        attention_initializer={"name": "normal", "std": 5.0},
        ffn_initializer={"name": "constant", "val": 2.0},
    )
    first, second = model.encoder.layers
    assert first.self_attn.in_proj_weight.std() > 2
    assert not torch.equal(first.self_attn.in_proj_weight, second.self_attn.in_proj_weight)
    assert (model.decoder.layers[1].linear1.weight == 2).all()
    same = TransformerEncoder(
        TransformerEncoderLayer(8, 2, 16), 2
    )  # torch's clones are equal, and so are ours
    assert_same_state(same.layers[0], same.layers[1])


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda model: model(torch.randn(3, 2, 8), torch.randn(3, 2, 7)), "widths 8 and 7"),
        (lambda model: model(torch.randn(3, 2, 8), torch.randn(3, 4, 8)), "batches of 2 and 4"),
        (lambda model: Transformer(**SMALL, use_ffn_biases=True), "Did you mean 'use_ffn_bias'"),
        (
            lambda model: model.decoder(torch.randn(3, 2, 8), torch.randn(3, 2, 8), past_kv=[]),
            "0 entries for 2 layers",
        ),
    ],
)
def test_bad_input_is_refused_in_words(call, match):
    with pytest.raises(UserError, match=match):
        call(Transformer(**SMALL))


@pytest.mark.parametrize("kind", ["pairs", "cache"])
@pytest.mark.parametrize("cross", [True, False])
@pytest.mark.parametrize("groups", [1, 2])
def test_generation_with_caches_equals_recomputation(kind, cross, groups):
    torch.manual_seed(0)
    layer = TransformerDecoderLayer(
        8,
        2,
        16,
        batch_first=True,
        norm_first=True,
        add_cross_attention=cross,
        attention_module="multiquery_attention",
        extra_attention_params={"num_kv_groups": groups},
    )
    decoder = TransformerDecoder(layer, 3, nn.LayerNorm(8)).eval()
    for parameter in decoder.parameters():
        nn.init.normal_(parameter, std=0.4)
    embedding, head = torch.randn(11, 8), torch.randn(8, 11)
    memory = torch.randn(2, 4, 8) if cross else None
    rotary = RotaryPositionEmbeddingHelper(16, 4)
    kwargs = {"tgt_is_causal": True, "rotary_position_embedding_helper": rotary}
    with torch.no_grad():
        tokens = torch.tensor([[1, 2], [3, 4]])
        full = tokens
        for _ in range(6):
            logits = decoder(embedding[full], memory, **kwargs)[:, -1] @ head
            full = torch.cat((full, logits.argmax(-1, keepdim=True)), dim=1)
        past = decoder.make_cache() if kind == "cache" else None
        generated, new = tokens, tokens
        for _ in range(6):
            output, past = decoder(embedding[new], memory, past_kv=past, cache_present_kv=True, **kwargs)
            new = (output[:, -1] @ head).argmax(-1, keepdim=True)
            generated = torch.cat((generated, new), dim=1)
    assert torch.equal(generated, full)
    assert len(past) == 3


def test_layers_may_be_none_at_all():
    x = torch.randn(2, 3, 8)
    padding = torch.zeros(2, 3, dtype=torch.bool)
    assert torch.equal(
        TransformerEncoder(TransformerEncoderLayer(8, 2), 0)(x, src_key_padding_mask=padding), x
    )
    assert torch.equal(TransformerDecoder(TransformerDecoderLayer(8, 2), 0)(x, x), x)


def test_hooks_and_overridden_blocks_are_run():
    class Quiet(TransformerEncoderLayer):
        def _sa_block(self, x, attn_mask, key_padding_mask, is_causal=False, **extras):
            return torch.zeros_like(x)

    layer = Quiet(8, 2, 16, dropout=0.0, norm_first=True)
    x = torch.randn(3, 2, 8)
    torch.testing.assert_close(layer(x), x + layer._ff_block(layer.norm2(x)))
    encoder = TransformerEncoder(TransformerEncoderLayer(8, 2, 16), 2).eval()
    seen = []
    encoder.layers[1].self_attn.out_proj.register_forward_hook(lambda *_: seen.append(1))
    with torch.no_grad():
        encoder(x)
    assert seen == [1]


def test_public_names_are_importable_as_torchs_are():
    for name in ("Transformer", "TransformerEncoder", "TransformerEncoderLayer", "MultiheadAttention"):
        assert issubclass(getattr(layers, name), getattr(nn, name))
    assert F.relu is TransformerEncoderLayer(8, 2).activation
