"""Batches as bytes: whatever goes in comes out the same, and what is damaged is refused."""

from __future__ import annotations

import collections
import contextlib
import json
import math
import subprocess
import sys
import warnings
import zlib
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from portwright.errors import PortwrightError, UserError
from portwright.stream.wire import ALIGNMENT, MAGIC, PREFIX, DamagedError, allocate, gather, pack, unpack


class Pair(NamedTuple):
    image: Any
    label: Any


def send(batch: Any, **about: Any) -> Any:
    got, told = unpack(gather(pack(batch, **about)))
    assert told == about
    return got


def assert_same(got: Any, sent: Any) -> None:
    assert type(got) is (np.ndarray if isinstance(sent, np.memmap) else type(sent))
    if isinstance(sent, torch.Tensor):
        assert (got.dtype, got.shape) == (sent.dtype, sent.shape)
        plain = sent.resolve_conj().resolve_neg().contiguous()
        assert (
            got.reshape(-1).view(torch.uint8).tolist() == plain.reshape(-1).view(torch.uint8).tolist()
            if got.numel()
            else True
        )
    elif isinstance(sent, (np.ndarray, np.generic)):
        assert (got.dtype, got.shape) == (sent.dtype, sent.shape)
        assert got.tobytes() == sent.tobytes()
    elif isinstance(sent, dict):
        assert list(got) == list(sent)
        for key in sent:
            assert_same(got[key], sent[key])
    elif isinstance(sent, (list, tuple)):
        assert len(got) == len(sent)
        for each, other in zip(got, sent, strict=True):
            assert_same(each, other)
    elif isinstance(sent, float) and math.isnan(sent):
        assert math.isnan(got)
    else:
        assert got == sent


numbers = (
    hnp.boolean_dtypes() | hnp.integer_dtypes() | hnp.unsigned_integer_dtypes() | hnp.datetime64_dtypes()
)
dtypes = (
    numbers
    | hnp.floating_dtypes(sizes=(16, 32, 64))
    | hnp.complex_number_dtypes(sizes=(64, 128))
    | hnp.timedelta64_dtypes()
)
arrays = dtypes.flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers(allow_nan=False)
    | st.text(st.characters())
    | st.binary()
    | st.binary().map(bytearray)
)
keys = (
    st.text() | st.integers() | st.booleans() | st.none() | st.binary() | st.tuples(st.integers(), st.text())
)
batches = st.recursive(
    scalars | arrays | arrays.map(lambda array: torch.zeros(array.shape)),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4).map(collections.OrderedDict)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(batches)
def test_what_goes_in_comes_out(batch: Any) -> None:
    assert_same(send(batch, samples=3, name="ü"), batch)


@settings(max_examples=50, deadline=None)
@given(batches, st.data())
def test_bytes_cut_off_or_added_are_refused(batch: Any, data: st.DataObject) -> None:
    whole = bytes(gather(pack(batch)))
    length = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(DamagedError):
        unpack(whole[:length])
    with pytest.raises(DamagedError):
        unpack(whole + b"\0")


@settings(max_examples=100, deadline=None)
@given(batches, st.data())
def test_a_damaged_prefix_or_header_is_refused(batch: Any, data: st.DataObject) -> None:
    whole = bytearray(gather(pack(batch)))
    header_bytes = PREFIX.unpack_from(whole)[2]
    place = data.draw(
        st.integers(0, PREFIX.size - 9) | st.integers(PREFIX.size, PREFIX.size + header_bytes - 1)
    )
    whole[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DamagedError):
        unpack(whole)


json_values = st.recursive(
    st.none() | st.integers() | st.text(max_size=8) | st.sampled_from(list("luntgbaicNdo")) | st.floats(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


def forge(header: Any, payload: bytes = bytes(256)) -> bytes:
    text = json.dumps(header).encode()
    gap = bytes(-(PREFIX.size + len(text)) % ALIGNMENT)
    length = PREFIX.size + len(text) + len(gap) + len(payload)
    return PREFIX.pack(MAGIC, length, len(text), zlib.crc32(text)) + text + gap + payload


@settings(max_examples=120, deadline=None)
@given(json_values)
def test_a_forged_header_is_refused_or_read_and_never_anything_else(node: Any) -> None:
    for header in (node, {"batch": node, "about": {}}):
        with contextlib.suppress(PortwrightError):
            unpack(forge(header, b""))


@pytest.mark.parametrize(
    "node",
    [
        ["n", "|O", [1]],
        ["n", "O", [1]],
        ["n", "<f8", [-1]],
        ["n", "<f8", [2**70]],
        ["n", "<f8", [True]],
        ["n", "<f8", ["1"]],
        ["n", "<f8", [1000]],
        ["n", "<f8,<f8", [1]],
        ["t", "load", [1]],
        ["t", "uint8", [4, 64], [0, 0]],
        ["t", "uint8", [4, 64], [1]],
        ["t", "uint8", [4, 64], [1, 0], 1],
        ["n", "|u1", [4, 64], [2, 0]],
        ["n", "|u1", [4, 64], ["0", 1]],
        ["n", "|u1", [4, 64], 1],
        ["t", "__builtins__", [1]],
        ["g", "ml_dtypes.finfo"],
        ["b", -1],
        ["b", 10**30],
        ["N", "os", "system", ["true"]],
        ["N", "builtins", "tuple", []],
        ["N", "os", "stat_result", []],
        ["N", __name__, "Pair", [1]],
        ["i", "1_0x"],
        ["z"],
        [],
        {"batch": 1},
        ["d", [[["l", []], 1]]],
        ["l"] + [1] * 5,
    ],
)
def test_headers_that_ask_for_more_are_refused(node: Any) -> None:
    with pytest.raises(PortwrightError):
        unpack(forge({"batch": node, "about": {}}))


def test_a_header_nested_without_end_is_refused() -> None:
    deep = '{"batch":' + '["l",[' * 100_000 + "1" + "]]" * 100_000 + ',"about":{}}'
    text = deep.encode()
    with pytest.raises(DamagedError):
        unpack(PREFIX.pack(MAGIC, PREFIX.size + len(text), len(text), zlib.crc32(text)) + text)


TORCH_DTYPES = [
    getattr(torch, name)
    for name in [
        "bool",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "complex32",
        "complex64",
        "complex128",
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    ]
    if hasattr(torch, name)
]


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3, 5)], ids=str)
def test_every_dtype_of_torch_keeps_its_bits(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    bits = torch.randint(
        0, 2 if dtype is torch.bool else 256, (math.prod(shape) * dtype.itemsize,), dtype=torch.uint8
    )
    tensor = bits.view(dtype).reshape(shape) if math.prod(shape) else torch.empty(shape).to(dtype)
    assert_same(send({"x": tensor, "rest": b"abc"})["x"], tensor)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(24).reshape(2, 3, 4).permute(2, 0, 1),
        lambda: torch.arange(10)[::3],
        lambda: torch.tensor([1.0, 2.0]).expand(5, 2),
        lambda: torch.tensor([1 + 2j, 3 - 4j]).conj(),
        lambda: torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
        lambda: torch.ones(3, requires_grad=True).detach(),
        lambda: np.arange(24).reshape(4, 6)[::-1, ::2],
        lambda: np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        lambda: np.arange(5, dtype=">i4"),
        lambda: np.float16(1.5),
        lambda: np.bool_(True),
        lambda: np.int64(-1),
        lambda: np.array(7),
        lambda: np.array("2020-01-01", "M8[D]"),
    ],
)
def test_views_orders_and_scalars(make: Any) -> None:
    assert_same(send([make()])[0], make())


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        lambda: torch.rand(1, 3, 4, 5).to(memory_format=torch.channels_last),
        lambda: torch.rand(4, 5, 1, 2).permute(0, 2, 3, 1).transpose(2, 3),
        lambda: torch.rand(2, 3, 1, 1).to(memory_format=torch.channels_last),
        lambda: torch.rand(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d),
        lambda: torch.rand(3, 4).t(),
        lambda: torch.rand(2, 3, 4),
        lambda: np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        lambda: np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1),
        lambda: np.zeros((2, 0, 3)),
    ],
)
def test_the_layout_in_memory_is_kept_and_nothing_copied(make: Any) -> None:
    sent = make()
    got = send([sent])[0]
    assert_same(got, sent)
    if isinstance(sent, np.ndarray):
        assert got.strides == sent.strides
        assert not sent.size or any(np.shares_memory(sent, np.asarray(part)) for part in pack(sent))
    else:
        assert got.stride() == sent.stride()


def test_a_tensor_that_wants_a_gradient_comes_without_its_graph() -> None:
    got = send(torch.ones(3, requires_grad=True) * 2)
    assert got.tolist() == [2, 2, 2]
    assert not got.requires_grad


def test_what_comes_is_aligned_and_writable_and_shares_memory_with_nothing_but_its_buffer() -> None:
    buffer = gather(pack({"x": np.arange(5), "y": torch.arange(7), "z": np.ones((2, 2))}))
    batch, _ = unpack(buffer)
    assert all(address % ALIGNMENT == 0 for address in (batch["x"].ctypes.data, batch["y"].data_ptr()))
    batch["x"][0] = 99
    batch["y"] += 1
    again, _ = unpack(buffer)
    assert again["x"][0] == 99
    assert again["y"].tolist() == list(range(1, 8))
    frozen = bytes(gather(pack({"y": torch.arange(7)})))
    copy, _ = unpack(frozen)
    copy["y"] += 1
    assert unpack(frozen)[0]["y"].tolist() == list(range(7))
    shifted = memoryview(bytearray(b"?" + frozen))[1:]
    assert unpack(shifted)[0]["y"].data_ptr() % ALIGNMENT == 0


def test_packing_copies_no_contiguous_array() -> None:
    array = np.arange(1000)
    tensor = torch.arange(1000)
    parts = [memoryview(part) for part in pack([array, tensor])]
    array[0] = tensor[0] = -5
    big = [np.frombuffer(part, np.int64) for part in parts if part.nbytes == 8000]
    assert [each[0] for each in big] == [-5, -5]


def test_bfloat16_of_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3)
    assert_same(send(array), array)


def nested() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a prototype, it says
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


class Odd(dict):  # type: ignore[type-arg]
    pass


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"text": np.array(["a"])}, ["batch['text']", "<U1", "list of str"]),
        (np.array([b"a"]), ["|S1"]),
        (np.array([{}], dtype=object), ["object"]),
        (np.zeros(2, [("a", "i4")]), ["numbers"]),
        (np.zeros(2, np.longdouble), ["numbers"]),
        (np.ma.masked_array([1], [True]), ["MaskedArray", "asarray"]),
        ([1, (2, {3})], ["batch[1][1]", "set"]),
        (Odd(), ["Odd", "dict(value)"]),
        (torch.nn.Parameter(torch.ones(1)), ["Parameter", "as_subclass"]),
        (torch.eye(2).to_sparse(), ["sparse", "to_dense"]),
        (torch.empty(2, device="meta"), ["meta"]),
        (nested(), ["nested tensor", "to_padded_tensor"]),
        (lambda: 0, ["function"]),
        (object(), ["object"]),
        (collections.namedtuple("Local", "a")(1), ["Local", "top of a module"]),
    ],
)
def test_what_cannot_be_sent_is_named(batch: Any, words: list[str]) -> None:
    with pytest.raises(UserError) as raised:
        pack(batch)
    assert all(word in str(raised.value) for word in words), str(raised.value)


def test_a_list_that_contains_itself_is_an_error() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(UserError, match="nested"):
        pack(endless)


def test_what_is_told_beside_must_be_json() -> None:
    with pytest.raises(UserError, match="JSON"):
        pack(1, where={1, 2})


def test_a_named_tuple_of_an_unknown_module_says_what_to_import() -> None:
    with pytest.raises(UserError, match=r"readers_of_mine.*Import readers_of_mine"):
        unpack(forge({"batch": ["N", "readers_of_mine", "Sample", []], "about": {}}, b""))


def test_sample_counts_go_along() -> None:
    assert pack([1], samples=7).num_samples == 7
    assert pack([1]).num_samples == 0


@pytest.mark.parametrize("size", [0, 1, 63, 64, 1000])
def test_allocated_memory(size: int) -> None:
    memory = allocate(size)
    assert (len(memory), memory.readonly) == (size, False)


def test_torch_is_not_loaded_by_numpy_batches_and_asked_for_by_tensors() -> None:
    code = """
import sys, numpy as np
from portwright.stream.wire import gather, pack, unpack
assert unpack(gather(pack(np.arange(3))))[0].tolist() == [0, 1, 2]
assert "torch" not in sys.modules
whole = bytes.fromhex(sys.argv[1])
try:
    unpack(whole)
except Exception as error:
    print(error)
"""
    whole = bytes(gather(pack(torch.arange(3)))).hex()
    done = subprocess.run([sys.executable, "-c", code, whole], capture_output=True, text=True, check=True)
    assert "Import torch" in done.stdout
