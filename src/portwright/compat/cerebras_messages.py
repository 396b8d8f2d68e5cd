"""Stand-ins of Cerebras's configuration messages: they keep what a script sets, for the record, and mean nothing here."""

from __future__ import annotations

from typing import Any

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
