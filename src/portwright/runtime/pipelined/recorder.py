"""Watching a micro-batch without computing it: tensors without data go through the user's code, and each call is kept."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    unset_fake_temporarily,
)
from torch.overrides import TorchFunctionMode

from portwright.errors import UserError
from portwright.runtime.base_model import LossModule, split_loss
from portwright.runtime.batches import map_tensors
from portwright.runtime.pipelined.module_watch import ModuleWatch
from portwright.runtime.pipelined.stand_ins import StandIns
from portwright.runtime.pipelined.tape import Tape, Value
from portwright.runtime.pipelined.tape_writer import (
    RESIDENT_CURE,
    UNKNOWN,
    Arguments,
    TapeWriter,
    looks_of,
    tensors_of,
)
from portwright.runtime.pipelined.user_code import Attributes, user_line
from portwright.runtime.rng import untouched_rng

# Parts of the names of functions that draw, or may: what they give cannot be made a second time.
_RANDOM_WORDS = ("rand", "normal", "bernoulli", "multinomial", "dropout", "uniform_", "exponential_", "poisson", "rrelu",
                 "cauchy_", "geometric_", "gumbel", "scaled_dot_product", "_standard_gamma", "dirichlet",
                 "binomial")  # fmt: skip
_AS_ARRAYS = ("numpy", "__array__")
_HOOKS = ("register_hook", "register_post_accumulate_grad_hook")
_KEEPS_STATISTICS = (
    "batch_norm",
    "instance_norm",
)  # in buffers, which torch changes without counting it as a change


def record(
    module: LossModule,
    micro_batch: Any,
    stand_ins: StandIns,
    autocast: Callable[[], Any] | None,
    device: torch.device,
) -> Tape:
    """The tape of one micro-batch, in the mode (train or eval) and with the gradients that are on now."""
    with untouched_rng(device):
        before = _host_draws()
        tape = _Recorder(module, stand_ins, device).run(micro_batch, autocast)
        drawn = next((name for name, state in _host_draws().items() if state != before[name]), None)
    if drawn:
        raise UserError(
            f"the model draws from {drawn} in a step, and a pipelined model's Python runs once for all steps.",
            "Draw with torch instead, or use -D runconfig.execution=resident.",
        )
    tape.finish()
    return tape


def _host_draws() -> dict[str, Any]:
    """States of the generators that only Python code draws from."""
    _, keys, position, *_ = np.random.get_state(legacy=True)
    return {"Python's random": random.getstate(), "numpy.random": (keys.tobytes(), position)}  # type: ignore[union-attr]


class _Recorder(TorchFunctionMode):
    def __init__(self, module: LossModule, stand_ins: StandIns, device: torch.device) -> None:
        super().__init__()
        self._module, self._device, self._fake_mode = module, device, stand_ins.mode
        self._writer = TapeWriter(stand_ins, device)
        self._watch = ModuleWatch(module.net, self._writer)
        self._infers = torch.is_inference_mode_enabled()

    def run(self, micro_batch: Any, autocast: Callable[[], Any] | None) -> Tape:
        writer, numbers = self._writer, iter(range(1 << 30))

        def stand_in(tensor: torch.Tensor) -> torch.Tensor:
            with self._fake_mode:
                fake = torch.empty_strided(
                    tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self._device
                )
            writer.add(fake, Value("batch", -1, *looks_of(fake), can_remake=True, number=next(numbers)))
            return fake

        batch = map_tensors(micro_batch, stand_in)
        attributes = Attributes(self._module.net, self._module.__dict__["user_model"])
        try:
            with ExitStack() as stack:
                stack.enter_context(self._fake_mode)
                stack.enter_context(nullcontext() if autocast is None else autocast())
                writer.outer_autocast = writer.autocast_now()
                stack.enter_context(writer.costs)
                stack.enter_context(self._watch.watching())
                stack.enter_context(self)
                loss, _ = split_loss(self._module.call(batch))
                writer.tape.loss = writer.find(loss)
        finally:
            writer.tape.changed = attributes.restore(writer.weights)
        return writer.tape

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # What is made inside of one call is unknown, and stays so.
        given = Arguments(self._writer, args, kwargs or {}, known_only=self._watch.is_inside)
        args, kwargs = given.rebuilt()
        if self._watch.is_inside:
            self._writer.touched += given.indices
            return func(*args, **kwargs)
        if func in (torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward):
            raise UserError(
                f"{user_line()} takes gradients inside the model, which ends at a stage.", RESIDENT_CURE
            )
        name = getattr(func, "__name__", str(func))
        if torch.is_inference_mode_enabled() != self._infers:
            raise UserError(
                f"{user_line()} runs in torch.inference_mode, whose tensors a pipeline cannot follow.",
                "Use torch.no_grad there.",
            )
        is_random = any(word in name for word in _RANDOM_WORDS)
        known = UNKNOWN if is_random else self._compute_known(func, given)
        if known is not UNKNOWN and not tensors_of(known):
            return known
        if name in _AS_ARRAYS:
            raise _needs_value(name)
        self._writer.costs.work = 0.0
        try:
            result = func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise _needs_value(name) from error
        writes = given.written()
        if name in _KEEPS_STATISTICS:
            values = self._writer.tape.values
            writes += [
                i for i in given.indices if i in self._writer.weight_of and not values[i].requires_grad
            ]
        if tensors_of(result) or writes or name in _HOOKS:
            self._writer.keep(func, given, result, writes, is_random=is_random, known=known)
        return result

    def _compute_known(self, func: Any, given: Arguments) -> Any:
        """The values of what Python made itself, such as a mask: code may ask for them, as it may for any number."""
        if any(index not in self._writer.known for index in given.indices):
            return UNKNOWN
        args, kwargs = given.filled([self._writer.known[index] for index in given.indices])
        with unset_fake_temporarily(), self._writer.costs.paused(), torch.random.fork_rng(devices=[]):
            return func(*args, **kwargs)


def _needs_value(name: str) -> UserError:
    return UserError(
        f"{user_line()}: {name} needs the value of a tensor that is computed in the step, and a model that is cut "
        "into stages has its Python run once for all steps.",
        "Write it with torch.where or a mask, or use -D runconfig.execution=resident.",
    )
