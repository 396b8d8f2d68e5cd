"""Weight streaming of one model: what happens around each call of a layer, and around each step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from portwright.errors import UserError
from portwright.job.execution import StreamingSection
from portwright.job.sizes import show_bytes
from portwright.runtime.optimizer_state import optimizer_state_bytes
from portwright.runtime.streaming.device_cap import DeviceCap
from portwright.runtime.streaming.device_update import DeviceUpdate
from portwright.runtime.streaming.fetch import CallOrder, Fetcher, Slot
from portwright.runtime.streaming.gradients import Delivery, Gradients, Piece, largest_gradient, norm_of
from portwright.runtime.streaming.host_store import HostStore
from portwright.runtime.streaming.lanes import DONE, Lanes, Mark
from portwright.runtime.streaming.layers import find_layers
from portwright.runtime.streaming.native.adam import NativeAdam, load_native
from portwright.runtime.streaming.offload import OffloadedActivations
from portwright.runtime.streaming.recompute import refuse_kept_graph, without
from portwright.runtime.streaming.staging import Staging
from portwright.runtime.streaming.unit import (
    Entry,
    Unit,
    make_units,
    move_rest,
    move_to_store,
    plan_training,
    plan_weights,
    updated_on_device,
)
from portwright.runtime.streaming.unit_update import (
    NativeUpdate,
    TorchUpdate,
    bind_to_own_cores,
    check_separable,
    is_native,
    part_of,
)
from portwright.runtime.streaming.updates import (
    Step,
    UnitUpdate,
    Updates,
    Verdict,
    broken_off,
    non_finite_gradients,
)
from portwright.runtime.world import read_launch

_STATE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Streaming:
    """Takes over the layers of `net`: their weights stay on the host, and come to `device` for each call.

    Weights outside the layers move to the device and stay there. `half` is the dtype of matrices there under autocast.
    One step: `begin_step`, then for each accumulated batch `begin_pass`, the user's forward and backward, `end_pass`; then `decide`
    where a verdict is needed, and a step of the rest's optimizer. `wait` makes the host's weights those of the last step.
    """

    def __init__(
        self,
        net: nn.Module,
        device: torch.device,
        options: StreamingSection,
        note: Callable[[str], None],
        *,
        half: torch.dtype | None = None,
        may_update_here: bool = True,
    ) -> None:
        self.net, self._options, self._note, self._half = net, options, note, half
        self._changed = threading.Condition()
        self.lanes = Lanes(device)
        layers = find_layers(net, options.layers)
        self.units = self._make_units(layers)
        if not self.units:
            raise UserError(
                "every weight of the layers is shared with something outside them, so none can be streamed.",
                "Name other modules in runconfig.streaming.layers, or use runconfig.execution: resident.",
            )
        if options.layers is not None:
            streamed_names = {unit.name for unit in self.units}
            left = [name for name, _ in layers if name not in streamed_names]
            if left:
                note(
                    f"streaming: {', '.join(left)} stays on the device, though runconfig.streaming.layers names it: "
                    "its weights are used outside of it too."
                )
        for unit in self.units:
            unit.take_hooks()
        streamed = {entry.master for unit in self.units for entry in unit.entries}
        self.rest = [p for p in net.parameters() if p not in streamed]
        self._here = (
            updated_on_device(self.units, options, self.lanes.is_cuda, half) if may_update_here else set()
        )
        self.store = HostStore(options, device, note, num_sharers=read_launch().local_world_size)
        hosts = [unit.host for unit in self.units]
        plan_weights(self.store, hosts)
        self._staging = Staging(device, self.store)  # first, so that it is pinned if anything is
        for host in hosts:
            move_to_store(host, self.store, pin=host in self._here)
        move_rest(net, device, streamed)
        self._fetcher = self._make_fetcher()
        self._order = CallOrder(self.units)
        self.cap: DeviceCap | None = None
        self.running: str | None = None  # the layer that is being computed, or was when an error came
        self._offloaded = (
            OffloadedActivations(self.lanes, self._staging) if options.offload_activations else None
        )
        self._places = {unit: unit.index for unit in self.units}
        self._gradients: Gradients | None = None
        self._updates: Updates | None = None
        self._native: NativeAdam | None = None
        self._native_updates: dict[Unit, NativeUpdate] = {}
        self._speculates = False
        self._late_state = 0  # bytes that torch's optimizers make in their first step
        self._step: Step | None = None
        self._is_last_pass = True
        self._device_update: DeviceUpdate | None = None
        # Layers whose gradients have come only in earlier passes of the step, so far.
        self._only_before: set[Unit] = set()
        self._restore: list[Callable[[], None]] = []
        self._misused: list[tuple[Unit, Entry]] = []
        self.lanes.quieten()
        for unit in self.units:
            self._take_over(unit)
            for entry in unit.entries:
                self._watch_misuse(unit, entry)

    # -- what ShardedStreaming makes otherwise ---------------------------------------------------------------

    def _make_units(self, layers: list[tuple[str, nn.Module]]) -> list[Unit]:
        return make_units(layers, self.net, self.lanes.device, self._half, self._changed)

    def _make_fetcher(self) -> Fetcher:
        return Fetcher(self.units, self._options.slots, self.lanes, self._copy_up, self._changed)

    def _gradient_bytes(self, trained: list[Unit]) -> int:
        """Bytes of a place on the host that fits the gradients of any layer."""
        return largest_gradient(trained)

    def _make_gradients(self, trained: list[Unit], ring: list[Tensor], num_buffers: int) -> Gradients:
        return Gradients(trained, self.lanes, self._copy_down, ring, self._deliver, num_buffers)

    # -- where things live ----------------------------------------------------------------------------------

    def _copy_up(self, target: Tensor, source: Tensor) -> None:
        self._staging.up(target, source, self.lanes.stream("up"))

    def _copy_down(self, target: Tensor, source: Tensor) -> Mark:
        return self._staging.down(target, source, self.lanes.stream("down"))

    @property
    def device_bytes(self) -> dict[str, int]:
        """What streaming itself keeps on the device."""
        rest = sum(p.numel() * p.element_size() for p in self.rest)
        return {
            "weight slots": self._fetcher.num_bytes,
            "gradient slots": 0 if self._gradients is None else self._gradients.num_bytes,
            "optimizer state on its way": 0 if self._device_update is None else self._device_update.num_bytes,
            "weights outside the layers": rest,
        }

    def describe(self) -> str:
        """A line for the log: what is streamed, and where weights and state are."""
        on_device = ", ".join(
            f"{label} {show_bytes(size)}" for label, size in self.device_bytes.items() if size
        )
        names = (
            self.units[0].name if len(self.units) == 1 else f"{self.units[0].name} to {self.units[-1].name}"
        )
        on_host = self.store.describe()
        if self._late_state:
            where = "on disk" if self.store.is_on_disk else "in memory"
            on_host += (
                f"; the optimizer's state, {show_bytes(self._late_state)} {where}, comes with the first step"
            )
        return f"streaming: {len(self.units)} layers ({names}); on the device: {on_device}; on the host: {on_host}."

    # -- a layer's call -------------------------------------------------------------------------------------

    def _take_over(self, unit: Unit) -> None:
        inner, had_own = unit.module.forward, "forward" in unit.module.__dict__

        def forward(*args: Any, **kwargs: Any) -> Any:
            return self._call(unit, inner, args, kwargs)

        unit.module.forward = forward

        def restore() -> None:
            del unit.module.__dict__["forward"]
            if had_own:
                unit.module.__dict__["forward"] = inner

        self._restore.append(restore)

    def _call(self, unit: Unit, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or self._gradients is None:
            slot = self._bring(unit, self._order.called(unit, trains=False))
            with unit.lent(), self._within(unit):
                return without(slot.buffer, inner(*args, **kwargs))
        scene, num_runs = unit.memory.before(args, kwargs), 0
        errors: list[BaseException] = []
        given = [(args, kwargs)]  # taken once: backward may keep or drop them

        def body(*args: Any, **kwargs: Any) -> Any:
            nonlocal num_runs
            num_runs += 1
            if num_runs == 1:
                try:
                    args, kwargs = given.pop()
                    slot = self._bring(unit, self._order.called(unit, trains=True))
                    with unit.lent(), scene.seen(args, kwargs), self._within(unit):
                        return without(slot.buffer, inner(*args, **kwargs))
                except (
                    BaseException
                ) as error:  # torch 2.4's checkpoint would stay open, and catch what comes after it
                    errors.append(error)
                    return None
            assert self._gradients is not None
            refuse_kept_graph(unit.name, num_runs - 1)
            self._gradients.left_for(unit)
            self._bring(unit, self._order.returned())
            again, again_named = scene.arguments(args, kwargs)
            with unit.lent(), scene.again(), self._within(unit):
                return inner(*again, **again_named)

        kept, kept_named = scene.to_keep(args, kwargs)
        with self._offloaded or nullcontext():
            result = checkpoint(body, *kept, use_reentrant=False, **kept_named)
        if errors:
            raise errors.pop()
        return result

    @contextmanager
    def _within(self, unit: Unit) -> Iterator[None]:
        """Names the running layer, for messages and for the count of memory."""
        self.running = unit.name
        with nullcontext() if self.cap is None else self.cap.within(unit.name):
            yield
        self.running = None

    def _bring(self, unit: Unit, upcoming: Iterator[Unit]) -> Slot:
        slot = self._fetcher.fetch(unit, upcoming)
        unit.bind(slot.buffer)
        return slot

    # -- a step ---------------------------------------------------------------------------------------------

    def train_with(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        needs_verdict: bool = False,
        wants_norms: bool = False,
        speculates: bool = True,
        max_value: float | None = None,
        may_skip: bool = False,
        num_accumulated: int = 1,
    ) -> torch.optim.Optimizer:
        """Updates the layers with their parts of the optimizer from now on; gives back the part of the rest.

        `needs_verdict`: the factor of the gradients is known only when all are there (clipping by norm, loss scaling).
        """
        check_separable(optimizer)
        self._optimizer = optimizer
        self.needs_verdict, self.wants_norms = needs_verdict, wants_norms or needs_verdict
        self._may_skip, self._max_value = may_skip, max_value
        self._num_accumulated = num_accumulated
        self._speculates = needs_verdict and speculates and num_accumulated == 1
        trained = [unit for unit in self.units if unit.trained]
        if is_native(optimizer) and any(unit.has_own_shadow for unit in trained):
            self._native = load_native(self._note)
            if self._native is not None:
                bind_to_own_cores(self._native, self._note)
        if self._native is None and self._options.state_dtype != "fp32":
            raise UserError(
                f"runconfig.streaming.state_dtype is {self._options.state_dtype}, and {type(optimizer).__name__} in this precision keeps "
                "its state as torch makes it.",
                "Use Adam or AdamW with runconfig.precision: bf16 (and a C compiler on this machine), or leave state_dtype out.",
            )
        keeps_all = needs_verdict and num_accumulated == 1
        num_places = len(trained) + 1 if keeps_all else min(len(trained), max(4, self._options.slots))
        size = self._gradient_bytes(trained)
        masters = [unit.host.entries[index].master for unit in trained for index in unit.host.trained]
        sums = sum(master.nbytes for master in masters) if num_accumulated > 1 else 0
        planned = plan_training(
            self.store,
            masters,
            size * num_places + sums,
            self._state_bytes(masters),
            speculates=self._speculates,
            is_native=self._native is not None,
        )
        if self._speculates and not planned:
            self._note(
                "streaming: there is no host memory for an undo of a step, so the optimizer waits for the norm of all gradients; "
                "without optimizer.max_gradient_norm and loss scaling it would run beside backward."
            )
        self._speculates = planned
        updates: dict[Unit, UnitUpdate] = {unit: self._make_update(unit) for unit in trained}
        ring = [
            self.store.array(f"gradients {i}", size, "gradients") for i in range(num_places if size else 0)
        ]
        self._native_updates = {
            u: update for u, update in updates.items() if isinstance(update, NativeUpdate)
        }
        can = not needs_verdict and num_accumulated == 1 and max_value is None
        here = {
            unit for unit in self._here if can and unit in self._native_updates and self._is_reachable(unit)
        }
        self._gradients = self._make_gradients(trained, ring, num_buffers=3 if here else 2)
        if here:
            assert self._half is not None
            self._gradients.here, self._gradients.update_here = here, self._update_here
            self._device_update = DeviceUpdate(
                self.lanes, self._half, _STATE_DTYPES[self._options.state_dtype]
            )
        self._gradients.wants_norms = self.wants_norms and num_accumulated == 1
        self._gradients.is_scaled = may_skip
        if num_accumulated > 1:
            self._gradients.alone_from = float("inf")  # each is added up first
        self._updates = Updates(
            updates,
            self._gradients.give_back,
            self._gradients.fail,
            self._places.__getitem__,
            adds_up=num_accumulated > 1,
        )
        rest, self._rest_groups = part_of(optimizer, set(self.rest))
        self.lanes.quieten()
        return rest

    def _state_bytes(self, masters: list[nn.Parameter]) -> int:
        """What the optimizer will keep of the layers' weights."""
        if self._native is not None:
            wide = _STATE_DTYPES[self._options.state_dtype].itemsize
            return 2 * sum(master.numel() for master in masters) * wide
        self._late_state = optimizer_state_bytes(self._optimizer, masters)
        return self._late_state

    def _is_reachable(self, unit: Unit) -> bool:
        """Whether the device can copy the layer's state by itself, since it is pinned."""
        arrays = [*self._native_updates[unit].arrays, unit.shadow, unit.entries[0].master.detach()]
        return not self.lanes.is_cuda or all(self.store.is_pinned(array) for array in arrays)

    def _update_here(self, unit: Unit, position: int, grad: Tensor, made: Mark) -> tuple[Mark, Mark]:
        assert self._device_update is not None
        assert self._step is not None
        unit.wait_updated()  # long ago: the host has what the last step made of the state
        slot = self._fetcher.slot_bound_to(unit) if unit.index < len(self._fetcher.slots) else None
        entry = unit.entries[unit.trained[position]]
        in_slot = None
        if slot is not None:
            view = entry.view(slot.buffer)
            in_slot = view.as_strided((view.numel(),), (1,))
        update = self._native_updates[unit]
        computed, done = self._device_update.update(update, position, grad, self._step.rates, made, in_slot)
        if slot is not None:
            slot.busy = computed
        return computed, done

    def _make_update(self, unit: Unit) -> UnitUpdate:
        host = unit.host
        masters = [host.entries[index].master for index in host.trained]
        # Where the device has the masters' own values, torch's kernel gives what a resident session gives, bit for bit.
        fits = unit.has_own_shadow and all(master.dtype is torch.float32 for master in masters)
        if self._native is None or not fits:
            return TorchUpdate(host, self._optimizer, self.store, self._max_value)
        return NativeUpdate(
            host,
            self._optimizer,
            self._native,
            self.store,
            state_dtype=_STATE_DTYPES[self._options.state_dtype],
            undoable=self._speculates,
            max_value=self._max_value,
            pin=unit in self._here,
        )

    def set_rates(self, rest: torch.optim.Optimizer) -> None:
        """Gives the part of the optimizer that `train_with` gave the learning rates of this step."""
        for group, index in zip(rest.param_groups, self._rest_groups, strict=True):
            group["lr"] = self._optimizer.param_groups[index]["lr"]

    def begin_step(self, number: int) -> None:
        assert self._updates is not None
        self._check_step()
        rates = [
            group["lr"].clone() if isinstance(group["lr"], Tensor) else group["lr"]
            for group in self._optimizer.param_groups
        ]
        self._step = Step(
            number,
            rates,
            needs_verdict=self.needs_verdict,
            speculates=self._speculates and self._updates.last_factor == 1.0,
            may_skip=self._may_skip,
        )
        self._only_before.clear()

    def begin_pass(self, is_last: bool = True) -> None:
        """To be called before each forward pass, in training and elsewhere."""
        self._order.begin()
        self._is_last_pass = is_last
        if self._gradients is not None:
            self._gradients.begin()

    def tell_loss(self, loss: Tensor) -> None:
        """A loss that is not finite keeps the step from being taken; the host does not wait for the loss."""
        if self._step is None:
            return
        if self._device_update is not None:
            self._device_update.hold_if_not_finite(loss)
        if not self.lanes.is_cuda:
            self._step.losses.append((loss.detach(), DONE))
            return
        on_host = torch.empty((), dtype=loss.dtype, pin_memory=True)
        self.lanes.copy(on_host, loss.detach())
        self._step.losses.append((on_host, self.lanes.mark()))

    def end_pass(self) -> None:
        """To be called after each backward pass."""
        assert self._gradients is not None
        self._gradients.end()
        if self._offloaded is not None:
            self._offloaded.forget()
        if self._is_last_pass:
            self._deliver_left_over()
        self._fetcher.prepare(self._order.next_pass())
        if self._misused:
            unit, entry = self._misused.pop()
            raise UserError(
                f"the weight '{entry.name}' of the streamed layer '{unit.name}' is used outside that layer's forward.",
                "Name the layers to stream in runconfig.streaming.layers without it, or use runconfig.execution: resident.",
            )

    def _watch_misuse(self, unit: Unit, entry: Entry) -> None:
        """Raises where backward gives a master a gradient, which would be lost: only stand-ins may get one."""

        def note(master: Tensor) -> None:
            master.grad = None
            self._misused.append((unit, entry))

        if entry.master.requires_grad:
            hook = entry.master.register_post_accumulate_grad_hook(note)  # type: ignore[no-untyped-call]
            self._restore.append(hook.remove)

    def _deliver(self, piece: Piece) -> None:
        assert self._updates is not None
        assert self._step is not None
        if self._is_last_pass:
            self._only_before.discard(piece.delivery.unit)
        else:
            self._only_before.add(piece.delivery.unit)
        self._updates.submit(self._step, piece, self._is_last_pass)
        if piece.is_done and piece.is_final:
            slot = self._fetcher.slot_bound_to(piece.delivery.unit)
            if slot is not None and piece.delivery.unit.index < len(self._fetcher.slots):
                self._fetcher.adopt(slot, piece.delivery.unit, slot.busy)

    def _deliver_left_over(self) -> None:
        """Delivers layers that had gradients in an earlier pass of this step and none in the last."""
        assert self._updates is not None
        assert self._step is not None
        for unit in self._only_before:
            self._updates.submit(
                self._step, Piece(Delivery(unit, None, [], is_whole=True), DONE, [], True), True
            )
        self._only_before.clear()

    def gradient_norms(self) -> dict[Tensor, Tensor]:
        """Norms of the layers' gradients in this step, by weight: on the device, or (accumulated ones) on the host."""
        assert self._updates is not None
        if self._num_accumulated == 1:
            assert self._gradients is not None
            return dict(self._gradients.norms)
        self._updates.wait_arrived()
        return {
            unit.entries[unit.trained[position]].master: norm_of(total, self._may_skip)
            for unit in self.units
            for position, total in self._updates.accumulated(unit).items()
        }

    def decide(self, factor: Tensor) -> None:
        """Says what this step's gradients are to be multiplied by, as a 0-d tensor; not finite: the step is not taken."""
        assert self._updates is not None
        assert self._step is not None
        if factor.device.type == "cpu":
            self._updates.decide(self._step, Verdict(factor))
            return
        on_host = torch.empty((), dtype=factor.dtype, pin_memory=True)
        self.lanes.copy(on_host, factor)
        self._updates.decide(self._step, Verdict(on_host, self.lanes.mark()))

    def wait(self) -> None:
        """Returns when the host's weights and state are those of the last step."""
        self.settle()
        self._check_step()

    def settle(self) -> None:
        """Returns when no copy or update is under way any more, successful or not."""
        if self._updates is not None:
            self._updates.wait_idle()

    def _check_step(self) -> None:
        if self._updates is not None and self._updates.non_finite_step is not None:
            raise non_finite_gradients(self._updates.non_finite_step)
        if self._updates is not None and self._updates.broken_step is not None:
            raise broken_off(self._updates.broken_step)

    def abandon(self, *, is_rest_begun: bool = False) -> None:
        """Drops the gradients of a step that an error ended, in one of its passes or (`is_rest_begun`) later."""
        if self._gradients is not None and self._updates is not None and self._step is not None:
            for delivery in self._gradients.abandon():
                self._updates.close_delivery(delivery)
            self._updates.abandon(self._step, is_rest_begun=is_rest_begun)
        if self._offloaded is not None:
            self._offloaded.forget()

    def changed(self) -> None:
        """To be called when the masters were written to from outside, as when a checkpoint is loaded."""
        if self._updates is not None:
            self._updates.wait_idle()
            self._updates.release()
            self._updates.adopt()
        if self._device_update is not None:
            self._device_update.release()
        for unit in self.units:
            unit.host.write_shadow()
        self._fetcher.forget()

    def close(self) -> None:
        for restore in self._restore:
            restore()
        self._restore.clear()
        if self._updates is not None:
            self._updates.close()
        if self._gradients is not None:
            self._gradients.close()
        self._fetcher.close()
        self._staging.close()
        self.store.close()
