"""Settings of params.yaml that have another meaning, or none, with TensorFlow."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from portwright.errors import UserError
from portwright.job.params import Params
from portwright.tensorflow.optimizers import with_known_names

_OF_TORCH = {  # key: what to do instead
    "precision": "Set model.mixed_precision, or whatever model.py reads.",
    "compile": "Leave it out: it stands for torch.compile.",
    "distributed": "Leave it out: TF_CONFIG says which processes there are.",
    "enable_distributed": "Leave it out: TF_CONFIG says which processes there are.",
    "sync_batchnorm": "Leave it out.",
}


def with_tensorflow_names(
    default_params_fn: Callable[[dict[str, Any]], Any] | None,
) -> Callable[[dict[str, Any]], Any]:
    """Completes params with the user's function, then translates TensorFlow's names in `optimizer`."""

    @functools.wraps(default_params_fn or with_tensorflow_names)
    def complete(params: dict[str, Any]) -> Any:
        returned = None if default_params_fn is None else default_params_fn(params)
        completed = params if returned is None else returned
        if isinstance(completed, Mapping) and isinstance(completed.get("optimizer"), Mapping):
            completed = {**completed, "optimizer": with_known_names(completed["optimizer"])}
        return completed

    return complete


def check_settings(params: Params) -> None:
    """Refuses keys of runconfig that only work with PyTorch, unless they have their default."""
    config = params.runconfig
    for key, cure in _OF_TORCH.items():
        field = type(config).model_fields[key]
        if getattr(config, key) not in (field.default, None, False, "none"):
            raise UserError(
                f"{params.locate(f'runconfig.{key}')}: runconfig.{key} is {getattr(config, key)!r}, which only a run with "
                "PyTorch obeys.",
                cure,
            )
