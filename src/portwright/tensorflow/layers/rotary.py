"""Rotary position embedding: its tables, and the rotation itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from portwright.errors import UserError, suggest
from portwright.tensorflow.layers.base import check_sizes, shape_of, wide_type

RotaryLayout = Literal["interleaved", "half"]
_LAYOUTS = ("interleaved", "half")


_REQUIRED = object()

# What each scaling takes beside its factor, with the defaults of the papers and of the model zoo.
_SCALING_OPTIONS: dict[str, dict[str, Any]] = {
    "linear": {},
    "yarn": {
        "original_max_position_embeddings": _REQUIRED,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "extrapolation_factor": 1.0,
        "mscale_a": 0.1,
        "mscale_b": 1.0,
        "truncate": True,
    },
    "llama3": {
        "original_max_position_embeddings": 8192,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
}


def _read_options(scaling_type: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
    if str(scaling_type).lower() not in _SCALING_OPTIONS:
        raise UserError(
            f"Unknown rotary scaling {scaling_type!r}.", suggest(str(scaling_type).lower(), _SCALING_OPTIONS)
        )
    valid = _SCALING_OPTIONS[scaling_type.lower()]
    options = {**valid, **{name: value for name, value in (given or {}).items() if value is not None}}
    for name, value in options.items():
        if name not in valid:
            raise UserError(
                f"Rotary scaling {scaling_type!r} has no option {name!r}.", suggest(str(name), valid)
            )
        if value is _REQUIRED:
            raise UserError(
                f"Rotary scaling {scaling_type!r} needs {name}.",
                "Give the length the model was trained with.",
            )
    return options


def _scaled(inverse: Any, rotary_dim: int, base: float, factor: float, kind: str, options: Any) -> Any:
    """Frequencies scaled for a longer context: all of them (linear), or mostly the low ones (yarn, llama3)."""
    if kind == "linear":
        return inverse / np.float32(factor)
    length = options["original_max_position_embeddings"]
    if kind == "llama3":
        low, high = options["low_freq_factor"], options["high_freq_factor"]
        kept = np.clip((length * inverse / (2 * math.pi) - low) / (high - low), 0, 1)
    else:

        def pair_of(
            num_turns: float,
        ) -> float:  # the pair of dimensions with this number of turns in the trained length
            return rotary_dim * math.log(length / (num_turns * 2 * math.pi)) / (2 * math.log(base))

        first, last = pair_of(options["beta_fast"]), pair_of(options["beta_slow"])
        if options["truncate"]:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, rotary_dim - 1)
        last += 0.001 if first == last else 0
        pairs = np.arange(rotary_dim // 2, dtype=np.float32)
        kept = (1 - np.clip((pairs - first) / (last - first), 0, 1)) * options["extrapolation_factor"]
    return (inverse / factor * (1 - kept) + inverse * kept).astype(np.float32)


class RotaryPositionEmbeddingHelper:
    """Rotates queries and keys by their positions, computing in float32; there is nothing to train.

    `rotary_dim` is the number of a head's leading dimensions that are rotated; the rest are unchanged. The layout says
    which dimensions form a pair: `interleaved` pairs neighbours (GPT-J, the model zoo), `half` pairs the first half
    with the second (GPT-NeoX, Llama). `scaling_type` is linear, yarn or llama3; `scaling_extra_args` its options.
    """

    def __init__(
        self,
        max_position_embeddings: int,
        rotary_dim: int,
        base: float = 10000.0,
        scaling_factor: float = 1.0,
        scaling_type: str = "linear",
        scaling_extra_args: Mapping[str, Any] | None = None,
        *,
        layout: RotaryLayout = "interleaved",
    ) -> None:
        check_sizes(max_position_embeddings=max_position_embeddings, rotary_dim=rotary_dim)
        if rotary_dim % 2:
            raise UserError(
                f"rotary_dim is {rotary_dim}.",
                "Give an even number: dimensions turn in pairs, up to a head's width.",
            )
        for name, number, lowest in (("base", base, 1.0), ("scaling_factor", scaling_factor, 0.0)):
            if (
                isinstance(number, bool)
                or not isinstance(number, (int, float))
                or not lowest < number < np.inf
            ):
                raise UserError(f"The rotary {name} is {number!r}.", f"Give a number above {lowest:g}.")
        if layout not in _LAYOUTS:
            raise UserError(f"Unknown rotary layout {layout!r}.", suggest(str(layout), _LAYOUTS))
        self.max_position_embeddings, self.rotary_dim, self.layout = (
            max_position_embeddings,
            rotary_dim,
            layout,
        )
        exponents = np.arange(0, rotary_dim, 2, dtype=np.float32) / np.float32(rotary_dim)
        inverse = np.float32(1.0) / np.float32(base) ** exponents
        options = _read_options(scaling_type, scaling_extra_args)
        kind = scaling_type.lower()
        inverse = _scaled(inverse, rotary_dim, base, scaling_factor, kind, options)
        angles = np.outer(np.arange(max_position_embeddings, dtype=np.float32), inverse)
        size = 1.0
        if kind == "yarn" and scaling_factor > 1:
            size = options["mscale_a"] * math.log(scaling_factor) + options["mscale_b"]
        self._cos, self._sin = np.cos(angles) * np.float32(size), np.sin(angles) * np.float32(size)

    def rotate_tensor(
        self, x: Any, offset: int = 0, position_ids: Any = None, *, seq_dim: Literal[1, 2] = 2
    ) -> Any:
        """Rotates [batch, heads, sequence, head width], or with `seq_dim=1` [batch, sequence, heads, head width].

        The first token stands at `offset`; or `position_ids`, of shape [sequence] or [batch, sequence], says where
        each stands.
        """
        if x.shape.rank != 4 or seq_dim not in (1, 2):
            raise UserError(
                f"Rotary embedding got a tensor of shape {x.shape} with seq_dim={seq_dim}.",
                "Give 4 dimensions, with the sequence at 1 or 2.",
            )
        if x.shape[-1] < self.rotary_dim:
            raise UserError(
                f"Rotary embedding turns {self.rotary_dim} dimensions, and the heads have {x.shape[-1]}.",
                "Give a rotary_dim that is at most the width of a head.",
            )
        wide = wide_type(x.dtype)
        cos, sin = self._at(x.shape[seq_dim], offset, position_ids, wide)
        heads_axis = -2 if seq_dim == 1 else -3
        cos, sin = tf.expand_dims(cos, heads_axis), tf.expand_dims(sin, heads_axis)
        turned, passed = x[..., : self.rotary_dim], x[..., self.rotary_dim :]
        turned = tf.cast(turned, wide)
        if self.layout == "half":
            first, second = tf.split(turned, 2, axis=-1)
            turned = tf.concat([first * cos - second * sin, second * cos + first * sin], axis=-1)
        else:
            *before, _ = shape_of(turned)
            first, second = tf.unstack(tf.reshape(turned, [*before, self.rotary_dim // 2, 2]), axis=-1)
            turned = tf.stack([first * cos - second * sin, second * cos + first * sin], axis=-1)
            turned = tf.reshape(turned, [*before, self.rotary_dim])
        turned = tf.cast(turned, x.dtype)
        return turned if self.rotary_dim == x.shape[-1] else tf.concat([turned, passed], axis=-1)

    __call__ = rotate_tensor

    def _at(self, length: int | None, offset: int, position_ids: Any, dtype: Any) -> tuple[Any, Any]:
        if position_ids is not None:
            if position_ids.shape.rank not in (1, 2) or (
                length and position_ids.shape[-1] not in (None, length)
            ):
                raise UserError(
                    f"position_ids has shape {position_ids.shape} for a sequence of {length}.",
                    "Give [sequence] or [batch, sequence].",
                )
            return tuple(
                tf.gather(tf.constant(table, dtype), position_ids) for table in (self._cos, self._sin)
            )
        if length is None or offset < 0 or offset + length > self.max_position_embeddings:
            raise UserError(
                f"Rotary positions were asked for {length or 'unknown'} tokens from {offset} on, and there are "
                f"{self.max_position_embeddings}.",
                "Give a static length, raise max_position_embeddings, or shorten the sequence.",
            )
        part = slice(offset, offset + length)
        return tf.constant(self._cos[part], dtype), tf.constant(self._sin[part], dtype)
