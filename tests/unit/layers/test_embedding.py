from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from portwright.errors import UserError
from portwright.layers.embedding import EmbeddingLayer
from portwright.layers.positions import (
    AlibiPositionEmbeddingLayer,
    RelativePositionEmbeddingLayer,
    RotaryPositionEmbeddingHelper,
    sinusoids,
)

VOCAB, WIDTH, LONGEST = 26, 8, 12
TYPES = ["learned", "fixed", "rotary", "relative", "alibi", None]
NEEDS = {"rotary": {"rotary_dim": 4}, "relative": {"num_heads": 2}, "alibi": {"num_heads": 2}}


def make(position_type="learned", **options):
    arguments = {"max_position_embeddings": LONGEST, **NEEDS.get(position_type, {}), **options}
    return EmbeddingLayer(VOCAB, WIDTH, position_embedding_type=position_type, **arguments)


def make_ids(*shape):
    return torch.randint(0, VOCAB, shape or (3, 5), generator=torch.Generator().manual_seed(0))


class TutorialInput(nn.Module):
    """What stands before the encoder in PyTorch's language-model tutorial, batch first."""

    def __init__(self, vocab, width, longest, dropout):
        super().__init__()
        self.width = width
        self.words = nn.Embedding(vocab, width)
        self.words.weight.data.uniform_(-0.1, 0.1)
        rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        turns = torch.arange(longest)[:, None] * rates
        waves = torch.stack((turns.sin(), turns.cos()), dim=-1).reshape(1, longest, -1)[..., :width]
        self.register_buffer("waves", waves)
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids):
        return self.dropout(self.words(ids) * math.sqrt(self.width) + self.waves[:, : ids.shape[1]])


@settings(max_examples=40, deadline=None)
@given(
    width=st.integers(1, 33),
    longest=st.integers(1, 20),
    length=st.integers(1, 20),
    dropout=st.sampled_from([0.0, 0.2, 0.5]),
    seed=st.integers(0, 99),
)
def test_equals_the_tutorials_input_bit_for_bit(width, longest, length, dropout, seed):
    length = min(length, longest)
    torch.manual_seed(seed)
    theirs = TutorialInput(VOCAB, width, longest, dropout)
    torch.manual_seed(seed)
    ours = EmbeddingLayer(
        VOCAB,
        width,
        embeddings_initializer={"name": "uniform", "a": -0.1, "b": 0.1},
        max_position_embeddings=longest,
        position_embedding_type="fixed",
        embedding_scale=math.sqrt(width),
        dropout=dropout,
    )
    assert torch.equal(ours.word_embeddings.weight, theirs.words.weight)
    ids = torch.randint(0, VOCAB, (3, length))
    outputs = []
    for module in (theirs, ours):
        torch.manual_seed(seed + 1)
        outputs.append(module(ids))
        outputs[-1].square().sum().backward()
    assert torch.equal(*outputs)
    assert torch.equal(ours.word_embeddings.weight.grad, theirs.words.weight.grad)


def test_the_model_zoos_input_by_option():
    # Its converted demo multiplies the sum, divides by n-1 timescales and has no dropout.
    layer = make("fixed", sinusoid_variant="modelzoo", output_scale=math.sqrt(WIDTH))
    ids = make_ids()
    positions = torch.empty(5, WIDTH)
    for column in range(WIDTH):
        angles = torch.arange(5) * 1e4 ** (-(column // 2) / (WIDTH // 2 - 1))
        positions[:, column] = angles.cos() if column % 2 else angles.sin()
    expected = (layer.word_embeddings.weight[ids] + positions) * math.sqrt(WIDTH)
    torch.testing.assert_close(layer(ids), expected)


@pytest.mark.parametrize("width", [7, 8])
@pytest.mark.parametrize("length", [1, 5, LONGEST])
@pytest.mark.parametrize("variant", ["tutorial", "modelzoo"])
def test_fixed_positions_take_odd_widths_and_shorter_sequences(width, length, variant):
    # The model zoo's release 1.6 fails on both.
    layer = EmbeddingLayer(
        VOCAB,
        width,
        max_position_embeddings=LONGEST,
        position_embedding_type="fixed",
        sinusoid_variant=variant,
    )
    ids = make_ids(2, length)
    expected = layer.word_embeddings.weight[ids] + sinusoids(LONGEST, width, variant=variant)[:length]
    torch.testing.assert_close(layer(ids), expected)


@pytest.mark.parametrize("pad", [0, 3, -1])
@pytest.mark.parametrize("num_segments", [None, 2])
def test_a_padding_token_needs_no_segments_and_clears_its_own_row_alone(pad, num_segments):
    # The model zoo's release 1.6 fails without segments, forgets token 0 and clears every position.
    layer = make(pad_token_id=pad, num_segments=num_segments)
    cleared = (layer.word_embeddings.weight == 0).all(dim=1)
    assert cleared.nonzero().flatten().tolist() == [pad % VOCAB]
    assert layer.position_embeddings.weight.any(dim=1).all()
    ids = make_ids()
    ids[0] = pad % VOCAB
    layer(ids).sum().backward()
    assert not layer.word_embeddings.weight.grad[pad].any()
    layer.reset_parameters()
    assert not layer.word_embeddings.weight[pad].any()


def test_adds_words_positions_and_segments():
    layer = make(
        num_segments=3, position_embeddings_initializer="normal", embedding_scale=2.0, output_scale=3.0
    )
    ids, segments = make_ids(), torch.tensor([0, 0, 1, 2, 2]).expand(3, -1)
    words, positions = layer.word_embeddings.weight, layer.position_embeddings.weight
    expected = 3 * (2 * words[ids] + positions[:5] + layer.segment_embeddings.weight[segments])
    torch.testing.assert_close(layer(ids, segments), expected)
    torch.testing.assert_close(layer(ids, segments.to(torch.uint8)), expected)
    torch.testing.assert_close(layer(ids), 3 * (2 * words[ids] + positions[:5]))


@pytest.mark.parametrize("position_type", ["learned", "fixed"])
def test_positions_go_on_after_a_cache_or_are_given(position_type):
    layer = make(position_type)
    ids = make_ids(2, 6)
    whole = layer(ids)
    torch.testing.assert_close(layer(ids[:, 4:], past_length=4), whole[:, 4:])
    torch.testing.assert_close(layer(ids, position_ids=torch.arange(6).expand(2, -1)), whole)
    torch.testing.assert_close(layer(ids, position_ids=torch.arange(6)), whole)
    turned = layer(ids, position_ids=torch.arange(5, -1, -1))
    torch.testing.assert_close(
        turned - layer.compute_token_embeddings(ids), (whole - layer.compute_token_embeddings(ids)).flip(1)
    )
    with pytest.raises(UserError, match="6 after 7 does not fit in 12"):
        layer(ids, past_length=7)
    with pytest.raises(UserError, match=r"\(2, 3\)"):
        layer(ids, position_ids=torch.zeros(2, 3, dtype=torch.long))


def test_learned_positions_may_start_further_on():
    layer = make(position_embedding_offset=2)
    assert layer.position_embeddings.weight.shape == (LONGEST + 2, WIDTH)
    ids = make_ids()
    torch.testing.assert_close(
        layer(ids), layer.word_embeddings.weight[ids] + layer.position_embeddings.weight[2:7]
    )
    assert layer(make_ids(1, LONGEST)).shape == (1, LONGEST, WIDTH)


@pytest.mark.parametrize("position_type", ["rotary", "relative", "alibi", None])
def test_other_positions_leave_the_words_alone(position_type):
    layer = make(position_type)
    ids = make_ids()
    assert torch.equal(layer(ids), layer.word_embeddings.weight[ids])
    assert layer.compute_positional_embeddings(ids) is None


def test_attention_gets_its_helper():
    assert make("learned").get_rope_helper() is None
    assert make("fixed").compute_position_bias(3, 3) is None
    rope = make("rotary", rope_theta=500.0, rotary_layout="half", pos_scaling_factor=2.0).get_rope_helper()
    expected = RotaryPositionEmbeddingHelper(LONGEST, 4, 500.0, 2.0, layout="half")
    assert torch.equal(rope.cos, expected.cos)
    assert rope.layout == "half"
    relative = make(
        "relative", bidirectional=True, num_relative_attention_buckets=8, max_relative_positions=20
    )
    twin = RelativePositionEmbeddingLayer(
        2, relative.position_embed_helper.relative_attention_bias, 8, True, max_relative_positions=20
    )
    assert torch.equal(relative.compute_position_bias(4, 6), twin(4, 6))
    assert torch.equal(relative.compute_position_bias(1, 6, object()), twin(6, 6)[:, :, -1:])
    alibi = make("alibi", pos_scaling_factor=2.0)
    assert torch.equal(
        alibi.compute_position_bias(3, 4), AlibiPositionEmbeddingLayer(2, scaling_factor=2.0)(3, 4)
    )


@pytest.mark.parametrize("ids_type", [torch.int64, torch.int32, torch.int16, torch.uint8])
def test_ids_of_every_integer_type_and_shape(ids_type):
    layer = make()
    ids = make_ids(2, 3, 4)
    assert layer(ids.to(ids_type)).shape == (2, 3, 4, WIDTH)
    assert torch.equal(layer(ids.to(ids_type)), layer(ids))
    assert torch.equal(layer(ids[0, 0].to(ids_type)), layer(ids)[0, 0])
    assert layer(ids[:, :, :0]).shape == (2, 3, 0, WIDTH)


def test_state_has_the_model_zoos_names():
    assert list(make(num_segments=2).state_dict()) == [
        "word_embeddings.weight",
        "position_embeddings.weight",
        "segment_embeddings.weight",
    ]
    assert list(make("fixed").state_dict()) == ["word_embeddings.weight"]
    assert list(make("rotary").state_dict()) == ["word_embeddings.weight"]


def test_word_embeddings_can_be_shared():
    layer, shared = make(), nn.Embedding(VOCAB, WIDTH)
    layer.set_input_embeddings(shared)
    assert layer.get_input_embeddings() is shared
    ids = make_ids()
    torch.testing.assert_close(layer(ids), shared.weight[ids] + layer.position_embeddings.weight[:5])


def test_initializers_fill_their_own_table():
    constants = {f"{name}_initializer": {"name": "constant", "val": value} for name, value in
                 (("embeddings", 1.0), ("position_embeddings", 2.0), ("segment_embeddings", 3.0))}  # fmt: skip
    layer = make(num_segments=2, **constants)
    tables = (layer.word_embeddings, layer.position_embeddings, layer.segment_embeddings)
    assert [table.weight.unique().tolist() for table in tables] == [[1.0], [2.0], [3.0]]
    default = make()
    for table in (default.word_embeddings, default.position_embeddings):
        assert table.weight.abs().max() <= 0.05
        assert table.weight.std() > 0.02


def test_parts_of_other_widths_are_for_the_caller_to_project():
    layer = make(num_segments=2, segment_embedding_size=3, positional_embedding_size=5)
    ids = make_ids()
    assert layer.compute_positional_embeddings(ids).shape == (5, 5)
    assert layer.compute_segment_embeddings(ids % 2).shape == (3, 5, 3)
    with pytest.raises(UserError, match="positional_embedding_size is 5 and embedding_size 8"):
        layer(ids)
    with pytest.raises(UserError, match="segment_embedding_size is 3"):
        make(num_segments=2, segment_embedding_size=3)(ids, ids % 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_types_are_kept(dtype):
    for position_type in TYPES:
        layer = make(
            position_type, dtype=dtype, num_segments=2, embedding_scale=2.0, output_scale=2.0, dropout=0.1
        )
        ids = make_ids()
        assert layer(ids, ids % 2).dtype == dtype
        assert make(position_type).to(dtype)(ids).dtype == dtype


@pytest.mark.parametrize("position_type", TYPES)
def test_compiles_exports_and_copies(position_type):
    torch.compiler.reset()
    layer = make(position_type, num_segments=2, pad_token_id=0, embedding_scale=2.0)
    ids = make_ids()
    arguments = (ids, ids % 2)
    expected = layer(*arguments)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*arguments), expected)
    batch, length = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("length", min=2, max=LONGEST)
    shapes = {0: batch, 1: length}
    program = torch.export.export(layer, arguments, dynamic_shapes=(shapes, shapes))
    more = make_ids(4, 9)
    torch.testing.assert_close(program.module()(more, more % 2), layer(more, more % 2))
    assert torch.equal(copy.deepcopy(layer)(*arguments), expected)


def test_an_ensemble_maps_over_its_weights():
    layers = [make("fixed") for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(layers)
    ids = make_ids()

    def run(parameters, buffers):
        return torch.func.functional_call(layers[0], (parameters, buffers), (ids,))

    outputs = torch.func.vmap(run)(parameters, buffers)
    for output, layer in zip(outputs, layers, strict=True):
        torch.testing.assert_close(output, layer(ids))


def test_made_on_the_meta_device_and_filled_later():
    with torch.device("meta"):
        layer = make("fixed", num_segments=2)
    layer = layer.to_empty(device="cpu")
    layer.reset_parameters()
    ids = make_ids()
    torch.testing.assert_close(layer(ids), layer.word_embeddings.weight[ids] + sinusoids(LONGEST, WIDTH)[:5])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"position_embedding_type": "learnt"}, "'learnt'. Did you mean 'learned'"),
        ({"max_position_embeddings": None}, "max_position_embeddings=None"),
        ({"position_embedding_type": "fixed", "max_position_embeddings": 0}, "max_position_embeddings=0"),
        ({"position_embedding_type": "rotary"}, "rotary_dim=None"),
        ({"position_embedding_type": "relative"}, "num_heads=None"),
        ({"position_embedding_type": "alibi", "num_heads": 0}, "num_heads=0"),
        ({"position_embedding_type": "fixed", "sinusoid_variant": "zoo"}, "'zoo'"),
        ({"pad_token_id": VOCAB}, "pad_token_id is 26 in a vocabulary of 26"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"embedding_size": -1}, "embedding_size is -1"),
        ({"num_segments": -2}, "num_segments is -2"),
        ({"dropout": 1.5}, "dropout is 1.5"),
        ({"embedding_scale": math.inf}, "embedding_scale is inf"),
        ({"position_embedding_offset": -1}, "position_embedding_offset is -1"),
        ({"position_embedding_type": "fixed", "position_embedding_offset": 2}, "is 2 for fixed positions"),
        ({"pos_scaling_factor": 2.0}, "pos_scaling_factor=2"),
        (
            {"position_embedding_type": "alibi", "num_heads": 2, "pos_scaling_type": "yarn"},
            "'yarn' for alibi",
        ),
        ({"embeddings_initializer": "unifrom"}, "Did you mean 'uniform'"),
    ],
)
def test_bad_options_are_named(options, message):
    arguments = {"vocab_size": VOCAB, "embedding_size": WIDTH, "max_position_embeddings": LONGEST, **options}
    with pytest.raises(UserError, match=message):
        EmbeddingLayer(**arguments)


def test_bad_input_is_named():
    with pytest.raises(UserError, match="float32"):
        make()(torch.zeros(2, 3))
    with pytest.raises(UserError, match=r"shape \(\)"):
        make()(torch.tensor(3))
    with pytest.raises(UserError, match="segment_ids were given"):
        make()(make_ids(), make_ids() % 2)
    with pytest.raises(UserError, match="Token 26 is outside a table of 26"):
        make()(torch.tensor([[3, VOCAB]]))
    with pytest.raises(UserError, match="Segment -1 is outside a table of 2"):
        make(num_segments=2)(make_ids(1, 2), torch.tensor([[0, -1]]))
    with pytest.raises(UserError, match="13 after 0 does not fit in 12"):
        make()(make_ids(1, 13))
