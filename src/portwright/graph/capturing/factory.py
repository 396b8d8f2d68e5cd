"""Makes the user's model without memory, and lends an existing one fake weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from portwright.graph.capturing.hosts import Hosts
from portwright.graph.capturing.trace import tensors_in


class ConstructionMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes large tensors fake and small ones real: models read them, such as a linspace of dropout rates."""

    def __init__(self, hosts: Hosts) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._hosts = hosts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = self._hosts.compute(func, args, kwargs or {})
        for tensor in tensors_in((result,)):
            if not isinstance(tensor, FakeTensor):
                self._hosts.note_device(tensor)
        return result


@contextmanager
def lend_fakes(module: nn.Module, fake_mode: FakeTensorMode) -> Iterator[None]:
    """Puts fake tensors in the place of a module's real weights and buffers; afterwards it is as it was."""
    taken: list[tuple[dict[str, Any], str, Tensor]] = []
    modes = [(part, part.training) for part in module.modules()]
    fakes: dict[int, Tensor] = {}
    try:
        for part in module.modules():
            places: tuple[dict[str, Any], ...] = (part._parameters, part._buffers)
            for held in places:
                for name, tensor in list(held.items()):
                    if tensor is None or isinstance(tensor, FakeTensor) or is_lazy(tensor):
                        continue
                    if id(tensor) not in fakes:
                        fakes[id(tensor)] = fake_mode.from_tensor(tensor)
                    taken.append((held, name, tensor))
                    held[name] = fakes[id(tensor)]
        yield
    finally:
        for place, name, tensor in taken:
            place[name] = tensor
        for part, training in modes:
            part.training = training
