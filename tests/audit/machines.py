"""Runs a program as on a machine with CUDA, on one without, and on a target that places model and batches.

There is no CUDA here: tensors lie in the host's memory and carry a label of the device that they would be on. Two
labels that meet in an operation raise, as torch does; an index and a number may come from the host.
"""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import data

_ANY_PLACE = {
    "__getitem__",
    "__setitem__",
    "copy_",
    "__set__",
    "__repr__",
    "manual_seed",
    "embedding",
    "item",
}


def place(tensor: Tensor) -> str:
    return getattr(tensor, "_place", "cpu")


def _mark(value: Any, label: str) -> Any:
    for tensor in _tensors(value):
        tensor._place = label  # type: ignore[attr-defined]
    return value


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _device(value: Any) -> str | None:
    """The kind of device that an argument names."""
    if isinstance(value, torch.device):
        return value.type
    return (
        value.partition(":")[0]
        if isinstance(value, str) and value.partition(":")[0] in ("cpu", "cuda", "xla")
        else None
    )


class Labels(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        given = list(_tensors([*args, *kwargs.values()]))
        if name == "__get__" and given and getattr(func, "__self__", None) is Tensor.device:
            return torch.device(place(given[0]))
        asked = _device(kwargs.get("device"))
        if name in ("to", "cuda", "cpu") and given:
            asked = {"cuda": "cuda", "cpu": "cpu"}.get(name) or next(
                (d for a in args if (d := _device(a))), asked
            )
            args = [a for a in args if _device(a) is None]
            kwargs.pop("device", None)
            kwargs.pop("non_blocking", None)
            like = [t for t in given[1:] if name == "to"]
            asked = place(like[0]) if like else asked
            label = asked or place(given[0])
            out = given[0]
            if label != place(out):  # a move makes a copy
                out = out.clone()
            if name == "to" and (len(args) > 1 or kwargs):
                out = func(out, *args[1:], **kwargs)
            return _mark(out, label) if out is not given[0] else out
        if asked:
            kwargs["device"] = "cpu"
        labels = {place(t) for t in given if t.dim() and not isinstance(t, nn.UninitializedParameter)}
        if len(labels) > 1 and name not in _ANY_PLACE:
            raise RuntimeError(f"Expected all tensors to be on the same device: {name} {sorted(labels)}")
        if name == "numpy" and labels - {"cpu"}:
            raise TypeError("can't convert a tensor of the device to numpy")
        out = func(*args, **kwargs)
        label = (
            asked or (place(given[0]) if name in _ANY_PLACE and given else None) or next(iter(labels), None)
        )
        if label is None and given:
            label = place(given[0])
        if name not in ("__set__", "__get__") or isinstance(out, Tensor):
            _mark([t for t in _tensors(out) if t is not (given[0] if given else None)], label or "cpu")
        return out


def run(program: str, machine: str) -> dict[str, Any]:
    """What training does on a machine ("cuda", "cpu", or "xla" for the target), step by step."""
    seen: dict[str, Any] = {"raised": None, "loaders": [], "inputs": [], "losses": [], "places": set()}
    has_cuda = machine == "cuda"
    make_loader, iterate, call, backward = (
        data.DataLoader.__init__,
        data.DataLoader.__iter__,
        nn.Module.__call__,
        Tensor.backward,
    )

    def loader(self: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
        make_loader(self, dataset, *args, **{**kwargs, "pin_memory": False, "num_workers": 0})
        order = type(self.sampler).__name__
        seen["loaders"].append((self.batch_size, order, self.drop_last, kwargs.get("num_workers", 0)))

    def batches(self: Any) -> Iterator[Any]:
        for batch in iterate(self):
            yield _mark(batch, machine) if machine == "xla" else batch

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        if machine == "xla":
            _mark([*self.parameters(), *self.buffers()], machine)
        seen["inputs"] += [t.detach().clone() for t in _tensors(list(args))]
        seen["places"] |= {place(t) for t in _tensors([*args, *self.parameters()])}
        return call(self, *args, **kwargs)

    def record(self: Any, *args: Any, **kwargs: Any) -> None:
        seen["losses"].append(self.detach().clone())
        backward(self, *args, **kwargs)

    def moved(self: Any, *args: Any, **kwargs: Any) -> Any:
        label = next((d for a in [*args, *kwargs.values()] if (d := _device(a))), None)
        if label:
            _mark([*self.parameters(), *self.buffers()], label)
        for dtype in args:
            if isinstance(dtype, torch.dtype):
                self._apply(lambda t, to=dtype: t.to(to))
        return self

    def load(*args: Any, map_location: Any = None, **kwargs: Any) -> Any:
        loaded = read(
            *args, map_location="cpu", **kwargs
        )  # each tensor with the label that it was saved with
        return _mark(loaded, _device(map_location)) if map_location else loaded

    read = torch.load
    changes = {
        "torch.load": load,
        "torch.cuda.is_available": lambda: has_cuda, "torch.cuda.device_count": lambda: int(has_cuda),
        "torch.accelerator.is_available": lambda: has_cuda, "torch.cuda.is_bf16_supported": lambda: has_cuda,
        "torch.accelerator.current_accelerator": lambda: torch.device("cuda") if has_cuda else None,
        "torch.cuda.manual_seed": int, "torch.cuda.manual_seed_all": int, "torch.cuda.synchronize": lambda: None,
        "torch.cuda.empty_cache": lambda: None,
    }  # fmt: skip
    torch.manual_seed(0)
    random.seed(0)
    names: dict[str, Any] = {"__name__": "program"}
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(contextlib.redirect_stdout(None))
        for name, change in changes.items():
            stack.enter_context(mock.patch(name, change))
        for owner, name, change in (
            (data.DataLoader, "__init__", loader), (data.DataLoader, "__iter__", batches), (nn.Module, "__call__", called),
            (nn.Module, "to", moved), (nn.Module, "cuda", lambda self, *_: moved(self, "cuda")), (Tensor, "backward", record),
            (Tensor, "pin_memory", lambda self: self.clone()),
        ):  # fmt: skip
            stack.enter_context(mock.patch.object(owner, name, change))
        stack.enter_context(Labels())
        try:
            exec(compile(program, "<program>", "exec", dont_inherit=True), names)
        except Exception as error:
            seen["raised"] = f"{type(error).__name__}: {error}"
        finally:
            torch.set_default_dtype(torch.float32)
    if isinstance(names.get("net"), nn.Module):
        seen["weights"] = dict(names["net"].state_dict())
        seen["gradients"] = [p.grad for p in names["net"].parameters()]
    seen["left"] = names.get("left")
    seen["random"] = (torch.get_rng_state(), random.getstate())
    return seen


def difference(one: Any, other: Any, where: str = "") -> str:
    """The first thing in which two runs differ, but for the devices."""
    if isinstance(one, dict):
        if list(one) != list(other):
            return f"{where} has {list(one)}, then {list(other)}"
        return next(
            (w for k in one if k != "places" and (w := difference(one[k], other[k], f"{where}.{k}"))), ""
        )
    if isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return f"{where}: {one}, then {other}"
        return next((w for i, pair in enumerate(zip(one, other, strict=True)) if (w := difference(*pair, f"{where}[{i}]"))), "")  # fmt: skip
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        same = one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
        return "" if same else f"{where}: {one}, then {other}"
    return "" if one == other else f"{where}: {one}, then {other}"
