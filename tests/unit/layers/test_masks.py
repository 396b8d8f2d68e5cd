import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from portwright.errors import UserError
from portwright.layers import (
    MultiheadAttention,
    build_broadcastable_attention_mask,
    create_2D_autoregressive_mask,
    create_autoregressive_mask,
    create_broadcasted_autoregressive_mask,
    create_sliding_window_mask,
    generate_square_subsequent_mask,
    get_extended_attention_mask,
    make_key_padding_mask_broadcastable,
    make_sparse_mask_broadcastable,
)
from portwright.layers.masks import is_known_causal, minimum

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
EIGHT_BITS = [torch.float8_e4m3fn, torch.float8_e5m2]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", [*FLOATS, *EIGHT_BITS, *INTEGERS, torch.uint8])
def test_autoregressive_mask_is_one_where_masked(dtype):
    mask = create_autoregressive_mask(4, dtype)
    assert mask.dtype == dtype
    assert mask.float().tolist() == [[0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]]


def test_defaults_are_the_model_zoos():
    assert create_autoregressive_mask(max_sequence_length=2).dtype == torch.float16
    assert create_2D_autoregressive_mask(2, 3).dtype == torch.float16
    attended = torch.ones(1, 3, dtype=torch.int32)
    assert make_key_padding_mask_broadcastable(attended).dtype == torch.float16
    assert get_extended_attention_mask(attended).dtype == torch.float16


def test_two_dimensional_mask_starts_at_the_first_position():
    mask = create_2D_autoregressive_mask(2, 4, dtype=torch.bool)
    assert mask.tolist() == [[False, True, True, True], [False, False, True, True]]


@pytest.mark.parametrize("dtype", [*FLOATS, *EIGHT_BITS, *INTEGERS])
@pytest.mark.parametrize("source", [torch.bool, torch.int32, torch.float32, torch.bfloat16])
def test_padding_becomes_the_minimum_of_any_type(dtype, source):
    attended = torch.tensor([[1, 1, 0], [1, 0, 0]]).to(source)
    mask = make_key_padding_mask_broadcastable(attended, dtype=dtype)
    assert mask.shape == (2, 1, 1, 3)
    assert mask.dtype == dtype
    wanted = torch.tensor([[0, 0, 1], [0, 1, 1]], dtype=torch.float64) * float(minimum(dtype))
    assert torch.equal(mask[:, 0, 0].double(), wanted)
    ones = make_key_padding_mask_broadcastable(attended, dtype=dtype, multiply_neg_inf=False)
    assert ones[:, 0, 0].float().tolist() == [[0, 0, 1], [0, 1, 1]]
    kept = make_key_padding_mask_broadcastable(
        attended, dtype=dtype, revert_mask=False, multiply_neg_inf=False
    )
    assert kept[:, 0, 0].float().tolist() == [[1, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("shape", [(2, 3), (2, 4, 3), (2, 5, 4, 3)])
def test_masks_of_two_to_four_dimensions_become_broadcastable(shape):
    mask = make_key_padding_mask_broadcastable(torch.ones(shape), dtype=torch.float32)
    assert mask.shape == {2: (2, 1, 1, 3), 3: (2, 1, 4, 3), 4: (2, 5, 4, 3)}[len(shape)]
    with pytest.raises(UserError, match="two dimensions"):
        make_key_padding_mask_broadcastable(torch.ones(1, 1, 1, 1, 1))


@pytest.mark.parametrize("dtype", [torch.bool, torch.float16, torch.bfloat16])
def test_causal_masks_keep_the_padding(dtype):
    attended = torch.tensor([[1, 1, 1], [0, 1, 1]], dtype=dtype)
    mask = build_broadcastable_attention_mask(attended, build_causal=True, dtype=torch.bool)
    assert mask.shape == (2, 1, 3, 3)
    assert mask[0, 0].tolist() == [[False, True, True], [False, False, True], [False, False, False]]
    assert mask[1, 0].tolist() == [[True, True, True], [True, False, True], [True, False, False]]
    extended = get_extended_attention_mask(attended, input_shape=(2, 3), causal=True, dtype=torch.float32)
    assert torch.equal(extended == torch.finfo(torch.float32).min, mask)
    assert ((extended == 0) | mask).all()


def test_extended_mask_takes_extra_keys_for_earlier_ones():
    extended = get_extended_attention_mask(
        torch.ones(1, 5), input_shape=(1, 2), causal=True, dtype=torch.float32
    )
    assert (extended[0, 0] == 0).tolist() == [[True] * 4 + [False], [True] * 5]
    three = get_extended_attention_mask(torch.ones(1, 2, 5), dtype=torch.float32)
    assert three.shape == (1, 1, 2, 5)
    for bad in ({"input_shape": None}, {"input_shape": (1, 9)}):
        with pytest.raises(UserError, match="causal mask over 5 keys"):
            get_extended_attention_mask(torch.ones(1, 5), causal=True, **bad)
    with pytest.raises(UserError, match="two dimensions"):
        get_extended_attention_mask(torch.ones(5))


def test_sparse_mask_is_combined_with_padding():
    pattern = torch.tensor([[1, 0, 1], [0, 1, 1], [1, 1, 1]])
    padding = torch.tensor([[0, 0, 1]])
    mask = make_sparse_mask_broadcastable(pattern, padding, dtype=torch.bool)
    assert mask[0, 0].tolist() == [[False, True, True], [True, False, True], [False, False, True]]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 9), st.integers(1, 10), st.integers(0, 4), st.booleans())
def test_sliding_window_written_out(length, window, sinks, causal):
    mask = create_sliding_window_mask(length, window, num_sink_tokens=sinks, causal=causal)
    for query in range(length):
        for key in range(length):
            near = 0 <= query - key < window if causal else abs(query - key) < window
            sink = key < sinks and (key <= query or not causal)
            assert mask[query, key].item() == (not (near or sink)), (query, key)


def test_broadcasted_mask_is_a_view_and_keeps_packed_sequences_apart():
    mask = create_broadcasted_autoregressive_mask(2, 8, 3, dtype=torch.float32)
    assert mask.shape == (2, 8, 3, 3)
    assert mask.untyped_storage().nbytes() == 9 * 4
    # two sequences of 2 and 1 in one row: the key at 0 may be seen from 1 ahead, the others only from themselves
    span = torch.tensor([[1, 0, 0]])
    packed = create_broadcasted_autoregressive_mask(1, 2, 3, attention_span=span, dtype=torch.bool)
    assert packed[0, 1].tolist() == [[False, True, True], [False, False, True], [True, True, False]]
    windowed = create_broadcasted_autoregressive_mask(
        1,
        1,
        4,
        attention_sliding_window_length=2,
        attention_sink_tokens=1,
        dtype=torch.bool,
        use_neg_inf=False,
    )
    assert torch.equal(windowed[0, 0], create_sliding_window_mask(4, 2, num_sink_tokens=1))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: create_autoregressive_mask(-1), "negative"),
        (lambda: create_sliding_window_mask(3, 0), "window_length=0"),
        (lambda: create_broadcasted_autoregressive_mask(1, 1, 3, None, 0), "window_length=0"),
        (lambda: create_broadcasted_autoregressive_mask(1, 1, 3, None, None, 2), "without a sliding window"),
        (lambda: create_broadcasted_autoregressive_mask(1, 1, 3, torch.ones(1, 3), 2), "Give one"),
        (lambda: create_broadcasted_autoregressive_mask(1, 1, 3, torch.ones(3)), "attention_span has shape"),
        (
            lambda: make_key_padding_mask_broadcastable(torch.ones(1, 2), dtype=torch.uint8),
            "no negative numbers",
        ),
        (
            lambda: make_key_padding_mask_broadcastable(torch.ones(1, 2), dtype=torch.complex64),
            "no negative numbers",
        ),
    ],
)
def test_bad_input_is_refused_in_words(call, match):
    with pytest.raises(UserError, match=match):
        call()


def test_causal_masks_are_known_until_they_are_written_to():
    for mask in (generate_square_subsequent_mask(3), create_autoregressive_mask(3, torch.bool)):
        assert is_known_causal(mask)
        assert not is_known_causal(mask.clone())
        assert not is_known_causal(mask + 0 if mask.dtype != torch.bool else mask & True)
        mask[0, 1] = 0
        assert not is_known_causal(mask)
    assert not is_known_causal(create_autoregressive_mask(3))  # 1 would be added to the scores, not mask them
    with torch.inference_mode():
        assert not is_known_causal(generate_square_subsequent_mask(3))


def test_generated_mask_equals_torchs():
    ours = generate_square_subsequent_mask(4, dtype=torch.float64)
    assert torch.equal(ours, torch.nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.bool, *FLOATS])
def test_masks_of_every_type_work_in_attention(dtype):
    torch.manual_seed(0)
    attention = MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 5, 8)
    attended = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    mask = build_broadcastable_attention_mask(attended, build_causal=True, dtype=dtype)
    expected = attention(x, x, x, is_causal=True, key_padding_mask=attended == 0)[0]
    for need_weights in (True, False):
        received = attention(x, x, x, attn_mask=mask, need_weights=need_weights)[0]
        torch.testing.assert_close(received, expected, atol=1e-6, rtol=1e-5)
