"""The options of a generation, with transformers' names and meanings, checked before anything is computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from portwright.errors import UserError


@dataclass(frozen=True)
class GenerationOptions:
    """How to choose tokens and when to stop.

    Greedy unless `do_sample` or `num_beams` says otherwise. `top_k`, `top_p` and `min_p` filter what is sampled from,
    in this order and after `temperature`. The penalties count the prompt's tokens too (of an encoder-decoder only the
    decoded ones). A sample depends only on `seed` and its row; without a seed one is drawn and told. `early_stopping`
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
        for name, (is_good, cure) in _RULES.items():
            if not is_good(getattr(self, name)):
                raise UserError(f"{name}={getattr(self, name)!r} is not a choice of generation.", cure)
        if len(set(self.eos_ids)) < len(self.eos_ids):
            raise UserError(
                f"eos_token_id={self.eos_token_id!r} names a token twice.", "Name each end token once."
            )
        self._check_together()

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens that end a sequence."""
        return tuple(_listed(self.eos_token_id))

    @property
    def pad_id(self) -> int | None:
        """The token that fills sequences which ended before others."""
        return next(iter(self.eos_ids), None) if self.pad_token_id is None else self.pad_token_id

    @property
    def stops(self) -> tuple[str, ...]:
        """The strings that end a sequence."""
        return tuple(_listed(self.stop_strings))

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


_SAMPLING_OFF: dict[str, Any] = {"temperature": 1.0, "top_k": None, "top_p": 1.0, "min_p": None}

_Rule = tuple[Callable[[Any], bool], str]


def _whole(least: int, *, below: float = math.inf, may_be_none: bool = False) -> _Rule:
    ending = f"{f' and below {below}' if below < math.inf else ''}{' or None' if may_be_none else ''}"
    return (
        lambda v: (v is None and may_be_none) or (type(v) is int and least <= v < below),
        f"Give a whole number of at least {least}{ending}.",
    )


def _number(is_good: Callable[[float], bool], cure: str) -> _Rule:
    return lambda v: type(v) in (int, float) and math.isfinite(v) and is_good(v), cure


def _listed(value: Any) -> list[Any]:
    """None, one value or several, as a list; anything else is kept, for a rule to refuse."""
    if value is None:
        return []
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]


_RULES: dict[str, _Rule] = {
    "max_new_tokens": _whole(1),
    "min_new_tokens": _whole(0),
    "top_k": _whole(0, may_be_none=True),
    "no_repeat_ngram_size": _whole(0),
    "seed": _whole(0, below=2**64, may_be_none=True),
    "num_beams": _whole(1),
    "num_return_sequences": _whole(1),
    "pad_token_id": _whole(0, may_be_none=True),
    "do_sample": (lambda v: isinstance(v, bool), "Give True or False."),
    "temperature": _number(
        lambda v: v > 0, "Give a number above 0; for the likeliest token leave do_sample off."
    ),
    "top_p": _number(lambda v: 0 < v <= 1, "Give a share above 0 and up to 1; 1 filters nothing."),
    "min_p": (
        lambda v: v is None or (type(v) in (int, float) and 0 <= v <= 1),
        "Give a share from 0 to 1.",
    ),
    "repetition_penalty": _number(lambda v: v > 0, "Give a number above 0; 1 changes nothing."),
    "length_penalty": _number(lambda v: True, "Give a finite number; above 0 favours long sequences."),
    "early_stopping": (lambda v: isinstance(v, bool) or v == "never", 'Give True, False or "never".'),
    "eos_token_id": (
        lambda v: all(type(each) is int and each >= 0 for each in _listed(v)),
        "Give a token's id of 0 or more, several of them, or None to end at max_new_tokens alone.",
    ),
    "stop_strings": (
        lambda v: all(isinstance(each, str) and each for each in _listed(v)),
        "Give a string or several, none of them empty.",
    ),
}
