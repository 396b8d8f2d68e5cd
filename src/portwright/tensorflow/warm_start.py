"""Which variables of a fresh model take their first values from a checkpoint."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import tensorflow as tf

from portwright.tensorflow.bad_input import BadType, BadValue

v1 = tf.compat.v1

VocabInfo = v1.train.VocabInfo


class _Settings(NamedTuple):
    ckpt_to_initialize_from: str
    vars_to_warm_start: Any
    var_name_to_vocab_info: dict[str, Any]
    var_name_to_prev_var_name: dict[str, str]


class WarmStartSettings(_Settings):
    """A checkpoint, or the folder of one, and which variables to take from it.

    `vars_to_warm_start` is a regular expression over trainable variables, a list of them or of names over all
    variables, or None for those of `var_name_to_vocab_info` alone.
    """

    __slots__ = ()

    def __new__(
        cls,
        ckpt_to_initialize_from: Any,
        vars_to_warm_start: Any = ".*",
        var_name_to_vocab_info: dict[str, Any] | None = None,
        var_name_to_prev_var_name: dict[str, str] | None = None,
    ) -> WarmStartSettings:
        if not ckpt_to_initialize_from:
            raise BadValue(
                f"ckpt_to_initialize_from is {ckpt_to_initialize_from!r}.", "Give a checkpoint or its folder."
            )
        return super().__new__(
            cls,
            os.fspath(ckpt_to_initialize_from),
            vars_to_warm_start,
            var_name_to_vocab_info or {},
            var_name_to_prev_var_name or {},
        )


def settings_from(warm_start_from: Any) -> WarmStartSettings | None:
    """What an Estimator's `warm_start_from` says: settings, a checkpoint, its folder, or a SavedModel."""
    if warm_start_from is None or isinstance(warm_start_from, WarmStartSettings):
        return warm_start_from
    if not isinstance(warm_start_from, (str, bytes, os.PathLike)):
        raise BadType(
            f"warm_start_from is a {type(warm_start_from).__name__}.", "Give a path or a WarmStartSettings."
        )
    path = tf.compat.as_str_any(os.fspath(warm_start_from))
    if v1.saved_model.contains_saved_model(path):
        path = tf.io.gfile.join(path, v1.saved_model.VARIABLES_DIRECTORY, v1.saved_model.VARIABLES_FILENAME)
    return WarmStartSettings(path)
