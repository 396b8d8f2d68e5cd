from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from portwright.errors import UserError
from portwright.job.optimizer import OPTIMIZERS, optimizer_schema
from portwright.runtime.optimizers import clip_gradients, make_optimizer
from portwright.runtime.precision import LossScaler, Precision, make_loss_scaler, resolve_precision


@pytest.mark.parametrize(
    ("model", "asked", "device", "name"),
    [
        ({}, None, "cpu", "fp32"),
        ({"mixed_precision": False}, None, "cuda", "fp32"),
        ({"mixed_precision": False, "fp16_type": "float16"}, None, "cpu", "fp32"),
        ({"mixed_precision": True}, None, "cpu", "bf16"),
        ({"mixed_precision": True}, None, "cuda", "fp16"),
        ({"mixed_precision": True, "fp16_type": "float16"}, None, "cuda", "fp16"),
        ({"mixed_precision": True, "fp16_type": "bfloat16"}, None, "cuda", "bf16"),
        ({"mixed_precision": True, "fp16_type": "bfloat16"}, None, "cpu", "bf16"),
        ({}, "bf16", "cpu", "bf16"),
        ({}, "fp16", "cuda", "fp16"),
        ({}, "float64", "cpu", "fp64"),
        ({}, "FP32", "cpu", "fp32"),
        ({"mixed_precision": True}, "bf16", "cuda", "bf16"),
    ],
)
def test_what_a_run_computes_in(model: dict[str, Any], asked: str | None, device: str, name: str) -> None:
    precision = resolve_precision({"model": model}, asked, device)
    assert (precision.name, precision.notes) == (name, ())


@pytest.mark.parametrize("values", [{}, {"model": None}, {"model": {}}])
def test_a_model_section_is_not_needed(values: dict[str, Any]) -> None:
    assert resolve_precision(values, None, "cpu") == Precision("fp32", "cpu")


@pytest.mark.parametrize(
    ("model", "asked", "device", "name", "told"),
    [
        ({"mixed_precision": True, "fp16_type": "cbfloat16"}, None, "cpu", "bf16", "bfloat16 stands for it"),
        ({"mixed_precision": True, "fp16_type": "cbfloat16"}, None, "cuda", "bf16", "bfloat16 stands for it"),
        ({"to_float16": True}, None, "cpu", "fp32", "to_float16 concerns Cerebras systems alone"),
        ({"mixed_precision": True}, "fp32", "cpu", "fp32", "goes before model.mixed_precision: true"),
        ({"mixed_precision": False}, "bf16", "cpu", "bf16", "goes before model.mixed_precision: false"),
    ],
)
def test_what_the_user_should_know_is_noted(
    model: dict[str, Any], asked: str | None, device: str, name: str, told: str
) -> None:
    precision = resolve_precision({"model": model}, asked, device)
    assert precision.name == name
    assert len(precision.notes) == 1
    assert told in precision.notes[0]


@pytest.mark.parametrize(
    ("model", "asked", "message", "cure"),
    [
        (
            {"mixed_precision": True, "fp16_type": "float16"},
            None,
            "CPU trains in bfloat16",
            "model.fp16_type: bfloat16",
        ),
        ({}, "fp16", "CPU trains in bfloat16", "runconfig.precision: bf16"),
        ({"mixed_precision": "yes"}, None, "model.mixed_precision is 'yes'", "true or false"),
        ({"mixed_precision": 1}, None, "model.mixed_precision is 1", "true or false"),
        ({"fp16_type": "bfloat"}, None, "model.fp16_type is 'bfloat'", "Did you mean 'bfloat16'?"),
        ({}, "bf17", "runconfig.precision is 'bf17'", "Did you mean 'bf16'?"),
        ({}, "", "runconfig.precision is ''", "Valid: "),
    ],
)
def test_bad_precision_says_what_to_do(
    model: dict[str, Any], asked: str | None, message: str, cure: str
) -> None:
    with pytest.raises(UserError) as caught:
        resolve_precision({"model": model}, asked, "cpu")
    assert message in caught.value.message
    assert cure in caught.value.cure


def test_autocast_is_there_only_where_something_is_cast() -> None:
    assert Precision("fp32", "cpu").autocast is None
    assert Precision("fp64", "cpu").autocast is None
    autocast = Precision("bf16", "cpu").autocast
    assert autocast is not None
    net = nn.Linear(2, 2)
    for _ in range(2):
        with autocast():
            assert net(torch.ones(1, 2)).dtype == torch.bfloat16
    assert net(torch.ones(1, 2)).dtype == torch.float32
    assert net.weight.dtype == torch.float32


def test_fp64_converts_the_weights_and_the_batch() -> None:
    precision = Precision("fp64", "cpu")
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert precision.prepare(net) is net
    assert {parameter.dtype for parameter in net.parameters()} == {torch.float64}
    assert net[1].num_batches_tracked.dtype == torch.int64
    assert precision.batch_dtype == torch.float64
    assert Precision("bf16", "cpu").batch_dtype is None
    assert Precision("bf16", "cpu").prepare(nn.Linear(2, 2)).weight.dtype == torch.float32


# -- loss scaling ----------------------------------------------------------------------------------------------


def spec(optimizer_type: str = "SGD", **values: Any) -> Any:
    return optimizer_schema(optimizer_type).model_validate({"learning_rate": 0.01, **values})


def scaler_of(chosen: Any, **options: Any) -> LossScaler:
    scaler = make_loss_scaler(chosen, "cpu", **options)
    assert scaler is not None
    return scaler


class Toy:
    """One weight, whose gradient is what a test says."""

    def __init__(self, **values: Any) -> None:
        self.net = nn.Linear(1, 1, bias=False)
        self.optimizer = make_optimizer(self.net, spec(**values))
        self.scaler = scaler_of(spec(**values))

    def step(self, gradient: float) -> bool:
        """Whether the weight moved."""
        before = self.net.weight.detach().clone()
        self.optimizer.zero_grad()
        self.scaler.scale((self.net.weight * gradient).sum()).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return not torch.equal(before, self.net.weight)


INF = float("inf")


def test_a_factor_of_one_costs_nothing() -> None:
    assert make_loss_scaler(spec(), "cpu") is None
    assert make_loss_scaler(spec(loss_scaling_factor=1), "cpu") is None


def test_a_dynamic_factor_grows_backs_off_and_keeps_its_bounds() -> None:
    toy = Toy(
        loss_scaling_factor="dynamic",
        initial_loss_scale=8.0,
        steps_per_increase=2,
        min_loss_scale=2.0,
        max_loss_scale=16.0,
    )
    scales = []
    for gradient in [1.0, 1.0, 1.0, 1.0, 1.0, INF, 1.0, INF, INF, INF, float("nan"), 1.0, 1.0]:
        assert toy.step(gradient) is (gradient == 1.0)
        scales.append(toy.scaler.current_scale())
    assert scales == [8, 16, 16, 16, 16, 8, 8, 4, 2, 2, 2, 2, 4]
    assert toy.scaler.num_skipped == 5


def test_the_first_factor_is_within_the_bounds() -> None:
    assert scaler_of(spec(loss_scaling_factor="dynamic")).current_scale() == 2.0**15
    assert scaler_of(spec(loss_scaling_factor="dynamic", max_loss_scale=4)).current_scale() == 4.0
    low = spec(loss_scaling_factor="dynamic", initial_loss_scale=1, min_loss_scale=2)
    assert scaler_of(low).current_scale() == 2.0


def test_a_fixed_factor_never_changes_and_counts_what_it_skips() -> None:
    toy = Toy(loss_scaling_factor=1000.0, steps_per_increase=1)
    assert [toy.step(gradient) for gradient in [1.0, INF, 1.0, INF]] == [True, False, True, False]
    assert toy.scaler.current_scale() == 1000.0
    assert toy.scaler.num_skipped == 2


def train(name: str, factor: Any, clips: bool, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)
    clipping = {"max_gradient_norm": 0.05} if clips else {}
    chosen = spec(name, loss_scaling_factor=factor, **clipping)
    optimizer, scaler = make_optimizer(net, chosen), make_loss_scaler(chosen, "cpu")
    for step in range(5):
        optimizer.zero_grad()
        batch = torch.randn(4, 6, generator=torch.Generator().manual_seed(step)).to(dtype)
        loss = net(batch).square().mean()
        if scaler is None:
            loss.backward()
            clip_gradients(net.parameters(), chosen)
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            if clips:
                scaler.unscale_(optimizer)
                clip_gradients(net.parameters(), chosen)
            scaler.step(optimizer)
            scaler.update()
    return [parameter.detach() for parameter in net.parameters()]


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("factor", [1024.0, 0.25, "dynamic"])
def test_scaling_by_a_power_of_two_is_training_without(name: str, clips: bool, factor: Any) -> None:
    scaled, plain = train(name, factor, clips), train(name, 1.0, clips)
    assert all(torch.equal(mine, other) for mine, other in zip(scaled, plain, strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_weights_of_other_types_can_be_scaled(dtype: torch.dtype) -> None:
    scaled, plain = train("Adam", 64.0, True, dtype), train("Adam", 1.0, True, dtype)
    assert all(torch.equal(mine, other) for mine, other in zip(scaled, plain, strict=True))


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_a_skipped_step_leaves_weights_and_state_alone(name: str) -> None:
    net = nn.Linear(3, 2)
    chosen = spec(name, loss_scaling_factor="dynamic")
    optimizer, scaler = make_optimizer(net, chosen), scaler_of(chosen)

    def step(factor: float) -> None:
        optimizer.zero_grad()
        scaler.scale(net(torch.ones(1, 3)).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()

    step(1.0)
    weights = [parameter.detach().clone() for parameter in net.parameters()]
    state = copy.deepcopy([optimizer.state[parameter] for parameter in net.parameters()])
    step(INF)
    assert all(torch.equal(a, b) for a, b in zip(weights, net.parameters(), strict=True))
    for before, parameter in zip(state, net.parameters(), strict=True):
        for key, value in before.items():
            if value is not None:
                assert torch.equal(value, optimizer.state[parameter][key]), key


def test_the_state_is_json_and_goes_on_where_it_was() -> None:
    settings = {"loss_scaling_factor": "dynamic", "initial_loss_scale": 8.0, "steps_per_increase": 3}
    toy = Toy(**settings)
    for gradient in [1.0, INF, 1.0, 1.0]:
        toy.step(gradient)
    saved = json.loads(json.dumps(toy.scaler.state_dict()))
    assert saved == {"dynamic": True, "scale": 4.0, "finite_steps": 2, "num_skipped": 1}
    fresh, used = Toy(**settings), Toy(**settings)
    used.step(INF)
    for other in (fresh, used):
        other.scaler.load_state_dict(saved)
        assert other.scaler.state_dict() == saved
        other.step(1.0)
        assert other.scaler.current_scale() == 8.0
        other.step(INF)
        assert other.scaler.num_skipped == 2


def test_a_restored_factor_keeps_the_bounds_of_this_run() -> None:
    scaler = scaler_of(spec(loss_scaling_factor="dynamic", max_loss_scale=4.0))
    scaler.load_state_dict({"dynamic": True, "scale": 1024.0, "finite_steps": 0, "num_skipped": 3})
    assert (scaler.current_scale(), scaler.num_skipped) == (4.0, 3)


@pytest.mark.parametrize("factor", [16.0, "dynamic"])
def test_a_factor_of_the_other_kind_is_not_taken_over(factor: Any) -> None:
    scaler = scaler_of(spec(loss_scaling_factor=factor))
    first = scaler.current_scale()
    scaler.load_state_dict(
        {"dynamic": factor != "dynamic", "scale": 2.0, "finite_steps": 9, "num_skipped": 1}
    )
    assert (scaler.current_scale(), scaler.num_skipped) == (first, 1)


@pytest.mark.parametrize(
    "state", [{}, {"scale": 1.0}, {"dynamic": True, "scale": "x", "finite_steps": 0, "num_skipped": 0}]
)
def test_a_state_that_cannot_be_read_is_told(state: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="loss scale in the checkpoint"):
        scaler_of(spec(loss_scaling_factor="dynamic")).load_state_dict(state)


def test_other_processes_can_say_that_they_overflowed() -> None:
    chosen = spec(loss_scaling_factor="dynamic")
    net = nn.Linear(1, 1)
    optimizer, scaler = make_optimizer(net, chosen), scaler_of(chosen, agree=lambda flag: flag.fill_(1.0))
    before = copy.deepcopy(net.state_dict())
    scaler.scale(net(torch.ones(1, 1)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.num_skipped == 1
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_weights_that_are_float16_cannot_be_scaled() -> None:
    net = nn.Linear(2, 2).half()
    chosen = spec(loss_scaling_factor=8.0)
    optimizer, scaler = make_optimizer(net, chosen), scaler_of(chosen)
    scaler.scale(net.weight.sum()).backward()
    with pytest.raises(UserError, match="float16 itself"):
        scaler.step(optimizer)


@pytest.mark.parametrize("unscales", [False, True])
def test_no_gradient_at_all_is_told(unscales: bool) -> None:
    net = nn.Linear(2, 2)
    chosen = spec(loss_scaling_factor=8.0)
    optimizer, scaler = make_optimizer(net, chosen), scaler_of(chosen)
    scaler.scale(torch.ones(()))
    if unscales:
        scaler.unscale_(optimizer)
    with pytest.raises(UserError, match="no parameter got a gradient"):
        scaler.step(optimizer)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_sparse_and_complex_gradients_are_unscaled() -> None:
    chosen = spec(loss_scaling_factor=8.0)
    table = nn.Embedding(4, 2, sparse=True)
    wave = nn.ParameterDict({"phase": nn.Parameter(torch.ones(2, dtype=torch.complex64))})
    for net, loss in ((table, table(torch.tensor([1, 1])).sum()), (wave, wave["phase"].abs().sum())):
        optimizer, scaler = make_optimizer(net, chosen), scaler_of(chosen)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        (parameter,) = net.parameters()
        assert parameter.grad is not None
        expected = (
            torch.tensor([[0.0] * 2, [2.0] * 2, [0.0] * 2, [0.0] * 2]) if net is table else torch.ones(2) + 0j
        )
        grad = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
        torch.testing.assert_close(grad, expected)
        scaler.step(optimizer)
        scaler.update()
