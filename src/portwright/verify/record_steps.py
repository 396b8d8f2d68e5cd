"""Records what a script computes, step by step; the hooks call it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from portwright.verify.record_batches import Batches
from portwright.verify.record_digest import Sketcher, digest, sums, walk
from portwright.verify.record_links import Links, Rehearsal
from portwright.verify.record_names import Named, Names, is_lazy, rehearse
from portwright.verify.record_open import Mark, OpenStep, graph_of, leaves_of, plain_options
from portwright.verify.record_rest import Rest
from portwright.verify.record_seeds import Streams
from portwright.verify.recording import Draw, Group, ModuleOutput, Step

_BIG_BUFFER = 2**16  # elements; a larger buffer is read again only if torch counts a write to it


class Watch:
    """The state of a recording while its script runs."""

    def __init__(
        self, names: Names, streams: Streams, links: Links, done: Callable[[], None], wanted: int
    ) -> None:
        self.names, self.streams, self.links = names, streams, links
        self._done, self._wanted = done, wanted
        self._sketch = Sketcher()
        self.steps: list[Step] = []
        self.arrays: dict[str, npt.NDArray[np.float64]] = {}
        self.optimizers: list[torch.optim.Optimizer] = []
        self.is_paused = False  # while the recorder itself calls torch
        self.depth = 0  # of module calls
        self.step_depth = 0  # of optimizer steps
        self.in_backward = False
        self.in_dropout = False
        self.called: dict[int, int] = {}  # modules in the order of their first call
        self.rehearsed: dict[int, int] | None = None  # the order of calls during a rehearsal
        self.num_processes = 0  # that the script started
        self.vendor_calls: dict[str, int] = {}  # steps that a vendor's own software made
        self.notes: list[str] = []
        self.counts = False  # whether the module call under way is one of training
        self._last_counted = False
        self._is_evaluation = False
        self._open = OpenStep()
        self._spare = OpenStep()  # calls in evaluation mode, which may turn out to be training
        self.batches = Batches()
        self.rest = Rest()
        self.schedulers: list[Any] = []
        # as described after the last recorded step
        self.schedules: list[dict[str, Any]] | None = None
        self.num_epochs = 0  # ended after the last recorded step
        self.saved: list[dict[str, Any]] = []  # keys of the files that were saved
        self.asked_for_accelerator: list[str] = []  # file:line of each call, where there is none
        self.inputs: Any = None  # of Portwright's run()
        self._has_loader = False  # whether a loader feeds the steps
        self._versions: dict[str, tuple[int, int]] = {}
        self._buffer_sketches: dict[str, npt.NDArray[np.float64]] = {}

    # -- modules -------------------------------------------------------------------------------------------

    def enter_root(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        has_weights = next(module.parameters(), None) is not None
        if not torch.is_grad_enabled():
            self.counts, self._is_evaluation = False, True
        elif has_weights:
            self.counts, self._is_evaluation = True, not module.training
        else:
            self.counts = self._last_counted
        if has_weights:
            self._last_counted = self.counts
        if has_weights and not self.rest.is_on and not self.names.knows(module):
            self.prepare(module, args, kwargs)
        if not self.counts or self._is_evaluation:
            self.batches.evaluated(has_weights, self.num_updates, (args, dict(kwargs)))
            self.rest.has_evaluated |= has_weights
        if self.rest.is_on:
            self._enter_in_rest(args, kwargs)
        if not self.counts:
            return
        if not self._is_evaluation:
            self.rest.begin_training()
        if not self._is_evaluation and self._open.is_by_hand and has_weights:
            self._end_by_hand()
        if has_weights and not self.steps and not self._open.losses:
            self.links.refresh()  # weights may have been loaded or drawn anew since they were first seen
        into = self._target
        if not self._is_evaluation and not into.has_begun:
            into.has_begun = True
            self.streams.start("forward", len(self.steps))
        fed = [t for t in walk((args, dict(kwargs))) if t.grad_fn is None and not t.requires_grad]
        # Floats may be computed, such as a state from the step before, so only their sums are compared.
        into.inputs += [digest(t, with_values=not t.is_floating_point()) for t in fed]
        if not self._is_evaluation:
            into.batch += [digest(t) for t in self.batches.take(fed)]
        if has_weights and not self.steps:
            into.marks.append(Mark(len(into.outputs), len(into.inputs) - len(fed), len(into.draws)))

    def _enter_in_rest(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """After the recorded steps only the batch of a training call is noted."""
        self.rest.check()
        if self.counts and not self._is_evaluation:
            self.rest.begin_training()
            if not self.rest.has_batch:
                self.rest.note_batch(self.batches.take(list(walk((args, dict(kwargs))))))
        self.counts = False

    @property
    def num_updates(self) -> int:
        """Updates of the weights, recorded or not."""
        return len(self.steps) + len(self.rest.updates)

    def fed(self, target: torch.Tensor) -> None:
        """Records the target of a loss function outside modules."""
        if (
            self.is_paused
            or self.in_backward
            or self.rehearsed is not None
            or not self._last_counted
            or self.rest.is_on
        ):
            return
        if torch.is_grad_enabled() and target.grad_fn is None and not target.requires_grad:
            self._target.inputs.append(digest(target, with_values=not target.is_floating_point()))

    @property
    def _target(self) -> OpenStep:
        return self._spare if self._is_evaluation else self._open

    def leave_root(self, module: nn.Module, result: Any) -> None:
        if self._is_evaluation and next(module.parameters(), None) is not None:
            output = next(walk(result), None)
            if output is not None:
                self.batches.note_output(output)

    def leave(self, module: nn.Module, result: Any, line: str) -> None:
        self.called.setdefault(id(module), len(self.called))
        output = next(walk(result), None)
        if self.depth == 0 and self._target.marks and output is not None:
            self._target.marks[-1].node = output.grad_fn
        if output is None or output.numel() == 0:
            return
        total, square = sums(output)
        name, kind = self.names.name_of_module(module), type(module).__name__
        self._target.outputs.append(ModuleOutput(name, kind, output.numel(), total, square, line))

    def draw(self, function: str, rate: float, size: int) -> None:
        if torch.is_grad_enabled() and not self.in_backward and not self.is_paused and not self.rest.is_on:
            self._target.draws.append(Draw(function, float(rate), int(size)))

    def note_draw(self, draw: Draw) -> None:
        """Adds a draw of a step on a device, seen only when the step was traced."""
        self._open.draws.append(draw)

    # -- tensors -------------------------------------------------------------------------------------------

    def prepare(
        self, called: nn.Module | None, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Names and matches the tensors of new roots."""
        trained = [
            p for optimizer in self.optimizers for group in optimizer.param_groups for p in group["params"]
        ]
        if called is None and all(self.names.name_of(p) is not None for p in trained):
            return
        roots = self.names.find_roots(called, trained)
        order: Rehearsal | None = None
        if called is not None:
            order = partial(self._rehearse, called, args, kwargs or {})
            if is_lazy(called):
                order()
        fresh = self.names.add_roots(roots)
        if any(self.names.name_of(p) is None for p in trained):
            fresh += self.names.add_late()
        fresh += [self.names.add_loose(p) for p in trained if self.names.name_of(p) is None]
        if fresh:
            self.links.begin(fresh, order)

    def _rehearse(self, root: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[int, int]:
        """The order in which a module calls its parts; empty if the rehearsal fails."""
        called: dict[int, int] = {}
        outside, self.rehearsed = self.rehearsed, called
        try:
            with self.streams.own("rehearsal"):
                failure = rehearse(root, lambda: root(*args, **kwargs))
        finally:
            self.rehearsed = outside
        if failure is not None:
            self.notes.append(f"The order of calls could not be tried out: {failure}.")
            return {}
        return called

    # -- backward and update -------------------------------------------------------------------------------

    def before_backward(self, losses: list[torch.Tensor], values: list[torch.Tensor]) -> None:
        if self.rest.is_on:
            if not self.rest.has_batch:
                self.rest.note_batch(self.batches.take([]))
            return
        self.prepare(None)
        self._add_leaves(losses)
        if self._open.is_by_hand:
            self._end_by_hand()
        if not self._open.outputs and self._spare.outputs:
            self._adopt()
        if not self.steps and not self._open.losses:
            self._open.drop_unused(graph_of(losses))
        if not self._open.batch:
            self._open.batch = [digest(t) for t in self.batches.take([])]
        self._has_loader |= bool(self._open.batch)
        if not self._open.losses:
            self._open.stale = {
                id(named.tensor)
                for named in self.names.tensors.values()
                if named.kind == "parameter" and _is_set(named.tensor.grad)
            }
        self._add_losses(values)

    def _add_losses(self, values: Iterable[torch.Tensor]) -> None:
        for value in values:
            self._open.losses.append(float(value.detach().to(torch.float64).sum()))
            self._open.loss_dtype = str(value.dtype).removeprefix("torch.")
            self._open.loss_devices.append(str(value.device))

    def _adopt(self) -> None:
        """Moves calls in evaluation mode into the step, since the script trains in that mode."""
        spare, now = self._spare, self._open
        now.outputs, now.draws, now.inputs, now.marks = spare.outputs, spare.draws, spare.inputs, spare.marks
        self._spare = OpenStep()

    def _add_leaves(self, losses: list[torch.Tensor]) -> None:
        """Names weights that neither a module nor an optimizer holds, found by walking from the loss."""
        if self.optimizers:
            return
        fresh = []
        for leaf in leaves_of(losses):
            if self.names.name_of(leaf) is None and not self.names.replace_loose(leaf):
                fresh.append(self.names.add_loose(leaf))
        if fresh:
            self.links.begin(fresh)

    def after_backward(self) -> None:
        if self.rest.is_on and not self.optimizers:
            self._updated_in_rest()
        elif not self.optimizers:
            self._read_gradients(None)
            self._open.is_by_hand = True

    def asked_gradient(self, outputs: list[torch.Tensor]) -> None:
        self._open.asked += outputs

    def before_update(self, optimizer: torch.optim.Optimizer, has_closure: bool) -> None:
        if self.rest.is_on:
            return
        if not any(optimizer is known for known in self.optimizers):
            self.optimizers.append(optimizer)
        self.prepare(None)
        self._open.is_by_hand = False
        self._open.updated = {id(p) for group in optimizer.param_groups for p in group["params"]}
        self._open.groups = [self._describe(group) for group in optimizer.param_groups]
        if not has_closure:
            self._read_gradients(optimizer)

    def _updated_in_rest(self) -> None:
        rates = {
            float(group["lr"])
            for optimizer in self.optimizers
            for group in optimizer.param_groups
            if "lr" in group
        }
        self.streams.start("step", self.num_updates + 1)
        self.batches.step_done()
        calls = [getattr(scheduler, "last_epoch", 0) for scheduler in self.schedulers]
        self.rest.note_update(sorted(rates), calls, self.batches.num_epochs - self.num_epochs)

    def after_update(self, optimizer: torch.optim.Optimizer, has_closure: bool) -> None:
        if self.rest.is_on:
            self._updated_in_rest()
            return
        if has_closure:
            self._read_gradients(optimizer)  # the closure computed them
        if not self._open.losses:
            self._add_losses(self._open.asked)
        number = next(i for i, known in enumerate(self.optimizers) if known is optimizer)
        self._close(type(optimizer).__name__, number)

    def end_script(self) -> None:
        """Closes a last update by hand when the script is over."""
        if self._open.is_by_hand and not self.rest.is_on:
            self._end_by_hand()

    def _end_by_hand(self) -> None:
        self._open.is_by_hand = False
        self._close("", 0)

    def _read_gradients(self, optimizer: torch.optim.Optimizer | None) -> None:
        self.links.settle(self.called)
        wanted = (
            None
            if optimizer is None
            else {id(p) for group in optimizer.param_groups for p in group["params"]}
        )
        chosen = {
            named.name: named.tensor.grad
            for named in self.names.tensors.values()
            if named.kind == "parameter" and (wanted is None or id(named.tensor) in wanted)
        }
        self._open.no_gradient = []
        for name, tensor in self.links.in_original(chosen):
            if tensor is None:
                self._open.no_gradient.append(name)
            else:
                self._open.gradients[name] = self._sketch(tensor)

    def _describe(self, group: dict[str, Any]) -> Group:
        names = [name for p in group["params"] if (name := self.names.name_of(p)) is not None]
        return Group(tuple(self.links.names_in_original(names)), plain_options(group))

    def _close(self, optimizer: str, number: int) -> None:
        index = len(self.steps) + 1
        now = self._open
        for name, sketch in now.gradients.items():
            self.arrays[f"gradient/{index}/{name}"] = sketch
        alive = self._trained_roots()
        tensors = {
            named.name: named.tensor
            for named in self.names.tensors.values()
            if named.root is None or named.root in alive
        }
        for name, tensor in self.links.in_original(dict(tensors)):
            if tensor is not None:
                self.arrays[f"weight/{index}/{name}"] = self._sketch_weight(name, tensor)
        devices = {str(t.device) for t in tensors.values()} | set(now.loss_devices)
        self.steps.append(
            Step(
                index=index,
                optimizer=optimizer,
                optimizer_number=number,
                losses=tuple(now.losses),
                loss_dtype=now.loss_dtype,
                batch=tuple(now.batch if self._has_loader else now.inputs),
                groups=tuple(now.groups),
                outputs=tuple(now.outputs),
                draws=tuple(now.draws),
                no_gradient=tuple(now.no_gradient),
                zeroed=not now.stale & (now.updated or now.stale),
                devices=tuple(sorted(devices)),
            )
        )
        self._open, self._spare = OpenStep(), OpenStep()
        self.streams.start("step", index)
        self.batches.step_done()
        self.num_epochs = self.batches.num_epochs
        self._done()

    def _trained_roots(self) -> set[int]:
        """Roots with a trained parameter; others, such as a teacher or an average, are not recorded."""
        ids = self._optimised_ids()
        return {
            named.root
            for named in self.names.tensors.values()
            if named.root is not None and self.is_trained(named, ids)
        }

    def is_trained(self, named: Named, ids: set[int] | None = None) -> bool:
        if named.kind != "parameter" or not named.tensor.requires_grad:
            return False
        return not self.optimizers or id(named.tensor) in (self._optimised_ids() if ids is None else ids)

    def _optimised_ids(self) -> set[int]:
        return {id(p) for o in self.optimizers for group in o.param_groups for p in group["params"]}

    def _sketch_weight(self, name: str, tensor: torch.Tensor) -> npt.NDArray[np.float64]:
        named = self.names.tensors.get(name)
        if named is None or named.kind != "buffer" or tensor.numel() <= _BIG_BUFFER:
            return self._sketch(tensor)
        version = (tensor._version, tensor.data_ptr())
        if self._versions.get(name) != version:
            self._versions[name] = version
            self._buffer_sketches[name] = self._sketch(tensor)
        return self._buffer_sketches[name]


def _is_set(gradient: torch.Tensor | None) -> bool:
    if gradient is None:
        return False
    return bool(gradient._values().any() if gradient.is_sparse else gradient.any())
