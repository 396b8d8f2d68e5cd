"""Our optimizers against those of the real Cerebras SDK, on its CPU backend, step by step in float32."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from portwright.job.optimizer import OPTIMIZERS, optimizer_schema
from portwright.runtime.optimizers import make_optimizer

# The SDK's import and its dependencies warn in their own ways.
pytestmark = [pytest.mark.vendor, pytest.mark.filterwarnings("default")]

NUM_STEPS = 10
RATE = 0.01
BETAS = (0.8, 0.95)

# Ours, and the same in the SDK's words; weight decay and learning rate are added to both.
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("Adadelta", {"rho": 0.8, "eps": 1e-4}, {"rho": 0.8, "eps": 1e-4}),
    ("Adafactor", {}, {}),
    ("Adafactor", {"scale_parameter": False, "eps": [1e-20, 1e-2]}, {"scale_parameter": False, "eps": (1e-20, 1e-2)}),
    ("Adagrad", {"lr_decay": 0.1, "initial_accumulator_value": 0.3}, {"lr_decay": 0.1, "initial_accumulator_value": 0.3}),
    ("Adam", {"betas": BETAS}, {"betas": BETAS}),
    ("Adam", {"amsgrad": True, "eps": 1e-10}, {"amsgrad": True, "eps": 1e-10}),
    ("AdamW", {"betas": BETAS}, {"betas": BETAS}),
    ("AdamW", {"correct_bias": False, "eps": 1e-2}, {"correct_bias": False, "eps": 1e-2}),
    ("AdamW", {"correct_bias": False, "amsgrad": True}, {"correct_bias": False, "amsgrad": True}),
    ("Adamax", {"betas": BETAS}, {"betas": BETAS}),
    ("ASGD", {"lambd": 0.1, "alpha": 0.5, "t0": 3}, {"lambd": 0.1, "alpha": 0.5, "t0": 3}),
    ("Lamb", {"betas": BETAS}, {"betas": BETAS}),
    ("Lamb", {"adam": True, "eps": 1e-2}, {"adam": True, "eps": 1e-2}),
    ("Lion", {"betas": BETAS}, {"betas": BETAS}),
    ("RAdam", {"beta2": 0.9}, {"betas": (0.9, 0.9)}),
    ("RMSprop", {"alpha": 0.9, "eps": 1e-6}, {"alpha": 0.9, "eps": 1e-6}),
    ("RMSprop", {"momentum": 0.9, "centered": True, "eps": 1e-3}, {"momentum": 0.9, "centered": True, "eps": 1e-3}),
    ("Rprop", {"etas": [0.4, 1.3], "step_sizes": [1e-3, 0.1]}, {"etas": (0.4, 1.3), "step_sizes": (1e-3, 0.1)}),
    ("SGD", {}, {}),
    ("SGD", {"momentum": 0.9}, {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "use_nesterov": True}, {"momentum": 0.9, "nesterov": True}),
]  # fmt: skip
# These differ by design; each has a test of its own below that says how.
BY_DESIGN = {"NAdam", "Muon"}


@functools.cache
def load_sdk() -> Any:
    try:
        import cerebras.pytorch as sdk
    except ImportError as error:
        pytest.skip(f"the Cerebras SDK cannot be imported here: {error}")
    return sdk


@pytest.fixture
def sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)  # the SDK writes its logs where it stands
    loaded = load_sdk()
    from cerebras.pytorch.backend import current_backend_impl

    if current_backend_impl(raise_exception=False) is None:  # a process may have only one
        loaded.backend("CPU")
    return loaded


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3))


def gradients(step: int, net: nn.Module) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(parameter.shape, generator=generator) for parameter in net.parameters()]


def train(net: nn.Module, optimizer: torch.optim.Optimizer, num_steps: int = NUM_STEPS) -> list[Tensor]:
    for step in range(num_steps):
        for parameter, grad in zip(net.parameters(), gradients(step, net), strict=True):
            parameter.grad = grad
        optimizer.step()
    return [parameter.detach() for parameter in net.parameters()]


def ours(name: str, decay: float, **values: Any) -> list[Tensor]:
    net = make_net()
    spec = optimizer_schema(name).model_validate(
        {"learning_rate": RATE, "weight_decay_rate": decay, "exclude_from_weight_decay": [], **values}
    )
    return train(net, make_optimizer(net, spec))


def theirs(sdk: Any, name: str, decay: float, **values: Any) -> list[Tensor]:
    net = make_net()
    if decay:
        values["weight_decay"] = decay
    return train(net, getattr(sdk.optim, name)(net.parameters(), lr=RATE, **values))


@pytest.mark.parametrize(("name", "values", "in_sdk"), CASES, ids=str)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_ten_steps_are_the_sdks(
    sdk: Any, name: str, values: dict[str, Any], in_sdk: dict[str, Any], decay: float
) -> None:
    if name == "Rprop":
        decay = 0.0  # neither has any
    expected = theirs(sdk, name, decay, **in_sdk)
    torch.testing.assert_close(ours(name, decay, **values), expected, rtol=1e-5, atol=1e-6)
    moved = [
        float((after - before).abs().max())
        for after, before in zip(expected, make_net().parameters(), strict=True)
    ]
    assert min(moved) > 1e-5  # otherwise equal would mean little


def test_every_optimizer_of_the_sdk_is_compared(sdk: Any) -> None:
    has = {name for name in OPTIMIZERS if hasattr(sdk.optim, name)}
    assert has == set(OPTIMIZERS)
    assert {name for name, _, _ in CASES} | BY_DESIGN == has


def nadam(weight: Tensor, index: int, net: nn.Module, factor_too_many: bool) -> Tensor:
    """NAdam as published; the SDK counts the current momentum twice in the product of the next step."""
    mean, square, product = torch.zeros_like(weight), torch.zeros_like(weight), 1.0
    for step in range(1, NUM_STEPS + 1):
        grad = gradients(step - 1, net)[index]
        now = 0.9 * (1 - 0.5 * 0.96 ** (step * 0.004))
        following = 0.9 * (1 - 0.5 * 0.96 ** ((step + 1) * 0.004))
        product *= now
        later = product * following * (now if factor_too_many else 1.0)
        mean, square = 0.9 * mean + 0.1 * grad, 0.999 * square + 0.001 * grad * grad
        update = following * mean / (1 - later) + (1 - now) * grad / (1 - product)
        weight = weight - RATE * update / ((square / (1 - 0.999**step)).sqrt() + 1e-6)
    return weight


def test_nadam_differs_by_one_factor_that_the_sdk_counts_twice(sdk: Any) -> None:
    net = make_net()
    weights = [parameter.detach() for parameter in net.parameters()]
    published = [nadam(weight, index, net, False) for index, weight in enumerate(weights)]
    as_in_sdk = [nadam(weight, index, net, True) for index, weight in enumerate(weights)]
    torch.testing.assert_close(ours("NAdam", 0.0), published, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(theirs(sdk, "NAdam", 0.0, eps=1e-6), as_in_sdk, rtol=1e-5, atol=1e-6)
    assert max(float((a - b).abs().max()) for a, b in zip(published, as_in_sdk, strict=True)) > 1e-4


def adam(weight: Tensor, index: int, net: nn.Module, eps: float, corrects_eps: bool) -> Tensor:
    mean, square = torch.zeros_like(weight), torch.zeros_like(weight)
    for step in range(1, NUM_STEPS + 1):
        grad = gradients(step - 1, net)[index]
        mean, square = 0.9 * mean + 0.1 * grad, 0.999 * square + 0.001 * grad * grad
        root = (1 - 0.999**step) ** 0.5
        denominator = square.sqrt() + eps if corrects_eps else square.sqrt() + eps * root
        weight = weight - RATE / (1 - 0.9**step) * mean * root / denominator
    return weight


def test_eps_of_adam_is_not_enlarged_by_the_bias_correction(sdk: Any) -> None:
    """As in the paper and torch; the SDK corrects the denominator with eps in it, which a small eps does not show."""
    net = make_net()
    weights = [parameter.detach() for parameter in net.parameters()]
    published = [adam(weight, index, net, 1e-2, False) for index, weight in enumerate(weights)]
    as_in_sdk = [adam(weight, index, net, 1e-2, True) for index, weight in enumerate(weights)]
    torch.testing.assert_close(ours("Adam", 0.0, eps=1e-2), published, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(theirs(sdk, "Adam", 0.0, eps=1e-2), as_in_sdk, rtol=1e-5, atol=1e-6)
    assert max(float((a - b).abs().max()) for a, b in zip(published, as_in_sdk, strict=True)) > 1e-3


def test_dampening_holds_from_the_second_step_on(sdk: Any) -> None:
    """Torch takes the first gradient whole into the momentum; the SDK dampens it as well."""
    values = {"momentum": 0.5, "dampening": 0.25}
    whole_first = 0.25 * RATE * sum(0.5**step for step in range(NUM_STEPS))
    for mine, other, first in zip(
        ours("SGD", 0.0, **values), theirs(sdk, "SGD", 0.0, **values), gradients(0, make_net()), strict=True
    ):
        torch.testing.assert_close(mine, other - whole_first * first, rtol=1e-5, atol=1e-6)


def test_the_sdks_muon_does_not_run_on_a_cpu(sdk: Any) -> None:
    """It lacks a `self`. Ours is torch's algorithm, which the unit tests compare."""
    weight = nn.Parameter(torch.ones(3, 3))
    optimizer = sdk.optim.Muon([weight], lr=RATE)
    weight.grad = torch.ones(3, 3)
    with pytest.raises(TypeError, match="multiple values for argument 'steps'"):
        optimizer.step()
