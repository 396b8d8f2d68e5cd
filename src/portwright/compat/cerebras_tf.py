"""The rest of cerebras.tf beside its estimator: on a CPU or GPU these functions did nothing, or what TensorFlow does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf


@contextmanager
def cs1_enable_summaries() -> Iterator[None]:
    """Does nothing: summaries are always on."""
    yield


@contextmanager
def cs1_disable_summaries() -> Iterator[None]:
    """Does nothing: it turned off the wafer's summaries, and those of the host stay on."""
    yield


def summary_layer(x: Any) -> Any:
    """Returns the tensor; on the wafer it marked it for summaries."""
    return x


def summarize_tensor(x: Any, is_gradient_tensor: bool = False, op_name_if_grad: str | None = None) -> None:
    """Does nothing; on the wafer it wrote a summary."""


def boundary_cast(x: Any, name: str | None = None, back_cast: bool = True) -> Any:
    """Returns the tensor; on the wafer it changed the dtype between kernels."""
    return x


def GetWeights(checkpoint: str) -> Iterator[tuple[str, Any]]:
    """Names and values of a checkpoint."""
    reader = tf.train.load_checkpoint(checkpoint)
    for name in sorted(reader.get_variable_to_shape_map()):
        yield name, reader.get_tensor(name)


TS_UNSET, TS_ENABLED, TS_DISABLED = 0, 1, 2
AP_DISABLED, AP_ENABLED = 0, 1
T_FP16, T_FP32, T_CB16 = 1, 2, 3


class Message:
    """Takes any field, at any depth; a field that is appended to becomes a list."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)
        self.__dict__.setdefault("_items", [])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = self.__dict__[name] = Message()
        return made

    def append(self, value: Any) -> None:
        self._items.append(value)

    def extend(self, values: Any) -> None:
        self._items.extend(values)

    def as_dict(self) -> Any:
        """The fields that were set, as plain data."""
        if self._items:
            return list(self._items)
        fields = {name: value for name, value in self.__dict__.items() if name != "_items"}
        return {n: v.as_dict() if isinstance(v, Message) else v for n, v in fields.items()}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.as_dict()})"


class FullConfig(Message):
    """What stack_params["config"] holds."""


class CSConfig(Message):
    """What CSRunConfig takes as cs_config."""
