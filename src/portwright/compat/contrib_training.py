"""tf.contrib.training: hyperparameters, and functions that train without an Estimator."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from portwright.errors import UserError, suggest

_PAIR = re.compile(
    r"\s*(?P<name>[A-Za-z][\w.]*)\s*(?:\[(?P<index>\d+)\])?\s*=\s*(?:\[(?P<values>[^\]]*)\]|(?P<value>[^,\[]*))\s*(?:,|$)"
)
_TRUE, _FALSE = ("true", "True", "1"), ("false", "False", "0")


class HParams:
    """Named values, each of the type that it was given first."""

    _types: dict[str, tuple[type, bool]]  # of each name: its type, and whether it is a list

    def __init__(self, hparam_def: Any = None, model_structure: Any = None, **kwargs: Any) -> None:
        self.__dict__["_types"] = {}
        for name, value in kwargs.items():
            self.add_hparam(name, value)

    def add_hparam(self, name: str, value: Any) -> None:
        """Adds a value under a new name."""
        if name in self._types:
            raise ValueError(f"Hyperparameter name is reserved: {name}")
        if isinstance(value, (list, tuple)):
            if not value:
                raise ValueError(f"Multi-valued hyperparameters cannot be empty: {name}")
            self._types[name] = (type(value[0]), True)
        else:
            self._types[name] = (type(value), False)
        self.__dict__[name] = value

    def _check_name(self, name: str) -> tuple[type, bool]:
        if name not in self._types:
            raise KeyError(f"there is no hyperparameter '{name}'. {suggest(name, self._types)}")
        return self._types[name]

    def set_hparam(self, name: str, value: Any) -> None:
        """Gives a name another value of its type."""
        kind, is_list = self._check_name(name)
        if isinstance(value, (list, tuple)) != is_list:
            raise ValueError(
                f"hyperparameter '{name}' is {'a list' if is_list else 'one value'}; received {value!r}"
            )
        self.__dict__[name] = [_as(name, kind, v) for v in value] if is_list else _as(name, kind, value)

    def del_hparam(self, name: str) -> None:
        """Takes a name out."""
        if name in self._types:
            del self._types[name], self.__dict__[name]

    def parse(self, values: str) -> HParams:
        """Sets values from text such as `size=128,rates=[0.1,0.2],rates[1]=0.3`."""
        place = 0
        while place < len(values):
            found = _PAIR.match(values, place)
            if found is None or found.end() == place:
                raise ValueError(f"hyperparameters cannot be read from '{values[place:]}'")
            place = found.end()
            name = found["name"]
            kind, is_list = self._check_name(name)
            if found["index"] is not None:
                held = list(self.__dict__[name])
                held[int(found["index"])] = _as(name, kind, (found["value"] or "").strip())
                self.__dict__[name] = held
            elif found["values"] is not None:
                self.set_hparam(name, [v.strip() for v in found["values"].split(",") if v.strip()])
            else:
                value = (found["value"] or "").strip()
                self.set_hparam(name, [value] if is_list else value)
        return self

    def override_from_dict(self, values_dict: Mapping[str, Any]) -> HParams:
        """Sets values from a dict."""
        for name, value in values_dict.items():
            self.set_hparam(name, value)
        return self

    def parse_json(self, values_json: str) -> HParams:
        """Sets values from JSON."""
        return self.override_from_dict(json.loads(values_json))

    def values(self) -> dict[str, Any]:
        """All names and values."""
        return {name: self.__dict__[name] for name in self._types}

    def to_json(self, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
        """All names and values as JSON; functions are left out."""
        kept = {name: value for name, value in self.values().items() if not callable(value)}
        return json.dumps(kept, indent=indent, separators=separators, sort_keys=sort_keys)

    def get(self, key: str, default: Any = None) -> Any:
        """A value, or another where there is none."""
        return self.__dict__[key] if key in self._types else default

    def __contains__(self, key: str) -> bool:
        return key in self._types

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._types:
            self._types[name] = (type(value), False)  # HParams allowed it, and did not check it later
        self.__dict__[name] = value

    def __repr__(self) -> str:
        return f"HParams({', '.join(f'{n}={v!r}' for n, v in sorted(self.values().items()))})"

    __str__ = __repr__


def _as(name: str, kind: type, value: Any) -> Any:
    if kind is type(None) or isinstance(value, kind):
        return value
    if kind is bool:
        if str(value) in _TRUE or str(value) in _FALSE:
            return str(value) in _TRUE
        raise ValueError(f"hyperparameter '{name}' is true or false; received {value!r}")
    if kind is int and isinstance(value, float) and not value.is_integer():
        raise ValueError(f"hyperparameter '{name}' is a whole number; received {value!r}")
    if kind in (int, float) and isinstance(value, bool):
        raise ValueError(f"hyperparameter '{name}' is a number; received {value!r}")
    try:
        return kind(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"hyperparameter '{name}' is of type {kind.__name__}; received {value!r}") from error


def create_train_op(
    total_loss: Any,
    optimizer: Any,
    global_step: Any = 0,
    update_ops: Any = None,
    variables_to_train: Any = None,
    transform_grads_fn: Callable[[Any], Any] | None = None,
    summarize_gradients: bool = False,
    gate_gradients: int = tf.train.Optimizer.GATE_OP,
    aggregation_method: Any = None,
    colocate_gradients_with_ops: bool = False,
    check_numerics: bool = True,
    clip_gradient_norm: float = 0,
    gradient_multipliers: Any = None,
) -> Any:
    """The op that makes one step, and whose value is the loss."""
    if gradient_multipliers:
        raise UserError("create_train_op has gradient_multipliers.", "Multiply in transform_grads_fn.")
    step = tf.train.get_or_create_global_step() if isinstance(global_step, int) else global_step
    updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS) if update_ops is None else update_ops
    with tf.control_dependencies(list(updates)):
        total_loss = tf.identity(total_loss)
    pairs = optimizer.compute_gradients(
        total_loss,
        variables_to_train or tf.trainable_variables(),
        gate_gradients=gate_gradients,
        aggregation_method=aggregation_method,
        colocate_gradients_with_ops=colocate_gradients_with_ops,
    )
    if transform_grads_fn is not None:
        pairs = transform_grads_fn(pairs)
    if clip_gradient_norm > 0:
        pairs = [(g if g is None else tf.clip_by_norm(g, clip_gradient_norm), v) for g, v in pairs]
    applied = optimizer.apply_gradients(pairs, global_step=step)
    if check_numerics:
        total_loss = tf.check_numerics(total_loss, "LossTensor is inf or nan")
    with tf.control_dependencies([applied]):
        made = tf.identity(total_loss, name="train_op")
    tf.add_to_collection(tf.GraphKeys.TRAIN_OP, made)
    return made
