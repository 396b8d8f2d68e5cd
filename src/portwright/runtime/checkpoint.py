"""Checkpoints: written whole, found again after a crash, and never read unless every byte is as it was written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from portwright.errors import UserError
from portwright.runtime.checkpoint_files import TensorSpec, read_specs, read_tensors
from portwright.runtime.checkpoint_find import (
    CheckpointInfo,
    find_last_good,
    list_checkpoints,
    read_state,
    verify_checkpoint,
)
from portwright.runtime.checkpoint_format import (
    EXTRA_FILE,
    FILE_OF_KIND,
    MANIFEST_FILE,
    MODEL_FILE,
    STATE_FILE,
    parse_manifest,
    restore,
    shard_name_of,
)
from portwright.runtime.checkpoint_legacy import check_safetensors, is_safetensors, read_legacy
from portwright.runtime.checkpoint_names import match_names
from portwright.runtime.checkpoint_snapshot import HostSnapshot
from portwright.runtime.checkpoint_writer import CheckpointWriter
from portwright.target import Shard

__all__ = [
    "CheckpointInfo",
    "CheckpointWriter",
    "HostSnapshot",
    "LoadedCheckpoint",
    "StoredShards",
    "TensorSpec",
    "find_last_good",
    "list_checkpoints",
    "match_names",
    "read_checkpoint",
    "verify_checkpoint",
]


class StoredShards(Iterable[Shard]):
    """Shards in files, read into memory of their own one at a time, as often as asked.

    `specs` tells their names, shapes and dtypes without reading them.
    """

    def __init__(self) -> None:
        self.specs: dict[str, TensorSpec] = {}
        self._files: list[
            tuple[Path, Mapping[str, tuple[TensorSpec, int]], dict[str, tuple[str, TensorSpec]]]
        ] = []
        self._keys: dict[Path, dict[str, str]] = {}
        self._mapped: Mapping[str, torch.Tensor] = {}

    def __iter__(self) -> Iterator[Shard]:
        for path, places, originals in self._files:
            for key, tensor in read_tensors(path, places):
                name, spec = originals[key]
                other_form = spec.dtype if spec.dtype != tensor.dtype else None
                yield Shard(name, restore(tensor, other_form))
        for name, tensor in self._mapped.items():
            yield Shard(name, tensor.detach().clone(memory_format=torch.contiguous_format))

    def read(self, name: str) -> torch.Tensor:
        """One shard's tensor, in memory of its own."""
        if name in self._mapped:
            return self._mapped[name].detach().clone(memory_format=torch.contiguous_format)
        for path, places, originals in self._files:
            if name in self._keys[path]:
                key = self._keys[path][name]
                _, spec = originals[key]
                tensor = next(tensor for _, tensor in read_tensors(path, {key: places[key]}))
                return restore(tensor, spec.dtype if spec.dtype != tensor.dtype else None)
        raise KeyError(name)

    def add_file(self, path: Path, kind_file: str, notes: Mapping[str, Mapping[str, str]]) -> None:
        """Adds the tensors of a safetensors file under the names that `kind_file` stands for."""
        places = read_specs(path)
        originals = {}
        for key, (spec, _) in places.items():
            note = notes.get(key, {})
            if "dtype" in note:
                spec = TensorSpec(spec.shape[:-1], getattr(torch, note["dtype"]))
            originals[key] = (shard_name_of(kind_file, note.get("name", key)), spec)
        self.specs.update(originals.values())
        self._files.append((path, places, originals))
        self._keys[path] = {name: key for key, (name, _) in originals.items()}

    def add_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Adds tensors that are in memory or mapped from a file."""
        self.specs.update(
            {name: TensorSpec(tuple(value.shape), value.dtype) for name, value in tensors.items()}
        )
        self._mapped = {**self._mapped, **tensors}


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A verified checkpoint, its tensors still in their files.

    `counters` is None where only weights count. The `legacy_` fields are what a torch file of the old layout
    had: state_dicts of torch's optimizer, scheduler and scaler, whose parameters have numbers, not names.
    """

    path: Path
    step: int
    shards: StoredShards
    counters: dict[str, Any] | None
    legacy_optimizer: dict[str, Any] | None = None
    legacy_lr_scheduler: dict[str, Any] | None = None
    legacy_scaler: dict[str, Any] | None = None


def read_checkpoint(path: Path, weights_only: bool = False) -> LoadedCheckpoint:
    """Opens a checkpoint folder, a safetensors file or a torch file of the old layout, after checking it.

    With `weights_only` nothing but the weights is looked at, and the step is the checkpoint's all the same.
    """
    path = Path(path).expanduser()
    try:
        if path.is_dir():
            return _read_folder(path, weights_only)
        if not path.exists():
            raise UserError(f"There is no checkpoint {path}.", _cure_near(path))
        if not path.is_file():
            raise UserError(f"{path} is not a checkpoint: it is not a file or a folder.", _cure_near(path))
        return _read_file(path, weights_only)
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        raise UserError(f"Cannot read checkpoint {path}: {reason}.", _cure_near(path)) from error


def _read_folder(path: Path, weights_only: bool) -> LoadedCheckpoint:
    manifest_file = path / MANIFEST_FILE
    if not manifest_file.exists():
        raise UserError(f"{path} is not a checkpoint: {_what_folder(path)}.", _cure_near(path))
    problems = verify_checkpoint(path, {MODEL_FILE, STATE_FILE} if weights_only else None)
    if problems:
        raise UserError(f"Checkpoint {path} is not good: {'; '.join(problems)}.", _cure_near(path))
    state = read_state(path)
    verified = parse_manifest(manifest_file.read_bytes()).files
    shards = StoredShards()
    for name in (MODEL_FILE,) if weights_only else (*FILE_OF_KIND.values(), EXTRA_FILE):
        if name in verified:
            shards.add_file(path / name, name, state["stored"].get(name, {}))
    # Counters of a run are never empty: without any it is weights that were converted from elsewhere.
    counters = None if weights_only else state["counters"] or None
    return LoadedCheckpoint(path, state["step"], shards, counters)


def _read_file(path: Path, weights_only: bool) -> LoadedCheckpoint:
    if path.parent.joinpath(MANIFEST_FILE).exists() and path.name == MODEL_FILE:
        return _read_folder(path.parent, True)  # verified, which the file alone cannot be
    shards = StoredShards()
    if is_safetensors(path):
        check_safetensors(path)
        shards.add_file(path, MODEL_FILE, {})
        return LoadedCheckpoint(path, 0, shards, None)
    contents = read_legacy(path)
    shards.add_tensors({f"model/{name}": tensor for name, tensor in contents.weights.items()})
    if weights_only:
        return LoadedCheckpoint(path, contents.step, shards, None)
    return LoadedCheckpoint(
        path, contents.step, shards, None, contents.optimizer, contents.lr_scheduler, contents.scaler
    )


def _what_folder(path: Path) -> str:
    if list_checkpoints(path):
        return "it is a folder with checkpoints in it"
    if (path / MODEL_FILE).exists():
        return f"it has no {MANIFEST_FILE}; its weights alone can be read from {path / MODEL_FILE}"
    return f"it has no {MANIFEST_FILE}"


def _cure_near(path: Path) -> str:
    """Names the checkpoints that the person may have meant."""
    for folder in (path, path.parent):
        complete = [
            info.path.name for info in list_checkpoints(folder) if info.complete and info.path != path
        ]
        if complete:
            listed = ", ".join(complete[-5:])
            return f"Complete checkpoints in {folder}: {listed}."
    return "Give the path of a checkpoint with --checkpoint_path; none was found near this one."
