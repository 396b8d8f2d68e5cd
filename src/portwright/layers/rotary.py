"""Rotary position embedding: the frequencies, their scaling to longer contexts, and the rotation itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from portwright.errors import UserError, suggest

if TYPE_CHECKING:
    from typing_extensions import Self

RotaryLayout = Literal["interleaved", "half"]
_LAYOUTS = ("interleaved", "half")

_REQUIRED = object()

# The options of each scaling beside its factor, with the defaults of the papers and of the model zoo.
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


class DerivedTables(nn.Module):
    """Holds tables that are computed, not learned: they follow the device, stay float32 and are not saved.

    The tables are computed again whenever the module is moved or cast: in half precision, angles beyond the first few
    hundred positions would be wrong, and a table from the meta device would be empty.
    """

    def _make_tables(self, device: torch.device) -> Mapping[str, Tensor]:
        raise NotImplementedError

    def _register_tables(self, device: torch.device | str | None) -> None:
        # A tensor shows the default device: torch 2.4's get_default_device ignores `with torch.device(...)`.
        chosen = torch.empty(0).device if device is None else torch.device(device)
        for name, table in self._make_tables(chosen).items():
            self.register_buffer(name, table, persistent=False)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        device = next(self.buffers()).device
        for name, table in self._make_tables(device).items():
            setattr(self, name, table)
        return self


def _scaling_options(scaling_type: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
    valid = _SCALING_OPTIONS[scaling_type]
    options = {**valid, **{name: value for name, value in (given or {}).items() if value is not None}}
    for name, value in options.items():
        if name not in valid:
            cure = suggest(str(name), valid) if valid else "It takes none beside its factor."
            raise UserError(f"Rotary scaling {scaling_type!r} has no option {name!r}.", cure)
        if value is _REQUIRED:
            raise UserError(
                f"Rotary scaling {scaling_type!r} needs {name}.",
                "Give the length the model was trained with.",
            )
        if name == "truncate":
            if not isinstance(value, bool):
                raise UserError(f"Rotary scaling option {name} is {value!r}.", "Give true or false.")
        elif not _is_number(value) or (value <= 0 and name not in ("mscale_a", "extrapolation_factor")):
            raise UserError(f"Rotary scaling option {name} is {value!r}.", "Give a positive number.")
    return options


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _yarn(inverse: Tensor, rotary_dim: int, base: float, factor: float, options: Mapping[str, Any]) -> Tensor:
    """Keeps frequencies that turn often within the trained length, and interpolates those that hardly turn."""

    def pair_of(
        num_turns: float,
    ) -> float:  # the index of the pair of dimensions that turns so often in the trained length
        length = options["original_max_position_embeddings"]
        return rotary_dim * math.log(length / (num_turns * 2 * math.pi)) / (2 * math.log(base))

    first, last = pair_of(options["beta_fast"]), pair_of(options["beta_slow"])
    if options["truncate"]:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rotary_dim - 1)
    if first == last:
        last += 0.001
    pairs = torch.arange(rotary_dim // 2, dtype=torch.float32, device=inverse.device)
    kept: Tensor = (1 - ((pairs - first) / (last - first)).clamp(0, 1)) * options["extrapolation_factor"]
    return inverse / factor * (1 - kept) + inverse * kept


def _llama3(inverse: Tensor, factor: float, options: Mapping[str, Any]) -> Tensor:
    """Long waves are stretched by the factor, short ones stay, and those between are blended."""
    low, high = options["low_freq_factor"], options["high_freq_factor"]
    num_turns = options["original_max_position_embeddings"] * inverse / (2 * math.pi)
    kept: Tensor = ((num_turns - low) / (high - low)).clamp(0, 1)
    return inverse / factor * (1 - kept) + inverse * kept


class RotaryPositionEmbeddingHelper(DerivedTables):
    """Rotates queries and keys by their positions, computing in float32.

    `rotary_dim` is how many of a head's leading dimensions turn; the rest pass through. The layout says which
    dimensions turn together: `interleaved` pairs neighbours (GPT-J, the model zoo), `half` pairs the first half
    with the second (GPT-NeoX, Llama). `scaling_type` is linear, yarn or llama3; `scaling_extra_args` its options.
    """

    cos: Tensor
    sin: Tensor

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
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if max_position_embeddings < 1:
            raise UserError(f"max_position_embeddings is {max_position_embeddings}.", "Give at least 1.")
        if rotary_dim < 2 or rotary_dim % 2:
            raise UserError(
                f"rotary_dim is {rotary_dim}.",
                "Give an even number: dimensions turn in pairs, up to a head's width.",
            )
        if not _is_number(base) or base <= 1:
            raise UserError(f"The rotary base is {base!r}.", "Give a number above 1, such as 10000.")
        if not _is_number(scaling_factor) or scaling_factor <= 0:
            raise UserError(f"The rotary scaling factor is {scaling_factor!r}.", "Give a positive number.")
        if str(scaling_type).lower() not in _SCALING_OPTIONS:
            raise UserError(
                f"Unknown rotary scaling {scaling_type!r}.",
                suggest(str(scaling_type).lower(), _SCALING_OPTIONS),
            )
        if layout not in _LAYOUTS:
            raise UserError(f"Unknown rotary layout {layout!r}.", suggest(str(layout), _LAYOUTS))
        self.max_position_embeddings = max_position_embeddings
        self.rotary_dim = rotary_dim
        self.base = base
        self.scaling_factor = scaling_factor
        self.scaling_type = scaling_type.lower()
        self.scaling_options = _scaling_options(self.scaling_type, scaling_extra_args)
        if self.scaling_type == "llama3":
            low, high = self.scaling_options["low_freq_factor"], self.scaling_options["high_freq_factor"]
            if low >= high:
                raise UserError(
                    f"Rotary scaling 'llama3' has low_freq_factor={low:g} and high_freq_factor={high:g}.",
                    "Give a low factor below the high one.",
                )
        self.layout = layout
        self._register_tables(device)

    def _frequencies(self, device: torch.device) -> Tensor:
        exponents = torch.arange(0, self.rotary_dim, 2, dtype=torch.float32, device=device) / self.rotary_dim
        inverse = 1.0 / self.base**exponents
        if self.scaling_type == "yarn":
            return _yarn(inverse, self.rotary_dim, self.base, self.scaling_factor, self.scaling_options)
        if self.scaling_type == "llama3":
            return _llama3(inverse, self.scaling_factor, self.scaling_options)
        return inverse / self.scaling_factor

    def _magnitude(self) -> float:
        if self.scaling_type != "yarn" or self.scaling_factor <= 1:
            return 1.0
        options = self.scaling_options
        return float(options["mscale_a"] * math.log(self.scaling_factor) + options["mscale_b"])

    def _make_tables(self, device: torch.device) -> Mapping[str, Tensor]:
        positions = torch.arange(self.max_position_embeddings, dtype=torch.float32, device=device)
        angles = torch.outer(positions, self._frequencies(device))
        return {"cos": angles.cos() * self._magnitude(), "sin": angles.sin() * self._magnitude()}

    def rotate_tensor(
        self, x: Tensor, offset: int = 0, position_ids: Tensor | None = None, *, seq_dim: Literal[1, 2] = 2
    ) -> Tensor:
        """Rotates [batch, heads, sequence, head width], or with `seq_dim=1` [batch, sequence, heads, head width].

        The first token stands at `offset`, as it does after a cache of that length; or `position_ids`, of shape
        [sequence] or [batch, sequence], says where each stands.
        """
        if x.dim() != 4 or seq_dim not in (1, 2):
            raise UserError(
                f"Rotary embedding got a tensor of shape {tuple(x.shape)} with seq_dim={seq_dim}.",
                "Give 4 dimensions, with the sequence at 1 or 2.",
            )
        if x.shape[-1] < self.rotary_dim:
            raise UserError(
                f"Rotary embedding turns {self.rotary_dim} dimensions, and the heads have {x.shape[-1]}.",
                "Give a rotary_dim that is at most the width of a head.",
            )
        cos, sin = self._at(x.shape[seq_dim], offset, position_ids)
        heads_dim = -2 if seq_dim == 1 else -3
        cos, sin = cos.unsqueeze(heads_dim), sin.unsqueeze(heads_dim)
        turned, passed = x[..., : self.rotary_dim], x[..., self.rotary_dim :]
        if self.layout == "half":
            first, second = turned.chunk(2, dim=-1)
            turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        else:
            first, second = turned.reshape(*turned.shape[:-1], self.rotary_dim // 2, 2).unbind(-1)
            turned = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)
        turned = turned.to(x.dtype)
        return turned if self.rotary_dim == x.shape[-1] else torch.cat((turned, passed), dim=-1)

    forward = rotate_tensor

    def _at(self, length: int, offset: int, position_ids: Tensor | None) -> tuple[Tensor, Tensor]:
        if position_ids is not None:
            if position_ids.dim() not in (1, 2) or position_ids.shape[-1] != length:
                raise UserError(
                    f"position_ids has shape {tuple(position_ids.shape)} for a sequence of {length}.",
                    "Give [sequence] or [batch, sequence].",
                )
            return self.cos[position_ids], self.sin[position_ids]
        if offset < 0 or offset + length > self.max_position_embeddings:
            raise UserError(
                f"Positions {offset} to {offset + length - 1} were asked of {self.max_position_embeddings}.",
                "Raise max_position_embeddings, or shorten the sequence.",
            )
        return self.cos[offset : offset + length], self.sin[offset : offset + length]

    def extra_repr(self) -> str:
        scaling = "" if self.scaling_factor == 1 else f", {self.scaling_type} x{self.scaling_factor:g}"
        return (
            f"{self.max_position_embeddings}, {self.rotary_dim}, base={self.base:g}, {self.layout}{scaling}"
        )
