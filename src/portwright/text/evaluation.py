"""Evaluation reads the tokens that training learned: where eval_input names no tokenizer, it has that of train_input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portwright.errors import UserError

TRAINING = "training"  # the key under which a section holds train_input, whose tokenizer it takes


def section_options(params: Mapping[str, Any], section: str) -> dict[str, Any]:
    """The options of a section of params; those of evaluation with training's tokenizer unless they name one.

    Training on text of its own and evaluating on the package's is refused: the two would be of other texts.
    """
    options = dict(params[section])
    training = params.get("train_input") or {}
    if section != "eval_input" or options.get("tokenizer") is not None:
        return options
    if _has_text(training) and not _has_text(options):
        raise UserError(
            "eval_input names no data and no tokenizer, and train_input names data of its own.",
            "Set eval_input.data_dir, or eval_input.tokenizer to the one of training.",
        )
    if training.get("tokenizer") is not None:
        return {**options, "tokenizer": training["tokenizer"]}
    return {**options, TRAINING: training} if _has_text(training) else options


def _has_text(options: Mapping[str, Any]) -> bool:
    return any(options.get(name) for name in ("data_dir", "src_data_dir"))
