"""The options and the folder of `portwright data prepare`, and the part of it that runs in parallel: a shard from a unit of work."""

from __future__ import annotations

import contextlib
import fcntl
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from portwright.data.columns import Arrays
from portwright.data.manifest import MANIFEST, DamagedManifest, read_manifest
from portwright.data.store_writer import StoreWriter
from portwright.data.tables import BadRecord
from portwright.errors import UserError, suggest
from portwright.job.atomic import atomic_write_text, explain_os_error
from portwright.text.documents import SKIP_CURE, read_documents
from portwright.text.feed import Split, Unit
from portwright.text.objectives import Document, Objective
from portwright.text.tokenizer import Tokenizer
from portwright.text.tokenizer_files import load_tokenizer
from portwright.text.tokenizer_training import KINDS

TOKENIZER_FILE = "tokenizer.json"
JOB_FILE = "prepare.json"  # describes the store while it is being made
SKIPPED_FILE = "skipped.json"
_MAX_NAMED_RECORDS = 20  # bad records of a shard that are listed; all are counted


SPLITS: tuple[str, ...] = get_args(Split)
UNIT_BYTES = 16 << 20


@dataclass(frozen=True)
class PrepareOptions:
    """How a store is made; of these only `workers` does not change its bytes."""

    objective: Objective
    tokenizer: str = "train"  # or a path
    tokenizer_kind: str | None = None  # of a trained tokenizer; None: the objective's
    vocab_size: int = 8192
    num_sentinels: int = 100
    do_lower: bool = True
    split: str | None = None  # left out: file, and paragraph for pairs
    text_key: str = "text"
    skip_bad: bool = False
    unit_bytes: int = UNIT_BYTES
    workers: int = 1

    def __post_init__(self) -> None:
        if self.split is not None and self.split not in SPLITS:
            raise UserError(f"split is '{self.split}'.", suggest(self.split, SPLITS))
        if self.tokenizer_kind is not None and self.tokenizer_kind not in KINDS:
            raise UserError(
                f"'{self.tokenizer_kind}' is no kind of tokenizer.", suggest(self.tokenizer_kind, KINDS)
            )
        if self.workers < 1:
            raise UserError(f"workers is {self.workers}.", "Give at least 1.")
        if self.unit_bytes < 1:
            raise UserError(f"shards of {self.unit_bytes} bytes of text are asked for.", "Give at least 1.")

    @property
    def kind(self) -> str:
        return self.tokenizer_kind or self.objective.kind

    @property
    def documents(self) -> Split:
        """The part of a text that is one document."""
        usual: Split = "paragraph" if self.objective.name == "pairs" else "file"
        return usual if self.split is None else cast(Split, self.split)


@dataclass(frozen=True)
class Settings:
    """What a worker process needs beside the unit; it can be pickled."""

    folder: Path
    options: PrepareOptions
    made_by: Mapping[str, Any]

    def writer(self, tokenizer: Tokenizer) -> StoreWriter:
        fields = self.options.objective.fields(tokenizer.size)
        return StoreWriter(self.folder, fields, made_by=self.made_by, tokenizer=tokenizer.describe())


def make_rows(unit: Unit, options: PrepareOptions, tokenizer: Tokenizer) -> tuple[Arrays, list[BadRecord]]:
    """Makes a unit's rows, and lists its bad records; without `skip_bad` a bad record is an error."""
    documents: list[Document] = []
    bad: list[BadRecord] = []
    for record in read_documents(unit.parts, options.documents, options.text_key):
        if isinstance(record, Document):
            documents.append(record)
        elif options.skip_bad:
            bad.append(record)
        else:
            raise record.as_error(SKIP_CURE)
    donors: list[Document] = []
    if options.objective.name == "pairs" and len(documents) < 2:
        lent = read_documents(unit.donors, options.documents, options.text_key)
        donors = [each for each in lent if isinstance(each, Document)]
    try:
        return options.objective.rows(documents, tokenizer, unit.number, donors), bad
    except UserError as error:
        names = sorted({part.path.name for part in unit.parts})
        raise UserError(
            f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''}: {error.message}", error.cure
        ) from error


class Worker:
    """Makes shards; one in each process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.tokenizer = load_tokenizer(settings.folder / TOKENIZER_FILE)
        self.writer = settings.writer(self.tokenizer)

    def __call__(self, unit: Unit) -> int:
        """Writes the shard of a unit, and gives the number of its tokens."""
        rows, bad = make_rows(unit, self.settings.options, self.tokenizer)
        if bad:  # written before the shard, so that every finished shard has it
            told = [
                {"file": each.path.name, "place": each.place, "reason": each.reason}
                for each in bad[:_MAX_NAMED_RECORDS]
            ]
            text = json.dumps({"count": len(bad), "records": told}, ensure_ascii=False) + "\n"
            atomic_write_text(skipped_file(self.settings.folder, unit.number), text)
        self.writer.write_shard(unit.number, rows)
        return int(rows["length"].sum())


def skipped_file(folder: Path, number: int) -> Path:
    return folder / f"skipped-{number:05d}.json"


_worker: Worker | None = None


def start_worker(settings: Settings) -> None:
    """Makes the Worker of a new process; the process ends with its parent, however that ends."""
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # processes are the parallelism here
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    _worker = Worker(settings)


def run_unit(unit: Unit) -> int:
    """Makes a unit's shard, and gives the number of its tokens."""
    assert _worker is not None
    return _worker(unit)


def _leave_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


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
