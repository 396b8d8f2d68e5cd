"""In what precision a run computes, and how its loss is scaled."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from portwright.discover import answer_of_device
from portwright.errors import UserError, suggest
from portwright.job.optimizer import OptimizerParams
from portwright.runtime.shards import DTensor, local

try:
    from torch.amp.grad_scaler import GradScaler, OptState
except ImportError:  # torch 2.0.1, which PopTorch 3.4 pins; nothing is scaled there by torch
    from torch.cuda.amp.grad_scaler import GradScaler, OptState  # type: ignore[assignment, attr-defined]

Name = Literal["fp32", "bf16", "fp16", "fp64"]

_HALF: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
_SPELLINGS: dict[str, Name] = {
    "fp32": "fp32",
    "float32": "fp32",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
    "fp64": "fp64",
    "float64": "fp64",
}
_HALF_SPELLINGS: dict[str, Name] = {"float16": "fp16", "bfloat16": "bf16", "cbfloat16": "bf16"}


@dataclass(frozen=True)
class Precision:
    """What a model computes in; weights stay in float32 unless it is fp64.

    `autocast` makes the context for a forward pass, None where there is nothing to cast; `batch_dtype` is what the
    floating tensors of a batch become, None where they stay; `notes` say what the user should know.
    """

    name: Name
    device_type: str
    notes: tuple[str, ...] = ()

    @property
    def half(self) -> torch.dtype | None:
        """What a forward pass is cast to."""
        return _HALF.get(self.name)

    @property
    def autocast(self) -> Callable[[], AbstractContextManager[Any]] | None:
        half = self.half
        return None if half is None else functools.partial(torch.autocast, self.device_type, dtype=half)

    @property
    def batch_dtype(self) -> torch.dtype | None:
        return torch.float64 if self.name == "fp64" else None

    def prepare(self, model: nn.Module) -> nn.Module:
        """Converts the weights, in place, where the precision asks for it."""
        return model.double() if self.name == "fp64" else model


def resolve_precision(
    values: Mapping[str, Any], runconfig_precision: str | None, device_type: str
) -> Precision:
    """Reads `model.mixed_precision`, `model.fp16_type` and `model.to_float16` out of the whole params.

    `runconfig.precision` goes before them.
    """
    model = values.get("model")
    model = model if isinstance(model, Mapping) else {}
    mixed = _flag(model, "mixed_precision")
    notes: list[str] = []
    if _flag(model, "to_float16"):
        notes.append("model.to_float16 concerns Cerebras systems alone; it changes nothing here.")
    half = model.get("fp16_type")
    without_fp16 = answer_of_device(device_type, "no_float16_training")
    if half is not None and half not in _HALF_SPELLINGS:
        raise UserError(f"model.fp16_type is {half!r}.", suggest(str(half), _HALF_SPELLINGS))
    if runconfig_precision is not None:
        name = _SPELLINGS.get(str(runconfig_precision).lower())
        if name is None:
            raise UserError(
                f"runconfig.precision is {runconfig_precision!r}.",
                suggest(str(runconfig_precision), _SPELLINGS),
            )
        if mixed is not None and mixed != (name in _HALF):
            notes.append(
                f"runconfig.precision: {name} goes before model.mixed_precision: {str(mixed).lower()}."
            )
    elif not mixed:
        name = "fp32"
    elif half is None:
        name = "bf16" if without_fp16 else "fp16"
    else:
        name = _HALF_SPELLINGS[half]
        if half == "cbfloat16":
            notes.append("cbfloat16 exists on Cerebras systems alone; here bfloat16 stands for it.")
    if name == "fp16" and without_fp16:
        key = "model.fp16_type: bfloat16" if runconfig_precision is None else "runconfig.precision: bf16"
        raise UserError(f"float16 was asked for, and {without_fp16.reason}.", f"Set {key}.")
    if name == "fp64" and (refused := answer_of_device(device_type, "no_float64_training")):
        raise UserError(f"float64 was asked for, and {refused.reason}.", "Set runconfig.precision: fp32.")
    return Precision(name, device_type, tuple(notes))


def _flag(section: Mapping[str, Any], key: str) -> bool | None:
    value = section.get(key)
    if value is not None and not isinstance(value, bool):
        raise UserError(f"model.{key} is {value!r}.", "Use true or false.")
    return value


class LossScaler(GradScaler):
    """Multiplies the loss before backward and takes the factor out of the gradients again.

    A step whose gradients overflowed is skipped and counted. A dynamic factor doubles after `steps_per_increase`
    finite steps in a row and halves on an overflow, within its bounds; a fixed one never changes. Shards are looked at as
    plain tensors, which torch learnt after 2.4. `agree` is called with the 0-d flag of an overflow, to set it to the largest
    among the processes of a run.
    """

    def __init__(
        self,
        spec: OptimizerParams,
        device_type: str,
        agree: Callable[[Tensor], None] | None = None,
    ) -> None:
        factor = spec.loss_scaling_factor
        self.is_dynamic = factor == "dynamic"
        self._lowest, self._highest = spec.min_loss_scale, spec.max_loss_scale
        first = self._bounded(spec.initial_loss_scale) if isinstance(factor, str) else float(factor)
        super().__init__(device_type, init_scale=first, growth_interval=spec.steps_per_increase)
        self._agree = agree
        self._num_skipped_before = 0
        self._skipped: Tensor | None = None

    def _bounded(self, scale: float) -> float:
        return max(self._lowest, scale if self._highest is None else min(self._highest, scale))

    @property
    def _factor(self) -> Tensor:
        assert self._scale is not None
        return self._scale

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Takes the factor out of the gradients; needed only where they are read before `step`."""
        try:
            super().unscale_(optimizer)
        except ValueError as error:  # torch refuses gradients that are float16 themselves
            raise UserError(
                f"the loss cannot be scaled: {error}",
                "Keep the weights in float32; mixed precision casts where it is safe.",
            ) from error

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Steps, unless a gradient is not finite."""
        if self._per_optimizer_states[id(optimizer)]["stage"] is OptState.READY:
            self.unscale_(optimizer)
        found = self.found(optimizer)
        super().step(optimizer)
        self._skipped = found if self._skipped is None else self._skipped + found

    def update(self) -> None:  # type: ignore[override]
        """Ends a step; the factor of the next one is settled without waiting for the device."""
        if not self.is_dynamic:
            super().update(new_scale=self._factor)
            return
        super().update()
        self._factor.clamp_(min=self._lowest, max=self._highest)

    def inverse(self) -> Tensor:
        """What `unscale_` multiplies gradients by in this step, on the device."""
        return self._factor.double().reciprocal().float()

    def found(self, optimizer: torch.optim.Optimizer) -> Tensor:
        """1 where `unscale_` found a gradient that is not finite, else 0; on the device."""
        flags = list(self._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values())
        if not flags:
            raise UserError(
                "no parameter got a gradient.", "Look for .detach(), .item() or torch.no_grad() in the model."
            )
        return torch.stack([flag.to(self._factor.device) for flag in flags]).amax()

    def current_scale(self) -> float:
        """The factor; reading it waits for the device."""
        return float(self.get_scale())

    @property
    def num_skipped(self) -> int:
        """How many steps were skipped; reading it waits for the device."""
        return self._num_skipped_before + (0 if self._skipped is None else int(self._skipped.item()))

    def state_dict(self) -> dict[str, Any]:
        return {
            "dynamic": self.is_dynamic,
            "scale": self.current_scale(),
            "finite_steps": int(self._get_growth_tracker()),
            "num_skipped": self.num_skipped,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken; a factor that params.yaml fixes stays as it says there."""
        try:
            was_dynamic, scale = bool(state["dynamic"]), float(state["scale"])
            num_finite, num_skipped = int(state["finite_steps"]), int(state["num_skipped"])
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"the loss scale in the checkpoint cannot be read: {dict(state)!r}.", "Take another one."
            ) from error
        self._num_skipped_before, self._skipped = num_skipped, None
        if self.is_dynamic and was_dynamic:
            own = {**super().state_dict(), "scale": self._bounded(scale), "_growth_tracker": num_finite}
            super().load_state_dict(own)

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        grads: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
        groups: dict[int, dist.ProcessGroup] = {}
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            grad = parameter.grad
            if grad is None:
                continue
            if not allow_fp16 and grad.dtype == torch.float16:
                raise ValueError(f"a gradient of shape {tuple(grad.shape)} is float16 itself.")
            if grad.is_sparse:
                parameter.grad = grad = grad.coalesce()
                part = grad._values()
            else:
                part = local(grad.detach())
            if isinstance(grad, DTensor):
                for dim, placement in enumerate(grad.placements):
                    if placement.is_shard():
                        group = grad.device_mesh.get_group(dim)
                        groups[id(group)] = group
            part = torch.view_as_real(part) if part.is_complex() else part
            grads[part.device, part.dtype].append(part)
        flags: dict[torch.device, Tensor] = {}
        with torch.no_grad():
            for (device, _), parts in grads.items():
                flag = flags.setdefault(device, found_inf.to(device, copy=True))
                torch._amp_foreach_non_finite_check_and_unscale_(parts, flag, inv_scale.to(device))
            for flag in flags.values():
                for group in groups.values():
                    dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=group)
                if self._agree is not None:
                    self._agree(flag)
        return flags


def make_loss_scaler(
    spec: OptimizerParams, device_type: str, agree: Callable[[Tensor], None] | None = None
) -> LossScaler | None:
    """The scaler that the params ask for; None where the loss is not scaled.

    `agree` is called with the 0-d flag of an overflow, to set it to the largest among the processes of a run.
    """
    return None if spec.loss_scaling_factor == 1.0 else LossScaler(spec, device_type, agree)
