"""Checkpoints: written whole, found again after a crash, and never read unless every byte is as it was written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from portwright.errors import UserError
from portwright.runtime.checkpoint_files import (
    Place,
    TensorSpec,
    read_specs,
    read_tensor,
    read_tensors,
    restore,
)
from portwright.runtime.checkpoint_folder import (
    EXTRA_FILE,
    FILE_OF_KIND,
    MANIFEST_FILE,
    MODEL_FILE,
    STATE_FILE,
    CheckpointInfo,
    find_last_good,
    list_checkpoints,
    locate_checkpoint,
    parse_manifest,
    read_state,
    reason_of,
    shard_name_of,
    verify_checkpoint,
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
    "locate_checkpoint",
    "match_names",
    "read_checkpoint",
    "verify_checkpoint",
]


class StoredShards(Iterable[Shard]):
    """Shards in files, read into memory of their own one at a time, as often as asked.

    `specs` tells their names, shapes and dtypes without reading them.
    """

    def __init__(self, mapped: Mapping[str, torch.Tensor]) -> None:
        self._mapped = mapped  # from a torch file
        self._files: list[tuple[Path, dict[str, Place]]] = []
        self.specs = {name: TensorSpec.of(tensor) for name, tensor in mapped.items()}

    def __iter__(self) -> Iterator[Shard]:
        for path, places in self._files:
            for name, tensor in read_tensors(path, places):
                yield Shard(name, restore(tensor, self.specs[name].dtype))
        for name in self._mapped:
            yield Shard(name, self.read(name))

    def read(self, name: str) -> torch.Tensor:
        """One shard's tensor, in memory of its own."""
        if name in self._mapped:
            return self._mapped[name].clone(memory_format=torch.contiguous_format)
        dtype = self.specs[name].dtype
        path, place = next((path, places[name]) for path, places in self._files if name in places)
        return restore(read_tensor(path, place), dtype)

    def add_file(self, path: Path, kind_file: str, notes: Mapping[str, Mapping[str, str]]) -> None:
        """Adds the tensors of a safetensors file under the names that `kind_file` stands for."""
        places = {}
        for key, (spec, start) in read_specs(path).items():
            note = notes.get(key, {})
            name = shard_name_of(kind_file, note.get("name", key))
            places[name] = (spec, start)
            if "dtype" in note:
                spec = TensorSpec(spec.shape[:-1], getattr(torch, note["dtype"]))
            self.specs[name] = spec
        self._files.append((path, places))


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A verified checkpoint, its tensors still in their files.

    `counters` is None where only weights count.
    """

    path: Path
    step: int
    shards: StoredShards
    counters: dict[str, Any] | None


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
        return _read_file(path)
    except OSError as error:
        raise UserError(f"Cannot read checkpoint {path}: {reason_of(error)}.", _cure_near(path)) from error


def _read_folder(path: Path, weights_only: bool) -> LoadedCheckpoint:
    if not (path / MANIFEST_FILE).exists():
        raise UserError(f"{path} is not a checkpoint: {_what_folder(path)}.", _cure_near(path))
    problems = verify_checkpoint(path, {MODEL_FILE, STATE_FILE} if weights_only else None)
    if problems:
        raise UserError(f"Checkpoint {path} is not good: {'; '.join(problems)}.", _cure_near(path))
    state = read_state(path)
    verified = parse_manifest((path / MANIFEST_FILE).read_bytes()).files
    shards = StoredShards({})
    for name in (MODEL_FILE,) if weights_only else (*FILE_OF_KIND.values(), EXTRA_FILE):
        if name in verified:
            shards.add_file(path / name, name, state["stored"].get(name, {}))
    # Counters of a run are never empty: without any it is weights that were converted from elsewhere.
    counters = None if weights_only else state["counters"] or None
    return LoadedCheckpoint(path, state["step"], shards, counters)


def _read_file(path: Path) -> LoadedCheckpoint:
    if path.parent.joinpath(MANIFEST_FILE).exists() and path.name == MODEL_FILE:
        return _read_folder(path.parent, True)  # verified, which the file alone cannot be
    if is_safetensors(path):
        check_safetensors(path)
        shards = StoredShards({})
        shards.add_file(path, MODEL_FILE, {})
        return LoadedCheckpoint(path, 0, shards, None)
    weights, step = read_legacy(path)
    return LoadedCheckpoint(
        path, step, StoredShards({f"model/{name}": tensor for name, tensor in weights.items()}), None
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
            return f"Complete checkpoints in {folder}: {', '.join(complete[-5:])}."
    return "Give the path of a checkpoint with --checkpoint_path; none was found near this one."
