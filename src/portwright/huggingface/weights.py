"""Lists a HuggingFace folder's tensors without reading them, reads them one at a time, and writes them so."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from portwright.errors import UserError
from portwright.runtime.checkpoint import check_safetensors, read_legacy
from portwright.runtime.checkpoint_files import (
    CODE_OF_DTYPE,
    Place,
    TensorSpec,
    read_specs,
    read_tensor,
    write_one_by_one,
    write_text,
)
from portwright.runtime.checkpoint_folder import (
    FORMAT_VERSION,
    MANIFEST_FILE,
    MODEL_FILE,
    STATE_FILE,
    Manifest,
    describe_head,
    render_manifest,
)

CONFIG_FILE = "config.json"
SAFETENSORS_FILE = "model.safetensors"
SAFETENSORS_INDEX = "model.safetensors.index.json"
TORCH_FILE = "pytorch_model.bin"
TORCH_INDEX = "pytorch_model.bin.index.json"
# In the order of transformers: the first that exists is taken.
_CHOICES = (SAFETENSORS_FILE, SAFETENSORS_INDEX, TORCH_FILE, TORCH_INDEX)
_FOREIGN = {
    "tf_model.h5": "TensorFlow's",
    "flax_model.msgpack": "Flax's",
    "model.onnx": "ONNX's",
    "consolidated.00.pth": "the authors' own layout",
}
_DOWNLOAD = "Download the whole folder again (hf download NAME --local-dir DIR)."


@dataclass(frozen=True)
class Weights:
    """Tensors by name: the type and shape of each, and a function that reads one into memory of its own."""

    specs: Mapping[str, TensorSpec]
    read: Callable[[str], torch.Tensor]

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor]) -> Weights:
        """Weights that are in memory already."""
        specs = {name: TensorSpec.of(tensor) for name, tensor in tensors.items()}
        return cls(specs, lambda name: tensors[name].contiguous())

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: spec.shape for name, spec in self.specs.items()}


def read_config(folder: Path) -> dict[str, Any]:
    """Reads the config.json of a HuggingFace folder."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise UserError(
            f"'{folder}' {what}.",
            "Give the folder that holds config.json and the weights; what is on the hub is downloaded first: "
            "hf download NAME --local-dir DIR.",
        )
    path = folder / CONFIG_FILE
    if not path.is_file():
        names = ", ".join(sorted(each.name for each in folder.iterdir())[:8]) or "nothing"
        raise UserError(
            f"'{folder}' has no {CONFIG_FILE} (it has {names}).",
            "Give a folder as save_pretrained writes it, or as the hub holds it.",
        )
    config = read_json(path)
    if not isinstance(config, dict):
        raise UserError(f"{path} holds a {type(config).__name__}, not a table of settings.", _DOWNLOAD)
    return config


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        what = describe_head(path) or str(error)
        raise UserError(f"{path} is not JSON: {what}.", _DOWNLOAD) from error
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {(error.strerror or str(error)).lower()}.", _DOWNLOAD
        ) from error


def open_folder(folder: Path) -> Weights:
    """Opens a HuggingFace folder's weights: one file or shards, safetensors or torch's, unpickled only as weights."""
    chosen = next((name for name in _CHOICES if (folder / name).is_file()), None)
    if chosen is None:
        raise _no_weights(folder)
    if chosen in (SAFETENSORS_INDEX, TORCH_INDEX):
        weight_map = _read_index(folder / chosen)
        files = [folder / name for name in dict.fromkeys(weight_map.values())]
    else:
        weight_map, files = None, [folder / chosen]
    opened = (
        _open_safetensors(files)
        if chosen.endswith(("safetensors", SAFETENSORS_INDEX))
        else _open_torch(files)
    )
    if weight_map is not None:
        _check_index(folder / chosen, weight_map, opened)
    return opened


def _open_safetensors(files: Iterable[Path]) -> Weights:
    specs: dict[str, TensorSpec] = {}
    places: dict[str, tuple[Path, Place]] = {}
    for path in files:
        _refuse_other_content(path)
        check_safetensors(path)
        for name, place in read_specs(path).items():
            if name in specs:
                raise UserError(f"'{name}' is in {places[name][0].name} and in {path.name}.", _DOWNLOAD)
            specs[name] = place[0]
            places[name] = (path, place)

    return Weights(specs, lambda name: read_tensor(*places[name]))


def _open_torch(files: Iterable[Path]) -> Weights:
    tensors: dict[str, torch.Tensor] = {}
    for path in files:
        _refuse_other_content(path)
        for name, tensor in read_legacy(path)[0].items():
            if name in tensors:
                raise UserError(f"'{name}' is in {path.name} and in another file of the index.", _DOWNLOAD)
            tensors[name] = tensor
    return Weights.of(tensors)


def _read_index(path: Path) -> dict[str, str]:
    index = read_json(path)
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise UserError(f"{path} has no weight_map.", _DOWNLOAD)
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise UserError(f"{path} puts '{name}' in {file!r}, which is no file beside it.", _DOWNLOAD)
    missing = sorted({file for file in weight_map.values() if not (path.parent / file).is_file()})
    if missing:
        raise UserError(f"{path.parent} lacks {', '.join(missing)}, which {path.name} names.", _DOWNLOAD)
    return dict(weight_map)


def _check_index(path: Path, weight_map: Mapping[str, str], opened: Weights) -> None:
    lost = sorted(name for name in weight_map if name not in opened.specs)
    if lost:
        listed = ", ".join(lost[:8]) + (f" and {len(lost) - 8} more" if len(lost) > 8 else "")
        raise UserError(f"{path.name} names tensors that its files do not hold: {listed}.", _DOWNLOAD)


def _refuse_other_content(path: Path) -> None:
    if what := describe_head(path):
        raise UserError(f"{path} holds no weights: {what}.", _DOWNLOAD)


def _no_weights(folder: Path) -> UserError:
    names = sorted(each.name for each in folder.iterdir() if each.is_file())
    variants = [name for name in names if re.fullmatch(r"(model|pytorch_model)\..+\.(safetensors|bin)", name)]
    if variants:
        cure = f"Rename {variants[0]} to {SAFETENSORS_FILE if variants[0].endswith('s') else TORCH_FILE}."
        return UserError(f"'{folder}' has only variants of the weights: {', '.join(variants)}.", cure)
    foreign = [f"{name} ({whose})" for name, whose in _FOREIGN.items() if name in names]
    if foreign:
        return UserError(
            f"'{folder}' has no {' or '.join(_CHOICES[:3])}, only {', '.join(foreign)}.",
            "Save it with transformers from PyTorch: AutoModel.from_pretrained(DIR).save_pretrained(OTHER).",
        )
    return UserError(
        f"'{folder}' has no weights: none of {', '.join(_CHOICES)} (it has {', '.join(names[:8]) or 'nothing'}).",
        _DOWNLOAD,
    )


def write_folder(
    folder: Path,
    config: Mapping[str, Any],
    weights: Weights,
    shard_bytes: int,
    on_bytes: Callable[[int], None],
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


def write_checkpoint(folder: Path, weights: Weights, on_bytes: Callable[[int], None]) -> None:
    """Writes a checkpoint of step 0 with only weights, in the runtime's layout."""
    folder.mkdir(parents=True)
    entries = {
        MODEL_FILE: write_one_by_one(folder / MODEL_FILE, weights.specs, _counted(weights.read, on_bytes))
    }
    state = {"format": FORMAT_VERSION, "step": 0, "counters": {}, "stored": {}}
    entries[STATE_FILE] = write_text(folder / STATE_FILE, json.dumps(state))
    write_text(folder / MANIFEST_FILE, render_manifest(Manifest(0, 1, entries)))


def write_file(path: Path, weights: Weights, on_bytes: Callable[[int], None]) -> None:
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


def _counted(
    read: Callable[[str], torch.Tensor], on_bytes: Callable[[int], None]
) -> Callable[[str], torch.Tensor]:
    def read_and_tell(name: str) -> torch.Tensor:
        tensor = read(name)
        on_bytes(tensor.numel() * tensor.element_size())
        return tensor

    return read_and_tell
