"""What is written beside an executable so that it can be loaded again."""
# The vendor's signatures are kept word for word.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, List, Optional

import torch

if TYPE_CHECKING:
    from portwright.emulate import poptorch


class PoptorchData:
    """A saved executable's version and inputs and, where it can be loaded without the user's code, all of the rest."""

    def __init__(
        self,
        version: str,
        executable_inputs: List[Any],
        options: "poptorch.Options",
        training: Optional[bool] = None,
        model: Optional["torch.nn.Module"] = None,
        optimizer: Optional["torch.optim.Optimizer"] = None,
        random_seed: Optional[int] = None,
        rng_state: Optional[List[int]] = None,
    ):
        self.version = version
        self.executable_inputs = executable_inputs
        self.options = options
        self.training = training
        self.model = model
        self.optimizer = optimizer
        self.random_seed = random_seed
        self.rng_state = rng_state

    @property
    def optimizer(self) -> Any:
        return self._optimizer

    @optimizer.setter
    def optimizer(self, opt):
        self._optimizer = opt
        self.optimizer_state = None if opt is None else opt.state_dict()


def parse(serialized_data: bytes, expected_version: str) -> PoptorchData:
    """Reads the manifest of a saved executable, in JSON, and fails an assertion where another version wrote it."""
    try:
        data = json.loads(serialized_data)
        version, training = data["version"], bool(data["training"])
    except (ValueError, KeyError, TypeError) as error:
        raise AssertionError(f"its manifest is damaged ({type(error).__name__}: {error})") from None
    if version != expected_version:
        raise AssertionError(f"it was written by PopTorch {version}, and this is {expected_version}")
    options: Any = None  # in a part of its own
    return PoptorchData(version, [], options, training, rng_state=data.get("rng_state"))
