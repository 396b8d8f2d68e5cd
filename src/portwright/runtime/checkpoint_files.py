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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from portwright.errors import UserError
from portwright.runtime.checkpoint_format import CODE_OF_DTYPE, FileEntry

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

_CHUNK_BYTES = 4 << 20  # larger gains nothing
_MOST_PARTS = 1000  # that one call may write; the system's limit is 1024


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


def write_tensors(path: Path, tensors: Sequence[tuple[str, torch.Tensor]]) -> FileEntry:
    """Writes a safetensors file of tensors in storable form, hashing on the way."""
    specs = {name: TensorSpec(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors}
    return write_one_by_one(path, specs, dict(tensors).__getitem__)


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
    with _HashedFile(path) as file:
        file.write(memoryview(len(text).to_bytes(8, "little") + text))
        for name, spec in ordered:
            tensor = read(name)
            if tuple(tensor.shape) != spec.shape or tensor.dtype != spec.dtype:
                raise ValueError(f"'{name}' was to be {spec}, and is {tuple(tensor.shape)}, {tensor.dtype}")
            if tensor.numel():
                file.write(_bytes_of(tensor))
        return file.finish()


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """The tensor's own memory where it is contiguous."""
    tensor = tensor.contiguous()
    # Not view(-1): a tensor of one element may have any stride and still be contiguous.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().data


def write_text(path: Path, text: str) -> FileEntry:
    """Writes a text file, hashing on the way."""
    with _HashedFile(path) as file:
        file.write(memoryview(text.encode()))
        return file.finish()


class _HashedFile:
    """A new file that knows the sha256 of what was written to it.

    It calls out of the interpreter a few times for each 4 MiB, not for each tensor: whenever such a call
    returns, it takes the interpreter's lock from the training thread, which then waits to be woken. With 1200
    tensors of 100 KB, one call each cost a training that keeps Python busy 10% of its speed.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("x+b", buffering=0)
        self._sha256 = hashlib.sha256()
        self._size = 0
        self._batch: list[memoryview] = []
        self._batch_bytes = 0
        self._buffer = memoryview(b"")

    def __enter__(self) -> _HashedFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, data: memoryview) -> None:
        if len(data) >= _CHUNK_BYTES:
            self._write_batch()
            for start in range(0, len(data), _CHUNK_BYTES):
                self._batch = [data[start : start + _CHUNK_BYTES]]
                self._write_batch()
            return
        if self._batch_bytes + len(data) > _CHUNK_BYTES or len(self._batch) == _MOST_PARTS:
            self._write_batch()
        self._batch.append(data)
        self._batch_bytes += len(data)

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
        while start < self._size:
            count = self._file.readinto(self._buffer[: self._size - start])
            if not count:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            self._sha256.update(self._buffer[:count])
            start += count


def _after(parts: list[memoryview], num_bytes: int) -> list[memoryview]:
    """What is left of `parts` behind that many bytes: a write may take less than it was given."""
    for index, part in enumerate(parts):
        if num_bytes < len(part):
            return [part[num_bytes:], *parts[index + 1 :]]
        num_bytes -= len(part)
    return []


def hash_file(path: Path) -> FileEntry:
    """Reads a file through."""
    digest = hashlib.sha256()
    size = 0
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            size += count
    return FileEntry(size, digest.hexdigest())


def read_specs(path: Path) -> dict[str, tuple[TensorSpec, int]]:
    """The specification of each tensor in a safetensors file, and where its bytes begin.

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


def read_tensors(
    path: Path, places: Mapping[str, tuple[TensorSpec, int]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Reads tensors of a safetensors file into memory of their own, one at a time."""
    with path.open("rb", buffering=0) as file:
        for name, (spec, start) in sorted(places.items(), key=lambda item: item[1][1]):
            tensor = torch.empty(spec.shape, dtype=spec.dtype)
            if tensor.numel():
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
