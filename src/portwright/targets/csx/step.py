"""One update of the weights by the SDK: forward, backward, scaling, clipping, optimizer and schedule; its number formats and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from portwright.base_model import LossModule, split_loss
from portwright.errors import UnsupportedError, UserError
from portwright.job.optimizer import OptimizerParams
from portwright.job.params import Params
from portwright.patched import patched
from portwright.runtime.metrics.base import Metric
from portwright.runtime.optimizers import clip_gradients, gradient_norm
from portwright.runtime.precision import LossScaler, make_loss_scaler, resolve_precision
from portwright.targets.csx.optimizers import go_to_step, make_sdk_optimizer, make_sdk_scheduler

_HALF = {"fp16": "float16", "bf16": "bfloat16"}


def choose_precision(cstorch: Any, params: Params, note: Callable[[str], None], *, traces: bool) -> Any:
    """Sets the SDK's half-precision format; gives the autocast for its CPU backend, None where none is needed."""
    values, config = params.values, params.runconfig
    if not traces:
        precision = resolve_precision(values, config.precision, "cpu")
        for line in precision.notes:
            note(line)
        if precision.name == "fp64":
            raise UserError(
                "the Cerebras SDK has no float64.", "Set runconfig.precision to fp32, bf16 or fp16."
            )
        return precision.autocast
    # As for a GPU, where float16 is the usual half format as on the wafer.
    precision = resolve_precision(values, config.precision, "cuda")
    if precision.name == "fp64":
        raise UserError("a CS system has no float64.", "Set runconfig.precision to bf16 or fp16.")
    model = values.get("model")
    half = model.get("fp16_type") if isinstance(model, dict) and config.precision is None else None
    chosen = half or _HALF.get(precision.name)
    if chosen is None:
        note(
            "a CS system computes in mixed precision (float16 with float32 sums and weights); model.fp16_type names another half format."
        )
    else:
        cstorch.amp.set_half_dtype(chosen)
    level = config.precision_opt_level
    if level is not None:
        cstorch.backends.csx.precision.optimization_level = level
    return None


@contextmanager
def metrics_through_closures(cstorch: Any, traces: bool) -> Iterator[None]:
    """Within, a metric's update is delayed until the values of the step are on the host."""
    if not traces:
        yield
        return

    @cstorch.step_closure  # type: ignore[untyped-decorator]
    def update(metric: Metric, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        metric.update(*arguments, **named)

    def call(metric: Metric, *arguments: Any, **named: Any) -> None:
        update(metric, arguments, named)

    with patched(Metric, "__call__", call):
        yield


class Update:
    """All parts of a training step but the model.

    `traces` says that the step is traced once and runs elsewhere, so that nothing in it may depend on a number in Python; on
    the SDK's CPU backend it runs here, batch by batch, and the SDK's own loss scaling does nothing, so ours is used.
    """

    def __init__(
        self, cstorch: Any, module: LossModule, spec: OptimizerParams, *, traces: bool, autocast: Any
    ) -> None:
        self._cstorch, self._spec, self._traces, self._autocast = cstorch, spec, traces, autocast
        own = module.own_optimizer()
        if own is not None and not isinstance(own, cstorch.optim.Optimizer):
            raise UnsupportedError(
                f"the model brings its own optimizer, {type(own).__module__}.{type(own).__name__}, and the SDK trains with its own alone.",
                "Describe it in the section optimizer of params.yaml, and let get_optimizer() return None.",
            )
        self.optimizer = own if own is not None else make_sdk_optimizer(cstorch, module.net, spec)
        self._schedule = None if own is not None else spec.schedule
        self.scheduler = make_sdk_scheduler(cstorch, self.optimizer, spec) if traces and own is None else None
        self._parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.num_accumulated = 1 if traces else spec.grad_accum_steps
        self._num_pending = 0
        self._loss: Tensor | None = None
        self.scaler: LossScaler | None = None
        self._sdk_scaler: Any = None
        if traces and spec.loss_scaling_factor != 1.0:
            self._sdk_scaler = cstorch.amp.GradScaler(
                loss_scale=spec.loss_scaling_factor,
                init_scale=spec.initial_loss_scale,
                steps_per_increase=spec.steps_per_increase,
                min_loss_scale=spec.min_loss_scale,
                max_loss_scale=spec.max_loss_scale,
            )
        elif not traces:
            self.scaler = make_loss_scaler(spec, "cpu")

    def start_at(self, step: int) -> None:
        """Makes the next update the one after `step` updates."""
        self._num_pending, self._loss = 0, None
        if self.scheduler is not None and step > 0:
            go_to_step(self.scheduler, step)

    def learning_rate(self, step: int) -> float:
        return float(self.optimizer.param_groups[0]["lr"]) if self._schedule is None else self._schedule(step)

    def set_learning_rate(self, step: int) -> None:
        """Sets the rate, where nothing is traced, to exactly that of every other target."""
        if self._traces or self._schedule is None:
            return
        rate = self._schedule(step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def make_step(self, forward: Callable[[Any], Any]) -> Callable[[Any], Mapping[str, Tensor]]:
        """The function that the SDK traces; it gives the loss and, where known, the norm of the gradients."""

        def step(batch: Any) -> Mapping[str, Tensor]:
            with nullcontext() if self._autocast is None else self._autocast():
                loss = split_loss(forward(batch))[0]
            return self._traced(loss) if self._traces else self._eager(loss)

        return step

    def _traced(self, loss: Tensor) -> dict[str, Tensor]:
        scaler = self._sdk_scaler
        if scaler is None:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            scaler.scale(loss).backward()
            scaler.unscale_(self.optimizer)
        outputs = {"loss": loss, **self._clip_traced()}
        self._apply(scaler)
        if self.scheduler is not None:
            self.scheduler.step()
        self.optimizer.zero_grad()
        return outputs

    def _apply(self, scaler: Any) -> None:
        """Updates the weights, through the loss scaler where there is one."""
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
            scaler.update()

    def _clip_traced(self) -> dict[str, Tensor]:
        # torch's functions, which the SDK can trace; our fused ones it cannot.
        if self._spec.max_gradient_value is not None:
            torch.nn.utils.clip_grad_value_(self._parameters, self._spec.max_gradient_value)
        if self._spec.max_gradient_norm is not None:
            return {
                "gradient_norm": torch.nn.utils.clip_grad_norm_(
                    self._parameters, self._spec.max_gradient_norm
                )
            }
        return {}

    def _eager(self, loss: Tensor) -> dict[str, Tensor]:
        """Accumulates gradients until an update is due; gives the mean loss over the update's batches."""
        count, scaler, spec = self.num_accumulated, self.scaler, self._spec
        own = loss.detach()
        self._loss = own if self._loss is None else self._loss + own
        part = loss if count == 1 else loss / count
        (part if scaler is None else scaler.scale(part)).backward()  # type: ignore[no-untyped-call]
        self._num_pending += 1
        if self._num_pending < count:
            return {}
        outputs = {"loss": self._loss / count}
        measures = spec.log_summaries and spec.max_gradient_norm is None
        clips = spec.max_gradient_norm is not None or spec.max_gradient_value is not None
        if scaler is not None and (clips or measures):
            scaler.unscale_(self.optimizer)
        if measures:
            outputs["gradient_norm"] = gradient_norm([p.grad for p in self._parameters if p.grad is not None])
        norm = clip_gradients(self._parameters, spec) if clips else None
        if norm is not None:
            outputs["gradient_norm"] = norm
        self._apply(scaler)
        self.optimizer.zero_grad()
        self._num_pending, self._loss = 0, None
        return outputs

    @property
    def is_due(self) -> bool:
        """Whether the last batch made an update."""
        return self._num_pending == 0
