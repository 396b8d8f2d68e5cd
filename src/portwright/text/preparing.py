"""From a unit of work to a shard, in whatever process: the part of `portwright data prepare` that runs in parallel."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portwright.data.manifest import Field
from portwright.data.store_writer import StoreWriter
from portwright.errors import PortwrightError, UserError
from portwright.job.atomic import atomic_write_text
from portwright.text.documents import BadRecord, read_documents, read_parts
from portwright.text.feed import Split, Unit
from portwright.text.objectives import Arrays, Document, Objective
from portwright.text.tokenizer import Tokenizer
from portwright.text.tokenizer_files import load_tokenizer

_MOST_TOLD = 20  # bad records of a shard that are kept by name; all are counted


@dataclass(frozen=True)
class Settings:
    """What a process has to know, beside the unit; plain data, so that it can be sent."""

    folder: str
    tokenizer_file: str
    objective: Objective
    split: Split
    text_key: str
    skip_bad: bool
    made_by: Mapping[str, Any]

    def writer(self, tokenizer: Tokenizer) -> StoreWriter:
        fields = [Field(*each) for each in self.objective.fields(tokenizer.size)]
        return StoreWriter(self.folder, fields, made_by=self.made_by, tokenizer=tokenizer.describe())


@dataclass(frozen=True)
class ShardReport:
    """What came of a unit."""

    num_rows: int
    num_tokens: int
    num_documents: int
    num_bad: int


def make_rows(
    unit: Unit, objective: Objective, tokenizer: Tokenizer, split: Split, text_key: str, *, skip_bad: bool
) -> tuple[Arrays, list[BadRecord], int]:
    """The rows of a unit, its bad records, and how many documents it has; without `skip_bad` a bad record is an error."""
    documents: list[Document] = []
    bad: list[BadRecord] = []
    for record in read_documents(unit, split, text_key):
        if isinstance(record, Document):
            documents.append(record)
        elif skip_bad:
            bad.append(record)
        else:
            raise record.as_error()
    donors: list[Document] = []
    if objective.name == "pairs" and len(documents) < 2:
        donors = [each for each in read_parts(unit.donors, split, text_key) if isinstance(each, Document)]
    try:
        return objective.rows(documents, tokenizer, unit.number, donors), bad, len(documents)
    except UserError as error:
        names = sorted({part.path.name for part in unit.parts})
        raise UserError(
            f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''}: {error.message}", error.cure
        ) from error


class Worker:
    """Makes shards; one in each process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.tokenizer = load_tokenizer(settings.tokenizer_file)
        self.writer = settings.writer(self.tokenizer)

    def __call__(self, unit: Unit) -> ShardReport:
        settings = self.settings
        rows, bad, num_documents = make_rows(
            unit,
            settings.objective,
            self.tokenizer,
            settings.split,
            settings.text_key,
            skip_bad=settings.skip_bad,
        )
        if bad:  # before the shard: where that lies, this does
            told = [each.as_dict() for each in bad[:_MOST_TOLD]]
            text = json.dumps({"count": len(bad), "records": told}, ensure_ascii=False) + "\n"
            atomic_write_text(skipped_file(settings.folder, unit.number), text)
        self.writer.write_shard(unit.number, rows)
        return ShardReport(len(rows["length"]), int(rows["length"].sum()), num_documents, len(bad))


def skipped_file(folder: str | Path, number: int) -> Path:
    return Path(folder) / f"skipped-{number:05d}.json"


_worker: Worker | None = None


def start_worker(settings: Settings) -> None:
    """Makes the worker of a new process, which ends when its parent does, however that ended."""
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it, and ends the work in order
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # processes are the parallelism here
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    _worker = Worker(settings)


def run_unit(unit: Unit) -> ShardReport | tuple[str, str]:
    """Makes a unit's shard; an error that a person can act on comes back as its two sentences."""
    assert _worker is not None
    try:
        return _worker(unit)
    except PortwrightError as error:
        return error.message, error.cure


def _leave_with(parent: Any) -> None:
    parent.join()
    os._exit(1)
