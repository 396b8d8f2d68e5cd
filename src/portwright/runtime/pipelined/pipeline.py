"""A model over several processes: traced and cut for every shape of batch, its pieces run by a schedule."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from portwright.base_model import LossModule
from portwright.errors import PortwrightError, UserError
from portwright.runtime.non_finite import is_finite
from portwright.runtime.pipelined.agreement import Found, blame_layer
from portwright.runtime.pipelined.cuts import choose_cuts, locate
from portwright.runtime.pipelined.holding import Holding
from portwright.runtime.pipelined.micro_batches import signature_of
from portwright.runtime.pipelined.program import (
    Look,
    Program,
    check_same,
    check_steps,
    check_weights,
    make_programs,
)
from portwright.runtime.pipelined.recorder import record
from portwright.runtime.pipelined.schedules import (
    SPLITS_BACKWARD,
    Groups,
    Layout,
    StageModule,
    make_schedule,
    make_stage,
)
from portwright.runtime.pipelined.tape import Place, Tape
from portwright.runtime.pipelined.user_code import USER_MODEL
from portwright.runtime.pipelined.weights import StandIns, weights_of

_MOST_SHAPES = 32  # shapes whose programs are kept
_MANY_SHAPES = 8
_MOST_SCHEDULES = 4  # each keeps buffers for what its micro-batches receive


class Pipeline:
    """The pieces of a model that this process runs."""

    def __init__(
        self,
        module: LossModule,
        layout: Layout,
        groups: Groups,
        device: torch.device,
        autocast: Callable[[], AbstractContextManager[Any]] | None,
        note: Callable[[str], None],
    ) -> None:
        self._module, self._layout, self._groups, self._device = module, layout, groups, device
        self._autocast, self._note = autocast, note
        self._stand_ins = StandIns(module.net, device)
        self._weights = weights_of(module.net)
        self._programs: dict[Any, list[Program]] = {}
        self._schedules: dict[Any, Any] = {}
        self._holding: Holding | None = None
        self.places: list[Place] = []
        self._micro: Sequence[Any] = ()
        self._own: list[list[Program]] = []  # by micro-batch
        self._factor: Callable[[torch.Tensor], torch.Tensor] = lambda loss: loss
        self._first_tape: tuple[Any, Tape] | None = None
        self._num_shapes = 0
        self._compared: set[bool] = set()
        self._sent: list[tuple[Any, torch.Tensor]] = []
        self._losses: list[torch.Tensor] = []

    # -- cutting -------------------------------------------------------------------------------------------

    def choose(self, micro_batch: Any, asked: Sequence[str] | None, *, training: bool) -> list[Place]:
        """Where the second and each later stage begins, from the first micro-batch."""
        tape = self._record(micro_batch, training)
        self._first_tape = ((training, signature_of(micro_batch)), tape)
        if training and not tape.values[tape.loss].requires_grad:
            raise UserError(
                "the loss does not depend on any trainable weight.",
                "Look for .detach(), .item(), torch.no_grad() or requires_grad=False in the model.",
            )
        places = choose_cuts(tape, self._layout.num_pieces, asked)
        self._tell(tape, places)
        return places

    def hold(self, samples: Mapping[bool, Any]) -> Holding:
        """Who holds which weights: the processes whose pieces use them in training (True) or in evaluation (False)."""
        uses: dict[int, frozenset[str]] = {piece: frozenset() for piece in range(self._layout.num_pieces)}
        for training, batch in samples.items():
            for piece, program in enumerate(self._make(batch, training)):
                uses[piece] |= program.weight_names
        self._holding = Holding(self._module.net, self._layout, uses)
        return self._holding

    def _record(self, micro_batch: Any, training: bool) -> Tape:
        module = self._module
        was_training = module.net.training
        module.train(training)
        try:
            with torch.set_grad_enabled(training):  # even within no_grad
                return record(module, micro_batch, self._stand_ins, self._autocast, self._device)
        finally:
            module.train(was_training)

    def _tell(self, tape: Tape, places: Sequence[Place]) -> None:
        edges = [0, *locate(tape, places), len(tape.calls)]
        work = [sum(call.work for call in tape.calls[a:b]) for a, b in itertools.pairwise(edges)]
        shares = ", ".join(f"{100 * w / (sum(work) or 1):.0f}%" for w in work)
        self._note(
            f"pipelined: {len(work)} stages, the next begins at {', '.join(map(str, places))}; shares of the work {shares}."
        )
        tell_of_batchnorm(self._module.net, self._note)

    def _make(self, micro_batch: Any, training: bool) -> list[Program]:
        key = (training, signature_of(micro_batch))
        if key not in self._programs:
            known, self._first_tape = self._first_tape, None
            tape = known[1] if known is not None and known[0] == key else self._record(micro_batch, training)
            programs = make_programs(tape, locate(tape, self.places))
            self._check(tape, programs)
            if training not in self._compared:  # once, since comparing takes another trace
                self._compared.add(training)
                again = self._record(micro_batch, training)
                check_same(programs, make_programs(again, locate(again, self.places)))
            while len(self._programs) >= _MOST_SHAPES:
                del self._programs[next(iter(self._programs))]
            self._num_shapes += 1
            if self._num_shapes == 2 * _MANY_SHAPES:
                self._note(
                    f"pipelined: batches came in {_MANY_SHAPES} shapes or more, or with as many other values that are no "
                    "tensors (names, numbers), and the model is traced anew for each; pad them to fewer shapes, and leave "
                    "out of batches what the model does not need, to save the time."
                )
            self._programs[key] = programs
        return self._programs[key]

    def _check(self, tape: Tape, programs: Sequence[Program]) -> None:
        """Refuses programs that would be right in the first step alone, or that need weights of another process."""
        whole = {
            step.target
            for program in programs
            for step in program.steps
            if isinstance(step.target, nn.Module)
        }
        kept = {id(sub) for module in whole for sub in module.modules()}
        user = self._module.__dict__["user_model"]
        for path, names in tape.changed.items():
            holder = user if path == USER_MODEL else self._module.net.get_submodule(path)
            if id(holder) in kept:
                continue
            raise UserError(
                f"self.{names[0]} of {type(holder).__name__}{f' ({path})' if path not in ('', USER_MODEL) else ''} changes in a "
                "step, and a module that is cut has its Python run once for all steps.",
                "Keep it in a buffer of a module that lies in one stage (runconfig.pipeline.cuts says where stages begin), "
                "or use -D runconfig.execution=resident.",
            )
        check_steps(programs)
        if tape.values[tape.loss].requires_grad:
            buffers = check_weights(tape)
            kinds = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
            told = {path for path, sub in self._module.net.named_modules() if isinstance(sub, kinds)}
            left = [name for name in buffers if name.rpartition(".")[0] not in told]
            if left:
                self._note(
                    f"pipelined: buffer '{left[0]}' changes in a step, and does so once for each micro-batch."
                )
        if self._holding is None:
            return
        for piece in self._layout.own_pieces:
            for name in sorted(programs[piece].weight_names):
                if not self._holding.is_held(name):
                    raise UserError(
                        f"a batch of this shape uses '{name}' in stage {piece}, and the first batch did not.",
                        "Give all batches one path through the model.",
                    )

    # -- training ------------------------------------------------------------------------------------------

    def train(
        self, micro_batches: Sequence[Any], factor: Callable[[torch.Tensor], torch.Tensor]
    ) -> list[torch.Tensor]:
        """Forward and backward passes of equal micro-batches; the losses, unscaled, where the last stage is."""
        # Each from its own trace: values that are no tensors may differ from one micro-batch to the next.
        self._own = [self._make(micro_batch, training=True) for micro_batch in micro_batches]
        programs = self._own[0]
        if any(_looks(other) != _looks(programs) for other in self._own[1:]):
            raise UserError(
                "micro-batches of one batch send tensors of different shapes from stage to stage, since entries that are no "
                "tensors differ.",
                "Give all samples one path through the model, or use -D runconfig.execution=resident.",
            )
        key = ((True, signature_of(micro_batches[0])), len(micro_batches))
        schedule = self._schedules.pop(key, None) or self._make_schedule(programs, len(micro_batches))
        self._schedules[key] = schedule  # as the one used last
        while len(self._schedules) > _MOST_SCHEDULES:
            del self._schedules[next(iter(self._schedules))]
        self._micro, self._factor = micro_batches, factor
        self._losses = []
        numbers = torch.arange(len(micro_batches))
        try:
            schedule.step(
                target=numbers if self._layout.holds_loss else None, return_outputs=False, micro=numbers
            )
        except RuntimeError as error:
            # torch wraps an exception of the user's code in one that prints all arguments.
            if isinstance(error.__cause__, PortwrightError) or "failed to run forward" in str(error):
                raise error.__cause__ from None  # type: ignore[misc]
            raise
        finally:
            self._micro, self._own = (), []
        return self._losses

    def _make_schedule(self, programs: Sequence[Program], num_micro: int) -> Any:
        stages = []
        for piece in self._layout.own_pieces:
            program = programs[piece]
            module = StageModule(
                functools.partial(self._run_micro, piece),
                functools.partial(self._parameters, program),
                is_last=program.is_last,
            )
            stages.append(
                make_stage(
                    module,
                    piece,
                    self._layout,
                    self._device,
                    self._groups.pipeline,
                    program.looks(program.takes),
                    program.looks(program.gives),
                    backward_at_once=self._layout.schedule in SPLITS_BACKWARD and program.trainable_detour,
                )
            )
        return make_schedule(self._layout, stages, num_micro, self._weigh)

    def _run_micro(self, piece: int, taken: tuple[torch.Tensor, ...], micro: int) -> tuple[Any, ...]:
        return self._run(self._own[micro][piece], taken, self._micro[micro])

    def _weigh(self, loss: torch.Tensor, _micro: Any) -> torch.Tensor:
        self._losses.append(loss.detach().clone())
        return self._factor(loss)

    def _parameters(self, program: Program) -> Iterator[nn.Parameter]:
        for name in sorted(program.weight_names):
            holder, key = self._weights[name]
            if isinstance(holder[key], nn.Parameter):
                yield holder[key]

    def _run(
        self, program: Program, taken: Sequence[torch.Tensor], micro_batch: Any, look: Look | None = None
    ) -> tuple[Any, ...]:
        with nullcontext() if self._autocast is None else self._autocast():
            return program.run(
                taken,
                micro_batch,
                self._weights,
                self._device.type,
                copies=torch.is_grad_enabled() and self._layout.schedule in SPLITS_BACKWARD,
                look=look,
            )

    # -- forward only --------------------------------------------------------------------------------------

    def evaluate(self, batch: Any) -> torch.Tensor | None:
        """The loss of a whole batch where the last stage is, else None; the next batch may begin before it is through."""
        return self._pass_forward(self._make(batch, training=False), batch)

    @torch.no_grad()
    def find_non_finite(self, micro_batches: Sequence[Any]) -> Found | None:
        """The first value of this process's pieces that is not finite, when training's forward passes are run again."""
        found: list[Found] = []
        for micro_batch in micro_batches:
            programs = self._make(micro_batch, training=True)
            self._pass_forward(programs, micro_batch, found)
        self.wait()
        return min(found, default=None)

    @torch.no_grad()
    def preview(self, micro_batches: Sequence[Any]) -> list[torch.Tensor]:
        """The losses of training's forward passes, where the last stage is."""
        losses = [
            self._pass_forward(self._make(micro_batch, training=True), micro_batch)
            for micro_batch in micro_batches
        ]
        self.wait()
        return [loss for loss in losses if loss is not None]

    def _pass_forward(
        self, programs: Sequence[Program], batch: Any, found: list[Found] | None = None
    ) -> torch.Tensor | None:
        layout = self._layout
        given: tuple[torch.Tensor, ...] = ()
        for piece in layout.own_pieces:
            program = programs[piece]

            def look(label: str, value: Any, piece: int = piece) -> None:
                if isinstance(value, torch.Tensor) and not found and not is_finite(value):
                    found.append(blame_layer(piece, label, value))  # type: ignore[union-attr]

            if piece and layout.position_of(piece - 1) != layout.position:
                given = self._receive(program, layout.position_of(piece - 1))
            given = self._run(program, given, batch, None if found is None else look)
            if not program.is_last and layout.position_of(piece + 1) != layout.position:
                self._send(given, layout.position_of(piece + 1))
        return given[0] if layout.holds_loss else None

    def wait(self) -> None:
        """Waits until the receivers have taken what was sent."""
        for work, _ in self._sent:
            work.wait()
        self._sent = []

    def _receive(self, program: Program, position: int) -> tuple[torch.Tensor, ...]:
        tensors = []
        for value in program.looks(program.takes):
            tensor = torch.empty(value.shape, dtype=value.dtype, device=self._device)
            dist.recv(tensor, self._layout.rank_of(position), group=self._groups.pipeline)
            tensors.append(tensor)
        return tuple(tensors)

    def _send(self, tensors: Sequence[torch.Tensor], position: int) -> None:
        """Sends without waiting, except for the sends of the batch before, so that few are under way."""
        self.wait()
        to = self._layout.rank_of(position)
        self._sent = [(dist.isend(tensor, to, group=self._groups.pipeline), tensor) for tensor in tensors]


def _looks(programs: Sequence[Program]) -> list[Any]:
    """Shapes and types that stages send each other, and which of them take gradients."""
    return [
        (
            [(value.shape, value.dtype, value.requires_grad) for value in program.looks(program.takes)],
            program.weight_names,
            program.trainable_detour,
        )
        for program in programs
    ]


def tell_of_batchnorm(net: nn.Module, note: Callable[[str], None]) -> None:
    """Notes a batch norm, the one layer whose results depend on how a batch is split."""
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in net.modules()):
        note(
            "pipelined: BatchNorm sees one micro-batch at a time, and its running statistics move once for each."
        )
