"""What an IPU does to a weight when it is updated: PopART's formulas, one function each.

They work in float32, whatever the weight is, and round where the device stores: the weight, and the slots (what the
optimizer remembers of a weight). Where PopART's formula is torch's, the operations come in torch's order, so that the
results are the same to the last bits. Gradients come without loss scaling, except for SGD, whose velocity keeps it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

Values = Mapping[str, float]
"""The numbers of one parameter group under PopART's names: learningRate, weightDecay, beta1, ..."""


class Moments(NamedTuple):
    """What Adam and LAMB remember of a weight; `step` is None where nothing corrects the bias of the start."""

    first: Tensor
    second: Tensor
    step: Tensor | None


class Averages(NamedTuple):
    """What RMSprop remembers of a weight: averages of the squared gradient and of the gradient, and the momentum."""

    square: Tensor
    mean: Tensor | None
    momentum: Tensor | None


def sgd(weight: Tensor, gradient: Tensor, values: Values, loss_scaling: float) -> None:
    """SGD without a velocity; unlike torch's, its dampening counts here too."""
    exact = weight.float()
    change = _decayed(exact, gradient.float() / loss_scaling, values["weightDecay"])
    weight.copy_(exact.add(change, alpha=-values["learningRate"] * (1 - values["dampening"])))


def sgd_of_products(weight: Tensor, gradient: Tensor, rate: float, decay: float) -> None:
    """SGD without a velocity, by the two numbers that the device has of it: the rate takes the loss scaling out, too."""
    weight.copy_(weight.float().mul(decay).add(gradient.float(), alpha=-rate))


def sgd_separate(
    weight: Tensor, gradient: Tensor, values: Values, velocity: Tensor, loss_scaling: float, nesterov: bool
) -> None:
    """SGD whose velocity has a tensor of its own; it starts at zero, and is larger by the velocity scaling."""
    exact, scaling = weight.float(), values["velocityScaling"]
    change = _decayed(exact, gradient.float() * (scaling / loss_scaling), values["weightDecay"] * scaling)
    moved = _stored(
        velocity, velocity.float().mul(values["momentum"]).add(change, alpha=1 - values["dampening"])
    )
    if nesterov:
        moved = change.add(moved, alpha=values["momentum"])
    weight.copy_(exact.add(moved, alpha=-values["learningRate"] / scaling))


def sgd_combined(
    weight: Tensor, gradient: Tensor, values: Values, velocity: Tensor, loss_scaling: float, nesterov: bool
) -> None:
    """SGD that adds gradients straight into the velocity, which already holds its own decay and the weight's.

    So a new momentum or weight decay counts one update late.
    """
    exact, scaling, kept = weight.float(), values["velocityScaling"], 1 - values["dampening"]
    scaled = gradient.float() * (scaling / loss_scaling)
    moved = _stored(velocity, velocity.float().add(scaled, alpha=kept))
    if nesterov:
        change = _decayed(exact, scaled, values["weightDecay"] * scaling).add(moved, alpha=values["momentum"])
    else:
        change = moved
    weight.copy_(exact.add(change, alpha=-values["learningRate"] / scaling))
    decay = kept * values["weightDecay"] * scaling
    _stored(velocity, _decayed(weight.float(), moved.mul(values["momentum"]), decay))


def sgd_combined_start(weight: Tensor, values: Values) -> Tensor:
    """The velocity before the first update: the decay of the weights that the first update would add."""
    return weight * ((1 - values["dampening"]) * values["weightDecay"] * values["velocityScaling"])


def adam(weight: Tensor, gradient: Tensor, values: Values, slots: Moments, *, decoupled: bool) -> None:
    """Adam, whose weight decay is part of the gradient, or AdamW, whose weight decay is not (`decoupled`)."""
    exact, gradient = weight.float(), gradient.float()
    if decoupled:
        exact = exact.mul(1 - values["learningRate"] * values["weightDecay"])
    else:
        gradient = _decayed(exact, gradient, values["weightDecay"])
    first, root, correction = _moments(gradient, values, slots)
    weight.copy_(exact.addcdiv(first, root, value=-values["learningRate"] / correction))


def lamb(weight: Tensor, gradient: Tensor, values: Values, slots: Moments, *, bias_correction: bool) -> None:
    """LAMB: AdamW's step, as long as the weight is (but at most maxWeightNorm); either norm 0 leaves it as it is."""
    exact = weight.float()
    if not bias_correction:
        slots = slots._replace(step=None)
    first, root, correction = _moments(gradient.float(), values, slots)
    change = first.div(root).div(correction).add(exact, alpha=values["weightDecay"])
    length, size = exact.norm().item(), change.norm().item()
    trust = min(length, values["maxWeightNorm"]) / size if length and size else 1.0
    weight.copy_(exact.add(change, alpha=-values["learningRate"] * trust))


def lamb_values(group: Mapping[str, Any]) -> dict[str, float]:
    """A group of torch's, under PopART's names."""
    return {
        "learningRate": group["lr"],
        "beta1": group["betas"][0],
        "beta2": group["betas"][1],
        "eps": group["eps"],
        "weightDecay": group["weight_decay"],
        "maxWeightNorm": group["max_weight_norm"],
    }


def rmsprop(weight: Tensor, gradient: Tensor, values: Values, slots: Averages, *, tensorflow: bool) -> None:
    """RMSprop as torch has it, or as TensorFlow has it: eps below the root, the rate inside the momentum."""
    exact, rate, alpha = weight.float(), values["learningRate"], values["alpha"]
    gradient = _decayed(exact, gradient.float(), values["weightDecay"])
    spread = _stored(
        slots.square, slots.square.float().mul(alpha).addcmul(gradient, gradient, value=1 - alpha)
    )
    if slots.mean is not None:
        mean = _stored(slots.mean, slots.mean.float().lerp(gradient, 1 - alpha))
        spread = spread.addcmul(mean, mean, value=-1)
    if tensorflow:
        change = gradient.div(spread.add(values["eps"]).sqrt())
    else:
        change = gradient.div(spread.sqrt().add(values["eps"]))
    if slots.momentum is not None:
        added = change.mul(rate) if tensorflow else change
        change = _stored(slots.momentum, slots.momentum.float().mul(values["momentum"]).add(added))
        rate = 1.0 if tensorflow else rate
    weight.copy_(exact.add(change, alpha=-rate))


def clip_factor(gradients: list[Tensor], largest: float) -> float:
    """What all gradients are multiplied by so that their common norm is at most `largest`."""
    if math.isinf(largest) or not gradients:
        return 1.0
    norm = torch.stack([gradient.float().norm() for gradient in gradients]).norm().item()
    return largest / max(norm, largest) if norm == norm else math.nan


def _moments(gradient: Tensor, values: Values, slots: Moments) -> tuple[Tensor, Tensor, float]:
    """The first moment, the root that it is divided by, and the correction that it still needs."""
    beta1, beta2 = values["beta1"], values["beta2"]
    first = _stored(slots.first, slots.first.float().lerp(gradient, 1 - beta1))
    second = _stored(
        slots.second, slots.second.float().mul(beta2).addcmul(gradient, gradient, value=1 - beta2)
    )
    correction1 = correction2 = 1.0
    if slots.step is not None:
        slots.step.add_(1)
        correction1, correction2 = (1 - _power(beta, slots.step.item()) for beta in (beta1, beta2))
    return first, second.sqrt().div(_root(correction2)).add(values["eps"]), correction1


def _power(beta: float, step: float) -> float:
    power = beta**step
    return math.nan if isinstance(power, complex) else float(power)  # a device has no complex numbers


def _root(number: float) -> float:
    return math.sqrt(number) if number >= 0 else math.nan  # of a beta that is none, as a state may bring it


def _decayed(weight: Tensor, gradient: Tensor, decay: float) -> Tensor:
    return gradient.add(weight, alpha=decay) if decay else gradient


def _stored(slot: Tensor, value: Tensor) -> Tensor:
    """What is left of a value once it is in its slot, which may be half."""
    return slot.copy_(value).float()
