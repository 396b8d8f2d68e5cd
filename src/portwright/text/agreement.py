"""Whether tokenizer, text and model belong together; where not, what to set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portwright.errors import UserError
from portwright.text.tokenizer import Tokenizer

_IDS = {"pad_token_id": "pad", "eos_token_id": "eos"}


def check_positions(section: str, key: str, length: int, model: Mapping[str, Any], used_up: int = 0) -> None:
    """A sample must not be longer than the model has positions."""
    room = model.get("max_position_embeddings")
    if room is not None and length + used_up > room:
        raise UserError(
            f"{section}.{key} is {length} and model.max_position_embeddings {room}"
            + (f", of which {used_up} are for padding." if used_up else "."),
            f"Set model.max_position_embeddings to at least {length + used_up}, or take shorter samples.",
        )


def check_tokenizer(tokenizer: Tokenizer, section: str, model: Mapping[str, Any]) -> None:
    """Its tokens have to be tokens of the model, and its special tokens those that the model names."""
    if tokenizer.size > model["vocab_size"]:
        raise UserError(
            f"{section}: {tokenizer.source} has {tokenizer.size} tokens and model.vocab_size is {model['vocab_size']}.",
            f"Set model.vocab_size to at least {tokenizer.size}, or take the tokenizer that belongs to the model.",
        )
    for key, role in _IDS.items():
        said = model.get(key)
        if said is None or role not in tokenizer.roles:
            continue
        if tokenizer.roles[role] not in (said if isinstance(said, list) else [said]):
            raise UserError(
                f"{section}: model.{key} is {said} and that of {tokenizer.source} is {tokenizer.roles[role]}.",
                f"Set model.{key} to {tokenizer.roles[role]}, or take the tokenizer that belongs to the model.",
            )
