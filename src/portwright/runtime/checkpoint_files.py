"""Reads and writes the files of a checkpoint, hashing while it writes.

The safetensors files are written here and not by the library, which cannot hash what it writes and, in the older
releases that we allow, copies all of a file's tensors first. Measured on 400 MB: 0.34 s of one core here; there
0.7 to 1.0 s, and 0.27 s to hash the file.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import torch

from portwright.errors import UserError

# The dtypes that every safetensors >= 0.4.3 reads. Others are stored in a form it does read, and noted.
_CODE_OF_NAME = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
# By name, since PopTorch 3.4 pins torch 2.0.1, which has no float8.
CODE_OF_DTYPE: dict[torch.dtype, str] = {
    getattr(torch, name): code for name, code in _CODE_OF_NAME.items() if hasattr(torch, name)
}
_READ_ONLY = {
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "C64": "complex64",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}
_DTYPE_OF_CODE: dict[str, torch.dtype] = {code: dtype for dtype, code in CODE_OF_DTYPE.items()} | {
    code: getattr(torch, name) for code, name in _READ_ONLY.items() if hasattr(torch, name)
}

_NOT_UNICODE = re.compile("[\ud800-\udfff]")  # surrogates, which UTF-8 cannot hold
_CHUNK_BYTES = 4 << 20  # larger gains nothing
_MOST_PARTS = 1000  # that one call may write; the system's limit is 1024


@dataclass(frozen=True)
class FileEntry:
    """What the manifest says of a file."""

    size: int
    sha256: str


def element_bytes(dtype: torch.dtype) -> int:
    return torch.empty(0, dtype=dtype).element_size()  # torch 2.0.1 has no dtype.itemsize


@dataclass(frozen=True)
class TensorSpec:
    """What can be known of a tensor without reading it."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * element_bytes(self.dtype)

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorSpec:
        return cls(tuple(tensor.shape), tensor.dtype)


Place = tuple[TensorSpec, int]  # of a tensor in a file, and where its bytes begin


def storable(name: str, tensor: torch.Tensor) -> tuple[str, torch.Tensor, dict[str, str]]:
    """The name and the form in which a safetensors file holds a tensor, and a note of what they were before.

    The note is empty for most; of a name that had to be escaped it has the true one.
    """
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        form = "quantized" if tensor.is_quantized else "meta" if tensor.is_meta else str(tensor.layout)
        raise UserError(
            f"Cannot save '{name}': a checkpoint holds dense tensors with data, and this one is {form}.",
            "Convert it (to_dense(), dequantize()), or register it as non-persistent.",
        )
    tensor = tensor.detach().resolve_conj().resolve_neg()
    note: dict[str, str] = {}
    key = name
    if name == "__metadata__" or _NOT_UNICODE.search(name):
        note["name"] = name
        key = f"escaped:{json.dumps(name)}"
    if tensor.dtype not in CODE_OF_DTYPE:
        note["dtype"] = str(tensor.dtype).removeprefix("torch.")
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        else:
            tensor = tensor.contiguous().unsqueeze(-1).view(torch.uint8)
    return key, tensor, note


def restore(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor as it was before `storable` gave it another form."""
    if tensor.dtype == dtype:
        return tensor
    if tensor.numel() == 0:
        return torch.empty(tensor.shape[:-1], dtype=dtype)
    return torch.view_as_complex(tensor) if dtype.is_complex else tensor.view(dtype).squeeze(-1)


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> FileEntry:
    """Writes a safetensors file of tensors in storable form, hashing on the way."""
    specs = {name: TensorSpec.of(tensor) for name, tensor in tensors.items()}
    return write_one_by_one(path, specs, tensors.__getitem__)


def write_one_by_one(
    path: Path, specs: Mapping[str, TensorSpec], read: Callable[[str], torch.Tensor]
) -> FileEntry:
    """Writes a safetensors file whose tensors are asked for when their turn comes, hashing on the way."""
    # Wider elements first, so that each tensor lies at a multiple of its element's size, as readers want it.
    ordered = sorted(specs.items(), key=lambda item: (-element_bytes(item[1].dtype), item[0]))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, spec in ordered:
        end = offset + spec.num_bytes
        header[name] = {
            "dtype": CODE_OF_DTYPE[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("x+b", buffering=0) as opened:
        file = _HashedFile(opened)
        file.write(memoryview(len(text).to_bytes(8, "little") + text))
        for name, spec in ordered:
            tensor = read(name)
            if TensorSpec.of(tensor) != spec:
                raise ValueError(f"'{name}' was to be {spec}, and is {TensorSpec.of(tensor)}")
            file.write(_bytes_of(tensor))
        return file.finish()


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """The tensor's own memory where it is contiguous."""
    tensor = tensor.contiguous()
    # Not view(-1): a tensor of one element may have any stride and still be contiguous.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().data


def write_text(path: Path, text: str) -> FileEntry:
    """Writes a text file, hashing on the way."""
    with path.open("x+b", buffering=0) as opened:
        file = _HashedFile(opened)
        file.write(memoryview(text.encode()))
        return file.finish()


class _HashedFile:
    """Writes to a new file, and knows the sha256 of what was written to it.

    It calls out of the interpreter a few times for each 4 MiB, not for each tensor: whenever such a call
    returns, it takes the interpreter's lock from the training thread, which then waits to be woken. With 1200
    tensors of 100 KB, one call each cost a training that keeps Python busy 10% of its speed.
    """

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self._size = 0
        self._batch: list[memoryview] = []
        self._batch_bytes = 0
        self._buffer = memoryview(b"")

    def write(self, data: memoryview) -> None:
        for start in range(0, len(data), _CHUNK_BYTES):
            part = data[start : start + _CHUNK_BYTES]
            if self._batch_bytes + len(part) > _CHUNK_BYTES or len(self._batch) == _MOST_PARTS:
                self._write_batch()
            self._batch.append(part)
            self._batch_bytes += len(part)

    def finish(self) -> FileEntry:
        self._write_batch()
        return FileEntry(self._size, self._sha256.hexdigest())

    def _write_batch(self) -> None:
        parts = self._batch
        start = self._size
        while parts:
            written = os.writev(self._file.fileno(), parts)
            self._size += written
            parts = _after(parts, written)
        if len(self._batch) == 1:
            self._sha256.update(self._batch[0])
        elif self._batch:
            self._hash_written(start)
        self._batch = []
        self._batch_bytes = 0

    def _hash_written(self, start: int) -> None:
        """Hashes many parts at once, from the system's memory of the file."""
        if not self._buffer:
            self._buffer = memoryview(bytearray(_CHUNK_BYTES))
        self._file.seek(start)
        if _hash_rest(self._file, self._sha256, self._buffer) != self._size - start:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def _after(parts: list[memoryview], num_bytes: int) -> list[memoryview]:
    """What is left of `parts` behind that many bytes: a write may take less than it was given."""
    for index, part in enumerate(parts):
        if num_bytes < len(part):
            return [part[num_bytes:], *parts[index + 1 :]]
        num_bytes -= len(part)
    return []


def hash_file(path: Path) -> FileEntry:
    """Reads a file through."""
    sha256 = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        size = _hash_rest(file, sha256, memoryview(bytearray(_CHUNK_BYTES)))
    return FileEntry(size, sha256.hexdigest())


def _hash_rest(file: FileIO, sha256: hashlib._Hash, buffer: memoryview) -> int:
    """Hashes a file from where it is read next to its end, and gives the number of bytes."""
    size = 0
    while count := file.readinto(buffer):
        sha256.update(buffer[:count])
        size += count
    return size


def read_specs(path: Path) -> dict[str, Place]:
    """The place of each tensor in a safetensors file.

    The file must have been verified, or opened once by the library: what a header may say is not checked here.
    """
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_bytes))
    header.pop("__metadata__", None)
    unknown = sorted({entry["dtype"] for entry in header.values()} - _DTYPE_OF_CODE.keys())
    if unknown:
        raise UserError(
            f"{path} holds tensors of type {', '.join(unknown)}, which this version cannot read.",
            f"Convert it to one of {', '.join(_DTYPE_OF_CODE)}.",
        )
    return {
        name: (
            TensorSpec(tuple(entry["shape"]), _DTYPE_OF_CODE[entry["dtype"]]),
            8 + header_bytes + int(entry["data_offsets"][0]),
        )
        for name, entry in header.items()
    }


def read_tensors(path: Path, places: Mapping[str, Place]) -> Iterator[tuple[str, torch.Tensor]]:
    """Reads tensors of a safetensors file into memory of their own, one at a time."""
    with path.open("rb", buffering=0) as file:
        for name, (spec, start) in sorted(places.items(), key=lambda item: item[1][1]):
            tensor = torch.empty(spec.shape, dtype=spec.dtype)
            view = _bytes_of(tensor)
            file.seek(start)
            while view:
                count = file.readinto(view)
                if not count:
                    raise UserError(
                        f"{path} became shorter while it was read.",
                        "Something else writes to it: stop that, and choose another checkpoint.",
                    )
                view = view[count:]
            yield name, tensor


def read_tensor(path: Path, place: Place) -> torch.Tensor:
    """Reads one tensor of a safetensors file into memory of its own."""
    return next(tensor for _, tensor in read_tensors(path, {"": place}))
