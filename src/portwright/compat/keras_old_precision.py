"""keras.mixed_precision.experimental, as it was until TensorFlow 2.4."""

from __future__ import annotations

from typing import Any

# Imported from the private module: keras.mixed_precision is still being loaded when this module is added to it.
from tf_keras.src.mixed_precision import loss_scale_optimizer, policy  # type: ignore[import-untyped]

LossScaleOptimizer = loss_scale_optimizer.LossScaleOptimizer
global_policy = policy.global_policy


class Policy(policy.Policy):  # type: ignore[misc]
    """A policy that also names a loss scale, which only model.compile() ever used."""

    def __init__(self, name: str, loss_scale: Any = "auto") -> None:
        super().__init__(name)
        if loss_scale == "auto":
            loss_scale = "dynamic" if name == "mixed_float16" else None
        self.loss_scale = loss_scale

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "loss_scale": self.loss_scale}


def set_policy(policy_or_name: Any) -> None:
    """Sets the policy, given as such or by name, of all layers made later."""
    policy.set_global_policy(policy_or_name)


def get_layer_policy(layer: Any) -> Any:
    """The policy of a layer."""
    return layer.dtype_policy
