"""Makes a user's model before it is known where it shall live: one that may be too large for the device waits on the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from portwright.runtime.base_model import LossModule, make_model
from portwright.runtime.rng import capture_rng, restore_rng, seed_all
from portwright.target import JobSpec

_HOST = torch.device("cpu")
_MOVES = (torch.Tensor.to, torch.Tensor.cuda)


@dataclass
class Made:
    """A model, and the generators as its constructor left them."""

    module: LossModule
    random_state: Mapping[str, torch.Tensor]
    is_held: bool = False  # on the host, though its constructor put it on the device
    drew_when_held: bool = False  # then the device's generator would have given other numbers

    def as_model_of(self, job: JobSpec) -> JobSpec:
        """The same job for a session, which gets this model where it would make one; bit for bit as if it had."""
        made: list[LossModule] = [self.module]
        make, random_state = job.model_fn, self.random_state

        def model_fn(params: dict[str, Any], device: Any) -> Any:
            if not made:  # only the first one is at hand
                return _user_model(make_model(make, params, device))
            restore_rng(random_state, torch.device(device))
            return _user_model(made.pop())

        return dataclasses.replace(job, model_fn=model_fn)


def _user_model(module: LossModule) -> Any:
    return module.__dict__["user_model"]


def construct(job: JobSpec, device: torch.device, most_bytes: int | None) -> Made:
    """Makes the model as a session does, with the same draws.

    Weights beyond `most_bytes` stay on the host, whatever the user's code says; None: they may all go to the device.
    """
    seed = job.params.runconfig.seed
    seed_all(seed, device)
    if device.type == "cpu" or most_bytes is None:
        module = make_model(job.model_fn, job.params.values, device)
        return Made(module, capture_rng(device))
    hold = _Hold(device, most_bytes)
    try:
        with hold, _asking_before_moves(hold):
            module = make_model(job.model_fn, job.params.values, device)
    except Exception:
        if not hold.holds:
            raise
        # Some constructors cannot do without their device, such as one that draws with a generator of its own there.
        del hold
        seed_all(seed, device)
        module = make_model(job.model_fn, job.params.values, device)
        return Made(module, capture_rng(device))
    after = capture_rng(device)
    if hold.random_state is None:
        return Made(module, after)
    drew = any(not torch.equal(after[name], before) for name, before in hold.random_state.items())
    return Made(module, after, is_held=True, drew_when_held=drew)


class _Hold(TorchFunctionMode):
    """Counts what goes to the device, and beyond `most_bytes` lets nothing more go there."""

    def __init__(self, device: torch.device, most_bytes: int) -> None:
        super().__init__()
        self._device, self._room = device, most_bytes
        self.random_state: Mapping[str, torch.Tensor] | None = None  # at the moment from which on it holds

    @property
    def holds(self) -> bool:
        return self.random_state is not None

    def ask(self, num_bytes: int) -> None:
        self._room -= num_bytes
        if self._room < 0 and not self.holds:
            self.random_state = capture_rng(self._device)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.holds:
            if func is torch.Tensor.cuda:
                return args[0]
            if self._is_device(kwargs.get("device")):
                kwargs = {**kwargs, "device": _HOST}
            if func is torch.Tensor.to and len(args) > 1 and self._is_device(args[1]):
                args = (args[0], _HOST, *args[2:])
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if self._is_device(kwargs.get("device")) and func not in _MOVES and isinstance(result, torch.Tensor):
            self.ask(result.nbytes)  # made on the device itself; modules that move have asked before
        return result

    def is_meant(self, *args: Any, **kwargs: Any) -> bool:
        """Whether the arguments of a `.to()` name the device; without one they change a dtype or nothing."""
        return any(map(self._is_device, (*args[:1], kwargs.get("device"))))

    def _is_device(self, device: Any) -> bool:
        if isinstance(device, str):
            return device.partition(":")[0] == self._device.type
        if isinstance(device, int) and not isinstance(device, bool):
            return True  # torch counts devices that are no CPU
        return isinstance(device, torch.device) and device.type == self._device.type


@contextmanager
def _asking_before_moves(hold: _Hold) -> Iterator[None]:
    """A module is asked for as a whole before its first tensor moves, so that it stays together."""

    def asking(move: Callable[..., Any]) -> Callable[..., Any]:
        def asked(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if move is to_cuda or hold.is_meant(*args, **kwargs):
                hold.ask(host_bytes(module))
            return move(module, *args, **kwargs)

        return asked

    to, to_cuda = nn.Module.to, nn.Module.cuda
    modules: Any = nn.Module
    modules.to, modules.cuda = asking(to), asking(to_cuda)
    try:
        yield
    finally:
        modules.to, modules.cuda = to, to_cuda


def host_bytes(module: nn.Module) -> int:
    """Weights and buffers of a module that are on the host."""
    return sum(tensor.nbytes for tensor in stored_tensors(module) if tensor.device.type == "cpu")


def stored_tensors(module: nn.Module) -> Iterable[torch.Tensor]:
    """Weights and buffers, each once; those whose size only the first batch tells have none yet."""
    found = {id(t): t for t in (*module.parameters(), *module.buffers()) if not is_lazy(t)}
    return found.values()
