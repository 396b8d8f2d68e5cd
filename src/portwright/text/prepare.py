"""`portwright data prepare`: turns text of any size into a store of rows, in parallel; after a kill it continues."""

from __future__ import annotations

import json
import math
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from portwright.data.manifest import MANIFEST, read_manifest
from portwright.data.tables import BadRecord
from portwright.errors import UserError
from portwright.job.atomic import atomic_write_text, clean_leftovers
from portwright.job.sizes import show_count
from portwright.text.documents import SKIP_CURE, read_documents
from portwright.text.feed import Unit, feed_units, lend_donors
from portwright.text.inputs import InputFile, find_inputs, sha256_of, total_bytes
from portwright.text.objectives import Objective
from portwright.text.preparing import (
    JOB_FILE,
    SKIPPED_FILE,
    TOKENIZER_FILE,
    PrepareOptions,
    Settings,
    Worker,
    difference,
    gather_skipped,
    has_records,
    is_whole,
    locked,
    made_of,
    refuse_foreign_files,
    remove_store,
    run_unit,
    start_worker,
)
from portwright.text.tokenizer import Tokenizer
from portwright.text.tokenizer_files import load_tokenizer
from portwright.text.tokenizer_training import train_tokenizer

SAMPLE_BYTES = 64 << 20  # the text that a tokenizer is trained on
_SAMPLE_STEP = 1 << 20


@dataclass(frozen=True)
class Prepared:
    """The prepared store, and how much of it this call made."""

    folder: Path
    num_rows: int
    num_shards: int
    num_bad: int
    was_done: bool  # the store was complete before this call
    num_kept: int  # shards that an earlier call had made
    num_tokens: int  # in rows that this call made
    objective: Objective
    tokenizer: Tokenizer

    def lines(self) -> Iterator[str]:
        shards = f"{self.num_shards} shard{'s' if self.num_shards != 1 else ''}"
        if self.was_done:
            yield f"{self.folder} is done already: {self.num_rows} samples in {shards}; nothing was changed."
        else:
            kept = f", {self.num_kept} of them from an earlier run" if self.num_kept else ""
            yield f"{self.folder}: {self.num_rows} samples in {shards}{kept}; {show_count(self.num_tokens)} tokens written."
        yield f"tokenizer.json: {self.tokenizer.size} tokens, fingerprint {self.tokenizer.fingerprint}."
        length = "src_max_sequence_length" if self.objective.name == "spans" else "max_sequence_length"
        yield (
            f"To train on it: data_dir: {self.folder} and {length}: {self.objective.sequence_length} in train_input, vocab_size "
            f"of at least {self.tokenizer.size} in model."
        )
        if self.num_bad:
            yield f"{self.num_bad} bad records were left out; skipped.json names them."

    def as_dict(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "samples": self.num_rows,
            "shards": self.num_shards,
            "kept_shards": self.num_kept,
            "bad_records": self.num_bad,
            "was_done": self.was_done,
            "tokenizer": self.tokenizer.describe(),
        }


OnProgress = Callable[[str, int, int], None]  # what is being done, bytes done, bytes in all


def prepare(
    inputs: Sequence[str | Path],
    out: str | Path,
    options: PrepareOptions,
    *,
    force: bool = False,
    on_progress: OnProgress | None = None,
) -> Prepared:
    """Makes the store `out`, or the rest of it.

    A complete store is left as it is; a store of other inputs or options is an error without `force`. With `workers`
    above 1, processes are spawned.
    """
    folder = Path(out).expanduser()
    files = find_inputs(inputs)
    report = on_progress or (lambda what, done, total: None)
    with locked(folder):
        clean_leftovers(folder)
        given: Tokenizer | None = None
        if options.tokenizer != "train":
            given = load_tokenizer(options.tokenizer, do_lower=options.do_lower)
            if options.objective.name == "spans":
                given = given.with_sentinels(options.num_sentinels)
        asked = _describe(files, options, given, report)
        found = made_of(folder, if_damaged={} if force else asked)
        if found is not None and found != asked:
            if not force and has_records(folder):
                raise UserError(
                    f"'{folder}' was made of other inputs or options ({difference(found, asked)}).",
                    "Prepare into another folder, or replace what is there: --force.",
                )
            remove_store(folder)
            found = None
        if is_whole(folder):
            return _done(folder, options)
        if found is None:
            refuse_foreign_files(folder)
        atomic_write_text(folder / JOB_FILE, json.dumps(asked, indent=1) + "\n")
        tokenizer = _settle_tokenizer(folder, files, options, given, report)
        options.objective.check_tokenizer(tokenizer)
        return _make(files, Settings(folder, options, asked), tokenizer, report)


def _describe(
    files: Sequence[InputFile], options: PrepareOptions, given: Tokenizer | None, report: OnProgress
) -> dict[str, Any]:
    """All that the store's bytes depend on."""
    total, done = total_bytes(files), 0

    def count(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        report("looking at inputs", done, total)

    listed = [
        {"name": file.name, "bytes": file.num_bytes, "sha256": sha256_of(file, count)} for file in files
    ]
    trained = {"kind": options.kind, "vocab_size": options.vocab_size, "do_lower": options.do_lower}
    if options.kind == "t5":
        trained["num_sentinels"] = options.num_sentinels
    return {
        "command": "portwright data prepare",
        "objective": asdict(options.objective),
        "tokenizer": {"trained": trained} if given is None else {"fingerprint": given.fingerprint},
        "split": options.documents,
        "text_key": options.text_key,
        "shard_text_bytes": options.unit_bytes,
        "inputs": listed,
    }


def _settle_tokenizer(
    folder: Path,
    files: Sequence[InputFile],
    options: PrepareOptions,
    given: Tokenizer | None,
    report: OnProgress,
) -> Tokenizer:
    """Writes the tokenizer into the folder and reads it back, as every process will."""
    path = folder / TOKENIZER_FILE
    if not path.is_file():
        made = given
        if made is None:
            made = train_tokenizer(
                options.kind,
                sample_texts(files, options, report),
                options.vocab_size,
                num_sentinels=options.num_sentinels if options.kind == "t5" else 0,
                do_lower=options.do_lower,
            )
        atomic_write_text(path, made.to_json() + "\n")
    tokenizer = load_tokenizer(path)
    if given is not None and tokenizer.fingerprint != given.fingerprint:
        raise UserError(
            f"{tokenizer.source} is not the tokenizer that was asked for ({tokenizer.fingerprint}, not {given.fingerprint}).",
            "Replace what is in the folder: --force.",
        )
    return tokenizer


def sample_texts(
    files: Sequence[InputFile], options: PrepareOptions, report: OnProgress | None = None
) -> Iterator[str]:
    """Text to train a tokenizer on: all of it, or of large inputs pieces at even distances."""
    total = total_bytes(files)
    every = max(1, math.ceil(total / SAMPLE_BYTES))
    for unit, used in feed_units(files, min(options.unit_bytes, _SAMPLE_STEP), options.documents):
        if report is not None:
            report("training the tokenizer", used, total)
        if unit.number % every:
            continue
        for record in read_documents(unit.parts, options.documents, options.text_key):
            if not isinstance(record, BadRecord):
                yield record.text
            elif not options.skip_bad:
                raise record.as_error(SKIP_CURE)


def _make(
    files: Sequence[InputFile], settings: Settings, tokenizer: Tokenizer, report: OnProgress
) -> Prepared:
    folder, options = settings.folder, settings.options
    writer = settings.writer(tokenizer)
    total = total_bytes(files)
    kept = num_units = 0

    def missing() -> Iterator[Unit]:
        nonlocal kept, num_units
        for unit, used in units_of(files, options):
            num_units = unit.number + 1
            if writer.has_shard(unit.number):
                kept += 1
            else:
                yield unit
            report("preparing", used, total)

    num_tokens = sum(_run_units(missing(), settings, options.workers))
    _check_unchanged(files)
    # left by killed processes: the folder is locked, and our processes are done
    for path in folder.glob(".tmp-*"):
        path.unlink(missing_ok=True)
    skipped = gather_skipped(folder, num_units)
    _check_skipped(folder, skipped, options)
    manifest = writer.finish(num_units)
    if not manifest.num_records:
        (folder / MANIFEST).unlink()
        raise UserError(
            f"{len(files)} input files make no row: {skipped} records are bad, and the others too short.",
            "Look at the inputs, and at the bad records without --skip-bad.",
        )
    (folder / JOB_FILE).unlink(missing_ok=True)
    report("preparing", total, total)
    counts = manifest.num_records, num_units, skipped, False, kept, num_tokens
    return Prepared(folder, *counts, options.objective, tokenizer)


def units_of(files: Sequence[InputFile], options: PrepareOptions) -> Iterator[tuple[Unit, int]]:
    """Yields the units of a store's shards in order, each with the bytes of input read so far."""
    units = feed_units(files, options.unit_bytes, options.documents)
    return lend_donors(units) if options.objective.name == "pairs" else units


def _run_units(units: Iterator[Unit], settings: Settings, workers: int) -> Iterator[int]:
    """Makes the units' shards, with few units in memory at once; yields the number of tokens in each."""
    first = list(islice(units, workers))
    workers, units = len(first), chain(first, units)
    del first
    if workers < 2:
        yield from map(Worker(settings), units)
        return
    context = multiprocessing.get_context("spawn")  # torch or TensorFlow may have threads here
    pool = ProcessPoolExecutor(workers, context, initializer=start_worker, initargs=(settings,))
    # Start all workers at once, never more than units: in Python 3.11 a pool that loses a worker while it starts
    # another one fails.
    pool._safe_to_dynamically_spawn_children = False  # type: ignore[attr-defined]
    try:
        waiting: set[Future[int]] = set()
        for unit in units:
            waiting.add(_submit(pool, unit))
            if len(waiting) > workers:
                yield from (each.result() for each in _take_done(pool, waiting))
        while waiting:
            yield from (each.result() for each in _take_done(pool, waiting))
    except BrokenProcessPool as error:
        # A worker that started while the pool ended the others was not ended, and would be waited for forever.
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise UserError(
            "a worker process died; it may have been killed for memory.",
            "Run the same command again, with fewer --workers: it goes on where it stopped.",
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _submit(pool: ProcessPoolExecutor, unit: Unit) -> Future[int]:
    try:
        return pool.submit(run_unit, unit)
    except OSError as error:
        # A pool that has lost a worker closes its pipes in a thread; a process started then would find them closed.
        if not pool._broken:
            raise
        raise BrokenProcessPool(str(error)) from error


def _take_done(pool: ProcessPoolExecutor, waiting: set[Future[int]]) -> set[Future[int]]:
    """Waits for at least one, and removes those that are done from `waiting`."""
    while True:
        done, _ = wait(waiting, timeout=1.0, return_when=FIRST_COMPLETED)
        if done:
            waiting -= done
            return done
        if pool._broken:  # the pool has forgotten what was submitted while it ended
            raise BrokenProcessPool("the pool ended before it took the work")


def _check_unchanged(files: Sequence[InputFile]) -> None:
    for file in files:
        if not file.path.is_file() or file.path.stat().st_size != file.num_bytes:
            raise UserError(
                f"'{file.path}' was changed while it was read.", "Run it again when it is written."
            )


def _check_skipped(folder: Path, num_bad: int, options: PrepareOptions) -> None:
    """Refuses a store from which --skip-bad left out records; shards without bad records are the same without it."""
    if num_bad and not options.skip_bad:
        raise UserError(
            f"'{folder}' was begun with --skip-bad, and {num_bad} bad records were left out.",
            "Give --skip-bad again, or prepare mended inputs into another folder.",
        )


def _done(folder: Path, options: PrepareOptions) -> Prepared:
    (folder / JOB_FILE).unlink(missing_ok=True)
    manifest = read_manifest(folder)
    skipped = 0
    if (folder / SKIPPED_FILE).is_file():
        skipped = int(json.loads((folder / SKIPPED_FILE).read_text(encoding="utf-8"))["count"])
    _check_skipped(folder, skipped, options)
    tokenizer = load_tokenizer(folder / TOKENIZER_FILE)
    num_shards = len(manifest.shards)
    counts = manifest.num_records, num_shards, skipped, True, num_shards, 0
    return Prepared(folder, *counts, options.objective, tokenizer)
