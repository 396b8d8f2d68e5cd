"""A session whose weights and optimizer state live on the host and pass through the device layer by layer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from portwright.base_model import split_loss
from portwright.errors import UserError
from portwright.job.execution import StreamingSection
from portwright.runtime.checkpoint import HostSnapshot
from portwright.runtime.session import TorchSession
from portwright.runtime.streaming.device_cap import DeviceCap, cap_cuda, explain_out_of_memory
from portwright.runtime.streaming.engine import Streaming
from portwright.runtime.streaming.host_memory import read_host_memory
from portwright.runtime.world import World
from portwright.target import JobSpec, Shard

_MOST_COPIED = 0.5  # share of the free host memory that a copy of the state may take


class StreamingSession(TorchSession):
    """Trains what the device cannot hold: the same losses as a resident session, the same checkpoints."""

    _engine: Streaming
    state_is_live = False  # whether `state` last gave the tensors themselves, no copies
    _has_snapshot = False

    def __init__(self, job: JobSpec, device: torch.device, world: World, note: Callable[[str], None]) -> None:
        if job.params.runconfig.compile:
            raise UserError(
                "runconfig.compile and weight streaming do not go together: compiled code holds on to its weights.",
                "Leave one of them out.",
            )
        try:
            super().__init__(job, device, world, note)
        except BaseException:
            if hasattr(self, "_engine"):
                self._engine.close()
            raise
        self._snapshot = HostSnapshot(pins=False)

    def _place_model(self) -> None:
        """The layers' weights stay where they were made."""
        self._precision.prepare(self._module.net)
        user = self._module.__dict__["user_model"]
        if isinstance(getattr(user, "device", None), torch.device) and not isinstance(user, nn.Module):
            user.device = self._device  # it was made on the host; its batches are on the device
        options = self._job.params.runconfig.streaming or StreamingSection()
        spec, trains = self._job.params.optimizer, self._job.mode in ("train", "train_and_eval")
        # The update on the device supports neither a factor that comes late nor sums of several passes.
        self._engine = self._make_engine(options, may_update_here=trains and spec.is_plain)
        self._limit = options.device_memory
        self._cap: DeviceCap | None = None
        if self._limit is not None and self._device.type == "cuda":
            cap_cuda(self._device, self._limit)
        elif self._limit is not None:
            self._cap = self._engine.cap = DeviceCap(self._limit)
        autocast: Any = self._precision.autocast
        if autocast is not None:
            # What autocast keeps of a weight would outlive the weight's stay on the device.
            self._autocast = functools.partial(autocast, cache_enabled=False)

    def _make_engine(self, options: StreamingSection, *, may_update_here: bool) -> Streaming:
        return Streaming(
            self._module.net,
            self._device,
            options,
            self._note,
            half=self._precision.half,
            may_update_here=may_update_here,
        )

    @property
    def _model_device(self) -> torch.device:
        return torch.device("cpu")

    def _open_training(self) -> None:
        super()._open_training()
        assert self._optimizer is not None
        spec = self._job.params.optimizer
        clips_norm = spec.max_gradient_norm is not None
        self._rest = self._engine.train_with(
            self._optimizer,
            needs_verdict=clips_norm or self._scaler is not None,
            wants_norms=clips_norm or self._measures_norm or self._scaler is not None,
            may_skip=self._scaler is not None,
            max_value=spec.max_gradient_value,
            num_accumulated=self._num_accumulated,
        )
        on_rest = {parameter for group in self._rest.param_groups for parameter in group["params"]}
        self._trained_rest = [parameter for parameter in self._trained if parameter in on_rest]
        if self._scaler is not None:
            self._scaled = self._rest if on_rest else _with_something_to_scale(self._rest, self._device)
        self._units_overflow: Tensor | None = None
        if self._cap is not None:
            for label, num_bytes in self._engine.device_bytes.items():
                self._cap.take(label, num_bytes)
        self._note(self._engine.describe())
        self._watch = self._watch_losses(self._rest)
        self._watch.settle = self._engine.wait
        if self._watch.checks and not self._watch.reads_at_once:  # else it is read before backward
            self._forward = self._telling(self._forward)

    def _telling(self, forward: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def told(batch: Any) -> Any:
            result = forward(batch)
            self._engine.tell_loss(split_loss(result)[0])
            return result

        return told

    # -- training -------------------------------------------------------------------------------------------

    def _update(self, step: int) -> Any:
        with self._watched_memory():
            return self._update_within(step)

    @contextmanager
    def _watched_memory(self) -> Iterator[None]:
        engine = self._engine
        with (
            self._cap or nullcontext(),
            explain_out_of_memory(self._device, self._limit, lambda: engine.running),
        ):
            yield

    def _update_within(self, step: int) -> Any:
        engine = self._engine
        engine.begin_step(step + 1)
        total: Any = 0.0
        is_rest_begun = False
        try:
            for index in range(self._num_accumulated):
                engine.begin_pass(is_last=index == self._num_accumulated - 1)
                loss = self._forward_backward(step)
                engine.end_pass()
                total = total + loss if self._num_accumulated > 1 else loss
            loss = total / self._num_accumulated if self._num_accumulated > 1 else total
            if not self._watch.reads_at_once:
                self._watch.before_update(loss)
            is_rest_begun = True
            self._step_rest()
        except BaseException:
            engine.abandon(is_rest_begun=is_rest_begun)
            raise
        finally:
            for parameter in self._trained_rest:
                parameter.grad = None
        return loss

    def _step_rest(self) -> None:
        """Updates the weights outside the layers, and sets the factor for the layers' gradients."""
        engine, spec, scaler = self._engine, self._job.params.optimizer, self._scaler
        engine.set_rates(self._rest)
        if engine.wants_norms:
            norms = engine.gradient_norms()
            if scaler is not None:
                self._units_overflow = _any_not_finite(norms.values())
                scaler.unscale_(self._scaled)
            total = self._total_norm(norms)
            self._norm = total if self._measures_norm or spec.max_gradient_norm is not None else None
            self._decide(total)
        if spec.max_gradient_value is not None:
            grads = [p.grad for p in self._trained_rest if p.grad is not None]
            if grads:
                torch._foreach_clamp_min_(grads, -spec.max_gradient_value)
                torch._foreach_clamp_max_(grads, spec.max_gradient_value)
        if scaler is None:
            self._rest.step()
        else:
            scaler.step(self._scaled)
            scaler.update()

    def _decide(self, total: Tensor) -> None:
        """Computes the factor of all gradients on the device; the host does not wait for it, unless it is the device."""
        engine, most, scaler = self._engine, self._job.params.optimizer.max_gradient_norm, self._scaler
        factor = torch.ones_like(total)
        if most is not None:
            factor = (most / (total + 1e-6)).clamp(max=1.0)
            grads = [p.grad for p in self._trained_rest if p.grad is not None]
            if grads:
                torch._foreach_mul_(grads, factor.to(self._device))
        if not engine.needs_verdict:
            return
        if scaler is not None:
            overflow = scaler.found(self._scaled).to(factor.device)
            engine.decide(torch.where(overflow > 0, torch.nan, factor * scaler.inverse().to(factor.device)))
            return
        engine.decide(factor)
        if not self._watch.reads_at_once:
            self._watch.before_update(total.to(self._device))
        elif not bool(torch.isfinite(total)):
            engine.wait()  # raises, once everything is as it was before this step

    def _total_norm(self, norms: Mapping[Tensor, Tensor]) -> Tensor:
        """The norm of all gradients, in the order of the whole model, as a resident session computes it."""
        inverse = None if self._scaler is None else self._scaler.inverse()
        device = next((norm.device for norm in norms.values()), self._device)
        rest = set(self._trained_rest)
        parts = []
        for parameter in self._trained:
            norm = norms.get(parameter)
            if norm is not None:
                parts.append(
                    norm if inverse is None else (norm * inverse.to(norm.device)).to(parameter.dtype)
                )
            elif parameter in rest and parameter.grad is not None:  # a layer's is the update thread's
                parts.append(torch._foreach_norm([parameter.grad])[0].to(device))
        total: Tensor = (
            torch.linalg.vector_norm(torch.stack(parts)) if parts else torch.zeros((), device=device)
        )
        return total

    def _agree_on_overflow(self, flag: Tensor) -> None:
        if self._units_overflow is not None:
            flag.copy_(torch.maximum(flag, self._units_overflow.to(flag.device, flag.dtype)))

    # -- evaluation -----------------------------------------------------------------------------------------

    def evaluate(
        self, num_steps: int | None, on_step: Callable[[int], None] | None = None
    ) -> dict[str, float]:
        self._engine.wait()
        self._fresh_eval_loader()  # its reads use host memory, and are no part of a step
        self._forward_alone, forward = self._beginning(self._forward_alone), self._forward_alone
        try:
            with self._watched_memory():
                return super().evaluate(num_steps, on_step)
        finally:
            self._forward_alone = forward

    def predict(self, num_steps: int | None) -> Iterator[Mapping[str, Tensor]]:
        self._engine.wait()
        for outputs in super().predict(num_steps):
            self._engine.begin_pass()
            yield outputs

    def _beginning(self, forward: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def begun(batch: Any) -> Any:
            self._engine.begin_pass()
            return forward(batch)

        return begun

    # -- state ----------------------------------------------------------------------------------------------

    def state(self) -> Iterator[Shard]:
        """Copies where there is room for them; else the tensors themselves, which must be written before the next step."""
        self._engine.wait()
        named = list(self._named_state())
        needed = sum(tensor.nbytes for _, tensor in named)
        self.state_is_live = (
            not self._has_snapshot and needed > _MOST_COPIED * read_host_memory().available_bytes
        )
        if self.state_is_live:
            return iter([Shard(name, tensor.detach().cpu()) for name, tensor in named])
        self._has_snapshot = True
        return iter(self._snapshot.take(named))

    def load_state(self, shards: Iterable[Shard], counters: Mapping[str, Any] | None) -> None:
        self._engine.settle()
        super().load_state(shards, counters)
        self._engine.changed()

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._engine.close()


def _any_not_finite(norms: Iterable[Tensor]) -> Tensor | None:
    flags = [~torch.isfinite(norm) for norm in norms]
    return torch.stack(flags).any() if flags else None


def _with_something_to_scale(optimizer: torch.optim.Optimizer, device: torch.device) -> torch.optim.Optimizer:
    """torch's scaler wants to see a gradient, and all weights may be streamed."""
    nothing = nn.Parameter(torch.zeros(1, device=device))
    nothing.grad = torch.zeros(1, device=device)
    return torch.optim.SGD([nothing], lr=0.0)
