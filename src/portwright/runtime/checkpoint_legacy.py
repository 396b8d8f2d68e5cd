"""Reads files that others wrote: safetensors, and torch's own of the old layout, without ever running pickle."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from portwright.errors import UserError
from portwright.runtime.checkpoint_folder import describe_head, head_of

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
