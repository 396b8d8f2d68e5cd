"""Checkpoints: written whole, found again after a crash, and never read unless every byte is as it was written."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

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
    describe_head,
    find_last_good,
    head_of,
    list_checkpoints,
    locate_checkpoint,
    parse_manifest,
    read_state,
    reason_of,
    shard_name_of,
    verify_checkpoint,
)
from portwright.runtime.checkpoint_names import match_names
from portwright.runtime.checkpoint_writer import CheckpointWriter, HostSnapshot
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


_MODEL_KEYS = ("model", "state_dict", "model_state_dict")
_STEP_KEYS = ("global_step", "step")
_HDF5 = b"\x89HDF\r\n\x1a\n"
_CURE = "Give a checkpoint folder of Portwright, a .safetensors file, or a file written by torch.save."


def is_safetensors(path: Path) -> bool:
    """Whether a file begins as a safetensors file does."""
    head = head_of(path)
    return head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 2**40


def check_safetensors(path: Path) -> None:
    """Has the library check the header against the file; a UserError says what is wrong."""
    try:
        with safe_open(path, framework="pt"):
            pass
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{path} is not a whole safetensors file ({_first_line(error)}).", "Copy or download it again."
        ) from error


def read_legacy(path: Path) -> tuple[dict[str, torch.Tensor], int]:
    """The weights and the step of a file written by torch.save: a run's dictionary, or the weights alone (step 0).

    The file stays mapped where its format allows, so weights are read when they are used.
    """
    head = head_of(path)
    what = describe_head(path)
    if head.startswith(_HDF5):
        what = "it is an HDF5 file, as Cerebras releases from 1.8 on write them (their own tools convert it)"
    if what:
        raise UserError(f"{path} is not a checkpoint: {what}.", _CURE)
    is_zip = zipfile.is_zipfile(path)
    if is_zip:
        _check_zip(path)
    elif not head.startswith(b"\x80"):
        damaged = head.startswith(b"PK")
        raise UserError(
            f"{path} is {'a truncated torch file' if damaged else 'not a checkpoint'} (it begins with {head[:8]!r}).",
            "Copy or download it again." if damaged else _CURE,
        )
    return _weights_and_step(path, _load(path, is_zip))


def _load(path: Path, is_zip: bool) -> object:
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path} holds more than tensors and plain values, and reading it would run code from it "
            f"({_refused_name(error)}).",
            "If you trust its origin, load it in a Python of your own and write its state_dict with "
            "safetensors.torch.save_file.",
        ) from error
    except MemoryError:
        raise
    except Exception as error:  # torch reports damage by whatever its reader stumbles over
        raise UserError(f"{path} cannot be read as a torch file ({_first_line(error)}).", _CURE) from error


def _check_zip(path: Path) -> None:
    """Reads the file through: torch does not look at the checksums that it writes."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError) as error:
        raise UserError(f"{path} is damaged ({_first_line(error)}).", "Copy or download it again.") from error
    if damaged is not None:
        raise UserError(
            f"{path} is damaged: the checksum of {damaged} in it does not match.",
            "Copy or download it again; one written with torch.serialization.set_crc32_options(False) must be "
            "written again with checksums.",
        )


def _weights_and_step(path: Path, loaded: object) -> tuple[dict[str, torch.Tensor], int]:
    if not isinstance(loaded, dict):
        raise UserError(f"{path} holds a {type(loaded).__name__}, not a dictionary of weights.", _CURE)
    key = next((key for key in _MODEL_KEYS if isinstance(loaded.get(key), dict)), None)
    if key is None and not any(isinstance(value, torch.Tensor) for value in loaded.values()):
        keys = ", ".join(str(key) for key in list(loaded)[:8]) or "none"
        raise UserError(
            f"{path} has no weights where they are looked for. Its keys: {keys}.",
            f"The weights must be under {', '.join(_MODEL_KEYS)}, or be all that the file holds.",
        )
    weights, step = (loaded, 0) if key is None else (loaded[key], _step_of(path, loaded))
    wrong = [str(name) for name, value in weights.items() if not isinstance(value, torch.Tensor)]
    if wrong:
        raise UserError(
            f"{path} has entries among its weights that are not tensors: {', '.join(wrong[:5])} ({len(wrong)} in all).",
            "Write the model's state_dict alone, or under the key 'model'.",
        )
    if not weights:
        raise UserError(f"{path} holds no weights at all.", _CURE)
    return {str(name): value.detach() for name, value in weights.items()}, step


def _step_of(path: Path, loaded: dict[Any, Any]) -> int:
    step = next((loaded[key] for key in _STEP_KEYS if key in loaded), 0)
    if isinstance(step, torch.Tensor) and step.numel() == 1:
        step = step.item()
    if isinstance(step, float) and step.is_integer():
        step = int(step)
    if type(step) is not int or step < 0:
        raise UserError(f"{path} has a global_step that is no step number: {step!r}.", _CURE)
    return step


def _refused_name(error: Exception) -> str:
    """The class that torch refused, out of its long advice."""
    text = str(error)
    start = text.find("Unsupported global: GLOBAL ")
    return text[start:].split()[3] if start >= 0 else _first_line(error)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
