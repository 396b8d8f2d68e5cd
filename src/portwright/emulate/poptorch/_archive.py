"""The file of an executable: a zip of JSON and safetensors, written whole or not at all, read without running code."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from portwright.emulate.poptorch._errors import refuse

FORMAT = "portwright emulated poptorch executable"
VERSION = 1
MANIFEST = "manifest.json"


def write_archive(
    path: Path,
    manifest: Mapping[str, Any],
    documents: Mapping[str, Any],
    tensors: Mapping[str, Mapping[str, torch.Tensor]],
) -> None:
    """Writes `documents` as JSON and groups of `tensors` as safetensors, beside a manifest that says what this is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                head = {"format": FORMAT, "format_version": VERSION, **manifest}
                archive.writestr(MANIFEST, json.dumps(head, indent=1))
                for document, content in documents.items():
                    archive.writestr(f"{document}.json", json.dumps(content))
                for group, members in tensors.items():
                    archive.writestr(f"{group}.safetensors", _bytes_of(members))
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())  # noqa: PTH101  # mkstemp makes it the owner's alone
        os.replace(name, path)  # noqa: PTH105
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)  # noqa: PTH108
        raise


class Archive:
    """A file that was read: its parts by name, and an error that names the file for whatever is wrong with it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with zipfile.ZipFile(path) as archive:
                self._parts = {name: archive.read(name) for name in archive.namelist()}
        except FileNotFoundError:
            raise refuse(f"there is no file {path}.") from None
        except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, RuntimeError) as error:
            raise self.wrong(f"it is damaged, or no executable of this emulator ({error})") from None
        self.manifest = self.document(MANIFEST.removesuffix(".json"))
        if not isinstance(self.manifest, dict) or self.manifest.get("format") != FORMAT:
            raise self.wrong("it is no executable of this emulator")
        if self.manifest.get("format_version") != VERSION:
            raise self.wrong(
                f"its format has the version {self.manifest.get('format_version')}, and this emulator reads {VERSION}"
            )

    def wrong(self, what: str) -> Exception:
        return refuse(f"{self.path} cannot be loaded: {what}. Compile and save the model again.")

    def has(self, part: str) -> bool:
        return part in self._parts

    def document(self, name: str) -> Any:
        try:
            return json.loads(self._part(f"{name}.json"))
        except ValueError as error:
            raise self.wrong(f"{name}.json in it is not JSON ({error})") from None

    def tensors(self, group: str) -> dict[str, torch.Tensor]:
        try:
            loaded: dict[str, torch.Tensor] = safetensors.torch.load(self._part(f"{group}.safetensors"))
        except (safetensors.SafetensorError, ValueError, KeyError) as error:
            raise self.wrong(f"{group}.safetensors in it cannot be read ({error})") from None
        return loaded

    def _part(self, name: str) -> bytes:
        if name not in self._parts:
            raise self.wrong(f"{name} is missing in it")
        return self._parts[name]


def _bytes_of(tensors: Mapping[str, torch.Tensor]) -> bytes:
    whole = {
        name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    content: bytes = safetensors.torch.save(whole)
    return content


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
