"""Coordinator and workers of a torch run: batches travel as bytes, and no pickle is opened."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch

from portwright.data.failures import Failure, make_portable, name_samples
from portwright.data.loader import open_source
from portwright.data.probe import Reading
from portwright.data.source import END, NeedsFreshInput, Shared, Source, Wanted
from portwright.data.split import count_samples
from portwright.errors import ExitStatus, PortwrightError, UserError
from portwright.job.outcome import Outcome, lines_of, values_of, workers_of
from portwright.job.signals import StopSignals
from portwright.runtime.inputs import find_data_fn
from portwright.stream import wire
from portwright.stream.pool import DeadlyOrderError, Order, Pool
from portwright.stream.progress import busy
from portwright.stream.roles import Role, forget_key, give_key
from portwright.stream.schedule import FIRST_SECONDS
from portwright.stream.serve import await_late_workers, work_with_key
from portwright.stream.worker import Ending
from portwright.target import JobSpec
from portwright.watching.random_states import capture_rng, restore_rng, untouched_rng

_CPU = torch.device("cpu")


class BatchStream:
    """The coordinator's side: a channel for each input, and the counts of what the workers have delivered."""

    def __init__(self, role: Role, model_dir: Path, note: Callable[[str], None]) -> None:
        self._num_workers, self._model_dir, self._note = role.num_workers, model_dir, note
        self._pool = Pool(role.address, give_key(model_dir), expected=role.num_workers, note=note)
        self._maker: BatchMaker | None = None
        note(f"coordinator of {role.num_workers} worker(s), at {role.address}")

    def channel(self, name: str, job: JobSpec) -> InputChannel:
        """Makes the channel of an input right before that input: the workers make theirs from the same random state."""
        if self._maker is None:
            self._maker = BatchMaker(job, worker=0, num_workers=self._num_workers)
        return InputChannel(self._pool, name, self._num_workers, self._maker)

    def values(self) -> dict[str, float]:
        """What is logged about the workers beside a step."""
        return values_of(self._pool.counts())

    def finish(self, outcome: Outcome) -> None:
        outcome.more["workers"] = workers = workers_of(self._pool.counts())
        outcome.lines.extend(lines_of(workers))

    def close(self, is_stopped: Callable[[], bool]) -> None:
        """Ends the workers; waits for late ones too, unless a signal stopped the run."""
        await_late_workers(self._pool, self._num_workers, is_stopped, self._note)
        self._pool.close()
        forget_key(self._model_dir)
        if self._maker is not None:
            self._maker.close()


class InputChannel:
    """Brings one input's batches to the coordinator."""

    def __init__(self, pool: Pool, name: str, num_workers: int, maker: BatchMaker) -> None:
        self._pool, self._name, self._maker = pool, name, maker
        self._window = 2 * num_workers + 2
        self._rng = {key: tensor.numpy() for key, tensor in capture_rng(_CPU).items()}

    def request(
        self, wanted: Iterator[Wanted], fingerprint: list[Any], seen: Reading | None
    ) -> Generator[tuple[Wanted, Any], None, None]:
        asked: deque[Wanted] = deque()  # batches that have not come yet

        def orders() -> Iterator[Order]:
            for each in wanted:
                asked.append(each)
                asking = {"order": each.order, "rng": self._rng}
                body = wire.pack(asking, input=self._name, fingerprint=fingerprint, seen=seen)
                yield Order(b"".join(body), each.lane)

        results: Any = self._pool.map(orders(), self._window, self._make_here)
        with closing(results):
            try:
                for result in results:
                    batch, about = wire.unpack(result)
                    yield asked.popleft(), _arrived(batch, about)
            except DeadlyOrderError as error:
                raise DeadlyOrderError(error.killed, f"{self._name}, {_name_wanted(asked[0])}") from error

    def __deepcopy__(self, memo: dict[int, Any]) -> InputChannel:
        return self  # it holds no data, and a vendor's loader copies its arguments

    def _make_here(self, body: bytes) -> wire.Parts:
        with untouched_rng(_CPU):
            return self._maker(body)


class BatchMaker:
    """Carries out orders, in a worker, or in a coordinator without workers."""

    def __init__(self, job: JobSpec, worker: int, num_workers: int) -> None:
        self._job, self._worker, self._num_workers = job, worker, num_workers
        self._sources: dict[str, Source] = {}

    def __call__(self, body: bytes | memoryview) -> wire.Parts:
        asked, about = wire.unpack(body)
        name = about["input"]
        if name not in self._sources:
            self._sources[name] = self._open(name, asked["rng"], about)
        try:
            made = self._sources[name].make(asked["order"])
        except NeedsFreshInput:
            self._sources.pop(name).close()
            self._sources[name] = self._open(name, asked["rng"], about)
            made = self._sources[name].make(asked["order"])
        if made is END:
            return wire.pack(None, ended=True)
        if type(made) is Failure:
            return wire.pack(None, failure=_as_json(made))
        return wire.pack(made, samples=count_samples(made) or 1)

    def _open(self, name: str, rng: dict[str, Any], about: dict[str, Any]) -> Source:
        params = self._job.params
        restore_rng({key: torch.from_numpy(array) for key, array in rng.items()}, _CPU)
        shared = Shared(name, params.runconfig.seed, 0, 1, keeps_small=name == "eval_input")
        with busy(FIRST_SECONDS):
            source = open_source(find_data_fn(self._job, name)(params.values), shared)
        check_sameness(name, source, about["fingerprint"], about["seen"])
        source.begin_serving(self._worker, self._num_workers)
        return source

    def close(self) -> None:
        for source in self._sources.values():
            source.close()


def serve(
    role: Role,
    job: JobSpec,
    model_dir: Path,
    note: Callable[[str], None],
    signals: StopSignals,
    outcome: Outcome,
) -> Outcome:
    """A worker's whole run: reads the batches that the coordinator orders, until it says goodbye."""
    maker = BatchMaker(job, role.rank - 1, role.num_workers)
    try:
        ending = work_with_key(role, model_dir, maker, note, signals)
    finally:
        maker.close()
    if ending is Ending.LOST:
        raise CoordinatorLost(
            f"the coordinator at {role.address} is gone.",
            "What it saved is in model_dir; the same command goes on from there.",
        )
    return outcome


class CoordinatorLost(PortwrightError):
    """Ends a worker whose coordinator died, so that the step ends and the job is requeued."""

    status = ExitStatus.REQUEUE


def _arrived(batch: Any, about: dict[str, Any]) -> Any:
    if about.get("ended"):
        return END
    failure = about.get("failure")
    if failure is None:
        return batch
    error: Exception = RuntimeError(failure["described"])
    if failure["cure"]:
        error = UserError(failure["described"], failure["cure"])
    return Failure(failure["stage"], failure["where"], error, failure["described"], failure["traceback"])


def _as_json(failure: Failure) -> dict[str, str]:
    portable = make_portable(failure)
    cure = portable.error.cure if isinstance(portable.error, PortwrightError) else ""
    return {
        "stage": portable.stage,
        "where": portable.where,
        "described": portable.described,
        "traceback": portable.remote_traceback,
        "cure": cure,
    }


def check_sameness(name: str, source: Source, fingerprint: list[Any], seen: Reading | None) -> None:
    """Refuses data that differ from the coordinator's: its orders would mean other samples here."""
    if source.fingerprint != fingerprint:
        raise UserError(
            f"{name}: the data here are {_tell(source.fingerprint)}, and the coordinator's {_tell(fingerprint)}.",
            "Let every node see the same data: put them on a file system that is shared, and bind it into the container.",
        )
    if source.probe is not None and source.probe.contradicts(seen):
        raise UserError(
            f"{name}: the samples of {fingerprint[0]} are in another order here than in the coordinator, or are other ones: some would "
            "be repeated and others lost.",
            "Sort what the data set lists: the order of a set of strings, os.listdir and glob differ from process to process. If it "
            "is sorted, let every node see the same files.",
        )


def _tell(fingerprint: list[Any]) -> str:
    return " of ".join(str(part) for part in reversed(fingerprint))


def _name_wanted(wanted: Wanted) -> str:
    """Names a batch by what was asked for, where its making failed."""
    order = wanted.order
    if "indices" in order:
        indices = order["indices"]
        listed = indices if isinstance(indices, list) else np.asarray(indices).reshape(-1).tolist()
        return f"epoch {wanted.epoch}, batch {order['task'][1]}: {name_samples(listed)}"
    if "lane" in order:
        return f"epoch {wanted.epoch}, batch {order['index']} of the loader's worker {order['lane']}"
    return f"epoch {wanted.epoch}, batch {order['number']}"
