"""Following modules, custom gradients, activation checkpoints and metrics while a model is traced."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from portwright.runtime.metrics import registered_metrics
from portwright.runtime.pipelined.tape import Ref, Span
from portwright.runtime.pipelined.tape_writer import Arguments, TapeWriter, tensors_of

# Arguments that are the same in every step; an object of another kind may keep tensors of the traced step inside.
_PLAIN = (
    bool, int, float, complex, str, bytes, torch.Tensor, torch.dtype, torch.device, torch.layout, torch.memory_format,
    slice, range, type, type(None), type(...), enum.Enum, nn.Module, Ref,
)  # fmt: skip


class ModuleWatch:
    """Notes the spans of a net's modules; what has an inside of its own becomes one call."""

    def __init__(self, net: nn.Module, writer: TapeWriter) -> None:
        self._writer = writer
        self._paths = {id(sub): path for path, sub in net.named_modules()}
        self._num_calls: Counter[str] = Counter()
        self._checkpoints = 0
        self._opaque = 0

    @property
    def is_inside(self) -> bool:
        """Whether the code that runs now is inside of one call."""
        return self._opaque > 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        call_module, apply = nn.Module.__call__, torch.autograd.Function.__dict__["apply"]
        checkpoint = torch.utils.checkpoint
        generator = checkpoint._checkpoint_without_reentrant_generator
        watch = self

        def watched(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            path = watch._paths.get(id(module))
            if watch._opaque:
                return call_module(module, *args, **kwargs)
            if isinstance(module, torch.jit.ScriptModule):
                return watch._run_opaque(
                    module, args, kwargs, lambda *given, **named: call_module(module, *given, **named)
                )
            if path is None:
                return call_module(module, *args, **kwargs)
            return watch._run_span(path, module, args, kwargs, call_module)

        def applied(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if watch._opaque:
                return apply.__func__(cls, *args, **kwargs)
            if cls is checkpoint.CheckpointFunction:
                watch._checkpoints += 1
                try:
                    return args[0](*args[2:])
                finally:
                    watch._checkpoints -= 1
            return watch._run_opaque(
                _Apply(cls), args, kwargs, lambda *given, **named: apply.__func__(cls, *given, **named)
            )

        def checkpointed(*args: Any, **kwargs: Any) -> Iterator[None]:
            watch._checkpoints += 1
            try:
                yield
            finally:
                watch._checkpoints -= 1

        nn.Module.__call__ = watched  # type: ignore[method-assign]
        torch.autograd.Function.apply = classmethod(applied)  # type: ignore[method-assign, assignment]
        checkpoint._checkpoint_without_reentrant_generator = checkpointed
        metrics = [(metric, metric.__dict__.get("update")) for metric in registered_metrics()]
        for metric, _ in metrics:
            metric.__dict__["update"] = self._note_metric(metric)
        try:
            yield
        finally:
            nn.Module.__call__ = call_module  # type: ignore[method-assign]
            torch.autograd.Function.apply = apply  # type: ignore[method-assign]
            checkpoint._checkpoint_without_reentrant_generator = generator
            for metric, before in metrics:
                if before is None:
                    del metric.__dict__["update"]
                else:
                    metric.__dict__["update"] = before

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
        """A call whose inside is its own: kept whole, with the weights that it touches."""
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
