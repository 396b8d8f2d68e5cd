"""Writes weights tensor by tensor: as a HuggingFace folder's files, or as our checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from portwright.errors import UserError
from portwright.huggingface.weights import (
    CONFIG_FILE,
    SAFETENSORS_FILE,
    SAFETENSORS_INDEX,
    Weights,
)
from portwright.runtime.checkpoint_files import CODE_OF_DTYPE, TensorSpec, write_one_by_one, write_text
from portwright.runtime.checkpoint_folder import (
    FORMAT_VERSION,
    MANIFEST_FILE,
    MODEL_FILE,
    STATE_FILE,
    Manifest,
    render_manifest,
)

OnBytes = Callable[[int], None]


def write_folder(
    folder: Path, config: Mapping[str, Any], weights: Weights, shard_bytes: int, on_bytes: OnBytes
) -> list[str]:
    """Writes config.json and the weights of a HuggingFace folder, in shards of at most `shard_bytes`; gives the files' names.

    A tensor that is larger than a shard gets a shard of its own.
    """
    groups = _split(weights.specs, shard_bytes)
    names = (
        [SAFETENSORS_FILE]
        if len(groups) == 1
        else [f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors" for i in range(len(groups))]
    )
    for name, group in zip(names, groups, strict=True):
        write_one_by_one(folder / name, group, _counted(weights.read, on_bytes))
    if len(groups) > 1:
        index = {
            "metadata": {"total_size": sum(spec.num_bytes for spec in weights.specs.values())},
            "weight_map": {key: name for name, group in zip(names, groups, strict=True) for key in group},
        }
        write_text(folder / SAFETENSORS_INDEX, json.dumps(index, indent=2, sort_keys=True) + "\n")
        names.append(SAFETENSORS_INDEX)
    write_text(folder / CONFIG_FILE, json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
    return [CONFIG_FILE, *names]


def _split(specs: Mapping[str, TensorSpec], shard_bytes: int) -> list[dict[str, TensorSpec]]:
    groups: list[dict[str, TensorSpec]] = [{}]
    size = 0
    for name, spec in specs.items():
        if groups[-1] and size + spec.num_bytes > shard_bytes:
            groups.append({})
            size = 0
        groups[-1][name] = spec
        size += spec.num_bytes
    return groups


def write_checkpoint(folder: Path, weights: Weights, on_bytes: OnBytes) -> None:
    """Writes a checkpoint of step 0 with only weights, in the runtime's layout."""
    folder.mkdir(parents=True)
    entries = {
        MODEL_FILE: write_one_by_one(folder / MODEL_FILE, weights.specs, _counted(weights.read, on_bytes))
    }
    state = {"format": FORMAT_VERSION, "step": 0, "counters": {}, "stored": {}}
    entries[STATE_FILE] = write_text(folder / STATE_FILE, json.dumps(state))
    write_text(folder / MANIFEST_FILE, render_manifest(Manifest(0, 1, entries)))


def write_file(path: Path, weights: Weights, on_bytes: OnBytes) -> None:
    """Writes one safetensors file."""
    write_one_by_one(path, weights.specs, _counted(weights.read, on_bytes))


def check_storable(specs: Mapping[str, TensorSpec]) -> None:
    """Refuses dtypes that some releases of safetensors cannot store."""
    wrong = sorted({str(spec.dtype) for spec in specs.values() if spec.dtype not in CODE_OF_DTYPE})
    if wrong:
        raise UserError(
            f"weights of type {', '.join(wrong)} cannot be stored as they are.",
            "Convert them on the way: --dtype float32.",
        )


def _counted(read: Callable[[str], torch.Tensor], on_bytes: OnBytes) -> Callable[[str], torch.Tensor]:
    def read_and_tell(name: str) -> torch.Tensor:
        tensor = read(name)
        on_bytes(tensor.numel() * tensor.element_size())
        return tensor

    return read_and_tell
