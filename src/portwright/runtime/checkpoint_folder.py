"""A checkpoint folder: what lies in it, whether it is good, and which a run continues from.

checkpoint_{step}/
  model.safetensors      weights and buffers under their state_dict names: other tools read this file
  optimizer.safetensors  optimizer state, `<parameter name>/<state name>`
  rng.safetensors        generator states, `<rank>/<generator>`
  extra.safetensors      shards of any other kind, under their whole names; only when there are any
  state.json             step, counters, and which tensors safetensors could not hold as they are
  manifest.json          size and sha256 of each file, and of itself; written last
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portwright.errors import UserError
from portwright.runtime.checkpoint_files import FileEntry, hash_file

FORMAT_VERSION = 1
STATE_FILE = "state.json"
MANIFEST_FILE = "manifest.json"
MODEL_FILE = "model.safetensors"
EXTRA_FILE = "extra.safetensors"
FILE_OF_KIND = {"model": MODEL_FILE, "optimizer": "optimizer.safetensors", "rng": "rng.safetensors"}
FOLDER_NAME = re.compile(r"checkpoint_(0|[1-9][0-9]*)", re.ASCII)


@dataclass(frozen=True)
class Manifest:
    """The last file of a checkpoint; `sequence` tells which of two checkpoints was written later."""

    step: int
    sequence: int
    files: Mapping[str, FileEntry]


@dataclass(frozen=True)
class CheckpointInfo:
    """A checkpoint folder, seen without reading its tensors.

    `complete` means that every file is there with its size; only `verify_checkpoint` knows whether it is good.
    `sequence` grows with each checkpoint written to a folder, and is 0 where it cannot be read.
    """

    path: Path
    step: int
    complete: bool
    sequence: int


def place_of(shard_name: str) -> tuple[str, str]:
    """The file that a shard goes to, and its name there."""
    kind, slash, rest = shard_name.partition("/")
    return (FILE_OF_KIND[kind], rest) if slash and kind in FILE_OF_KIND else (EXTRA_FILE, shard_name)


def shard_name_of(file_name: str, name: str) -> str:
    """The reverse of `place_of`."""
    kind = next((kind for kind, file in FILE_OF_KIND.items() if file == file_name), None)
    return name if kind is None else f"{kind}/{name}"


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


def read_state(path: Path) -> dict[str, Any]:
    """What state.json of a checkpoint says; a ValueError says what is wrong with it."""
    state = json.loads((path / STATE_FILE).read_bytes())
    if not isinstance(state, dict) or state.get("format") != FORMAT_VERSION:
        raise ValueError(f"it does not say format {FORMAT_VERSION}")
    if not (
        type(state.get("step")) is int
        and isinstance(state.get("counters"), dict)
        and isinstance(state.get("stored"), dict)
    ):
        raise ValueError("it lacks the step, the counters or how tensors are stored")
    return state


def list_checkpoints(directory: Path) -> list[CheckpointInfo]:
    """The checkpoint folders in a folder, by step; none where there is no such folder."""
    try:
        paths = [path for path in Path(directory).iterdir() if path.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = []
    for path in paths:
        if match := FOLDER_NAME.fullmatch(path.name):
            manifest, problems = _look_at(path, None)
            found.append(
                CheckpointInfo(path, int(match[1]), not problems, manifest.sequence if manifest else 0)
            )
    return sorted(found, key=lambda info: info.step)


def newest_first(directory: Path) -> list[CheckpointInfo]:
    """The checkpoint folders in a folder, the one written last first.

    That is seldom another order than by step: only where a run started again from an older step. What cannot be
    read comes by its step, before what was written at an earlier one.
    """
    found = list_checkpoints(directory)
    latest = itertools.accumulate((info.sequence for info in found), max)
    order = [(info.sequence or before, info.step, info) for info, before in zip(found, latest, strict=True)]
    return [info for _, _, info in sorted(order, key=lambda item: item[:2], reverse=True)]


def find_last_good(directory: Path, on_note: Callable[[str], None]) -> CheckpointInfo | None:
    """The checkpoint that was written last and is whole; says why it passes over others."""
    tried: set[Path] = set()
    # Listed anew each time: a run that is going on may replace what is being looked at.
    while left := [info for info in newest_first(directory) if info.path not in tried]:
        info = left[0]
        tried.add(info.path)
        problems = verify_checkpoint(info.path)
        if not problems:
            higher = max((other.step for other in left[1:] if other.complete), default=info.step)
            if higher > info.step:
                on_note(f"Taking {info.path.name}: it was written after checkpoint_{higher}.")
            return info
        if info.path.exists():
            on_note(f"Skipping {info.path}: {'; '.join(problems)}.")
    if old := sorted(Path(directory).glob("checkpoint_*.mdl")):
        on_note(
            f"{old[-1]} is a checkpoint of the old layout, which is read only when --checkpoint_path names it."
        )
    return None


def locate_checkpoint(path: Path, on_note: Callable[[str], None]) -> Path | None:
    """A checkpoint folder or a file itself, or the last good one of a model_dir or model folder; None where there is none."""
    if not path.is_dir() or (path / MANIFEST_FILE).is_file():
        return path
    for folder in (path, path / "model_dir"):
        if list_checkpoints(folder):
            good = find_last_good(folder, on_note)
            if good is None:
                raise UserError(
                    f"No checkpoint in {folder} is good.", f"See `portwright checkpoints {folder}`."
                )
            return good.path
    return None


def verify_checkpoint(path: Path, only: Collection[str] | None = None) -> list[str]:
    """What is wrong with a checkpoint folder, after reading every byte of it; nothing when it is good.

    `only` restricts the reading to some of its files.
    """
    path = Path(path)
    manifest, problems = _look_at(path, only)
    if manifest is None or problems:
        return problems
    for name, entry in manifest.files.items():
        with _noting(name, problems):
            if hash_file(path / name) != entry:
                raise ValueError("its checksum does not match")
    if problems:
        return problems
    with _noting(STATE_FILE, problems):
        step = read_state(path)["step"]
        match = FOLDER_NAME.fullmatch(path.name)
        if step != manifest.step:
            problems.append(f"{STATE_FILE} is of step {step}, {MANIFEST_FILE} of step {manifest.step}")
        elif match and int(match[1]) != step:
            problems.append(
                f"its name says step {match[1]}, but it is of step {step} (rename it to checkpoint_{step})"
            )
    return problems


def _look_at(path: Path, only: Collection[str] | None) -> tuple[Manifest | None, list[str]]:
    """The manifest, with no other files than `only`, and what is wrong as far as the sizes of those files tell."""
    problems: list[str] = []
    with _noting(MANIFEST_FILE, problems):
        if not path.is_dir():
            return None, ["it is not a folder" if path.exists() else "it does not exist"]
        manifest = parse_manifest((path / MANIFEST_FILE).read_bytes())
    if problems:
        return None, problems
    for name in (MODEL_FILE, STATE_FILE):
        if name not in manifest.files:
            problems.append(f"{name} is not in {MANIFEST_FILE}")
    files = {name: entry for name, entry in manifest.files.items() if only is None or name in only}
    for name, entry in files.items():
        file = path / name
        with _noting(name, problems):
            size = file.stat().st_size
            if size != entry.size:
                what = describe_head(file)
                problems.append(f"{name} has {size} bytes instead of {entry.size}" + (what and f", {what}"))
            elif not file.is_file():
                problems.append(f"{name} is not a file")
    return Manifest(manifest.step, manifest.sequence, files), problems


@contextlib.contextmanager
def _noting(name: str, problems: list[str]) -> Iterator[None]:
    """Adds to `problems` what keeps the block from reading a file of a checkpoint."""
    try:
        yield
    except FileNotFoundError:
        problems.append(f"{name} is missing" + ", so it was never finished" * (name == MANIFEST_FILE))
    except OSError as error:
        problems.append(f"{name} cannot be read ({reason_of(error)})")
    except RecursionError:
        problems.append(f"{name} is damaged: it is nested too deeply")
    except (json.JSONDecodeError, UnicodeDecodeError):
        problems.append(f"{name} is damaged: it is not JSON")
    except ValueError as error:
        problems.append(f"{name} is damaged: {error}")


def describe_head(path: Path) -> str:
    """Says what a file is, from its first bytes, where it is a common mistake; else nothing."""
    head = head_of(path)
    start = head.lstrip().lower()
    if not head:
        return "it is empty"
    if head.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer, not the file itself (git lfs pull fetches that)"
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is a web page, as a failed download leaves it"
    return ""


def head_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(64)


def reason_of(error: OSError) -> str:
    return os.strerror(error.errno).lower() if error.errno else str(error)
