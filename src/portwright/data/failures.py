"""Errors of loading data, reported with the sample that caused them."""

from __future__ import annotations

import pickle
import re
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from torch.utils.data import Subset

from portwright.errors import PortwrightError, UserError

Stage = Literal["load", "collate", "worker_init_fn"]

_MAX_CHARS = 400
_DEATH_SECONDS = 2.0  # how long to wait for torch to report a worker's death
_WORKER_DIED = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\)")
_CURES: dict[Stage, str] = {
    "load": "Mend that sample or leave it out; reading it alone shows the same error.",
    "collate": "Make all samples of a batch alike in keys, shapes and types, or give the DataLoader a collate_fn "
    "that pads them.",
    "worker_init_fn": "Mend worker_init_fn, or set num_workers to 0 to do without it.",
}


@dataclass(frozen=True)
class Failure:
    """A batch that could not be made; a worker sends it to the main process in the batch's place."""

    stage: Stage
    where: str  # the sample, in words
    error: Exception
    described: str
    remote_traceback: str = ""


class WorkerTraceback(Exception):
    """The traceback, as text, of an error in a worker process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_CHARS else line[: _MAX_CHARS - 1] + "…"


def describe(error: BaseException) -> str:
    """The type and text of an error on one line."""
    if isinstance(error, PortwrightError):
        return one_line(error.message)
    text = str(error)
    # torch wraps what a worker raised: the type and the text are at the end of the traceback.
    if "Original Traceback" in text:
        return one_line(text.rstrip().rpartition("\n")[2])
    text = one_line(text)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def make_portable(failure: Failure) -> Failure:
    """A copy of the failure that can be pickled and sent to the main process."""
    remote = "".join(traceback.format_exception(failure.error))
    error = failure.error
    try:
        travelled = pickle.loads(pickle.dumps(error))
        survives = type(travelled) is type(error) and str(travelled) == str(error)
    except Exception:
        survives = False
    if not survives:
        error = RuntimeError(failure.described)
    return Failure(failure.stage, failure.where, error, failure.described, remote)


def raise_failure(failure: Failure, *, name: str, dataset: str, epoch: int, batch: int) -> NoReturn:
    """Raises the failure as a UserError whose cause is the original exception."""
    error = failure.error
    if failure.remote_traceback:
        error.__cause__ = WorkerTraceback(failure.remote_traceback)
    doing = {
        "load": f"{dataset} failed on {failure.where}",
        "collate": f"{dataset}: {failure.where} could not be collated",
        "worker_init_fn": f"{dataset}: worker_init_fn failed in {failure.where}",
    }[failure.stage]
    cure = error.cure if isinstance(error, PortwrightError) and error.cure else _CURES[failure.stage]
    raise UserError(f"{name}: {doing} (epoch {epoch}, batch {batch}): {failure.described}", cure) from error


def too_short_error(name: str, what: str, batch: int) -> UserError:
    return UserError(
        f"{name}: the checkpoint continues at batch {batch} of an epoch, and {what} gives fewer.",
        "Give back the data of the interrupted run, or start anew in another model_dir.",
    )


def name_of(dataset: Any) -> str:
    """Names a data set by its class; for a Subset also the data set that it selects from."""
    names = [type(dataset).__name__]
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
        names.append(type(dataset).__name__)
    return " of ".join(names)


def name_sample(dataset: Any, index: Any) -> str:
    """Names a sample by its index; for a Subset also by its index in the underlying data set."""
    inner, inner_index = dataset, index
    try:
        while isinstance(inner, Subset):
            inner_index = inner.indices[inner_index]
            inner = inner.dataset
    except Exception:  # the index itself is wrong
        inner = dataset
    shown = f"sample {_show_index(index)}"
    return shown if inner is dataset else f"{shown} ({_show_index(inner_index)} of {type(inner).__name__})"


def name_samples(indices: Any) -> str:
    shown = [_show_index(index) for index in indices]
    if not shown:
        return "a batch of no samples"
    return f"one of samples {', '.join(shown[:16])}{', …' if len(shown) > 16 else ''}"


def _show_index(index: Any) -> str:
    return one_line(repr(index))[:80]


def dead_worker_pids(error: BaseException) -> list[int]:
    """The ids of the processes that torch reports as dead; empty for any other error."""
    found = _WORKER_DIED.search(str(error)) if isinstance(error, RuntimeError) else None
    return [int(pid) for pid in found[1].split(",") if pid.strip()] if found else []


def _find_death(error: Exception) -> Exception:
    """Gives torch's report of a dead worker where the error is only a consequence of the death, else the error itself.

    What a killed worker had sent cannot be opened any more. That error may come first; torch's signal handler reports the
    death a moment later.
    """
    if not isinstance(error, (OSError, EOFError)):
        return error
    deadline = time.monotonic() + _DEATH_SECONDS
    try:
        while time.monotonic() < deadline:
            time.sleep(0.01)
    except RuntimeError as word:
        if dead_worker_pids(word):
            return word
        raise
    return error


def describe_death(error: BaseException) -> str:
    """torch's fullest report of a dead worker: often only the exception's cause names the signal."""
    cause = error.__cause__
    fullest = cause if cause is not None and dead_worker_pids(cause) else error
    return one_line(str(fullest)).rstrip(". ")


def _forget_frames(error: BaseException) -> None:
    """Drops the error's frames, which keep the dead workers' loader alive.

    As long as that loader lives, torch's signal handler may raise again when any other worker ends.
    """
    links: list[BaseException | None] = [error]
    seen: set[int] = set()
    while links:
        link = links.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            link.__traceback__ = None
            links += [link.__cause__, link.__context__]


def name_cause(
    error: Exception,
    epoch: int,
    explain: Callable[[BaseException, int], UserError | None],
    describe_other: Callable[[Exception, int], UserError],
) -> UserError:
    """The error to raise when a loader's workers fail outside of a single sample."""
    cause = _find_death(error)
    named = explain(cause, epoch)
    if named is None:
        named = describe_other(error, epoch)
    else:
        _forget_frames(error)
        _forget_frames(cause)
    named.__cause__ = cause
    return named
