"""What lies in a checkpoint folder, byte for byte.

checkpoint_{step}/
  model.safetensors      weights and buffers under their state_dict names: other tools read this file
  optimizer.safetensors  optimizer state, `<parameter name>/<state name>`
  rng.safetensors        generator states, `<rank>/<generator>`
  extra.safetensors      shards of any other kind, under their whole names; only when there are any
  state.json             step, counters, and which tensors safetensors could not hold as they are
  manifest.json          size and sha256 of each file, and of itself; written last
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from portwright.errors import UserError

FORMAT_VERSION = 1
STATE_FILE = "state.json"
MANIFEST_FILE = "manifest.json"
MODEL_FILE = "model.safetensors"
EXTRA_FILE = "extra.safetensors"
FILE_OF_KIND = {"model": MODEL_FILE, "optimizer": "optimizer.safetensors", "rng": "rng.safetensors"}
FOLDER_NAME = re.compile(r"checkpoint_(0|[1-9][0-9]*)", re.ASCII)

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


@dataclass(frozen=True)
class FileEntry:
    """What the manifest says of a file."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The last file of a checkpoint; `sequence` tells which of two checkpoints was written later."""

    step: int
    sequence: int
    files: Mapping[str, FileEntry]


def place_of(shard_name: str) -> tuple[str, str]:
    """The file that a shard goes to, and its name there."""
    kind, slash, rest = shard_name.partition("/")
    if slash and kind in FILE_OF_KIND:
        return FILE_OF_KIND[kind], rest
    return EXTRA_FILE, shard_name


def shard_name_of(file_name: str, name: str) -> str:
    """The reverse of `place_of`."""
    for kind, file in FILE_OF_KIND.items():
        if file == file_name:
            return f"{kind}/{name}"
    return name


def storable(name: str, tensor: torch.Tensor) -> tuple[torch.Tensor, dict[str, str]]:
    """The form in which a tensor is stored, and what `restore` must know to undo it; empty for most."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        form = "quantized" if tensor.is_quantized else "meta" if tensor.is_meta else str(tensor.layout)
        raise UserError(
            f"Cannot save '{name}': a checkpoint holds dense tensors with data, and this one is {form}.",
            "Convert it (to_dense(), dequantize()), or register it as non-persistent.",
        )
    tensor = tensor.detach()
    note: dict[str, str] = {}
    if name == "__metadata__" or not _is_unicode(name):
        note["name"] = name
    if tensor.dtype not in CODE_OF_DTYPE:
        note["dtype"] = str(tensor.dtype).removeprefix("torch.")
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor.resolve_conj().resolve_neg())
        else:
            tensor = tensor.contiguous().unsqueeze(-1).view(torch.uint8)
    elif tensor.is_neg():
        tensor = tensor.resolve_neg()
    return tensor, note


def restore(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """The tensor as it was before `storable` gave it another form."""
    if dtype is None:
        return tensor
    if tensor.numel() == 0:
        return torch.empty(tensor.shape[:-1], dtype=dtype)
    return torch.view_as_complex(tensor) if dtype.is_complex else tensor.view(dtype).squeeze(-1)


def stored_name(name: str, note: Mapping[str, str]) -> str:
    """Names that a safetensors file cannot hold get an escaped one; the true one is in the note."""
    return f"escaped:{json.dumps(name)}" if "name" in note else name


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def render_manifest(manifest: Manifest) -> str:
    """The manifest as JSON, with a checksum of itself."""
    body = {
        "format": FORMAT_VERSION,
        "step": manifest.step,
        "sequence": manifest.sequence,
        "files": {
            name: {"size": entry.size, "sha256": entry.sha256} for name, entry in manifest.files.items()
        },
    }
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps({**body, "manifest_sha256": digest}, indent=2, sort_keys=True) + "\n"


def parse_manifest(raw: bytes) -> Manifest:
    """Reads a manifest; a ValueError says what is wrong with it."""
    data = json.loads(raw)
    version = data.get("format") if isinstance(data, dict) else None
    if type(version) is int and version != FORMAT_VERSION:
        raise ValueError(
            f"its format is {version}, this version of Portwright reads {FORMAT_VERSION}: use the one that wrote it"
        )
    try:
        files = {name: FileEntry(entry["size"], entry["sha256"]) for name, entry in data["files"].items()}
        manifest = Manifest(data["step"], data["sequence"], files)
        if not (type(manifest.step) is int and type(manifest.sequence) is int):
            raise TypeError("step or sequence")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("it is not a manifest of Portwright") from error
    if any(Path(name).name != name for name in files):
        raise ValueError("it names files outside the checkpoint")
    # One way to write it, so that no byte of it can change unseen.
    if render_manifest(manifest).encode() != raw:
        raise ValueError("its checksum does not match")
    return manifest
