"""Initializers by name, with their options checked before a weight is touched."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from portwright.errors import UserError, suggest

Initializer = Callable[[Tensor], Tensor]
InitializerSpec = str | Mapping[str, Any] | Initializer

# Standard deviation of a standard normal distribution truncated at two standard deviations.
_CUT_NORMAL_STD = 0.87962566103423978

_NONLINEARITIES = ("linear", "sigmoid", "tanh", "relu", "leaky_relu", "selu")


def _number_that(told: str, is_right: Callable[[float], bool] = math.isfinite) -> Callable[[str, Any], float]:
    """A check of an option; `told` is the cure of a value that is no finite number, or not a right one."""

    def check(option: str, value: Any) -> float:
        # YAML 1.1 reads 1e-2 as text, so text that is a number counts as one.
        if isinstance(value, (int, float, str)) and not isinstance(value, bool):
            with suppress(ValueError):
                number = float(value)
                if math.isfinite(number) and is_right(number):
                    return number
        raise UserError(f"Initializer option {option} is {value!r}.", told)

    return check


_number = _number_that("Give a finite number.")
_non_negative = _number_that("Give a finite number that is not negative.", lambda number: number >= 0)
_positive = _number_that("Give a finite number above 0.", lambda number: number > 0)


def _gain(option: str, value: Any) -> float:
    # The model zoo also accepts a nonlinearity here, for its gain.
    if isinstance(value, str) and value in _NONLINEARITIES:
        return float(nn.init.calculate_gain(value))  # type: ignore[arg-type]
    return _non_negative(option, value)


def _one_of(*valid: str) -> Callable[[str, Any], str]:
    def check(option: str, value: Any) -> str:
        if value not in valid:
            raise UserError(
                f"Initializer option {option} is {value!r}.", suggest(str(value).strip().lower(), valid)
            )
        return str(value)

    return check


def _fill_truncated(tensor: Tensor, *, mean: float, std: float, a: float | None, b: float | None) -> Tensor:
    low, high = mean - 2 * std if a is None else a, mean + 2 * std if b is None else b
    if std == 0:
        return nn.init.constant_(tensor, min(max(mean, low), high))
    # The inverse error function needs more precision than a half type has.
    if tensor.dtype in (torch.float16, torch.bfloat16):
        wide = torch.empty_like(tensor, dtype=torch.float32)
        with torch.no_grad():
            return tensor.copy_(nn.init.trunc_normal_(wide, mean, std, low, high))
    return nn.init.trunc_normal_(tensor, mean, std, low, high)


def _scale_variance(tensor: Tensor, *, scale: float, mode: str, distribution: str) -> Tensor:
    # torch lays a weight out as (out, in, *kernel).
    kernel_size = tensor[0][0].numel()
    fan_in, fan_out = tensor.shape[1] * kernel_size, tensor.shape[0] * kernel_size
    fan = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[mode]
    std = math.sqrt(scale / max(1.0, fan))
    if distribution == "normal":
        return nn.init.normal_(tensor, std=std)
    if distribution == "uniform":
        bound = math.sqrt(3) * std
        return nn.init.uniform_(tensor, -bound, bound)
    return _fill_truncated(tensor, mean=0.0, std=std / _CUT_NORMAL_STD, a=None, b=None)


@dataclass(frozen=True)
class _Kind:
    fill: Callable[..., Tensor]
    options: Mapping[str, tuple[Any, Callable[[str, Any], Any]]]  # default and check of each
    needs_fans: bool = False  # needs a shape with numbers of inputs and outputs


def _fans(fill: Callable[..., Tensor], **options: tuple[Any, Callable[[str, Any], Any]]) -> _Kind:
    return _Kind(fill, options, needs_fans=True)


def _kaiming(fill: Callable[..., Tensor]) -> _Kind:
    return _fans(
        fill,
        a=(0.0, _number),
        mode=("fan_in", _one_of("fan_in", "fan_out")),
        nonlinearity=("leaky_relu", _one_of(*_NONLINEARITIES)),
    )


_XAVIER_NORMAL = _fans(nn.init.xavier_normal_, gain=(1.0, _gain))
_XAVIER_UNIFORM = _fans(nn.init.xavier_uniform_, gain=(1.0, _gain))

_KINDS: dict[str, _Kind] = {
    "constant": _Kind(nn.init.constant_, {"val": (0.0, _number)}),
    "ones": _Kind(nn.init.ones_, {}),
    "zeros": _Kind(nn.init.zeros_, {}),
    "eye": _Kind(nn.init.eye_, {}),
    "uniform": _Kind(nn.init.uniform_, {"a": (-0.05, _number), "b": (0.05, _number)}),
    "normal": _Kind(nn.init.normal_, {"mean": (0.0, _number), "std": (0.05, _non_negative)}),
    "truncated_normal": _Kind(
        _fill_truncated,
        {"mean": (0.0, _number), "std": (0.05, _non_negative), "a": (None, _number), "b": (None, _number)},
    ),
    "xavier_normal": _XAVIER_NORMAL,
    "glorot_normal": _XAVIER_NORMAL,
    "xavier_uniform": _XAVIER_UNIFORM,
    "glorot_uniform": _XAVIER_UNIFORM,
    "kaiming_normal": _kaiming(nn.init.kaiming_normal_),
    "kaiming_uniform": _kaiming(nn.init.kaiming_uniform_),
    "lecun_normal": _fans(
        partial(_scale_variance, scale=1.0, mode="fan_in", distribution="truncated_normal")
    ),
    "lecun_uniform": _fans(partial(_scale_variance, scale=1.0, mode="fan_in", distribution="uniform")),
    "variance_scaling": _fans(
        _scale_variance,
        scale=(1.0, _positive),
        mode=("fan_in", _one_of("fan_in", "fan_out", "fan_avg")),
        distribution=("truncated_normal", _one_of("truncated_normal", "normal", "uniform")),
    ),
}


def _fill(tensor: Tensor, *, name: str, options: Mapping[str, Any]) -> Tensor:
    kind = _KINDS[name]
    if (kind.needs_fans and tensor.dim() < 2) or (name == "eye" and tensor.dim() != 2):
        raise UserError(
            f"Initializer {name!r} got a tensor of shape {tuple(tensor.shape)}.",
            f"Give it a matrix{' or a kernel' if name != 'eye' else ''}; vectors take zeros, ones or normal.",
        )
    if tensor.numel() == 0:
        return tensor
    return kind.fill(tensor, **options)


def _checked(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    kind = _KINDS[name]
    for option in given:
        if option not in kind.options:
            cure = suggest(str(option), kind.options) if kind.options else "It takes no options."
            raise UserError(f"Initializer {name!r} has no option {option!r}.", cure)
    checked = {
        option: default if given.get(option) is None else check(option, given[option])
        for option, (default, check) in kind.options.items()
    }
    low, high = checked.get("a"), checked.get("b")
    if low is not None and high is not None and low > high:
        raise UserError(
            f"Initializer {name!r} has the bounds a={low:g} and b={high:g}.", "Give an a that is below b."
        )
    if name == "truncated_normal":
        _check_reach(checked)
    return checked


def _check_reach(options: Mapping[str, Any]) -> None:
    # Further out the inverse of the distribution has no precision left, and every value would be a bound.
    mean, std = options["mean"], options["std"]
    low = -math.inf if options["a"] is None else options["a"]
    high = math.inf if options["b"] is None else options["b"]
    if mean < low - 2 * std or mean > high + 2 * std:
        raise UserError(
            f"Initializer 'truncated_normal' has mean={mean:g}, std={std:g} and the bounds {low:g} and {high:g}.",
            "Give bounds within two standard deviations of the mean.",
        )


def get_initializer(spec: InitializerSpec) -> Initializer:
    """Makes an initializer, which fills a tensor in place and returns it.

    The spec is a name, a mapping with the name under `name` and its options beside it (an option that is None
    takes its default), or a callable, which is returned as it is. Truncated normals are cut two standard
    deviations either side of the mean unless `a` and `b` say otherwise.
    """
    if isinstance(spec, str):
        spec = {"name": spec}
    if isinstance(spec, Mapping):
        name = spec.get("name")
        if not isinstance(name, str):
            raise UserError(
                f"The initializer {dict(spec)!r} has no name.", f"Add `name`. {suggest('', _KINDS)}"
            )
        key = name.strip().lower()
        if key not in _KINDS:
            raise UserError(f"Unknown initializer {name!r}.", suggest(key, _KINDS))
        options = _checked(key, {option: value for option, value in spec.items() if option != "name"})
        return partial(_fill, name=key, options=options)
    if callable(spec) and not isinstance(spec, type):
        return spec
    raise UserError(
        f"The initializer is {spec!r}, of type {type(spec).__name__}.",
        f"Give a name, a mapping with a name, or a function of a tensor. {suggest('', _KINDS)}",
    )
