"""The arguments that a user's run.py passes to run(), and the calls of its input functions."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from portwright.errors import PortwrightError, UserError
from portwright.job.blame import place_of
from portwright.tensorflow.mode_keys import ModeKeys

_INPUTS = {  # mode of a graph: its input function's argument in run(), and that function's section of params
    ModeKeys.TRAIN: ("train_input_fn", "train_input"),
    ModeKeys.EVAL: ("eval_input_fn", "eval_input"),
    ModeKeys.PREDICT: ("predict_input_fn", "predict_input"),
}


@dataclass(frozen=True)
class Parts:
    """The arguments that a user's run.py passes to run()."""

    model_fn: Any
    train_input_fn: Any
    eval_input_fn: Any
    default_params_fn: Any
    extra_args_parser_fn: Any
    predict_input_fn: Any

    def check(self) -> None:
        for name, value in vars(self).items():
            if not callable(value) and (value is not None or name == "model_fn"):
                raise UserError(f"run() got {name}={value!r}.", "Pass a function.")

    def input_fn(self, mode: str, params: dict[str, Any]) -> InputFn:
        """The input function of a mode, as an Estimator calls it."""
        name, section = _INPUTS[mode]
        function = getattr(self, name)
        if function is None and mode == ModeKeys.PREDICT and self.eval_input_fn is not None:
            name, section = _INPUTS[ModeKeys.EVAL]
            function = self.eval_input_fn
        if function is None:
            function, name = self._for_all_modes(name)
        return InputFn(function, name, section, mode, copy.deepcopy(params))

    def _for_all_modes(self, wanted: str) -> tuple[Any, str]:
        for name in ("train_input_fn", "eval_input_fn"):
            function = getattr(self, name)
            if function is not None and "mode" in _parameters(function):
                return function, name
        raise UserError(
            f"this mode needs {wanted}, and run() was called without it.",
            f"Pass {wanted}=... to run(), or one input function that takes (params, mode).",
        )


class InputFn:
    """A user's input function with its params; an Estimator gives it the input_context, if there is one."""

    def __init__(
        self, function: Callable[..., Any], name: str, section: str, mode: str, params: dict[str, Any]
    ) -> None:
        self.name, self.section = name, section
        self._function, self._mode, self._params = function, mode, params
        self.takes_input_context = "input_context" in _parameters(function)

    def __call__(self, input_context: Any = None) -> Any:
        positional, named = self._arguments(input_context)
        try:
            result = self._function(*positional, **named)
        except PortwrightError:
            raise
        except Exception as error:
            said = " ".join(str(error).split())[:400] or "no message"
            raise UserError(
                f"{self.name} failed: {type(error).__name__} at {place_of(error)}: {said}",
                "Run again with --debug to see the traceback.",
            ) from error
        return self._checked(result)

    def _arguments(self, input_context: Any) -> tuple[list[Any], dict[str, Any]]:
        offered = {"params": self._params, "mode": self._mode, "input_context": input_context}
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for parameter in _parameters(self._function).values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            if parameter.name in offered:
                value = offered.pop(parameter.name)
                if parameter.name == "input_context" and value is None:
                    if parameter.default is not parameter.empty:
                        continue
                    value = tf.distribute.InputContext()
            elif "params" in offered and not positional and not named:
                value = offered.pop("params")  # the argument for params may have another name, such as cfg
            elif parameter.default is not parameter.empty:
                continue
            else:
                raise UserError(
                    f"{self.name} has the argument '{parameter.name}', which run() cannot give.",
                    "It may take (params), (params, mode) and input_context; bind others with functools.partial.",
                )
            if parameter.kind is parameter.POSITIONAL_ONLY:
                positional.append(value)
            else:
                named[parameter.name] = value
        return positional, named

    def _checked(self, result: Any) -> Any:
        is_good = (
            isinstance(result, (tf.data.Dataset, tf.compat.v1.data.Iterator, dict))
            or tf.is_tensor(result)
            or (isinstance(result, (tuple, list)) and result and not _is_host_data(result))
        )
        if not is_good:
            what = "an empty one" if isinstance(result, (tuple, list)) and not result else _kind(result)
            raise UserError(
                f"{self.name} returned {what}.",
                "Return a tf.data.Dataset whose batches are (features, labels).",
            )
        return result


def _is_host_data(result: Any) -> bool:
    return not any(
        tf.is_tensor(item) or item is None or isinstance(item, dict) for item in tf.nest.flatten(list(result))
    )


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    module = type(value).__module__.partition(".")[0]
    return f"a {type(value).__name__}" + ("" if module in ("builtins", "__main__") else f" of {module}")


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # a function written in C has no signature
        return {"params": inspect.Parameter("params", inspect.Parameter.POSITIONAL_ONLY)}
