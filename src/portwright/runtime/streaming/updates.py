"""The optimizer beside backward: a thread that updates each layer as soon as its gradients are on the host."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from portwright.errors import NonFiniteError, UserError
from portwright.runtime.streaming.gradients import Delivery, Piece
from portwright.runtime.streaming.lanes import DONE, Mark
from portwright.runtime.streaming.unit import Unit

Rates = list[Any]  # learning rate of each group of the optimizer
# What a thread did and when: (lane, label, begin, end), seconds of time.perf_counter.
Span = tuple[str, str, float, float]


class UnitUpdate(Protocol):
    """The optimizer of one layer."""

    def apply(self, grads: Mapping[int, Tensor], rates: Rates, factor: float, *, undoable: bool) -> None:
        """Updates masters, state and the shadow; `grads` by position among the trained, multiplied by `factor` first."""
        ...

    def keep(self) -> None:
        """Makes an undoable update final."""
        ...

    def undo(self) -> None:
        """Undoes the last undoable update."""
        ...

    def adopt(self) -> None:
        """Takes over a state that was loaded into the optimizer."""
        ...

    def count(self, positions: Iterable[int]) -> None:
        """Counts a step for weights that were updated on the device."""
        ...

    def prefetch(self, positions: Iterable[int]) -> None:
        """Begins to read from the disk the state of weights that will be updated soon."""
        ...


@dataclass
class Verdict:
    """What is decided for all gradients of a step: their factor, or that the step is skipped."""

    factor: Tensor  # 0-d on the host once `mark` is reached; not finite: skip the step
    mark: Mark = DONE


@dataclass(eq=False)
class Step:
    """One update of all layers."""

    number: int
    rates: Rates
    needs_verdict: bool = False
    speculates: bool = False
    may_skip: bool = False  # the loss is scaled, so that gradients may overflow
    # on the host once their marks are reached
    losses: list[tuple[Tensor, Mark]] = field(default_factory=list)
    verdict: Verdict | None = None
    factor: float | None = None  # once known
    has_bad_loss: bool = False  # a loss was not finite: nothing is updated
    is_skipped: bool = False
    is_checked: bool = False
    is_begun: bool = False  # some weight has been changed, for good unless there is a verdict to come
    is_abandoned: bool = False  # an error ended it: what has not been updated stays as it is
    waiting: list[_Job] = field(default_factory=list)
    speculated: list[_Job] = field(default_factory=list)


@dataclass(eq=False)
class _Job:
    step: Step
    piece: Piece
    is_last: bool  # of the accumulated backward passes
    number: int  # in the order of arrival
    is_added: bool = False  # to the sums of the accumulated passes

    @property
    def unit(self) -> Unit:
        return self.piece.delivery.unit


class Updates:
    """Takes gradients that arrive and updates their layers; the layer that the next forward pass needs first goes first."""

    def __init__(
        self,
        updates: Mapping[Unit, UnitUpdate],
        give_back: Callable[[Tensor], None],
        on_failure: Callable[[BaseException], None],
        order: Callable[[Unit], int],
        adds_up: bool = False,
    ) -> None:
        self._adds_up = (
            adds_up  # gradients of several passes: the ring's places are free again once they are added
        )
        self._updates, self._give_back, self._on_failure, self._order = updates, give_back, on_failure, order
        self._jobs: list[_Job] = []
        self._verdicts: list[Step] = []
        self._accumulated: dict[Unit, dict[int, Tensor]] = {}
        self._work = threading.Condition()
        self._num_open = 0
        self._num_submitted = 0
        self._is_busy = False
        self._is_closed = False
        self._failure: BaseException | None = None
        self._bad_loss_from: int | None = None  # the first step that was not taken, nor was any after it
        self.last_factor = 1.0  # of the last step whose verdict is known
        self.num_rolled_back = 0
        self.non_finite_step: int | None = (
            None  # whose gradients were not finite; nothing has been updated since
        )
        self.broken_step: int | None = (
            None  # that an error ended when some weights were updated and others not
        )
        self.spans: list[Span] | None = None
        self._thread = threading.Thread(target=self._run, name="portwright-updates", daemon=True)
        self._thread.start()

    # -- called by the training's threads -------------------------------------------------------------------

    def submit(self, step: Step, piece: Piece, is_last: bool) -> None:
        """Takes some gradients of a layer; the final piece announces the layer's next version."""
        if is_last and not piece.is_done:
            self._updates[piece.delivery.unit].prefetch(piece.positions)
        if is_last and piece.is_final:
            piece.delivery.unit.wanted_version += 1
        with self._work:
            self._num_open += 1
            self._num_submitted += 1
            piece.delivery.num_open += 1
            piece.delivery.is_whole = piece.is_final  # only now: an earlier piece may be over at any time
            step.is_begun |= piece.is_done
            self._jobs.append(_Job(step, piece, is_last, self._num_submitted))
            self._work.notify_all()

    def close_delivery(self, delivery: Delivery) -> None:
        """Ends a delivery without its final piece, since an error ended the pass."""
        with self._work:
            delivery.is_whole = True
            is_free = delivery.num_open == 0
        if is_free and delivery.buffer is not None:
            self._give_back(delivery.buffer)

    def abandon(self, step: Step, *, is_rest_begun: bool) -> None:
        """Ends a step after an error: undoes what a verdict could still undo, and updates nothing more."""
        with self._work:
            has_verdict = step.verdict is not None
            is_taken = step.is_begun and not step.needs_verdict
            if is_rest_begun and not (has_verdict and self._is_refused(step)):
                is_taken = True
            if is_taken:
                self.broken_step = step.number
            if has_verdict:
                return  # the thread settles it
            step.is_abandoned = True
            self._num_open += 1
            self._verdicts.append(step)
            self._work.notify_all()

    def _is_refused(self, step: Step) -> bool:
        assert step.verdict is not None
        step.verdict.mark.synchronize()
        return not math.isfinite(float(step.verdict.factor))

    def decide(self, step: Step, verdict: Verdict) -> None:
        with self._work:
            step.verdict = verdict
            self._num_open += 1
            self._verdicts.append(step)
            self._work.notify_all()

    def accumulated(self, unit: Unit) -> dict[int, Tensor]:
        """Sums of the gradients so far; read when the thread is idle."""
        return self._accumulated.get(unit, {})

    def wait_idle(self) -> None:
        """Returns when every update that was asked for is done."""
        self._wait_for(lambda: self._num_open == 0)

    def wait_arrived(self) -> None:
        """Returns when no gradient is on its way; updates may wait for a verdict."""
        self._wait_for(lambda: not self._jobs and not self._is_busy)

    def _wait_for(self, is_so: Callable[[], bool]) -> None:
        with self._work:
            self._work.wait_for(lambda: self._failure is not None or is_so())
            if self._failure is not None:
                raise self._failure

    def release(self) -> None:
        """Lets updates go on after a step that was not taken, or only in part, once other weights are loaded."""
        self._bad_loss_from, self.non_finite_step, self.broken_step = None, None, None

    def adopt(self) -> None:
        """Takes over a state that was loaded into the optimizer."""
        for update in self._updates.values():
            update.adopt()

    def close(self) -> None:
        with self._work:
            self._is_closed = True
            self._work.notify_all()
        self._thread.join()

    # -- the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        torch.set_grad_enabled(False)
        while True:
            with self._work:
                self._is_busy = False
                self._work.notify_all()
                self._work.wait_for(lambda: self._is_closed or bool(self._jobs) or bool(self._verdicts))
                if self._is_closed:
                    return
                item: Step | _Job = self._verdicts.pop(0) if self._verdicts else self._next_job()
                self._is_busy = True
            if self._failure is not None:
                continue
            try:
                if isinstance(item, Step):
                    self._judge(item)
                else:
                    self._process(item)
            except BaseException as error:  # raised in the thread that waits for a layer
                self._fail(error)

    def _next_job(self) -> _Job:
        arrived = [job for job in self._jobs if job.piece.mark.query()]
        job = (
            min(arrived, key=lambda job: self._order(job.unit))
            if arrived
            else min(self._jobs, key=lambda job: job.number)
        )
        self._jobs.remove(job)
        return job

    def _process(self, job: _Job) -> None:
        step = job.step
        job.piece.mark.synchronize()
        if step.is_abandoned:
            self._over(job)
            return
        if self._adds_up:
            self._accumulate(job)
        if not job.is_last:
            self._over(job)
            return
        self._check_losses(step)
        if job.piece.is_done:
            if not step.has_bad_loss:
                self._updates[job.unit].count(job.piece.positions)
            self._over(job)
        elif step.has_bad_loss or step.is_skipped:
            self._over(job)
        elif step.factor is not None or not step.needs_verdict:
            self._apply(job, 1.0 if step.factor is None else step.factor, undoable=False)
            self._over(job)
        elif step.speculates:
            self._apply(job, 1.0, undoable=True)
            step.speculated.append(job)
        else:
            step.waiting.append(job)

    def _check_losses(self, step: Step) -> None:
        """Compares step numbers: a layer that waits since an earlier step is still to be updated."""
        if not step.is_checked:
            step.is_checked = True
            for value, mark in step.losses:
                mark.synchronize()
                if self._bad_loss_from is None and not math.isfinite(float(value)):
                    self._bad_loss_from = step.number
        step.has_bad_loss = self._bad_loss_from is not None and step.number >= self._bad_loss_from

    def _drop(self, step: Step) -> None:
        for job in step.speculated:
            self._updates[job.unit].undo()
        self._accumulated.clear()
        for job in step.speculated + step.waiting:
            self._over(job)
        step.speculated, step.waiting = [], []
        self._close_one()

    def _judge(self, step: Step) -> None:
        if step.is_abandoned:
            self._drop(step)
            return
        assert step.verdict is not None
        step.verdict.mark.synchronize()
        factor = float(step.verdict.factor)
        self._check_losses(step)
        step.is_skipped = step.has_bad_loss or not math.isfinite(factor)
        if step.is_skipped and not step.may_skip and self._bad_loss_from is None:
            self.non_finite_step = self._bad_loss_from = step.number
        step.factor = factor
        if not step.is_skipped:
            self.last_factor = factor
        redone = step.waiting
        if factor == 1.0 and not step.is_skipped:
            for job in step.speculated:
                self._updates[job.unit].keep()
                self._over(job)
        else:
            self.num_rolled_back += bool(step.speculated)
            for job in step.speculated:
                self._updates[job.unit].undo()
            redone = step.speculated + step.waiting
        step.speculated, step.waiting = [], []
        # A layer that the next pass needs first goes first, and among those that arrive meanwhile too.
        with self._work:
            self._jobs += redone
            self._num_open -= 1
            self._work.notify_all()

    def _accumulate(self, job: _Job) -> None:
        if job.is_added:
            return  # and has been waiting for a verdict since
        job.is_added = True
        unit, views = job.unit, job.piece.delivery.views
        sums = self._accumulated.setdefault(unit, {})
        for position in job.piece.positions:
            if position in sums:
                sums[position].add_(views[position])
            else:
                master = unit.entries[unit.trained[position]].master
                sums[position] = views[position].to(master.dtype, copy=True)
        # in one piece: only gradients that are not added up are sent one by one
        delivery = job.piece.delivery
        if delivery.buffer is not None:
            self._give_back(delivery.buffer)
            delivery.buffer = None

    def _apply(self, job: _Job, factor: float, *, undoable: bool) -> None:
        unit = job.unit
        with self._work:
            if job.step.is_abandoned:
                return
            job.step.is_begun = True
        begin = time.perf_counter()
        grads = self._accumulated.get(unit)
        if grads is None:
            grads = {position: job.piece.delivery.views[position] for position in job.piece.positions}
        self._updates[unit].apply(grads, job.step.rates, factor, undoable=undoable)
        if self.spans is not None:
            self.spans.append(("cpu update", unit.name, begin, time.perf_counter()))

    def _over(self, job: _Job) -> None:
        delivery = job.piece.delivery
        with self._work:
            delivery.num_open -= 1
            is_whole = delivery.is_whole and delivery.num_open == 0
        if is_whole:
            if delivery.buffer is not None:
                self._give_back(delivery.buffer)
            if job.is_last:
                self._accumulated.pop(delivery.unit, None)
                delivery.unit.updated(delivery.unit.wanted_version)
        self._close_one()

    def _close_one(self) -> None:
        with self._work:
            self._num_open -= 1
            self._work.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self._work:
            self._failure = error
            self._work.notify_all()
        for unit in self._updates:
            unit.fail(error)
        self._on_failure(error)


def broken_off(step: int) -> UserError:
    return UserError(
        f"an error ended step {step} when some of its layers were updated and others not, so the weights are those of no step.",
        "Resume from the last checkpoint.",
    )


def non_finite_gradients(step: int) -> NonFiniteError:
    return NonFiniteError(
        f"the gradients of step {step} are not finite, though its loss was; no weight was changed by it.",
        "Lower optimizer.learning_rate, or resume with runconfig.execution: resident to have the tensor named.",
    )
