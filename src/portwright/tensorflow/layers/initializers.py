"""Initializers by name, drawn from the graph's own seed.

Keras's initializers without a seed take one from Python's generator, so that tf_random_seed does not make runs equal; these
draw with tf.random. Names, options and defaults are those of the PyTorch layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from portwright.errors import UserError, suggest

Initializer = Callable[..., Any]
"""Called with a shape and `dtype=`, gives the first value of a weight."""

InitializerSpec = str | Mapping[str, Any] | Initializer

# Standard deviation of a standard normal cut off at two standard deviations.
_CUT_NORMAL_STD = 0.87962566103423978
_GAINS = {
    "linear": 1.0, "sigmoid": 1.0, "tanh": 5.0 / 3, "relu": math.sqrt(2.0), "selu": 0.75,
    "leaky_relu": math.sqrt(2.0 / (1 + 0.01**2)),
}  # fmt: skip


def _number(option: str, value: Any) -> float:
    # YAML 1.1 reads 1e-2 as text, so text that is a number counts as one.
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if math.isfinite(number):
            return number
    raise UserError(f"Initializer option {option} is {value!r}.", "Give a finite number.")


def _non_negative(option: str, value: Any) -> float:
    number = _number(option, value)
    if number < 0:
        raise UserError(f"Initializer option {option} is {value!r}.", "Give a number that is not negative.")
    return number


def _seed(option: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UserError(f"Initializer option {option} is {value!r}.", "Give a whole number.")
    return value


def _gain(option: str, value: Any) -> float:
    if isinstance(value, str) and value in _GAINS:
        return _GAINS[value]
    return _non_negative(option, value)


def _one_of(*valid: str) -> Callable[[str, Any], str]:
    def check(option: str, value: Any) -> str:
        if value not in valid:
            raise UserError(
                f"Initializer option {option} is {value!r}.", suggest(str(value).strip().lower(), valid)
            )
        return str(value)

    return check


def _constant(shape: Sequence[int], dtype: Any, seed: int | None, val: float) -> Any:
    return tf.fill(shape, tf.cast(val, dtype))


def _eye(shape: Sequence[int], dtype: Any, seed: int | None) -> Any:
    if len(shape) != 2:
        raise UserError(f"Initializer 'eye' got the shape {tuple(shape)}.", "Give it a matrix.")
    return tf.eye(shape[0], shape[1], dtype=dtype)


def _uniform(shape: Sequence[int], dtype: Any, seed: int | None, a: float, b: float) -> Any:
    return tf.cast(tf.random.uniform(shape, a, b, dtype=_drawn_in(dtype), seed=seed), dtype)


def _normal(shape: Sequence[int], dtype: Any, seed: int | None, mean: float, std: float) -> Any:
    return tf.cast(tf.random.normal(shape, mean, std, dtype=_drawn_in(dtype), seed=seed), dtype)


def _truncated(
    shape: Sequence[int], dtype: Any, seed: int | None, mean: float, std: float, a: Any, b: Any
) -> Any:
    if (a is None and b is None) or std == 0:
        drawn = tf.random.truncated_normal(shape, mean, std, dtype=_drawn_in(dtype), seed=seed)
        return tf.cast(drawn, dtype)
    low, high = mean - 2 * std if a is None else a, mean + 2 * std if b is None else b
    # As in torch: uniform numbers between the bounds' probabilities, through the inverse of the distribution function.
    below, above = (math.erf((bound - mean) / (std * math.sqrt(2))) for bound in (low, high))
    even = tf.random.uniform(shape, below, above, dtype=tf.float64, seed=seed)
    drawn = mean + std * math.sqrt(2) * tf.math.erfinv(even)
    return tf.cast(tf.clip_by_value(drawn, low, high), dtype)


def _check_reach(*, mean: float, std: float, a: float | None, b: float | None, **_: Any) -> None:
    # Further out the inverse of the distribution function loses all digits, and every value is one of the bounds.
    low, high = -math.inf if a is None else a, math.inf if b is None else b
    if mean < low - 2 * std or mean > high + 2 * std:
        raise UserError(
            f"Initializer 'truncated_normal' has mean={mean:g}, std={std:g} and the bounds {low:g} and {high:g}.",
            "Give bounds within two standard deviations of the mean.",
        )


def _drawn_in(dtype: Any) -> Any:
    # A half type has too few numbers between 0 and 1 to draw from.
    return tf.float64 if tf.as_dtype(dtype) == tf.float64 else tf.float32


def _fans(shape: Sequence[int], name: str) -> tuple[int, int]:
    """Inputs and outputs of a kernel [*window, in, out]."""
    if len(shape) < 2:
        raise UserError(
            f"Initializer {name!r} got the shape {tuple(shape)}.",
            "Give it a matrix or a kernel; vectors take zeros, ones or normal.",
        )
    window = math.prod(shape[:-2])
    return shape[-2] * window, shape[-1] * window


def _scaled(
    shape: Sequence[int], dtype: Any, seed: int | None, scale: float, mode: str, distribution: str
) -> Any:
    fan_in, fan_out = _fans(shape, "variance_scaling")
    fan = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[mode]
    std = math.sqrt(scale / max(1.0, fan))
    if distribution == "uniform":
        bound = math.sqrt(3.0) * std
        return _uniform(shape, dtype, seed, -bound, bound)
    if distribution == "normal":
        return _normal(shape, dtype, seed, 0.0, std)
    return _truncated(shape, dtype, seed, 0.0, std / _CUT_NORMAL_STD, None, None)


def _xavier(shape: Sequence[int], dtype: Any, seed: int | None, gain: float, *, distribution: str) -> Any:
    return _scaled(shape, dtype, seed, gain * gain, "fan_avg", distribution)


def _kaiming(
    shape: Sequence[int],
    dtype: Any,
    seed: int | None,
    a: float,
    mode: str,
    nonlinearity: str,
    *,
    distribution: str,
) -> Any:
    gain = math.sqrt(2.0 / (1 + a * a)) if nonlinearity == "leaky_relu" else _GAINS[nonlinearity]
    return _scaled(shape, dtype, seed, gain * gain, mode, distribution)


Options = Mapping[str, tuple[Any, Callable[[str, Any], Any]]]  # default and check of each

_GAIN: Options = {"gain": (1.0, _gain)}
_OF_KAIMING: Options = {
    "a": (0.0, _number),
    "mode": ("fan_in", _one_of("fan_in", "fan_out")),
    "nonlinearity": ("leaky_relu", _one_of(*_GAINS)),
}

_KINDS: dict[str, tuple[Callable[..., Any], Options]] = {
    "constant": (_constant, {"val": (0.0, _number)}),
    "ones": (lambda shape, dtype, seed: _constant(shape, dtype, seed, 1.0), {}),
    "zeros": (lambda shape, dtype, seed: _constant(shape, dtype, seed, 0.0), {}),
    "eye": (_eye, {}),
    "uniform": (_uniform, {"a": (-0.05, _number), "b": (0.05, _number)}),
    "normal": (_normal, {"mean": (0.0, _number), "std": (0.05, _non_negative)}),
    "truncated_normal": (
        _truncated,
        {"mean": (0.0, _number), "std": (0.05, _non_negative), "a": (None, _number), "b": (None, _number)},
    ),
    "xavier_normal": (partial(_xavier, distribution="normal"), _GAIN),
    "glorot_normal": (partial(_xavier, distribution="normal"), _GAIN),
    "xavier_uniform": (partial(_xavier, distribution="uniform"), _GAIN),
    "glorot_uniform": (partial(_xavier, distribution="uniform"), _GAIN),
    "kaiming_normal": (partial(_kaiming, distribution="normal"), _OF_KAIMING),
    "kaiming_uniform": (partial(_kaiming, distribution="uniform"), _OF_KAIMING),
    "he_normal": (partial(_kaiming, distribution="normal"), _OF_KAIMING),
    "he_uniform": (partial(_kaiming, distribution="uniform"), _OF_KAIMING),
    "lecun_normal": (partial(_scaled, scale=1.0, mode="fan_in", distribution="truncated_normal"), {}),
    "lecun_uniform": (partial(_scaled, scale=1.0, mode="fan_in", distribution="uniform"), {}),
    "variance_scaling": (
        _scaled,
        {
            "scale": (1.0, _non_negative),
            "mode": ("fan_in", _one_of("fan_in", "fan_out", "fan_avg")),
            "distribution": ("truncated_normal", _one_of("truncated_normal", "normal", "uniform")),
        },
    ),
}
_SPELLINGS = {"stddev": "std", "minval": "a", "maxval": "b", "value": "val"}  # TensorFlow's names of options


def get_initializer(spec: InitializerSpec) -> Initializer:
    """Makes an initializer with the signature of Keras's: `initializer(shape, dtype=...)`.

    The spec is a name, a mapping with the name under `name` and its options beside it (an option that is None takes
    its default; every kind takes a `seed`), or a callable, which is returned as it is.
    """
    if isinstance(spec, str):
        spec = {"name": spec}
    if not isinstance(spec, Mapping):
        if callable(spec) and not isinstance(spec, type):
            return spec
        raise UserError(
            f"The initializer is {spec!r}, of type {type(spec).__name__}.",
            f"Give a name, a mapping with a name, or a function of a shape. {suggest('', _KINDS)}",
        )
    name = spec.get("name")
    if not isinstance(name, str):
        raise UserError(f"The initializer {dict(spec)!r} has no name.", f"Add `name`. {suggest('', _KINDS)}")
    key = name.strip().lower()
    if key not in _KINDS:
        raise UserError(f"Unknown initializer {name!r}.", suggest(key, _KINDS))
    fill, known = _KINDS[key]
    given = {_SPELLINGS.get(str(option), option): value for option, value in spec.items() if option != "name"}
    known = {**known, "seed": (None, _seed)}
    for option in given:
        if option not in known:
            raise UserError(f"Initializer {key!r} has no option {option!r}.", suggest(str(option), known))
    options = {
        option: default if given.get(option) is None else check(option, given[option])
        for option, (default, check) in known.items()
    }
    if options.get("a") is not None and options.get("b") is not None and options["a"] > options["b"]:
        raise UserError(
            f"Initializer {key!r} has the bounds a={options['a']:g} and b={options['b']:g}.",
            "Give an a that is below b.",
        )
    if key == "truncated_normal":
        _check_reach(**options)

    def initialize(shape: Any, dtype: Any = None, **_: Any) -> Any:
        sizes = tf.TensorShape(shape).as_list()
        return fill(sizes, dtype or tf.keras.backend.floatx(), **options)

    return initialize


def in_parts(initializer: Initializer, num_parts: int) -> Initializer:
    """Draws a kernel as several kernels side by side: value and gate are one product, but are initialised as two."""
    if num_parts == 1:
        return initializer

    def initialize(shape: Any, dtype: Any = None, **kwargs: Any) -> Any:
        *before, width = tf.TensorShape(shape).as_list()
        parts = [initializer([*before, width // num_parts], dtype=dtype, **kwargs) for _ in range(num_parts)]
        return tf.concat(parts, axis=-1)

    return initialize
