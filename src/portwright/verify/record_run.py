"""Describes a run outside its recorded steps, without running more of them.

Samplers give the order of the next epochs, which reads no data. Schedulers are called further, since training is
over. Evaluations and saved files are noted as they happen.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, IterableDataset

from portwright.patched import in_place_of
from portwright.verify.hooks import is_users, line_of_caller
from portwright.verify.record_batches import Pass
from portwright.verify.record_steps import Watch
from portwright.verify.recording import load

_MOST_SAMPLES = 2_000_000  # of the largest epoch whose order is read
_NUM_RATES = 1000  # further calls of a scheduler
_NUM_UPDATES = 10_000  # updates for which a schedule function is asked
_MOST_SECONDS = 30.0  # to read a port's evaluation data
_SCHEDULERS = ("LRScheduler", "SequentialLR", "ChainedScheduler", "ReduceLROnPlateau")

At = Callable[[int], AbstractContextManager[None]]


def describe_run(watch: Watch, at_epoch: At | None, against: Path | None) -> dict[str, Any]:
    """The description as JSON; `at_epoch` sets the epoch of samplers, `against` has the original's recording.

    Without `at_epoch` the script goes on afterwards, so its own code is not called.
    """
    fed = watch.batches.first_fed_by
    passes = [p for p in watch.batches.passes if p.is_over and not p.has_trained]
    if watch.inputs is None:
        evaluations = [p.as_dict(fed) for p in passes if p.num_evaluated == p.num_loaded]
        schedules = describe_schedulers(watch.schedulers) if watch.schedules is None else watch.schedules
    else:
        evaluations = _quietly(watch, "the evaluation data", lambda: _read_evaluation(watch, against)) or []
        schedule = watch.inputs._job.params.optimizer.schedule
        schedules = [{"kind": "", "calls": 0, "rates": [[schedule(k)] for k in range(_NUM_UPDATES)]}]
    return {
        "is_run": watch.inputs is not None,
        "epochs_ended": watch.num_epochs,
        "loader": None
        if fed is None or at_epoch is None
        else _quietly(
            watch,
            "an epoch's order",
            lambda: _describe_loader(fed, at_epoch, len(set(watch.batches.seeds)) < len(watch.batches.seeds)),
        ),
        "evaluations": evaluations,
        "schedules": schedules,
        "saved": watch.saved,
        "printed": watch.rest.printed,
        "rest": watch.rest.as_dict() if watch.rest.is_on or watch.rest.failure else None,
        "asked_for_accelerator": watch.asked_for_accelerator,
    }


def _quietly(watch: Watch, what: str, look: Callable[[], Any]) -> Any:
    """Calls `look`, and turns an error of the script's code into a note."""
    try:
        return look()
    except Exception as error:
        watch.notes.append(f"No look at {what} beyond the steps: {type(error).__name__}: {error}")
        return None


def _describe_loader(loader: DataLoader[Any], at_epoch: At, is_reseeded: bool) -> dict[str, Any] | None:
    """Describes two epochs by their sample indices; None where these are not known without reading data.

    The recorder's order ignores seeds, so `is_reseeded` says that the script repeats its order by seeding before each epoch.
    """
    batches: Any = loader.batch_sampler
    data: Any = loader.dataset
    if batches is None or isinstance(data, IterableDataset) or len(data) > _MOST_SAMPLES:
        return None
    epochs: list[list[list[Any]]] = []
    for epoch in (0, 1):
        epochs.append([])
        num_samples = 0
        with at_epoch(epoch):
            for batch in batches:
                epochs[-1].append(list(batch))
                num_samples += len(batch)
                if num_samples > _MOST_SAMPLES:  # it may be endless
                    return None
    first, second = epochs
    flat = [index for batch in first for index in batch]
    return {
        "num_batches": len(first),
        "num_samples": len(flat),
        "first": len(first[0]) if first else 0,
        "last": len(first[-1]) if first else 0,
        "is_shuffled": flat != sorted(flat),
        "is_reshuffled": first != second and not is_reseeded,
    }


def describe_schedulers(schedulers: list[Any]) -> list[dict[str, Any]]:
    """Calls the schedulers further, and restores their state."""
    parts = {id(part) for whole in schedulers for part in getattr(whole, "_schedulers", ())}
    before = [(scheduler.__dict__, dict(scheduler.__dict__)) for scheduler in schedulers]
    for optimizer in {id(each.optimizer): each.optimizer for each in schedulers}.values():
        before += [(group, dict(group)) for group in optimizer.param_groups]
    try:
        return [_describe_scheduler(scheduler) for scheduler in schedulers if id(scheduler) not in parts]
    finally:
        for owner, values in before:
            owner.clear()
            owner.update(values)


def _describe_scheduler(scheduler: Any) -> dict[str, Any]:
    """How often it was called, and the learning rates after its next calls; none where training decides on them."""
    clock = (
        getattr(scheduler, "_schedulers", [scheduler])[-1]
        if not hasattr(scheduler, "last_epoch")
        else scheduler
    )
    row: dict[str, Any] = {"kind": type(scheduler).__name__, "calls": clock.last_epoch, "rates": []}
    if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
        return row
    try:
        for _ in range(_NUM_RATES):
            scheduler.step()
            # A port may group parameters differently, so only the set of rates counts.
            row["rates"].append(sorted({float(group["lr"]) for group in scheduler.optimizer.param_groups}))
    except Exception as error:  # OneCycleLR refuses more calls than it was made for
        row["ends"] = str(error)
    return row


def _read_evaluation(watch: Watch, against: Path | None) -> list[dict[str, Any]]:
    """The data on which a port with run() evaluates; read under two seeds, to see whether they are drawn at random."""
    # nothing to compare
    if watch.inputs._job.eval_data_fn is None or against is None or not load(against).run["evaluations"]:
        return []
    end = time.monotonic() + _MOST_SECONDS
    found = []
    for number in (0, 1):
        one = Pass(None)
        # outside Streams.own: a seed in data.py has its effect, as in the original
        watch.streams.start("evaluation", number)
        for batch in watch.inputs.open("eval_input", repeat=False):
            one.evaluate(batch, 0)
            if time.monotonic() > end:
                return []
        found.append(one)
    first, second = found
    is_drawn = (first.total, first.square) != (second.total, second.square)
    return [{**first.as_dict(None), "is_drawn": is_drawn}]


def describe_saved(thing: Any) -> dict[str, Any]:
    """The keys of a saved mapping, two levels deep; the class of any other object."""
    if not isinstance(thing, Mapping):
        return {"class": type(thing).__name__}
    inside = {str(key): sorted(map(str, value)) for key, value in thing.items() if _is_state(value)}
    return {"": sorted(map(str, thing)), **inside}


def _is_state(value: Any) -> bool:
    return isinstance(value, Mapping) and any(isinstance(v, torch.Tensor) for v in value.values())


def hook_run(watch: Watch) -> None:
    """Records new schedulers, and the lines that ask for an accelerator where there is none."""

    def keep(made: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        watch.schedulers.append(self)

    def ask(question: Any, *args: Any, **kwargs: Any) -> Any:
        answer = question(*args, **kwargs)
        if not answer and is_users(sys._getframe(2).f_code.co_filename):
            line = line_of_caller(3)
            if line not in watch.asked_for_accelerator:
                watch.asked_for_accelerator.append(line)
        return answer

    for name in _SCHEDULERS:
        in_place_of(getattr(lr_scheduler, name), "__init__")(keep)
    accelerator = getattr(torch, "accelerator", None)
    places: list[tuple[Any, str]] = [
        (torch.cuda, "is_available"),
        (torch.cuda, "device_count"),
        (torch.backends.mps, "is_available"),
    ]
    places += [(accelerator, name) for name in ("is_available", "current_accelerator", "device_count")]
    for owner, name in places:
        if hasattr(owner, name):
            in_place_of(owner, name)(ask)
