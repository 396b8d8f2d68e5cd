"""Which checkpoints a folder has, and which of them are good."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portwright.runtime.checkpoint_files import hash_file
from portwright.runtime.checkpoint_format import (
    FOLDER_NAME,
    FORMAT_VERSION,
    MANIFEST_FILE,
    MODEL_FILE,
    STATE_FILE,
    Manifest,
    parse_manifest,
)


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


def list_checkpoints(directory: Path) -> list[CheckpointInfo]:
    """The checkpoint folders in a folder, by step; none where there is no such folder."""
    try:
        paths = [path for path in Path(directory).iterdir() if path.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = []
    for path in paths:
        match = FOLDER_NAME.fullmatch(path.name)
        if match:
            manifest = read_manifest(path)
            complete = manifest is not None and not _missing_or_resized(path, manifest, None)
            sequence = manifest.sequence if manifest is not None else 0
            found.append(CheckpointInfo(path, int(match[1]), complete, sequence))
    return sorted(found, key=lambda info: info.step)


def newest_first(directory: Path) -> list[CheckpointInfo]:
    """The checkpoint folders in a folder, the one written last first.

    That is seldom another order than by step: only where a run started again from an older step. What cannot be
    read comes by its step, before what was written at an earlier one.
    """
    found = list_checkpoints(directory)
    order = []
    latest = 0
    for info in found:
        latest = max(latest, info.sequence)
        order.append((info.sequence or latest, info.step, info))
    return [info for _, _, info in sorted(order, key=lambda item: item[:2], reverse=True)]


def find_last_good(directory: Path, on_note: Callable[[str], None]) -> CheckpointInfo | None:
    """The checkpoint that was written last and is whole; says why it passes over others."""
    tried: set[Path] = set()
    while True:
        # Listed anew each time: a run that is going on may replace what is being looked at.
        left = [info for info in newest_first(directory) if info.path not in tried]
        if not left:
            _mention_old_layout(directory, on_note)
            return None
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


def verify_checkpoint(path: Path, only: Collection[str] | None = None) -> list[str]:
    """What is wrong with a checkpoint folder, after reading every byte of it; nothing when it is good.

    `only` restricts the reading to some of its files.
    """
    path = Path(path)
    try:
        if not path.is_dir():
            return ["it is not a folder" if path.exists() else "it does not exist"]
        raw = (path / MANIFEST_FILE).read_bytes()
    except FileNotFoundError:
        return [f"{MANIFEST_FILE} is missing, so it was never finished"]
    except OSError as error:
        return [f"{MANIFEST_FILE} cannot be read ({_reason(error)})"]
    try:
        manifest = parse_manifest(raw)
    except (ValueError, RecursionError) as error:
        return [f"{MANIFEST_FILE} is damaged: {_what_is_wrong(error)}"]
    problems = _missing_or_resized(path, manifest, only)
    if problems:
        return problems
    for name, entry in manifest.files.items():
        if only is None or name in only:
            try:
                if hash_file(path / name) != entry:
                    problems.append(f"{name} is damaged: its checksum does not match")
            except OSError as error:
                problems.append(f"{name} cannot be read ({_reason(error)})")
    return problems or _contradictions(path, manifest)


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


def describe_head(head: bytes) -> str:
    """Says what a file is that begins so, where it is a common mistake; else nothing."""
    start = head.lstrip()[:64].lower()
    if not head:
        return "it is empty"
    if head.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer, not the file itself (git lfs pull fetches that)"
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is a web page, as a failed download leaves it"
    return ""


def _missing_or_resized(path: Path, manifest: Manifest, only: Collection[str] | None) -> list[str]:
    problems = [
        f"{name} is not in {MANIFEST_FILE}" for name in (MODEL_FILE, STATE_FILE) if name not in manifest.files
    ]
    for name, entry in manifest.files.items():
        if only is not None and name not in only:
            continue
        file = path / name
        try:
            size = file.stat().st_size
            if size != entry.size:
                with file.open("rb") as opened:
                    what = describe_head(opened.read(64))
                problems.append(f"{name} has {size} bytes instead of {entry.size}" + (what and f", {what}"))
            elif not file.is_file():
                problems.append(f"{name} is not a file")
        except FileNotFoundError:
            problems.append(f"{name} is missing")
        except OSError as error:
            problems.append(f"{name} cannot be read ({_reason(error)})")
    return problems


def _contradictions(path: Path, manifest: Manifest) -> list[str]:
    try:
        step = read_state(path)["step"]
    except OSError as error:
        return [f"{STATE_FILE} cannot be read ({_reason(error)})"]
    except (ValueError, RecursionError) as error:
        return [f"{STATE_FILE} is damaged: {_what_is_wrong(error)}"]
    if step != manifest.step:
        return [f"{STATE_FILE} is of step {step}, {MANIFEST_FILE} of step {manifest.step}"]
    match = FOLDER_NAME.fullmatch(path.name)
    if match and int(match[1]) != step:
        return [f"its name says step {match[1]}, but it is of step {step} (rename it to checkpoint_{step})"]
    return []


def read_manifest(path: Path) -> Manifest | None:
    """The manifest of a checkpoint folder; None where it is missing or damaged."""
    try:
        return parse_manifest((path / MANIFEST_FILE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def _mention_old_layout(directory: Path, on_note: Callable[[str], None]) -> None:
    files = sorted(Path(directory).glob("checkpoint_*.mdl"))
    if files:
        on_note(
            f"{files[-1]} is a checkpoint of the old layout, which is read only when --checkpoint_path names it."
        )


def _what_is_wrong(error: Exception) -> str:
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
        return "it is not JSON"
    return str(error) if isinstance(error, ValueError) else "it is nested too deeply"


def _reason(error: OSError) -> str:
    return os.strerror(error.errno).lower() if error.errno else str(error)
