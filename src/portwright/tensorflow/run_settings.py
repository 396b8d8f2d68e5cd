"""What of params.yaml means something else, or nothing, with TensorFlow."""

from __future__ import annotations

from portwright.errors import UserError
from portwright.job.params import Params

_OF_TORCH = {  # key: what to do instead
    "precision": "Set model.mixed_precision, or whatever model.py reads.",
    "compile": "Leave it out: it stands for torch.compile.",
    "distributed": "Leave it out: TF_CONFIG says which processes there are.",
    "enable_distributed": "Leave it out: TF_CONFIG says which processes there are.",
    "sync_batchnorm": "Leave it out.",
}


def check_settings(params: Params) -> None:
    """Refuses keys of runconfig that only a run with PyTorch would obey, where they ask for something."""
    config = params.runconfig
    for key, cure in _OF_TORCH.items():
        field = type(config).model_fields[key]
        if getattr(config, key) not in (field.default, None, False, "none"):
            raise UserError(
                f"{params.locate(f'runconfig.{key}')}: runconfig.{key} is {getattr(config, key)!r}, which only a run with "
                "PyTorch obeys.",
                cure,
            )
