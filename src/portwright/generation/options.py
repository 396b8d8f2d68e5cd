"""What a generation is asked for; names and meanings are transformers', checked before anything is computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from portwright.errors import UserError


@dataclass(frozen=True)
class GenerationOptions:
    """How to choose tokens and when to stop.

    Greedy unless `do_sample` or `num_beams` says otherwise. `top_k`, `top_p` and `min_p` filter what is sampled from,
    in this order and after `temperature`. The penalties look at the prompt too (of an encoder-decoder: at what was
    decoded). A sample depends on `seed` and its own row alone; without a seed one is drawn and told. `early_stopping`
    ends a beam search when `num_beams` sequences have ended (True), when a better one is unlikely (False) or
    impossible ("never"). Without `pad_token_id` the first end token pads.
    """

    max_new_tokens: int = 64
    min_new_tokens: int = 0
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float | None = None
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    seed: int | None = None
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    num_return_sequences: int = 1
    eos_token_id: int | Sequence[int] | None = None
    pad_token_id: int | None = None
    stop_strings: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            self._check_whole(name, least)
        for name in ("do_sample",):
            if not isinstance(getattr(self, name), bool):
                self._refuse(name, "Give True or False.")
        self._check_number(
            "temperature",
            lambda v: v > 0,
            "Give a number above 0; for the likeliest token leave do_sample off.",
        )
        self._check_number(
            "top_p", lambda v: 0 < v <= 1, "Give a share above 0 and up to 1; 1 filters nothing."
        )
        self._check_number("repetition_penalty", lambda v: v > 0, "Give a number above 0; 1 changes nothing.")
        self._check_number(
            "length_penalty", lambda v: True, "Give a finite number; above 0 favours long sequences."
        )
        if self.min_p is not None:
            self._check_number("min_p", lambda v: 0 <= v <= 1, "Give a share from 0 to 1.")
        if not (isinstance(self.early_stopping, bool) or self.early_stopping == "never"):
            self._refuse("early_stopping", 'Give True, False or "never".')
        if self.seed is not None and self.seed >= 2**64:
            self._refuse("seed", "Give a whole number below 2**64.")
        self._check_eos()
        self._check_stop_strings()
        self._check_together()

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens that end a sequence."""
        if self.eos_token_id is None:
            return ()
        return (self.eos_token_id,) if isinstance(self.eos_token_id, int) else tuple(self.eos_token_id)

    @property
    def pad_id(self) -> int | None:
        """What fills sequences that ended before others."""
        if self.pad_token_id is not None:
            return self.pad_token_id
        return self.eos_ids[0] if self.eos_ids else None

    @property
    def stops(self) -> tuple[str, ...]:
        """The strings that end a sequence."""
        if self.stop_strings is None:
            return ()
        return (self.stop_strings,) if isinstance(self.stop_strings, str) else tuple(self.stop_strings)

    def _refuse(self, name: str, cure: str) -> None:
        raise UserError(f"{name}={getattr(self, name)!r} is not a choice of generation.", cure)

    def _check_whole(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if value is None and name in _OPTIONAL:
            return
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self._refuse(
                name, f"Give a whole number of at least {least}{' or None' if name in _OPTIONAL else ''}."
            )

    def _check_number(self, name: str, is_good: Any, cure: str) -> None:
        value = getattr(self, name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number or not is_good(value):
            self._refuse(name, cure)

    def _check_eos(self) -> None:
        cure = "Give a token's id of 0 or more, several of them, or None to end at max_new_tokens alone."
        if isinstance(self.eos_token_id, str | float | bool):
            self._refuse("eos_token_id", cure)
        try:
            ids = self.eos_ids
        except TypeError:
            self._refuse("eos_token_id", cure)
        if any(isinstance(i, bool) or not isinstance(i, int) or i < 0 for i in ids):
            self._refuse("eos_token_id", cure)
        if len(set(ids)) < len(ids):
            self._refuse("eos_token_id", "Name each end token once.")

    def _check_stop_strings(self) -> None:
        cure = "Give a string or several, none of them empty."
        try:
            stops = self.stops
        except TypeError:
            self._refuse("stop_strings", cure)
        if any(not isinstance(stop, str) or not stop for stop in stops):
            self._refuse("stop_strings", cure)

    def _check_together(self) -> None:
        if self.min_new_tokens > self.max_new_tokens:
            raise UserError(
                f"min_new_tokens={self.min_new_tokens} is more than max_new_tokens={self.max_new_tokens}.",
                "Lower the one or raise the other.",
            )
        if self.do_sample and self.num_beams > 1:
            raise UserError(
                f"do_sample=True and num_beams={self.num_beams} were both given.",
                "Beam search here is a search, not a draw: leave one of them off.",
            )
        if not self.do_sample:
            unused = [name for name, off in _SAMPLING_OFF.items() if getattr(self, name) != off]
            if unused:
                raise UserError(
                    f"{', '.join(f'{n}={getattr(self, n)!r}' for n in unused)} was given without do_sample.",
                    "Set do_sample=True, or leave it out: it would have no effect.",
                )
        if (
            self.num_return_sequences > 1
            and not self.do_sample
            and self.num_return_sequences > self.num_beams
        ):
            raise UserError(
                f"num_return_sequences={self.num_return_sequences} with num_beams={self.num_beams}.",
                "A search gives as many sequences as it has beams: raise num_beams, or set do_sample=True.",
            )


_LEAST = {
    "max_new_tokens": 1,
    "min_new_tokens": 0,
    "top_k": 0,
    "no_repeat_ngram_size": 0,
    "seed": 0,
    "num_beams": 1,
    "num_return_sequences": 1,
    "pad_token_id": 0,
}
_OPTIONAL = ("top_k", "seed", "pad_token_id")
_SAMPLING_OFF: dict[str, Any] = {"temperature": 1.0, "top_k": None, "top_p": 1.0, "min_p": None}
