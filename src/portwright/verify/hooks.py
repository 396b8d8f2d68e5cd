"""Hooks the recorder into torch before the script runs."""

from __future__ import annotations

import functools
import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from portwright.patched import in_place_of
from portwright.verify.record_seeds import Streams
from portwright.verify.record_steps import Watch

_FUNCTIONAL = (
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "alpha_dropout",
    "feature_alpha_dropout",
)
_TORCH = ("dropout", "dropout_", "alpha_dropout", "alpha_dropout_", "feature_dropout", "feature_dropout_",
          "feature_alpha_dropout", "feature_alpha_dropout_")  # fmt: skip


@contextmanager
def without_dropout(module: nn.RNNBase) -> Iterator[None]:
    rate, module.dropout = module.dropout, 0.0
    try:
        yield
    finally:
        module.dropout = rate


def hook_dropout(watch: Watch, off: bool) -> None:
    for name in _FUNCTIONAL:
        if hasattr(F, name):
            _hook_functional(watch, name, off)
    for name in _TORCH:
        if hasattr(torch, name):
            _hook_builtin(watch, name, off)

    @in_place_of(F, "scaled_dot_product_attention")
    def attend(attention: Any, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
               *args: Any, **kwargs: Any) -> Any:  # fmt: skip
        if dropout_p:
            # Counts attention weights, which other forms of attention may not have in this shape.
            watch.draw(
                "scaled_dot_product_attention", dropout_p, query.numel() // query.shape[-1] * key.shape[-2]
            )
            dropout_p = 0.0 if off else dropout_p
        return attention(query, key, value, attn_mask, dropout_p, *args, **kwargs)


def _hook_functional(watch: Watch, name: str, off: bool) -> None:
    signature = inspect.signature(getattr(F, name))

    @in_place_of(F, name)
    def dropout(function: Any, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        if not given["training"] or not given["p"] or watch.in_dropout:
            return function(*args, **kwargs)
        watch.draw(name, given["p"], given["input"].numel())
        if off:
            return given["input"]
        watch.in_dropout = True  # one dropout function may call another
        try:
            return function(*args, **kwargs)
        finally:
            watch.in_dropout = False


def _hook_builtin(watch: Watch, name: str, off: bool) -> None:
    @in_place_of(torch, name)
    def dropout(function: Any, input: Any, p: float, train: bool) -> Any:
        if not train or not p or watch.in_dropout:
            return function(input, p, train)
        watch.draw(name.rstrip("_"), p, input.numel())
        return input if off else function(input, p, train)


def install(watch: Watch, dropout_off: bool) -> None:
    _hook_construction(watch)
    _hook_calls(watch, dropout_off)
    _hook_backward(watch)
    _hook_optimizers(watch)
    _leave_uncompiled()
    hook_dropout(watch, dropout_off)
    hook_losses(watch)


def _hook_construction(watch: Watch) -> None:
    """Initialises each module from its own random stream, and tells the watch of each new module."""
    streams = watch.streams

    @in_place_of(nn.Module, "__init__")
    def module_init(made: Any, self: nn.Module, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        watch.names.made(self)

    def init_subclass(cls: type[nn.Module], **kwargs: Any) -> None:
        super(nn.Module, cls).__init_subclass__(**kwargs)
        _isolate_init(cls, streams)

    nn.Module.__init_subclass__ = classmethod(init_subclass)  # type: ignore[assignment, arg-type]
    pending = list(nn.Module.__subclasses__())
    seen: set[type] = set()
    while pending:
        cls = pending.pop()
        if cls not in seen:
            seen.add(cls)
            pending += cls.__subclasses__()
            _isolate_init(cls, streams)
    for name in dir(nn.init):
        function = getattr(nn.init, name)
        if name.endswith("_") and not name.startswith("_") and callable(function):
            setattr(nn.init, name, _isolated(function, streams))
    nn.Module.apply = _isolated(nn.Module.apply, streams)  # type: ignore[method-assign]


def _isolate_init(cls: type[nn.Module], streams: Streams) -> None:
    own = cls.__dict__.get("__init__")
    if callable(own) and not isinstance(own, staticmethod | classmethod):
        cls.__init__ = _isolated(own, streams)  # type: ignore[method-assign]


def _isolated(function: Callable[..., Any], streams: Streams) -> Any:
    @functools.wraps(function)
    def isolated(*args: Any, **kwargs: Any) -> Any:
        with streams.initialising():
            return function(*args, **kwargs)

    return isolated


def _hook_calls(watch: Watch, dropout_off: bool) -> None:
    call = nn.Module.__call__

    def recorded_call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if watch.is_paused or watch.in_backward:
            return call(self, *args, **kwargs)
        if watch.rehearsed is not None:
            result = call(self, *args, **kwargs)
            watch.rehearsed.setdefault(id(self), len(watch.rehearsed))
            return result
        is_root = watch.depth == 0
        if is_root:
            watch.enter_root(self, args, kwargs)
        watch.depth += 1
        try:
            if isinstance(self, nn.RNNBase) and self.dropout and self.training:
                watch.draw(type(self).__name__, self.dropout, max(self.num_layers - 1, 0))
                with without_dropout(self) if dropout_off else nullcontext():
                    result = call(self, *args, **kwargs)
            else:
                result = call(self, *args, **kwargs)
        finally:
            watch.depth -= 1
        if is_root:
            watch.leave_root(self, result)
        if watch.counts and torch.is_grad_enabled():
            watch.leave(self, result, line_of_caller(2))
        return result

    nn.Module.__call__ = recorded_call  # type: ignore[method-assign]


_LIBRARIES = (
    "/torch/",
    "/site-packages/",
    sysconfig.get_path("stdlib") + "/",
    "/portwright/patched.py",
    *(f"/portwright/{part}/" for part in ("verify", "layers", "losses", "runtime", "targets")),
)


def line_of_caller(depth: int) -> str:
    """file:line of the nearest code that is the user's: neither torch's nor ours."""
    frame: Any = sys._getframe(depth)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            return f"{_absolute(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


@functools.cache
def is_users(file: str) -> bool:
    """Whether a source file is the user's: not a library's, and not ours."""
    return not file.startswith("<") and not any(part in file for part in _LIBRARIES)


@functools.cache
def _absolute(file: str) -> str:
    return str(Path(file).absolute())


def _hook_backward(watch: Watch) -> None:
    unscaled: dict[int, torch.Tensor] = {}  # by id of the scaled loss

    def around(losses: list[torch.Tensor], run: Callable[[], Any]) -> Any:
        if watch.is_paused or watch.in_backward:
            return run()
        values = [unscaled.pop(id(loss), loss) for loss in losses]
        unscaled.clear()
        watch.before_backward(losses, values)
        watch.in_backward = True
        try:
            result = run()
        finally:
            watch.in_backward = False
        watch.after_backward()
        return result

    @in_place_of(torch.autograd, "backward")
    def recorded_backward(backward: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        losses = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        return around(losses, lambda: backward(tensors, *args, **kwargs))

    @in_place_of(torch.Tensor, "backward")
    def recorded_tensor_backward(backward: Any, self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return around([self], lambda: backward(self, *args, **kwargs))

    @in_place_of(torch.autograd, "grad")
    def recorded_grad(grad: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not watch.is_paused and not watch.in_backward:
            losses = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
            watch.asked_gradient([loss.detach() for loss in losses])
        return grad(outputs, *args, **kwargs)

    @in_place_of(torch.amp.GradScaler, "scale")
    def recorded_scale(scale: Any, self: Any, outputs: Any) -> Any:
        scaled = scale(self, outputs)
        if isinstance(outputs, torch.Tensor):
            unscaled[id(scaled)] = outputs
        return scaled


def _hook_optimizers(watch: Watch) -> None:
    from torch.optim.optimizer import (
        Optimizer,
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    @in_place_of(Optimizer, "__init__")
    def recorded_init(made: Any, self: Optimizer, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        if not any(self is known for known in watch.optimizers):
            watch.optimizers.append(self)

    def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if watch.is_paused:
            return
        watch.step_depth += 1
        if watch.step_depth == 1:
            watch.before_update(optimizer, _has_closure(args, kwargs))

    def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if watch.is_paused:
            return
        watch.step_depth -= 1
        if watch.step_depth == 0:
            watch.after_update(optimizer, _has_closure(args, kwargs))

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)


def _has_closure(args: Any, kwargs: Any) -> bool:
    return any(callable(value) for value in (*args[1:], *kwargs.values()))


def _leave_uncompiled() -> None:
    """Turns compilation off: a compiled step calls no modules to watch, and rounds differently."""

    def compile_nothing(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        return model if model is not None else lambda function: function

    torch.compile = compile_nothing
    nn.Module.compile = lambda self, *args, **kwargs: None  # type: ignore[method-assign]
    scripting: Any = torch.jit
    scripting.script = scripting.trace = compile_nothing


_LOSSES = (
    "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "kl_div", "poisson_nll_loss", "soft_margin_loss", "hinge_embedding_loss",
)  # fmt: skip


def hook_losses(watch: Watch) -> None:
    """Records the targets of torch's loss functions, which belong to the batch of a script without a loader."""

    def watched(function: Any, input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        # Inside a module the target was recorded as the module's input.
        if watch.depth == 0 and isinstance(target, torch.Tensor):
            watch.fed(target)
        return function(input, target, *args, **kwargs)

    for name in _LOSSES:
        in_place_of(F, name)(watched)
