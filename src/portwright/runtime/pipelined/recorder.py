"""Records a micro-batch without computing it: tensors without data pass through the user's code, and each call is kept."""

from __future__ import annotations

import enum
import functools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    unset_fake_temporarily,
)
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from portwright.base_model import LossModule, split_loss
from portwright.errors import UserError
from portwright.patched import patched
from portwright.runtime.metrics import registered_metrics
from portwright.runtime.pipelined.tape import (
    RESIDENT_CURE,
    UNKNOWN,
    Arguments,
    Ref,
    Span,
    Tape,
    TapeWriter,
    Value,
    looks_of,
    tensors_of,
)
from portwright.runtime.pipelined.user_code import Attributes, user_line
from portwright.runtime.pipelined.weights import StandIns
from portwright.watching.random_states import untouched_rng
from portwright.watching.trees import map_tensors

# Parts of the names of functions that draw, or may draw, random numbers: their results cannot be made a second time.
_RANDOM_WORDS = ("rand", "normal", "bernoulli", "multinomial", "dropout", "uniform_", "exponential_", "poisson", "rrelu",
                 "cauchy_", "geometric_", "gumbel", "scaled_dot_product", "_standard_gamma", "dirichlet",
                 "binomial")  # fmt: skip
_AS_ARRAYS = ("numpy", "__array__")
_HOOKS = ("register_hook", "register_post_accumulate_grad_hook")
_KEEPS_STATISTICS = (
    "batch_norm",
    "instance_norm",
)  # in buffers, which torch changes without counting it as a change

# Arguments that are the same in every step; an object of another kind may keep tensors of the traced step inside.
_PLAIN = (
    bool, int, float, complex, str, bytes, torch.Tensor, torch.dtype, torch.device, torch.layout, torch.memory_format,
    slice, range, type, type(None), type(...), enum.Enum, nn.Module, Ref,
)  # fmt: skip


def record(
    module: LossModule,
    micro_batch: Any,
    stand_ins: StandIns,
    autocast: Callable[[], Any] | None,
    device: torch.device,
) -> Tape:
    """The tape of one micro-batch, in the current mode (train or eval), with gradients if they are enabled now."""
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
        # Tensors made inside of one call are not recorded.
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
        """Computes values that depend on neither batch nor weights, such as a mask: the user's code may read them."""
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


class ModuleWatch:
    """Notes the spans of a net's modules; autograd functions, checkpoints and the like become one call."""

    def __init__(self, net: nn.Module, writer: TapeWriter) -> None:
        self._writer = writer
        self._paths = {id(sub): path for path, sub in net.named_modules()}
        self._num_calls: Counter[str] = Counter()
        self._checkpoints = 0
        self._opaque = 0

    @property
    def is_inside(self) -> bool:
        """Whether code runs that is recorded as one call."""
        return self._opaque > 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        call_module, apply = nn.Module.__call__, torch.autograd.Function.__dict__["apply"].__func__
        checkpoint = torch.utils.checkpoint
        watch = self

        def watched(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            path = watch._paths.get(id(module))
            if not watch._opaque:
                if isinstance(module, torch.jit.ScriptModule):
                    return watch._run_opaque(module, args, kwargs, functools.partial(call_module, module))
                if path is not None:
                    return watch._run_span(path, module, args, kwargs, call_module)
            return call_module(module, *args, **kwargs)

        def applied(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if watch._opaque:
                return apply(cls, *args, **kwargs)
            if cls is checkpoint.CheckpointFunction:
                with watch._in_checkpoint():
                    return args[0](*args[2:])
            return watch._run_opaque(_Apply(cls), args, kwargs, functools.partial(apply, cls))

        def checkpointed(*args: Any, **kwargs: Any) -> Iterator[None]:
            with watch._in_checkpoint():
                yield

        with ExitStack() as stack:
            stack.enter_context(patched(nn.Module, "__call__", watched))
            stack.enter_context(patched(torch.autograd.Function, "apply", classmethod(applied)))
            stack.enter_context(patched(checkpoint, "_checkpoint_without_reentrant_generator", checkpointed))
            for metric in registered_metrics():
                stack.enter_context(patched(metric, "update", self._note_metric(metric)))
            yield

    @contextmanager
    def _in_checkpoint(self) -> Iterator[None]:
        self._checkpoints += 1
        try:
            yield
        finally:
            self._checkpoints -= 1

    def _run_span(
        self, path: str, module: nn.Module, args: Any, kwargs: Any, call_module: Callable[..., Any]
    ) -> Any:
        (template_args, template_kwargs), arguments = self._refer((args, kwargs))
        span = Span(
            path,
            self._num_calls[path],
            module,
            len(self._writer.tape.calls),
            template_args,
            template_kwargs,
            frozenset(arguments),
            torch.is_grad_enabled(),
            self._writer.autocast_here(),
            self._checkpoints > 0,
            all(isinstance(leaf, _PLAIN) for leaf in pytree.tree_leaves((args, kwargs))),
        )
        self._num_calls[path] += 1
        self._writer.tape.spans.append(span)
        outside, self._checkpoints = self._checkpoints, 0
        try:
            result = call_module(module, *args, **kwargs)
        finally:
            self._checkpoints = outside
        span.last = len(self._writer.tape.calls)
        span.outputs = tuple((leaf, self._writer.find(tensor)) for leaf, tensor in tensors_of(result))
        return result

    def _run_opaque(self, target: Any, args: Any, kwargs: Any, run: Callable[..., Any]) -> Any:
        """Records a call as a whole, without what happens inside, but with the weights that it uses."""
        writer = self._writer
        given = Arguments(writer, args, kwargs)
        args, kwargs = given.rebuilt()
        self._opaque += 1
        writer.costs.work = 0.0
        try:
            result = run(*args, **kwargs)
        finally:
            self._opaque -= 1
        writer.touched = [index for index in writer.touched if index in writer.weight_of]
        writer.keep(target, given, result, [], is_random=True)
        return result

    def _note_metric(self, metric: Any) -> Callable[..., None]:
        def update(*args: Any, **kwargs: Any) -> None:
            self._writer.costs.work = 0.0
            self._writer.keep(metric, Arguments(self._writer, args, kwargs), None, [], is_random=False)

        return update

    def _refer(self, tree: Any) -> tuple[Any, list[int]]:
        found: list[int] = []

        def refer(tensor: torch.Tensor) -> Ref:
            found.append(self._writer.find(tensor))
            return Ref(found[-1])

        return pytree.tree_map_only(torch.Tensor, refer, tree), found


class _Apply:
    """A user's autograd function, looked up again when it is called for real."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.__name__ = function.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function.apply(*args, **kwargs)
