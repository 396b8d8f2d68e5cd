"""Reads files that others wrote: safetensors, and torch's own of the old layout, without ever running pickle."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from portwright.errors import UserError
from portwright.runtime.checkpoint_find import describe_head

_MODEL_KEYS = ("model", "state_dict", "model_state_dict")
_OPTIMIZER_KEYS = ("optimizer", "optimizer_state_dict")
_SCHEDULER_KEYS = ("lr_scheduler", "lr_scheduler_state_dict", "scheduler")
_SCALER_KEYS = ("scaler", "grad_scaler")
_STEP_KEYS = ("global_step", "step")
_HDF5 = b"\x89HDF\r\n\x1a\n"
_CURE = "Give a checkpoint folder of Portwright, a .safetensors file, or a file written by torch.save."


@dataclass(frozen=True)
class LegacyContents:
    """What a torch file of the old layout holds; all but the weights as torch's own state_dicts."""

    weights: Mapping[str, torch.Tensor]
    step: int
    optimizer: dict[str, Any] | None
    lr_scheduler: dict[str, Any] | None
    scaler: dict[str, Any] | None


def is_safetensors(path: Path) -> bool:
    """Whether a file begins as a safetensors file does."""
    head = _head_of(path)
    return len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 2**40


def check_safetensors(path: Path) -> None:
    """Has the library check the header against the file; a UserError says what is wrong."""
    try:
        with safe_open(path, framework="pt"):
            pass
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{path} is not a whole safetensors file ({_first_line(error)}).", "Copy or download it again."
        ) from error


def read_legacy(path: Path) -> LegacyContents:
    """Reads a file written by torch.save: {model, optimizer, lr_scheduler, scaler, global_step} or weights alone.

    The file stays mapped where its format allows, so weights are read when they are used.
    """
    head = _head_of(path)
    what = describe_head(head)
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
    return _sort_contents(path, _load(path, is_zip))


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


def _sort_contents(path: Path, loaded: object) -> LegacyContents:
    if not isinstance(loaded, dict):
        raise UserError(f"{path} holds a {type(loaded).__name__}, not a dictionary of weights.", _CURE)
    weights = next((loaded[key] for key in _MODEL_KEYS if isinstance(loaded.get(key), dict)), None)
    if weights is None:
        if not any(isinstance(value, torch.Tensor) for value in loaded.values()):
            keys = ", ".join(str(key) for key in list(loaded)[:8]) or "none"
            raise UserError(
                f"{path} has no weights where they are looked for. Its keys: {keys}.",
                f"The weights must be under {', '.join(_MODEL_KEYS)}, or be all that the file holds.",
            )
        return LegacyContents(_check_weights(path, loaded), 0, None, None, None)
    return LegacyContents(
        _check_weights(path, weights),
        _step_of(path, loaded),
        _dict_under(loaded, _OPTIMIZER_KEYS),
        _dict_under(loaded, _SCHEDULER_KEYS),
        _dict_under(loaded, _SCALER_KEYS),
    )


def _check_weights(path: Path, weights: dict[Any, Any]) -> dict[str, torch.Tensor]:
    wrong = [str(name) for name, value in weights.items() if not isinstance(value, torch.Tensor)]
    if wrong:
        raise UserError(
            f"{path} has entries among its weights that are not tensors: {', '.join(wrong[:5])} ({len(wrong)} in all).",
            "Write the model's state_dict alone, or under the key 'model'.",
        )
    if not weights:
        raise UserError(f"{path} holds no weights at all.", _CURE)
    return {str(name): value for name, value in weights.items()}


def _step_of(path: Path, loaded: dict[Any, Any]) -> int:
    step = next((loaded[key] for key in _STEP_KEYS if key in loaded), 0)
    if isinstance(step, torch.Tensor) and step.numel() == 1:
        step = step.item()
    if isinstance(step, float) and step.is_integer():
        step = int(step)
    if type(step) is not int or step < 0:
        raise UserError(f"{path} has a global_step that is no step number: {step!r}.", _CURE)
    return step


def _dict_under(loaded: dict[Any, Any], keys: tuple[str, ...]) -> dict[str, Any] | None:
    return next((loaded[key] for key in keys if isinstance(loaded.get(key), dict)), None)


def _refused_name(error: Exception) -> str:
    """The class that torch refused, out of its long advice."""
    text = str(error)
    start = text.find("Unsupported global: GLOBAL ")
    return text[start:].split()[3] if start >= 0 else _first_line(error)


def _head_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(64)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
