"""Makes a user's model before its execution mode is chosen; a model that may be too large for the device stays on the host."""

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

from portwright.base_model import LossModule, make_model
from portwright.patched import patched
from portwright.target import JobSpec
from portwright.watching.random_states import capture_rng, restore_rng, seed_all

_HOST = torch.device("cpu")
_MOVES = (torch.Tensor.to, torch.Tensor.cuda)


@dataclass
class Made:
    """A model, and the generators as its constructor left them."""

    module: LossModule
    random_state: Mapping[str, torch.Tensor]
    was_kept_on_host: bool = False  # a part of it, though its constructor moved it to the device
    drew_meanwhile: bool = False  # random numbers on the host, which the device would have drawn otherwise

    def as_model_of(self, job: JobSpec) -> JobSpec:
        """The same job, whose model function first returns this model; the session's numbers stay the same, bit for bit."""
        made: list[LossModule] = [self.module]
        make, random_state = job.model_fn, self.random_state

        def model_fn(params: dict[str, Any], device: Any) -> Any:
            if not made:  # the ready model is given once
                return _user_model(make_model(make, params, device))
            restore_rng(random_state, torch.device(device))
            return _user_model(made.pop())

        return dataclasses.replace(job, model_fn=model_fn)


def _user_model(module: LossModule) -> Any:
    return module.__dict__["user_model"]


def construct(job: JobSpec, device: torch.device, most_bytes: int | None) -> Made:
    """Makes the model as a session does, with the same draws.

    Once `most_bytes` of weights are on the device, all others stay on the host, even if the user's code moves them; None: no limit.
    """
    seed = job.params.runconfig.seed
    seed_all(seed, device)
    if device.type == "cpu" or most_bytes is None:
        module = make_model(job.model_fn, job.params.values, device)
        return Made(module, capture_rng(device))
    limit = _KeepOnHost(device, most_bytes)
    try:
        with limit, _counting_modules(limit):
            module = make_model(job.model_fn, job.params.values, device)
    except Exception:
        if not limit.is_reached:
            raise
        # Some constructors need their device, such as one that draws with its own generator there.
        del limit
        seed_all(seed, device)
        module = make_model(job.model_fn, job.params.values, device)
        return Made(module, capture_rng(device))
    after = capture_rng(device)
    if limit.random_state is None:
        return Made(module, after)
    drew = any(not torch.equal(after[name], before) for name, before in limit.random_state.items())
    return Made(module, after, was_kept_on_host=True, drew_meanwhile=drew)


class _KeepOnHost(TorchFunctionMode):
    """Counts what goes to the device, and beyond `most_bytes` lets nothing more go there."""

    def __init__(self, device: torch.device, most_bytes: int) -> None:
        super().__init__()
        self._device, self._room = device, most_bytes
        self.random_state: Mapping[str, torch.Tensor] | None = None  # when the limit was reached

    @property
    def is_reached(self) -> bool:
        return self.random_state is not None

    def count(self, num_bytes: int) -> None:
        self._room -= num_bytes
        if self._room < 0 and not self.is_reached:
            self.random_state = capture_rng(self._device)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.is_reached:
            if func is torch.Tensor.cuda:
                return args[0]
            if self._is_device(kwargs.get("device")):
                kwargs = {**kwargs, "device": _HOST}
            if func is torch.Tensor.to and len(args) > 1 and self._is_device(args[1]):
                args = (args[0], _HOST, *args[2:])
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if self._is_device(kwargs.get("device")) and func not in _MOVES and isinstance(result, torch.Tensor):
            self.count(result.nbytes)  # made on the device itself; modules are counted before they move
        return result

    def names_device(self, *args: Any, **kwargs: Any) -> bool:
        """Whether the arguments of a `.to()` name the device."""
        return any(map(self._is_device, (*args[:1], kwargs.get("device"))))

    def _is_device(self, device: Any) -> bool:
        if isinstance(device, str):
            return device.partition(":")[0] == self._device.type
        if isinstance(device, int) and not isinstance(device, bool):
            return True  # a number means a device of the accelerator
        return isinstance(device, torch.device) and device.type == self._device.type


@contextmanager
def _counting_modules(limit: _KeepOnHost) -> Iterator[None]:
    """Counts a module as a whole before its first tensor moves, so that all of it goes or all of it stays."""

    def counting(move: Callable[..., Any]) -> Callable[..., Any]:
        def counted_move(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if move is to_cuda or limit.names_device(*args, **kwargs):
                limit.count(host_bytes(module))
            return move(module, *args, **kwargs)

        return counted_move

    to, to_cuda = nn.Module.to, nn.Module.cuda
    with patched(nn.Module, "to", counting(to)), patched(nn.Module, "cuda", counting(to_cuda)):
        yield


def host_bytes(module: nn.Module) -> int:
    """Weights and buffers of a module that are on the host."""
    return sum(tensor.nbytes for tensor in stored_tensors(module) if tensor.device.type == "cpu")


def stored_tensors(module: nn.Module) -> Iterable[torch.Tensor]:
    """Weights and buffers, each once, without lazy ones, whose size only the first batch tells."""
    found = {id(t): t for t in (*module.parameters(), *module.buffers()) if not is_lazy(t)}
    return found.values()
