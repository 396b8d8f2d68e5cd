import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from portwright.errors import UserError
from portwright.layers import (
    GPTJDecoderLayer,
    MultiheadAttention,
    MultiQueryAttention,
    Transformer,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
    from_torch,
    to_torch,
)


def quiet(function, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **kwargs)


class Model(nn.Module):
    """A user's model with torch's modules in it, the way tutorials nest them."""

    def __init__(self, batch_first=True):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=batch_first, activation="gelu")
        self.encoder = quiet(nn.TransformerEncoder, layer, 2, norm=nn.LayerNorm(8))
        self.blocks = nn.ModuleDict({"extra": nn.Sequential(nn.Linear(8, 8), nn.ReLU())})
        self.pool = nn.MultiheadAttention(8, 4, batch_first=batch_first)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, tokens, padding=None):
        x = self.encoder(self.embedding(tokens) * self.scale, src_key_padding_mask=padding)
        x = self.blocks["extra"](x)
        return self.head(x + self.pool(x, x, x, key_padding_mask=padding)[0])


TOKENS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 0]])
PADDING = TOKENS == 0


@pytest.mark.parametrize("padding", [None, PADDING])
@pytest.mark.parametrize("training", [True, False])
def test_a_model_gives_the_same_numbers_and_shares_its_parameters(padding, training):
    torch.manual_seed(0)
    model = Model().train(training)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    for layer in model.encoder.layers:
        layer.self_attn.dropout = 0.0
    result = from_torch(model)
    ours = result.module
    assert result.unconverted == ()
    assert set(result.converted) == {
        "encoder",
        "encoder.layers.0",
        "encoder.layers.1",
        "encoder.layers.0.self_attn",
        "encoder.layers.1.self_attn",
        "pool",
    }
    assert type(ours.encoder) is TransformerEncoder
    assert type(ours.pool) is MultiheadAttention
    assert type(model.encoder) is nn.TransformerEncoder  # the original is as it was
    assert type(model.encoder.layers[0].self_attn) is nn.MultiheadAttention
    assert all(a is b for a, b in zip(model.parameters(), ours.parameters(), strict=True))
    assert ours.head.weight is ours.embedding.weight
    assert list(model.state_dict()) == list(ours.state_dict())
    assert ours.training == training
    torch.testing.assert_close(ours(TOKENS, padding), model(TOKENS, padding), atol=2e-5, rtol=1e-5)
    back = to_torch(ours)
    assert back.unconverted == ()
    assert set(back.converted) == set(result.converted)
    for (name, module), (_, original) in zip(back.module.named_modules(), model.named_modules(), strict=True):
        assert type(module) is type(original), name
        assert module.training == original.training
    with torch.no_grad():
        expected = quiet(model, TOKENS, padding)
        torch.testing.assert_close(quiet(back.module, TOKENS, padding), expected, atol=2e-5, rtol=1e-5)


def test_converted_models_go_their_own_ways():
    model = Model().eval()
    ours = from_torch(model).module
    ours.train()
    assert not model.encoder.layers[0].dropout.training
    ours.head = nn.Linear(8, 3)
    assert model.head.out_features == 11
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = ours.pool.in_proj_weight.clone()
    ours.eval()
    ours.head = copy.deepcopy(model.head)
    ours(TOKENS).square().sum().backward()
    optimizer.step()  # made before the conversion, it still trains the converted model
    assert not torch.equal(before, ours.pool.in_proj_weight)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtype_device_and_frozen_parameters_are_kept(dtype):
    model = nn.MultiheadAttention(8, 2, kdim=4, vdim=6, add_bias_kv=True, dtype=dtype, device="meta")
    model.q_proj_weight.requires_grad_(False)
    ours = from_torch(model).module
    assert all(parameter.dtype == dtype and parameter.is_meta for parameter in ours.parameters())
    assert not ours.q_proj_weight.requires_grad


@pytest.mark.parametrize("options", [{}, {"norm_first": True, "bias": False}, {"activation": nn.ReLU()}])
def test_whole_transformers_go_there_and_back(options):
    torch.manual_seed(0)
    theirs = quiet(nn.Transformer, 8, 2, 2, 2, 16, batch_first=True, **options).eval()
    src, tgt = torch.randn(2, 4, 8), torch.randn(2, 3, 8)
    result = from_torch(theirs)
    assert type(result.module) is Transformer
    assert len(result.converted) == 3 + 4 + 6
    with torch.no_grad():
        torch.testing.assert_close(result.module(src, tgt), theirs(src, tgt), atol=5e-6, rtol=1e-5)
    back = to_torch(result.module).module
    assert [type(module) for module in back.modules()] == [type(module) for module in theirs.modules()]
    layer, original = back.encoder.layers[0], theirs.encoder.layers[0]
    assert layer.activation_relu_or_gelu == original.activation_relu_or_gelu
    assert back.encoder.use_nested_tensor == theirs.encoder.use_nested_tensor


def test_ours_built_directly_becomes_torchs():
    torch.manual_seed(0)
    ours = Transformer(8, 2, 1, 1, 16, batch_first=True).eval()
    result = to_torch(ours)
    assert type(result.module) is nn.Transformer
    assert not result.unconverted
    src, tgt = torch.randn(2, 4, 8), torch.randn(2, 3, 8)
    padding = torch.tensor([[False, False, True, True], [False] * 4])
    with torch.no_grad():
        torch.testing.assert_close(
            quiet(result.module, src, tgt, src_key_padding_mask=padding),
            ours(src, tgt, src_key_padding_mask=padding),
            atol=5e-6,
            rtol=1e-5,
        )


class Louder(nn.TransformerEncoderLayer):
    def forward(self, src, *args, **kwargs):
        return 2 * super().forward(src, *args, **kwargs)


def test_subclasses_stay_and_are_reported_and_their_parts_are_converted():
    torch.manual_seed(0)
    model = quiet(nn.TransformerEncoder, Louder(8, 2, 16, dropout=0.0), 1)
    result = from_torch(model)
    assert set(result.converted) == {"", "layers.0.self_attn"}
    (left,) = result.unconverted
    assert (left.name, left.type_name) == ("layers.0", "Louder")
    assert "subclass of torch.nn.TransformerEncoderLayer" in left.reason
    assert "layers.0 (Louder)" in str(result)
    x = torch.randn(3, 2, 8)
    torch.testing.assert_close(result.module(x), model(x), atol=1e-6, rtol=1e-5)


def test_modules_that_were_reached_into_stay_and_are_reported():
    replaced = nn.MultiheadAttention(8, 2)
    replaced.forward = lambda query, key, value: (query, None)
    pruned = nn.MultiheadAttention(8, 2)
    prune.random_unstructured(pruned, "in_proj_weight", amount=0.5)
    parametrized = nn.TransformerEncoderLayer(8, 2)
    nn.utils.parametrize.register_parametrization(parametrized.linear1, "weight", nn.Identity())
    model = nn.ModuleDict({"replaced": replaced, "pruned": pruned, "parametrized": parametrized})
    result = from_torch(model)
    reasons = {left.name: left.reason for left in result.unconverted}
    assert "replaced on the instance" in reasons["replaced"]
    assert "in_proj_weight is not a plain parameter" in reasons["pruned"]
    assert set(result.converted) == {"parametrized", "parametrized.self_attn"}
    x = torch.randn(3, 2, 8)
    parametrized.eval()
    result.module.eval()
    torch.testing.assert_close(result.module["parametrized"](x), parametrized(x), atol=1e-6, rtol=1e-5)


def test_hooks_come_along_and_are_noted():
    model = Model()
    seen = []
    model.pool.register_forward_hook(lambda module, args, output: seen.append(type(module)))
    result = from_torch(model)
    result.module(TOKENS)
    assert seen == [MultiheadAttention]
    assert any(note.startswith("pool: 1 hooks came along") for note in result.notes)


def test_references_to_the_originals_modules_are_noted():
    model = Model()
    model.shortcut = [model.pool]
    model.bound = model.encoder.forward
    notes = from_torch(model).notes
    assert any("the attribute shortcut" in note for note in notes)
    assert any("the attribute bound" in note for note in notes)
    assert not from_torch(Model()).notes


def test_a_module_that_stands_in_two_places_stays_one():
    attention = nn.MultiheadAttention(8, 2)
    result = from_torch(nn.ModuleList([attention, attention]))
    assert result.module[0] is result.module[1]
    assert result.converted == ("0",)


def test_what_torch_has_not_is_reported():
    x = torch.randn(2, 3, 8)
    for ours, reason in (
        (MultiQueryAttention(8, 2), "subclass of MultiheadAttention"),
        (MultiheadAttention(8, 2, attention_type="dot_product"), "dot_product"),
        (MultiheadAttention(8, 2, attention_logits_alpha=2.0), "scaled otherwise"),
        (MultiheadAttention(8, 2, inner_dim=4), "not as wide"),
        (MultiheadAttention(8, 2, use_ffn_bias=False), "only one of its projections"),
        (MultiheadAttention(8, 2, attention_qk_norm_layer="layernorm"), "norms queries"),
        (TransformerDecoderLayer(8, 2, add_cross_attention=False), "no attention to a memory"),
        (TransformerEncoderLayer(8, 2, norm_layer="rmsnorm"), "not LayerNorm"),
        (TransformerEncoderLayer(8, 2, use_ffn_bias=False), "some have none"),
        (TransformerEncoderLayer(8, 2, attention_module="multiquery_attention"), "its attention has no form"),
        (GPTJDecoderLayer(8, 2), "subclass of TransformerDecoderLayer"),
    ):
        result = to_torch(ours)
        left = {left.name: left.reason for left in result.unconverted}
        assert reason in left[""], type(ours)
        assert type(result.module) is type(ours)
    mixed = TransformerEncoder(
        TransformerEncoderLayer(8, 2, norm_layer="rmsnorm", batch_first=True), 1
    ).eval()
    torchs = to_torch(mixed).module
    assert type(torchs) is nn.TransformerEncoder
    padding = torch.tensor([[False, False, True], [False] * 3])
    with torch.no_grad():  # no nested tensor reaches our layer
        assert torchs(x, src_key_padding_mask=padding).shape == x.shape


def test_gated_layers_work_as_torchs():
    torch.manual_seed(0)
    ours = TransformerEncoderLayer(8, 2, 16, activation="swiglu", batch_first=True).eval()
    theirs = to_torch(ours).module
    assert type(theirs) is nn.TransformerEncoderLayer
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        torch.testing.assert_close(theirs(x), ours(x), atol=1e-6, rtol=1e-5)


def test_nothing_to_do_and_wrong_things():
    result = from_torch(nn.Linear(2, 2))
    assert (result.converted, result.unconverted) == ((), ())
    assert str(result).startswith("0 modules converted")
    already = from_torch(TransformerEncoderLayer(8, 2))
    assert already.converted == ()
    with pytest.raises(UserError, match="A dict was given"):
        from_torch({})
    compiled = quiet(torch.compile, Model())
    with pytest.raises(UserError, match="OptimizedModule"):
        from_torch(compiled)


def test_compiled_by_jit_stays_and_is_reported():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    scripted = quiet(torch.jit.script, layer)
    result = from_torch(nn.ModuleList([scripted, nn.Linear(1, 1)]))
    assert [left.name for left in result.unconverted] == ["0"]
    assert "torch.jit" in result.unconverted[0].reason
    assert result.module[0] is scripted
