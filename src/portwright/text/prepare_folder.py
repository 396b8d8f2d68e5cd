"""The folder of a prepared store: what it was made of, which files in it are ours, and its lock."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from portwright.data.manifest import MANIFEST, DamagedManifest, read_manifest
from portwright.errors import UserError
from portwright.job.atomic import atomic_write_text, explain_os_error
from portwright.text.preparing import TOKENIZER_FILE, skipped_file

JOB_FILE = "prepare.json"  # describes the store while it is being made
SKIPPED_FILE = "skipped.json"


def made_of(folder: Path, *, if_damaged: dict[str, Any]) -> dict[str, Any] | None:
    """What the folder's store is made of; `if_damaged` where the files that say so are damaged.

    Each shard also has its own description, so that shards of other inputs or options are refused even then.
    """
    if (folder / MANIFEST).is_file():
        try:
            return dict(read_manifest(folder).header.made_by)
        except DamagedManifest:
            return if_damaged
    try:
        content = json.loads((folder / JOB_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def is_whole(folder: Path) -> bool:
    """Whether a finished store has every file that its manifest names, uncut; others must be made again."""
    try:
        manifest = read_manifest(folder)
        shards_are_whole = all((folder / each.file).stat().st_size == each.bytes for each in manifest.shards)
    except (DamagedManifest, OSError):
        return False
    except UserError:
        if (folder / MANIFEST).is_file():
            raise
        return False  # not finished yet
    return shards_are_whole and (folder / TOKENIZER_FILE).is_file()


def has_records(folder: Path) -> bool:
    """Whether the folder holds any records."""
    return (folder / MANIFEST).is_file() or any(folder.glob("shard-*.json"))


def difference(found: dict[str, Any], asked: dict[str, Any]) -> str:
    for key in asked:
        if found.get(key) != asked[key]:
            one, other = found.get(key), asked[key]
            if isinstance(one, dict) and isinstance(other, dict):
                inner = next(name for name in {**one, **other} if one.get(name) != other.get(name))
                return f"{key}.{inner} was {one.get(inner)!r} and is {other.get(inner)!r}"
            if key == "inputs":
                before = {each["name"]: each for each in one or []}
                names = [each["name"] for each in other if before.get(each["name"]) != each]
                names += [name for name in before if name not in {each["name"] for each in other}]
                return f"other files or contents: {', '.join(names[:3]) or 'their order'}"
            return f"{key} was {one!r} and is {other!r}"
    return "by another command"


def gather_skipped(folder: Path, num_units: int) -> int:
    """Joins the shards' lists of bad records in one file; until then they stay, so that a later call counts them."""
    count, records = 0, []
    pieces = [path for number in range(num_units) if (path := skipped_file(folder, number)).is_file()]
    for path in pieces:
        content = json.loads(path.read_text(encoding="utf-8"))
        count += content["count"]
        records += content["records"]
    if count:
        text = json.dumps({"count": count, "records": records}, ensure_ascii=False, indent=1)
        atomic_write_text(folder / SKIPPED_FILE, text + "\n")
    return count


def _own_files(folder: Path) -> list[Path]:
    """Our files, the manifest first: a half removed store must not look complete."""
    patterns = (
        MANIFEST,
        "shard-*.bin",
        "shard-*.json",
        "skipped-*.json",
        SKIPPED_FILE,
        TOKENIZER_FILE,
        JOB_FILE,
    )
    return [path for pattern in patterns for path in sorted(folder.glob(pattern))]


def remove_store(folder: Path) -> None:
    atomic_write_text(folder / JOB_FILE, "{}\n")  # removed last: it shows that a half removed folder is ours
    for path in _own_files(folder):
        path.unlink(missing_ok=True)


def refuse_foreign_files(folder: Path) -> None:
    if (folder / JOB_FILE).is_file():
        return
    others = sorted(path.name for path in folder.iterdir())
    if others:
        raise UserError(
            f"'{folder}' is not empty: it holds {', '.join(others[:3])}.", "Prepare into a folder of its own."
        )


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lets one process at a time prepare a folder; the lock ends with the process, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise explain_os_error(error, folder) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"another process prepares '{folder}'.", "Wait for it, or end it.") from error
        yield
    finally:
        os.close(descriptor)
