"""Coordinator and workers of a run: one task trains, the others call the same input function and send it the batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portwright.errors import ExitStatus, PortwrightError, UserError
from portwright.job.console import Console
from portwright.job.outcome import Outcome, lines_of, values_of, workers_of
from portwright.job.signals import StopSignals
from portwright.stream import wire
from portwright.stream.pool import Order, Pool
from portwright.stream.roles import Role, forget_key, give_key, read_role, stand_alone
from portwright.stream.serve import await_late_workers, work_with_key
from portwright.stream.worker import Ending
from portwright.tensorflow.devices import hide_gpus
from portwright.tensorflow.failures import explain
from portwright.tensorflow.stream_lanes import LaneBatch, Lanes
from portwright.tensorflow.stream_source import Source

if TYPE_CHECKING:
    from portwright.tensorflow.run_trainer import Trainer

# How long a step waits when no worker is left: it handles no signal meanwhile, and schedulers kill 30 s after SIGTERM.
_PATIENCE_SECONDS = 15.0


class CoordinatorLost(PortwrightError):
    """Ends a worker whose coordinator died, so that the step ends and the job is requeued."""

    status = ExitStatus.REQUEUE


def take_role(trains: bool) -> Role:
    """The role of this process: the first task of the launch trains as the coordinator, the others are workers."""
    if not trains:
        raise UserError(
            "--stream_data is for training.",
            "Leave it out, and start one process: evaluations, validation and compilation read their data themselves.",
        )
    role = read_role()
    if role.is_coordinator:
        stand_alone()
    os.environ.pop("TF_CONFIG", None)  # with TF_CONFIG the tasks would train together
    return role


class BatchStream:
    """The coordinator's side: the source of batches, and counts of the workers' work."""

    def __init__(self, role: Role, lanes: Lanes, model_dir: Path, note: Callable[[str], None]) -> None:
        self._lanes, self._model_dir, self._note = lanes, model_dir, note
        self._num_workers = role.num_workers
        self._window = 2 * role.num_workers + 2
        self._pool = Pool(
            role.address,
            give_key(model_dir),
            expected=role.num_workers,
            note=note,
            patience=_PATIENCE_SECONDS,
        )
        clear = (lambda: None) if lanes.marks is None else lanes.marks.clear
        self.source = Source(self._read_all, role.num_workers, lanes.are_shared_out, clear)
        note(f"coordinator of {role.num_workers} worker(s), at {role.address}")

    def _read_all(self, wanted: Iterator[LaneBatch]) -> Generator[Sequence[Any] | None, None, None]:
        orders = (Order(each.as_bytes(), each.lane) for each in wanted)
        results: Any = self._pool.map(orders, self._window, lambda body: read_order(self._lanes, body))
        with closing(results):
            for result in results:
                tensors, about = wire.unpack(result)
                yield None if about["ended"] else tensors

    def values(self) -> dict[str, float]:
        """The workers' counts, to be logged beside a step."""
        return values_of(self._pool.counts())

    def finish(self, outcome: Outcome) -> None:
        workers = workers_of(self._pool.counts())
        outcome.more["workers"] = workers
        outcome.lines.extend(lines_of(workers))

    def await_workers(self, is_stopped: Callable[[], bool]) -> None:
        """Waits a while for workers that have not connected yet: a worker that finds no coordinator would end with an error."""
        await_late_workers(self._pool, self._num_workers, is_stopped, self._note)

    def close(self) -> None:
        self.source.close()
        self._pool.close()
        forget_key(self._model_dir)
        self._lanes.close()


@contextmanager
def streaming(
    role: Role, trainer: Trainer, model_dir: Path, console: Console, outcome: Outcome
) -> Iterator[None]:
    """Makes the workers read a trainer's data; they end with the block."""
    stream = BatchStream(role, trainer.make_lanes(), model_dir, console.note)
    trainer.stream = stream
    if outcome.mode == "train_and_eval":
        console.note(
            "the workers read the training's data; evaluations read theirs in the coordinator itself."
        )
    try:
        yield
        stream.finish(outcome)
    finally:
        stream.await_workers(lambda: trainer.is_stopped)
        stream.close()


def serve(
    role: Role, lanes: Lanes, model_dir: Path, console: Console, signals: StopSignals, outcome: Outcome
) -> Outcome:
    """A worker's whole run: reads the batches that the coordinator orders, until the coordinator ends the run."""
    hide_gpus()  # a worker needs none
    try:
        ending = work_with_key(role, model_dir, lambda body: read_order(lanes, body), console.note, signals)
    finally:
        lanes.close()
    if ending is Ending.LOST:
        raise CoordinatorLost(
            f"the coordinator at {role.address} is gone.",
            "What it saved is in model_dir; the same command goes on from there.",
        )
    return outcome


def read_order(lanes: Lanes, body: bytes | memoryview) -> wire.Parts:
    """Reads the batch of an order; in a worker, or in the coordinator when no worker is left."""
    try:
        read = lanes.read(LaneBatch.from_bytes(bytes(body)))
    except PortwrightError:
        raise
    except Exception as error:
        raise explain(error) from error
    if read is None:
        return wire.pack([], ended=True)
    tensors, num_samples = read
    return wire.pack(tensors, ended=False, samples=num_samples)
