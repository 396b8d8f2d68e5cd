"""A batch as bytes and back, without pickle: a JSON header that says the structure, and raw buffers of aligned arrays.

    8 bytes magic | u64 length of the whole | u32 length of the header | u32 CRC-32 of the header | 8 bytes zero | header | buffers, each at a multiple of 64

What is read back has the types that were written. Bytes that are cut off or whose header is damaged are refused; nothing that
they say is ever run. The values in the buffers have no checksum: the transport is trusted to keep every bit.
"""

from __future__ import annotations

import json
import math
import re
import struct
import sys
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from portwright.errors import PortwrightError, UserError

Parts = Sequence[bytes | bytearray | memoryview]

ALIGNMENT = 64  # bytes; a cache line, and what vector loads want
MAGIC = b"PWbatch\x01"
PREFIX = struct.Struct("<8sQII8x")
MAX_DEPTH = 64
PLAIN_DTYPE = re.compile(r"[<>|](?:b1|[iu][1248]|f[248]|c(?:8|16)|[mM]8(?:\[[0-9A-Za-z/]{1,12}\])?)")
PLAIN_TYPES = {type(None), bool, str, float, int}  # which JSON says as they are


class DamagedError(PortwrightError):
    """Bytes that are no whole batch."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"These bytes are no whole batch: {what}", "Run the same version of Portwright on all nodes."
        )


class Packed(list[bytes | bytearray | memoryview]):
    """The parts of a batch, to be sent one after the other; they view the batch's own memory."""

    num_samples: int = 0  # what the coordinator counts for the worker that made it


def allocate(num_bytes: int) -> memoryview:
    """Gives writable memory whose first byte is aligned; what it holds is arbitrary."""
    whole = np.empty(num_bytes + ALIGNMENT, np.uint8)
    start = -whole.ctypes.data % ALIGNMENT
    return whole.data[start : start + num_bytes]


def gather(parts: Parts) -> memoryview:
    """Puts parts into one aligned, writable buffer, as if they had been sent."""
    buffer = allocate(sum(memoryview(part).nbytes for part in parts))
    start = 0
    for part in parts:
        if num_bytes := memoryview(part).nbytes:
            buffer[start : start + num_bytes] = memoryview(part).cast("B")
            start += num_bytes
    return buffer


def pack(batch: Any, **about: Any) -> Packed:
    """Turns a batch into parts, without copying arrays that are contiguous.

    `about` comes back beside the batch; it must be what JSON can say. `samples=n` is what a worker's count grows by.
    """
    writer = _Writer()
    try:
        body = json.dumps({"batch": writer.encode(batch, "batch", 0), "about": about}, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise UserError(
            f"What is told beside a batch cannot be written as JSON ({error}): {about!r:.200}",
            "Give numbers, strings, lists and dicts of them.",
        ) from None
    header = body.encode()
    start = PREFIX.size + len(header)
    packed = Packed([b"", header])
    for buffer in writer.buffers:
        if gap := -start % ALIGNMENT:
            packed.append(bytes(gap))
        packed.append(buffer)
        start += gap + len(buffer)
    packed[0] = PREFIX.pack(MAGIC, start, len(header), zlib.crc32(header))
    samples = about.get("samples", 0)
    packed.num_samples = samples if isinstance(samples, int) else 0
    return packed


def unpack(buffer: bytes | bytearray | memoryview) -> tuple[Any, dict[str, Any]]:
    """Reads a batch and its `about`; arrays and tensors view `buffer`, and are writable.

    A buffer that is read-only or not aligned is copied once; those that a Pool yields are neither.
    """
    view = memoryview(buffer).cast("B") if memoryview(buffer).nbytes else memoryview(b"")
    if len(view) < PREFIX.size:
        raise DamagedError(f"{len(view)} bytes, where {PREFIX.size} say what follows")
    magic, num_bytes, header_bytes, checksum = PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise DamagedError(f"they begin with {bytes(magic)!r}")
    if num_bytes != len(view):
        raise DamagedError(f"{len(view):,} bytes came of {num_bytes:,}")
    header = bytes(view[PREFIX.size : PREFIX.size + header_bytes])
    if len(header) != header_bytes or zlib.crc32(header) != checksum:
        raise DamagedError("the header's checksum differs")
    if view.readonly or np.frombuffer(view, np.uint8).ctypes.data % ALIGNMENT:
        view = gather([view])
    reader = _Reader(view, PREFIX.size + header_bytes)
    try:
        document = json.loads(header)
        batch, about = reader.decode(document["batch"], 0), document["about"]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise DamagedError(f"the header makes no sense ({type(error).__name__}: {error})") from None
    if reader.position != len(view):
        raise DamagedError(f"{len(view) - reader.position:,} bytes belong to nothing")
    if not isinstance(about, dict):
        raise DamagedError("what is told beside the batch is no mapping")
    return batch, about


class _Writer:
    """Walks a batch; `buffers` are the raw bytes in the order in which the header speaks of them."""

    def __init__(self) -> None:
        self.buffers: list[bytes | bytearray | memoryview] = []

    def encode(self, value: Any, where: str, depth: int) -> Any:
        kind = type(value)
        if kind in PLAIN_TYPES:
            return value
        if depth > MAX_DEPTH:
            raise UserError(
                f"The batch is nested more than {MAX_DEPTH} deep at {where[:80]}.",
                "A list that contains itself cannot be sent; return a flat dict or tuple of arrays.",
            )
        if kind is complex:
            return ["c", value.real, value.imag]
        if kind is bytes or kind is bytearray:
            self.buffers.append(value)
            return ["b" if kind is bytes else "a", len(value)]
        if kind is list or kind is tuple:
            return ["l" if kind is list else "u", self._items(value, where, depth)]
        if kind is dict or kind is OrderedDict:
            pairs = [
                [self.encode(key, f"a key of {where}", depth + 1), self.encode(item, f"{where}[{key!r}]", depth + 1)]
                for key, item in value.items()
            ]  # fmt: skip
            return ["d" if kind is dict else "o", pairs]
        if isinstance(value, tuple) and isinstance(getattr(kind, "_fields", None), tuple):
            if _find_class(kind.__module__, kind.__qualname__) is not kind:
                raise UserError(
                    f"The batch holds at {where} a {kind.__qualname__} that cannot be found by name in {kind.__module__}.",
                    "Define the named tuple at the top of a module.",
                )
            return ["N", kind.__module__, kind.__qualname__, self._items(value, where, depth)]
        if kind is np.ndarray or kind is np.memmap:
            places = _find_layout(value.shape, value.strides)
            laid_out = value.transpose(places)
            return ["n", self._array(laid_out, where), list(laid_out.shape), *_layout_as_json(places)]
        if isinstance(value, np.generic):
            return ["g", self._array(np.asarray(value), where)]
        torch = sys.modules.get("torch")
        if torch is not None and kind is torch.Tensor:
            return self._tensor(value, where, torch)
        raise _refusal(value, where)

    def _items(self, value: Sequence[Any], where: str, depth: int) -> list[Any]:
        return [
            item if type(item) in PLAIN_TYPES else self.encode(item, f"{where}[{place}]", depth + 1)
            for place, item in enumerate(value)
        ]

    def _array(self, value: np.ndarray, where: str) -> str:
        name = _dtype_name(value.dtype)
        if name is None:
            raise UserError(
                f"The batch holds at {where} a numpy array of dtype {value.dtype}, whose values are not plain numbers.",
                "Return strings as a list of str, and objects or records as arrays of numbers.",
            )
        if value.size:  # a view of bytes, whatever the dtype: memoryview itself knows few
            self.buffers.append(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
        return name

    def _tensor(self, value: Any, where: str, torch: ModuleType) -> list[Any]:
        is_dense = value.layout is torch.strided and not value.is_quantized and not value.is_nested
        if not is_dense or value.device.type != "cpu":
            kind = "nested tensor" if value.is_nested else "tensor"
            raise UserError(
                f"The batch holds at {where} a {kind} of layout {value.layout} and dtype {value.dtype} on {value.device}.",
                "Return dense tensors on the CPU: value.to_dense().cpu(), or value.to_padded_tensor(0) of a nested one.",
            )
        plain = value.detach().resolve_conj().resolve_neg()
        places = _find_layout(plain.shape, plain.stride())
        laid_out = plain.permute(places).contiguous()
        if laid_out.numel():
            self.buffers.append(laid_out.reshape(-1).view(torch.uint8).numpy().data)
        name = str(value.dtype).removeprefix("torch.")
        return ["t", name, list(laid_out.shape), *_layout_as_json(places)]


class _Reader:
    """Walks a header; buffers lie one after the other from `position` on."""

    def __init__(self, view: memoryview, position: int) -> None:
        self.view = view
        self.position = position

    def decode(self, node: Any, depth: int) -> Any:
        if not isinstance(node, list):
            if isinstance(node, dict):
                raise DamagedError("a mapping where a value belongs")
            return node
        if depth > MAX_DEPTH:
            raise DamagedError("nested too deep")
        tag, *rest = node
        if tag in ("l", "u"):
            (items,) = rest
            decoded = [self.decode(item, depth + 1) for item in items]
            return decoded if tag == "l" else tuple(decoded)
        if tag in ("d", "o"):
            (pairs,) = rest
            kind = dict if tag == "d" else OrderedDict
            return kind((self.decode(key, depth + 1), self.decode(item, depth + 1)) for key, item in pairs)
        if tag == "n":
            name, shape, *places = rest
            array = self._array(_named_dtype(name), shape)
            return array.transpose(_inverse_layout(places, shape)) if places else array
        if tag == "t":
            name, shape, *places = rest
            tensor = self._tensor(name, shape)
            return tensor.permute(_inverse_layout(places, shape)) if places else tensor
        if tag == "g":
            (name,) = rest
            return self._array(_named_dtype(name), [])[()]
        if tag in ("b", "a"):
            (num_bytes,) = rest
            taken = self._take(_count([num_bytes]))
            return bytes(taken) if tag == "b" else bytearray(taken)
        if tag == "c":
            real, imaginary = rest
            return complex(float(real), float(imaginary))
        if tag == "N":
            module, qualname, items = rest
            return self._named_tuple(module, qualname, items, depth)
        raise DamagedError(f"a value of the unknown kind {tag!r:.20}")

    def _named_tuple(self, module: str, qualname: str, items: list[Any], depth: int) -> Any:
        values = [self.decode(item, depth + 1) for item in items]
        kind = _find_class(module, qualname)
        fields = getattr(kind, "_fields", None)
        if kind is None or not issubclass(kind, tuple) or not isinstance(fields, tuple):
            raise UserError(
                f"The batch is a named tuple {module}.{qualname}, which this process does not know.",
                f"Import {module} in the script that trains, at its top.",
            )
        if len(fields) != len(values):
            raise DamagedError(f"{len(values)} values for the {len(fields)} fields of {qualname}")
        return tuple.__new__(kind, values)

    def _take(self, num_bytes: int) -> memoryview:
        start = self.position + -self.position % ALIGNMENT
        if start + num_bytes > len(self.view):
            raise DamagedError(f"an array of {num_bytes:,} bytes ends after the end")
        self.position = start + num_bytes
        return self.view[start : self.position]

    def _array(self, dtype: np.dtype[Any], shape: list[int]) -> np.ndarray:
        num_bytes = _count(shape) * dtype.itemsize
        if not num_bytes:
            return np.empty(shape, dtype)
        return np.frombuffer(self._take(num_bytes), np.uint8).view(dtype).reshape(shape)

    def _tensor(self, name: str, shape: list[int]) -> Any:
        torch = sys.modules.get("torch")
        if torch is None:
            raise UserError(
                "The batch holds torch tensors, and torch is not loaded here.", "Import torch first."
            )
        dtype = getattr(torch, name, None) if isinstance(name, str) else None
        if not isinstance(dtype, torch.dtype):
            raise UserError(
                f"The batch holds a tensor of dtype {name!r:.40}, which torch {torch.__version__} does not know.",
                "Run the same version of torch on all nodes.",
            )
        num_bytes = _count(shape) * dtype.itemsize
        if not num_bytes:
            return torch.empty(shape, dtype=dtype)
        taken = torch.frombuffer(self._take(num_bytes), dtype=torch.uint8)
        return taken.view(dtype).reshape(shape)


def _find_layout(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """The order of the dimensions in memory, the outermost first; the given order where elements overlap or leave gaps.

    It is kept, since a convolution rounds differently where a tensor is channels_last.
    """
    given_order = list(range(len(shape)))
    if any(stride <= 0 for stride in strides):
        return given_order  # repeated or backwards
    places = sorted(given_order, key=lambda place: (-strides[place], shape[place] == 1))
    step = strides[places[-1]] if places else 1
    for place in reversed(places):
        if shape[place] != 1 and strides[place] != step:
            return given_order  # with gaps
        step *= shape[place]
    return places


def _layout_as_json(places: list[int]) -> list[list[int]]:
    return [] if places == sorted(places) else [places]


def _inverse_layout(layout: list[list[int]], shape: list[int]) -> list[int]:
    (places,) = layout
    if sorted(places) != list(range(len(shape))):
        raise DamagedError(f"the dimensions {places!r:.80}")
    return [places.index(place) for place in range(len(shape))]


def _count(shape: list[int]) -> int:
    if any(type(length) is not int or length < 0 for length in shape):
        raise DamagedError(f"the shape {shape!r:.80}")
    return math.prod(shape)


def _dtype_name(dtype: np.dtype[Any]) -> str | None:
    if PLAIN_DTYPE.fullmatch(dtype.str):
        return str(dtype.str)
    extension = sys.modules.get("ml_dtypes")  # bfloat16 and the float8s of TensorFlow and JAX
    known = getattr(extension, dtype.name, None)
    return f"ml_dtypes.{dtype.name}" if isinstance(known, type) and np.dtype(known) == dtype else None


def _named_dtype(name: str) -> np.dtype[Any]:
    if PLAIN_DTYPE.fullmatch(name):
        return np.dtype(name)
    prefix, _, attribute = name.partition(".")
    extension = sys.modules.get("ml_dtypes") if prefix == "ml_dtypes" else None
    known = getattr(extension, attribute, None)
    if isinstance(known, type) and issubclass(known, np.generic):
        return np.dtype(known)
    raise UserError(
        f"The batch holds an array of dtype {name!r:.40}, which is not known here.",
        "Import ml_dtypes, or convert the array on the workers.",
    )


def _find_class(module: str, qualname: str) -> type | None:
    """Looks a class up among what is loaded, by dictionaries alone: nothing is imported or called."""
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found if isinstance(found, type) else None


def _refusal(value: Any, where: str) -> UserError:
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    cures = {
        "Tensor": "Return a plain tensor: value.as_subclass(torch.Tensor).",
        "dict": "Return a plain dict: dict(value).",
        "ndarray": "Return a plain array: numpy.asarray(value).",
    }
    bases = [base.__name__ for base in kind.__mro__] + (["dict"] if hasattr(value, "keys") else [])
    cure = next((cures[base] for base in bases if base in cures), None)
    return UserError(
        f"The batch holds at {where} a {name}, which cannot be sent over the network.",
        cure
        or "Return arrays, tensors, numbers, strings, bytes or None, in dicts, lists and (named) tuples: convert it in collate_fn.",
    )
