"""sambaflow.samba.utils.pef_utils: what a script puts into a PEF beside the program, and reads from it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from portwright.emulate.sambaflow._pef import Pef


@dataclass(frozen=True)
class PefInfoStruct:
    """A value to take where there is no PEF, which is not so here."""

    mock_value: Any = None


def get_pefmeta(args: argparse.Namespace, model: nn.Module) -> dict[str, Any]:
    """The arguments that a PEF was compiled with."""
    return get_pefmeta_dict(vars(args), model)


def get_pefmeta_dict(args: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    return {**args, "model": type(model).__name__}


def get_pef_info(pef: str, wanted: Mapping[str, PefInfoStruct]) -> dict[str, Any]:
    """What a PEF was given for these names; ValueError where it was given nothing."""
    metadata = Pef.read(Path(pef)).metadata
    missing = [name for name in wanted if name not in metadata]
    if missing:
        raise ValueError(f"{pef} has no {', '.join(missing)}")
    return {name: metadata[name] for name in wanted}
