"""Makes a legal layer of a legal function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor, nn

Layer = TypeVar("Layer", bound=nn.Module)


def layer(torchs: type[Layer], function: Callable[..., Tensor], *options: str) -> type[Layer]:
    """A subclass of torch's layer, of its name, whose forward calls the function with the inputs and, by name, with
    those attributes of the layer that `options` lists."""

    def forward(self: Layer, *inputs: Any, **named: Any) -> Tensor:
        return function(*inputs, **named, **{name: getattr(self, name) for name in options})

    held = {"forward": forward, "__module__": function.__module__, "__doc__": f"nn.{torchs.__name__}."}
    return type(torchs.__name__, (torchs,), held)
