"""The device's updates against torch's own optimizers, and against the formulas that PopTorch documents."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from portwright.emulate.poptorch import optim
from portwright.emulate.poptorch._update import UpdateRule
from portwright.emulate.poptorch.poptorch_core import Error

STEPS = 50
SHAPES = {"layer.weight": (4, 3), "layer.bias": (4,), "gain": (), "none": (0, 3)}


def parameters(dtype: torch.dtype = torch.float32) -> dict[str, nn.Parameter]:
    torch.manual_seed(7)
    return {name: nn.Parameter(torch.randn(shape).to(dtype)) for name, shape in SHAPES.items()}


def gradients(step: int, scale: float = 1.0) -> dict[str, Tensor]:
    torch.manual_seed(1000 + step)
    return {name: torch.randn(shape) * scale for name, shape in SHAPES.items()}


def compiled(
    make: Callable[[Any], torch.optim.Optimizer], host: dict[str, nn.Parameter]
) -> tuple[Any, UpdateRule]:
    optimizer = make(list(host.values()))
    return optimizer, UpdateRule(optimizer, {parameter: name for name, parameter in host.items()})


def on_device(host: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in host.items()}


def trained_by_rule(
    make: Callable[[Any], torch.optim.Optimizer],
    steps: int = STEPS,
    change: Callable[[int, Any], bool] | None = None,
) -> dict[str, Tensor]:
    host = parameters()
    optimizer, rule = compiled(make, host)
    device = on_device(host)
    for step in range(steps):
        if change is not None and change(step, optimizer):
            rule.set(optimizer)
        rule.apply(device, {name: g * rule.loss_scale for name, g in gradients(step).items()})
    for name, parameter in parameters().items():
        assert torch.equal(host[name], parameter), "the host's weights are not the device's"
    return device


def trained_by_torch(
    make: Callable[[Any], torch.optim.Optimizer],
    steps: int = STEPS,
    change: Callable[[int, Any], bool] | None = None,
    clip: float | None = None,
) -> dict[str, Tensor]:
    host = parameters()
    optimizer = make(list(host.values()))
    for step in range(steps):
        if change is not None:
            change(step, optimizer)
        for name, gradient in gradients(step).items():
            host[name].grad = gradient
        if clip is not None:
            nn.utils.clip_grad_norm_(list(host.values()), clip)
        optimizer.step()
    return {name: parameter.detach() for name, parameter in host.items()}


def assert_near(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-6) -> None:
    assert set(found) == set(expected)
    for name in found:
        torch.testing.assert_close(found[name], expected[name], atol=tolerance, rtol=tolerance)


SAME_FORMULA = {
    "SGD": [
        {"lr": 0.05},
        {"lr": 0.05, "weight_decay": 0.01},
        {"lr": 0.05, "momentum": 0.9},
        {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01},
        {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
        {"lr": 0.05, "momentum": 0.0, "weight_decay": 0.01},
    ],
    "Adam": [
        {},
        {"lr": 0.01, "weight_decay": 0.1},
        {"lr": 0.01, "betas": (0.5, 0.9), "eps": 1e-3},
        {"lr": 0.01, "betas": (0.0, 0.9)},
    ],
    "AdamW": [
        {},
        {"lr": 0.01, "weight_decay": 0.1},
        {"lr": 0.01, "betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.0},
    ],
    "RMSprop": [
        {},
        {"lr": 0.01, "alpha": 0.9, "eps": 1e-4, "weight_decay": 0.1},
        {"lr": 0.01, "momentum": 0.9},
        {"lr": 0.01, "centered": True, "momentum": 0.5, "weight_decay": 0.01},
    ],
}
CASES = [(name, arguments) for name, several in SAME_FORMULA.items() for arguments in several]


@pytest.mark.parametrize(("name", "arguments"), CASES)
@pytest.mark.parametrize("package", [optim, torch.optim], ids=["poptorch", "torch"])
def test_the_update_is_torchs(name: str, arguments: dict[str, Any], package: Any) -> None:
    found = trained_by_rule(lambda parameters: getattr(package, name)(parameters, **arguments))
    expected = trained_by_torch(lambda parameters: getattr(torch.optim, name)(parameters, **arguments))
    assert_near(found, expected)


@pytest.mark.parametrize(("name", "arguments"), CASES)
@pytest.mark.parametrize("loss_scaling", [1024.0, 3.0])
def test_loss_scaling_changes_nothing_in_float32(
    name: str, arguments: dict[str, Any], loss_scaling: float
) -> None:
    found = trained_by_rule(
        lambda parameters: getattr(optim, name)(parameters, **arguments, loss_scaling=loss_scaling)
    )
    expected = trained_by_torch(lambda parameters: getattr(torch.optim, name)(parameters, **arguments))
    assert_near(found, expected, 1e-5 if loss_scaling == 3.0 else 1e-6)


@pytest.mark.parametrize(("name", "arguments"), CASES[:6])
@pytest.mark.parametrize("velocity_scaling", [1.0, 128.0])
def test_the_combined_sgd_is_torchs(name: str, arguments: dict[str, Any], velocity_scaling: float) -> None:
    def make(parameters: Any) -> Any:
        return optim.SGD(
            parameters,
            **arguments,
            use_combined_accum=True,
            velocity_scaling=velocity_scaling,
            loss_scaling=16.0,
        )

    expected = trained_by_torch(lambda parameters: getattr(torch.optim, name)(parameters, **arguments))
    assert_near(trained_by_rule(make), expected)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop"])
@pytest.mark.parametrize("package", [optim, torch.optim], ids=["poptorch", "torch"])
def test_groups_have_their_own_rates_and_schedules_reach_the_device(name: str, package: Any) -> None:
    def make(of: Any) -> Callable[[Any], Any]:
        def made(parameters: list[Any]) -> Any:
            groups = [{"params": parameters[:1], "lr": 0.1}, {"params": parameters[1:], "weight_decay": 0.2}]
            return getattr(of, name)(groups, lr=0.01)

        return made

    def change(step: int, optimizer: Any) -> bool:
        if step % 10 == 9:
            for group in optimizer.param_groups:
                group["lr"] *= 0.5
        return step % 10 == 9

    # RMSprop and others: weight_decay of a group is variable for torch's own, as it is not the default
    found = trained_by_rule(make(package), change=change)
    assert_near(found, trained_by_torch(make(torch.optim), change=change))


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
@pytest.mark.parametrize("loss_scaling", [1.0, 64.0])
def test_gradients_are_clipped_by_their_common_norm(name: str, loss_scaling: float) -> None:
    found = trained_by_rule(
        lambda parameters: getattr(optim, name)(
            parameters, lr=0.01, max_grad_norm=0.5, loss_scaling=loss_scaling
        )
    )
    expected = trained_by_torch(lambda parameters: getattr(torch.optim, name)(parameters, lr=0.01), clip=0.5)
    assert_near(found, expected, 5e-6)  # torch adds 1e-6 to the norm
    unclipped = trained_by_torch(lambda parameters: getattr(torch.optim, name)(parameters, lr=0.01))
    assert name != "SGD" or not torch.allclose(found["gain"], unclipped["gain"], atol=1e-3)


def test_a_limit_that_is_not_reached_clips_nothing() -> None:
    found = trained_by_rule(lambda parameters: optim.SGD(parameters, lr=0.01, max_grad_norm=1e6))
    assert_near(found, trained_by_torch(lambda parameters: torch.optim.SGD(parameters, lr=0.01)), 0.0)


def lamb_by_hand(
    bias_correction: bool, largest: float, lr: float, decay: float, steps: int
) -> dict[str, Tensor]:
    """The formula of arXiv 1904.00962 with phi(z) = min(z, largest), in double precision."""
    weights = {name: parameter.detach().double() for name, parameter in parameters().items()}
    first = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    second = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for step in range(1, steps + 1):
        for name, gradient in gradients(step - 1).items():
            g = gradient.double()
            first[name] = 0.9 * first[name] + 0.1 * g
            second[name] = 0.999 * second[name] + 0.001 * g * g
            m, v = first[name], second[name]
            if bias_correction:
                m, v = m / (1 - 0.9**step), v / (1 - 0.999**step)
            update = m / (v.sqrt() + 1e-8) + decay * weights[name]
            length, size = weights[name].norm(), update.norm()
            trust = min(length, torch.tensor(largest)) / size if length > 0 and size > 0 else 1.0
            weights[name] = weights[name] - lr * trust * update
    return {name: weight.float() for name, weight in weights.items()}


@pytest.mark.parametrize("bias_correction", [True, False])
@pytest.mark.parametrize("largest", [None, 0.5])
@pytest.mark.parametrize("loss_scaling", [1.0, 256.0])
def test_lamb_is_its_published_formula(
    bias_correction: bool, largest: float | None, loss_scaling: float
) -> None:
    found = trained_by_rule(
        lambda parameters: optim.LAMB(
            parameters,
            lr=0.02,
            weight_decay=0.05,
            bias_correction=bias_correction,
            max_weight_norm=largest,
            loss_scaling=loss_scaling,
        )
    )
    assert_near(found, lamb_by_hand(bias_correction, largest or 65500.0, 0.02, 0.05, STEPS), 5e-6)


def test_lamb_on_the_host_takes_the_same_steps() -> None:
    def make(parameters: Any) -> Any:
        return optim.LAMB(parameters, lr=0.02, bias_correction=False, max_weight_norm=0.5)

    assert_near(trained_by_torch(make), lamb_by_hand(False, 0.5, 0.02, 0.01, STEPS), 5e-6)


def test_adamw_without_bias_correction_is_the_formula_without_it_and_says_so(caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, "poptorch"):
        found = trained_by_rule(
            lambda parameters: optim.AdamW(parameters, lr=0.01, weight_decay=0.1, bias_correction=False)
        )
    assert "bias_correction=False" in caplog.text
    expected = {name: parameter.detach().double() for name, parameter in parameters().items()}
    first = {name: torch.zeros_like(weight) for name, weight in expected.items()}
    second = {name: torch.zeros_like(weight) for name, weight in expected.items()}
    for step in range(STEPS):
        for name, gradient in gradients(step).items():
            first[name] = 0.9 * first[name] + 0.1 * gradient.double()
            second[name] = 0.999 * second[name] + 0.001 * gradient.double() ** 2
            change = first[name] / (second[name].sqrt() + 1e-8) + 0.1 * expected[name]
            expected[name] = expected[name] - 0.01 * change
    assert_near(found, {name: weight.float() for name, weight in expected.items()}, 5e-6)


@pytest.mark.parametrize("momentum", [None, 0.9])
@pytest.mark.parametrize("centered", [False, True])
def test_the_tensorflow_variant_of_rmsprop(momentum: float | None, centered: bool) -> None:
    lr, alpha, eps = 0.01, 0.9, 1e-3
    found = trained_by_rule(
        lambda parameters: optim.RMSprop(
            parameters, lr=lr, alpha=alpha, eps=eps, momentum=momentum, centered=centered, use_tf_variant=True
        )
    )
    expected = {name: parameter.detach().double() for name, parameter in parameters().items()}
    square = {name: torch.ones_like(weight) for name, weight in expected.items()}
    mean = {name: torch.zeros_like(weight) for name, weight in expected.items()}
    moved = {name: torch.zeros_like(weight) for name, weight in expected.items()}
    for step in range(STEPS):
        for name, gradient in gradients(step).items():
            g = gradient.double()
            square[name] = alpha * square[name] + (1 - alpha) * g * g
            mean[name] = alpha * mean[name] + (1 - alpha) * g
            spread = square[name] - mean[name] ** 2 if centered else square[name]
            moved[name] = (momentum or 0.0) * moved[name] + lr * g / (spread + eps).sqrt()
            expected[name] = expected[name] - moved[name]
    assert_near(found, {name: weight.float() for name, weight in expected.items()}, 5e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("combined", [False, True])
def test_dampening_counts_from_the_first_update(momentum: float, combined: bool, caplog: Any) -> None:
    def make(parameters: Any) -> Any:
        return optim.SGD(
            parameters,
            lr=0.05,
            momentum=momentum,
            dampening=0.3,
            weight_decay=0.01,
            use_combined_accum=combined,
        )

    with caplog.at_level(logging.WARNING, "poptorch"):
        found = trained_by_rule(make)
    assert "dampening" in caplog.text
    expected = {name: parameter.detach().double() for name, parameter in parameters().items()}
    velocity = {name: torch.zeros_like(weight) for name, weight in expected.items()}
    for step in range(STEPS):
        for name, gradient in gradients(step).items():
            change = gradient.double() + 0.01 * expected[name]
            velocity[name] = momentum * velocity[name] + (1 - 0.3) * change
            expected[name] = expected[name] - 0.05 * velocity[name]
    assert_near(found, {name: weight.float() for name, weight in expected.items()})


def test_loss_scaling_saves_small_gradients_of_half_weights() -> None:
    host = parameters(torch.float16)
    small = {name: torch.full(shape, 2.0**-26) for name, shape in SHAPES.items()}  # below the smallest half
    for loss_scaling, moves in ((1.0, False), (2.0**14, True)):
        _, rule = compiled(lambda p, s=loss_scaling: optim.SGD(p, lr=2.0**20, loss_scaling=s), host)  # type: ignore[misc]
        device = on_device(host)
        assert rule.loss_scale == loss_scaling
        rule.apply(device, {name: (g * rule.loss_scale).half() for name, g in small.items()})
        for name in ("layer.weight", "gain"):
            assert device[name].dtype == torch.float16
            assert torch.equal(device[name], host[name]) is not moves


@pytest.mark.parametrize(
    ("make", "halves"),
    [
        (lambda p: optim.SGD(p, lr=0.1, momentum=0.9, velocity_accum_type=torch.float16), {"Accl1"}),
        (lambda p: optim.Adam(p, first_order_momentum_accum_type=torch.float16), {"Accl1"}),
        (lambda p: optim.AdamW(p, second_order_momentum_accum_type=torch.float16), {"Accl2"}),
        (lambda p: optim.LAMB(p, first_order_momentum_accum_type=torch.float16), {"Accl1"}),
        (
            lambda p: optim.RMSprop(
                p,
                centered=True,
                momentum=0.5,
                first_order_momentum_accum_type=torch.float16,
                second_order_momentum_accum_type=torch.float16,
            ),
            {"Accl1", "Accl2"},
        ),
    ],
)
def test_states_are_stored_in_the_type_asked_for(make: Any, halves: set[str]) -> None:
    host = parameters()
    _, rule = compiled(make, host)
    rule.apply(on_device(host), gradients(0))
    kinds = {name.split("___")[0]: slot.dtype for name, slot in rule.state().items()}
    assert {kind for kind, dtype in kinds.items() if dtype == torch.float16} == halves


def test_a_half_state_rounds() -> None:
    exact = trained_by_rule(lambda p: optim.Adam(p, lr=0.01))
    rounded = trained_by_rule(lambda p: optim.Adam(p, lr=0.01, first_order_momentum_accum_type=torch.float16))
    assert_near(rounded, exact, 1e-2)
    assert not torch.equal(rounded["layer.weight"], exact["layer.weight"])


@pytest.mark.parametrize(
    ("make", "kinds"),
    [
        (lambda p: optim.SGD(p, lr=0.1), set()),
        (lambda p: optim.SGD(p, lr=0.1, momentum=0.0), {"Accl1"}),  # it may change, so there is a velocity
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.0), set()),
        (lambda p: optim.SGD(p, lr=0.1, momentum=0.5, use_combined_accum=True), {"Accl"}),
        (lambda p: optim.Adam(p), {"Accl1", "Accl2", "Step"}),
        (lambda p: optim.AdamW(p, bias_correction=False), {"Accl1", "Accl2"}),
        (lambda p: optim.LAMB(p), {"Accl1", "Accl2", "Step"}),
        (lambda p: optim.RMSprop(p), {"Accl1"}),
        (lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.1), {"Accl1", "Accl2", "Accl3"}),
    ],
)
def test_the_state_goes_out_and_in_again(make: Any, kinds: set[str]) -> None:
    host = parameters()
    _, rule = compiled(make, host)
    assert set(rule.state()) == {f"{kind}___{name}" for kind in kinds for name in SHAPES}
    device = on_device(host)
    for step in range(3):
        rule.apply(device, gradients(step))
    saved = rule.state()
    before = {name: weight.clone() for name, weight in device.items()}
    rule.apply(device, gradients(3))
    _, other = compiled(make, host)
    other.load(saved)
    other.apply(before, gradients(3))
    assert_near(before, device, 0.0)
    assert kinds == set() or not torch.equal(rule.state()["".join(sorted(saved)[:1])], torch.zeros(()))


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    host = parameters()
    _, rule = compiled(lambda p: optim.Adam(p), host)
    whole = {name: torch.ones_like(slot) for name, slot in rule.state().items()}
    with pytest.raises(Error, match="Accl9___gain"):
        rule.load({**whole, "Accl9___gain": torch.zeros(())})
    with pytest.raises(Error, match=r"\(2,\).*\(4, 3\)"):
        rule.load({**whole, "Accl1___layer.weight": torch.zeros(2)})
    assert all(not slot.any() for slot in rule.state().values())
    rule.load({"Accl1___gain": torch.tensor(2.0)})
    assert rule.state()["Accl1___gain"] == 2.0
    assert rule.state()["Accl2___gain"] == 0.0


def test_params_are_the_numbers_that_may_change() -> None:
    host = parameters()
    _, rule = compiled(lambda p: optim.SGD(p, lr=0.05, weight_decay=0.025, loss_scaling=0.75), host)
    params = rule.params()
    assert params["scaledLearningRate0___specific___gain"].item() == pytest.approx(0.05 / 0.75)
    assert params["weightDecayScaleFactor0___specific___gain"].item() == pytest.approx(1 - 0.05 * 0.025)
    assert params["lossScaling_FLOAT"].item() == 0.75
    _, rule = compiled(lambda p: optim.Adam(p, lr=0.05, weight_decay=0.025), host)
    assert {name.partition("___")[0] for name in rule.params()} == {"learningRate", "weightDecay"}
    assert rule.params()["learningRate___specific___layer.bias"].item() == pytest.approx(0.05)


def change_of(name: str, value: Any) -> Callable[[Any], None]:
    def change(optimizer: Any) -> None:
        for group in (optimizer.defaults, *optimizer.param_groups):
            group[name] = value

    return change


@pytest.mark.parametrize(
    ("make", "change", "says"),
    [
        (
            lambda p: optim.SGD(p, lr=0.1),
            change_of("weight_decay", 0.1),
            "weight_decay of the defaults.*markAsVariable",
        ),
        (lambda p: optim.SGD(p, lr=0.1), change_of("dampening", 0.1), "dampening"),
        (lambda p: torch.optim.SGD(p, lr=0.1), change_of("momentum", 0.1), "momentum.*poptorch.optim.SGD"),
        (
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
            change_of("momentum", 0.0),
            "momentum.*now a constant",
        ),
        (lambda p: torch.optim.Adam(p), change_of("betas", (0.5, 0.9)), "betas"),
        (lambda p: optim.Adam(p), change_of("eps", 1e-4), "eps"),
        (lambda p: optim.RMSprop(p, lr=0.1), change_of("alpha", 0.5), "alpha"),
        (lambda p: optim.LAMB(p), change_of("max_weight_norm", 3.0), "max_weight_norm"),
        (lambda p: optim.Adam(p), lambda o: setattr(o, "loss_scaling", 2.0), "loss_scaling"),
        (lambda p: optim.Adam(p), lambda o: setattr(o, "max_grad_norm", 2.0), "max_grad_norm"),
        (
            lambda p: optim.Adam(p),
            lambda o: setattr(o, "first_order_momentum_accum_type", torch.float16),
            "first_order_momentum_accum_type",
        ),
        (lambda p: optim.AdamW(p), lambda o: setattr(o, "bias_correction", False), "ADAMW_NO_BIAS"),
        (lambda p: optim.SGD(p, lr=0.1), lambda o: setattr(o, "use_combined_accum", True), "SGD1"),
    ],
)
def test_what_was_compiled_as_a_constant_stays_one(make: Any, change: Any, says: str) -> None:
    host = parameters()
    optimizer, rule = compiled(make, host)
    rule.set(optimizer)  # nothing changed
    scale = rule.loss_scale
    change(optimizer)
    with pytest.raises(Error, match=says):
        rule.set(optimizer)
    assert rule.loss_scale == scale


def test_variable_attributes_change_and_reach_the_device() -> None:
    host = parameters()
    optimizer, rule = compiled(lambda p: optim.SGD(p, lr=0.1, momentum=0.9, loss_scaling=2.0), host)
    optimizer.loss_scaling = 8.0
    assert rule.loss_scale == 2.0
    rule.set(optimizer)
    assert rule.loss_scale == 8.0
    optimizer, rule = compiled(lambda p: optim.SGD(p, lr=0.1), host)
    optimizer.variable_attrs.markAsVariable("weight_decay")
    with pytest.raises(Error, match="markAsConstant"):
        rule.set(optimizer)
    host_optimizer = optim.SGD(list(host.values()), lr=0.1)
    host_optimizer.variable_attrs.markAsVariable("weight_decay")
    rule = UpdateRule(host_optimizer, {parameter: name for name, parameter in host.items()})
    change_of("weight_decay", 0.5)(host_optimizer)
    rule.set(host_optimizer)
    device = on_device(host)
    rule.apply(device, {"gain": torch.zeros(())})
    torch.testing.assert_close(device["gain"], host["gain"].detach() * 0.95)


def test_another_kind_of_optimizer_or_other_groups_are_refused() -> None:
    host = parameters()
    everything = list(host.values())
    _, rule = compiled(lambda p: optim.SGD(p, lr=0.1), host)
    with pytest.raises(Error, match=r"SGD2.*ADAM"):
        rule.set(optim.Adam(everything))
    with pytest.raises(Error, match=r"1 parameter groups.*got 2"):
        rule.set(optim.SGD([{"params": everything[:1]}, {"params": everything[1:]}], lr=0.1))
    _, rule = compiled(lambda p: optim.SGD([{"params": p[:1]}, {"params": p[1:]}], lr=0.1), host)
    with pytest.raises(Error, match="other weights"):
        rule.set(optim.SGD([{"params": everything[:2]}, {"params": everything[2:]}], lr=0.1))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_of_the_optimizer_is_taken(copied: Any) -> None:
    host = parameters()
    optimizer, rule = compiled(lambda p: optim.SGD(p, lr=0.1), host)
    other = copied(optimizer)
    other.param_groups[0]["lr"] = 0.0
    rule.set(other)
    device = on_device(host)
    rule.apply(device, gradients(0))
    assert_near(device, on_device(host), 0.0)


def test_a_tensor_that_is_not_of_the_model_is_refused() -> None:
    host = parameters()
    with pytest.raises(Error, match=r"\(5,\).*no parameter of the model"):
        UpdateRule(optim.SGD([nn.Parameter(torch.zeros(5))], lr=0.1), {p: n for n, p in host.items()})


def test_weights_in_no_group_train_with_the_defaults_and_frozen_ones_not(caplog: Any) -> None:
    host = parameters()
    host["layer.bias"].requires_grad_(False)
    optimizer = optim.SGD([{"params": [host["gain"]], "lr": 0.5}], lr=0.1)
    with caplog.at_level(logging.WARNING, "poptorch"):
        rule = UpdateRule(optimizer, {parameter: name for name, parameter in host.items()})
    assert "layer.weight, none: in no parameter group" in caplog.text
    device = on_device(host)
    moved = {name: torch.ones(SHAPES[name]) for name in ("gain", "layer.weight")}
    rule.apply(device, moved)
    torch.testing.assert_close(device["gain"], host["gain"].detach() - 0.5)
    torch.testing.assert_close(device["layer.weight"], host["layer.weight"].detach() - 0.1)
    with pytest.raises(Error, match=r"layer\.bias"):
        rule.apply(device, {"layer.bias": torch.ones(4)})


def test_maximize_does_not_reach_the_device_and_that_is_said(caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, "poptorch"):
        found = trained_by_rule(lambda p: optim.SGD(p, lr=0.1, maximize=True), 1)
    assert "maximize" in caplog.text
    assert_near(found, trained_by_torch(lambda p: torch.optim.SGD(p, lr=0.1), 1))


@pytest.mark.parametrize(
    ("make", "change", "says"),
    [
        (lambda p: optim.SGD(p, lr=0.1, loss_scaling=0.0), None, "loss_scaling"),
        (lambda p: optim.SGD(p, lr=0.1, loss_scaling=math.nan), None, "loss_scaling"),
        (lambda p: optim.SGD(p, lr=0.1, loss_scaling=math.inf), None, "loss_scaling"),
        (lambda p: optim.SGD(p, lr=0.1), change_of("lr", -1.0), "lr"),
        (lambda p: optim.SGD(p, lr=math.nan), None, "lr"),
        (
            lambda p: optim.SGD(p, lr=0.1, use_combined_accum=True, velocity_scaling=0.0),
            None,
            "velocity_scaling",
        ),
        (lambda p: torch.optim.Adam(p, eps=0.0), None, "eps"),
        (lambda p: torch.optim.Adam(p), change_of("betas", (1.0, 0.9)), "beta1"),
        (
            lambda p: optim.SGD(p, lr=0.1, nesterov=True, momentum=0.5),
            change_of("dampening", 0.5),
            "dampening",
        ),
    ],
)
def test_numbers_out_of_range_are_refused(make: Any, change: Any, says: str) -> None:
    host = parameters()
    optimizer = make(list(host.values()))
    if change is not None:
        change(optimizer)
    with pytest.raises(Error, match=says):
        UpdateRule(optimizer, {parameter: name for name, parameter in host.items()})


def test_a_gradient_that_is_not_finite_stays_visible() -> None:
    host = parameters()
    _, rule = compiled(lambda p: optim.SGD(p, lr=0.1, max_grad_norm=1.0), host)
    device = on_device(host)
    rule.apply(device, {"gain": torch.tensor(math.nan), "layer.bias": torch.ones(4)})
    assert device["gain"].isnan()
    assert device["layer.bias"].isnan().all()
