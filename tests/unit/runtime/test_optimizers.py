from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from portwright.errors import UserError
from portwright.job.optimizer import OPTIMIZERS, optimizer_schema
from portwright.runtime.optimizers import clip_gradients, make_optimizer


def spec(optimizer_type: str = "Adam", **values: Any) -> Any:
    return optimizer_schema(optimizer_type).model_validate({"learning_rate": 0.01, **values})


def make_net(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)


def train(net: nn.Module, optimizer: torch.optim.Optimizer, num_steps: int = 10) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    dtype = next(net.parameters()).dtype
    for _ in range(num_steps):
        optimizer.zero_grad()
        net(torch.randn(4, 6, generator=generator).to(dtype)).square().mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in net.parameters()]


# What each specification must come to in torch itself, by torch's plainest implementation.
IN_TORCH: list[tuple[str, dict[str, Any], type[torch.optim.Optimizer], dict[str, Any]]] = [
    ("Adadelta", {"rho": 0.8}, torch.optim.Adadelta, {"rho": 0.8, "eps": 1e-6}),
    (
        "Adagrad",
        {"lr_decay": 0.1, "initial_accumulator_value": 0.2},
        torch.optim.Adagrad,
        {"lr_decay": 0.1, "initial_accumulator_value": 0.2, "eps": 1e-6},
    ),
    ("Adam", {"betas": [0.8, 0.9]}, torch.optim.Adam, {"betas": (0.8, 0.9), "eps": 1e-6}),
    ("Adam", {"amsgrad": True, "eps": 1e-3}, torch.optim.Adam, {"amsgrad": True, "eps": 1e-3}),
    ("AdamW", {"beta1": 0.5}, torch.optim.AdamW, {"betas": (0.5, 0.999), "eps": 1e-6}),
    ("Adamax", {}, torch.optim.Adamax, {"eps": 1e-6}),
    ("ASGD", {"t0": 3, "lambd": 0.1, "alpha": 0.5}, torch.optim.ASGD, {"t0": 3, "lambd": 0.1, "alpha": 0.5}),
    ("NAdam", {"momentum_decay": 0.1}, torch.optim.NAdam, {"momentum_decay": 0.1, "eps": 1e-6}),
    ("RAdam", {"beta2": 0.9}, torch.optim.RAdam, {"betas": (0.9, 0.9), "eps": 1e-6}),
    (
        "RMSprop",
        {"alpha": 0.9, "momentum": 0.5, "centered": True},
        torch.optim.RMSprop,
        {"alpha": 0.9, "momentum": 0.5, "centered": True, "eps": 1e-6},
    ),
    ("SGD", {}, torch.optim.SGD, {}),
    ("SGD", {"momentum": 0.9, "use_nesterov": True}, torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    (
        "SGD",
        {"momentum": 0.9, "dampening": 0.1, "maximize": True},
        torch.optim.SGD,
        {"momentum": 0.9, "dampening": 0.1, "maximize": True},
    ),
]


@pytest.mark.parametrize(("name", "values", "kind", "options"), IN_TORCH)
def test_a_specification_trains_as_torch_does(
    name: str, values: dict[str, Any], kind: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    net = make_net()
    ours = train(
        copy_of := copy.deepcopy(net), make_optimizer(copy_of, spec(name, weight_decay_rate=0.1, **values))
    )
    matrices = [net[0].weight, net[3].weight]
    others = [parameter for parameter in net.parameters() if all(parameter is not m for m in matrices)]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    theirs = train(net, kind(groups, lr=0.01, foreach=False, **options))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_rprop_trains_as_torch_does() -> None:
    net = make_net()
    ours = train(
        copied := copy.deepcopy(net),
        make_optimizer(copied, spec("Rprop", etas=[0.4, 1.3], step_sizes=[1e-4, 0.1])),
    )
    theirs = train(net, torch.optim.Rprop(net.parameters(), lr=0.01, etas=(0.4, 1.3), step_sizes=(1e-4, 0.1)))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_optimizer_lowers_a_loss(name: str, dtype: torch.dtype) -> None:
    net = make_net(dtype)
    data = torch.randn(32, 6, generator=torch.Generator().manual_seed(0)).to(dtype)
    optimizer = make_optimizer(net, spec(name, learning_rate=1.0 if name == "Adadelta" else 0.01))
    first = net(data).float().square().mean().item()
    for _ in range(30):
        optimizer.zero_grad()
        net(data).float().square().mean().backward()
        optimizer.step()
    assert net(data).float().square().mean().item() < 0.9 * first


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_without_bias_correction_it_is_the_plain_recurrence(name: str, amsgrad: bool) -> None:
    values = {"weight_decay_rate": 0.1, "correct_bias": False, "amsgrad": amsgrad, "eps": 1e-3, "beta2": 0.9}
    weight = nn.Linear(4, 3, bias=False).double()
    optimizer = make_optimizer(weight, spec(name, **values))
    w = weight.weight.detach().clone()
    m, v, largest = torch.zeros_like(w), torch.zeros_like(w), torch.zeros_like(w)
    for step in range(8):
        grad = torch.randn(3, 4, generator=torch.Generator().manual_seed(step)).double() * (8 - step)
        weight.weight.grad = grad.clone()
        optimizer.step()
        if name == "Adam":
            grad = grad + 0.1 * w
        m, v = 0.9 * m + 0.1 * grad, 0.9 * v + 0.1 * grad**2
        largest = torch.maximum(largest, v)
        direction = m / ((largest if amsgrad else v).sqrt() + 1e-3)
        w = w - 0.01 * (direction + (0.1 * w if name == "AdamW" else 0))
    torch.testing.assert_close(weight.weight.detach(), w, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD", "Adagrad"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_fused_kernels_are_taken_where_torch_has_them(name: str, dtype: torch.dtype) -> None:
    optimizer = make_optimizer(make_net(dtype), spec(name, weight_decay_rate=0.1))
    assert [group["fused"] for group in optimizer.param_groups] == [True, True]


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD", "Adagrad"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(3, 4, dtype=torch.complex64),
        lambda: torch.randn(3, 8)[:, ::2],
        lambda: torch.randn(4, 3).t(),
    ],
    ids=["complex", "strided", "transposed"],
)
def test_what_a_fused_kernel_would_get_wrong_goes_without(
    name: str, make: Callable[[], torch.Tensor]
) -> None:
    model = nn.ParameterDict({"weight": nn.Parameter(make())})
    reference = nn.Parameter(model["weight"].detach().clone(memory_format=torch.contiguous_format))
    ours = make_optimizer(model, spec(name))
    options = {} if name == "SGD" else {"eps": 1e-6}
    theirs = getattr(torch.optim, name)([reference], lr=0.01, weight_decay=0, foreach=False, **options)
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        grad = torch.randn(reference.shape, dtype=reference.dtype, generator=generator)
        model["weight"].grad, reference.grad = grad, grad.clone()
        ours.step()
        theirs.step()
    torch.testing.assert_close(model["weight"].detach(), reference.detach())


def test_channels_last_weights_are_fused_and_right() -> None:
    plain = nn.Conv2d(3, 4, 3)
    last = copy.deepcopy(plain).to(memory_format=torch.channels_last)
    data = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    optimizers = [make_optimizer(net, spec("Adam")) for net in (plain, last)]
    assert optimizers[1].param_groups[0]["fused"]
    for net, optimizer in zip((plain, last), optimizers, strict=True):
        for _ in range(5):
            optimizer.zero_grad()
            net(data).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(plain.weight, last.weight, rtol=1e-4, atol=1e-5)


def test_empty_and_scalar_parameters_are_no_obstacle() -> None:
    for name in OPTIMIZERS:
        model = nn.ParameterDict(
            {"empty": nn.Parameter(torch.zeros(0, 3)), "scalar": nn.Parameter(torch.tensor(1.0))}
        )
        optimizer = make_optimizer(model, spec(name))
        (model["scalar"].square() + model["empty"].sum()).backward()
        optimizer.step()
        assert 0.5 < model["scalar"].item() < 1.0, name


@pytest.mark.parametrize("name", ["Lamb", "Lion", "Adafactor", "Muon"])
def test_our_own_refuse_complex_parameters_by_name(name: str) -> None:
    model = nn.ParameterDict({"phase": nn.Parameter(torch.zeros(2, 2, dtype=torch.complex64))})
    with pytest.raises(UserError, match=f"{name} takes real parameters, and 'phase' is torch.complex64"):
        make_optimizer(model, spec(name))


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
def test_sparse_embeddings_train_without_a_fused_kernel(name: str) -> None:
    dense, sparse = nn.Embedding(6, 3), nn.Embedding(6, 3, sparse=True)
    sparse.load_state_dict(dense.state_dict())
    for net in (dense, sparse):
        optimizer = make_optimizer(net, spec(name))
        for step in range(3):
            optimizer.zero_grad()
            net(torch.tensor([step, 1])).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(dense.weight, sparse.weight)


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("Adam", {}, "Adam takes none"),
        ("Muon", {}, "Muon takes none"),
        ("SGD", {"weight_decay_rate": 0.1}, "weight_decay_rate=0.1 makes them dense"),
        ("SGD", {"max_gradient_norm": 1}, "they cannot be clipped"),
    ],
)
def test_sparse_embeddings_are_refused_where_they_cannot_work(
    name: str, values: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UserError, match=f"'0' gives sparse gradients, and {reason}"):
        make_optimizer(nn.Sequential(nn.Embedding(4, 2, sparse=True)), spec(name, **values))


def test_the_first_learning_rate_is_that_of_step_zero() -> None:
    line = {"scheduler": "Linear", "initial_learning_rate": 0.5, "end_learning_rate": 1.0, "total_iters": 10}
    optimizer = make_optimizer(make_net(), spec("Muon", learning_rate=line, adamw_lr_scale=0.1))
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, pytest.approx(0.05)]


def grads(*values: list[float] | None) -> list[nn.Parameter]:
    parameters = []
    for value in values:
        parameter = nn.Parameter(torch.zeros(len(value or [0.0])))
        parameter.grad = None if value is None else torch.tensor(value)
        parameters.append(parameter)
    return parameters


def test_clipping_by_norm_is_torchs() -> None:
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(5, 3)), nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(()))]
    for parameter in ours:
        parameter.grad = torch.randn_like(parameter)
    theirs = copy.deepcopy(ours)
    for mine, other in zip(ours, theirs, strict=True):
        other.grad = mine.grad.clone()
    norm = clip_gradients(ours, spec(max_gradient_norm=0.5))
    expected = nn.utils.clip_grad_norm_(theirs, 0.5)
    torch.testing.assert_close(norm, expected, rtol=0, atol=0)
    torch.testing.assert_close([p.grad for p in ours], [p.grad for p in theirs], rtol=0, atol=0)


def test_small_gradients_are_not_stretched() -> None:
    (parameter,) = grads([0.3, 0.4])
    norm = clip_gradients([parameter], spec(max_gradient_norm=1.0))
    assert norm is not None
    assert norm.item() == pytest.approx(0.5)
    assert parameter.grad is not None
    assert parameter.grad.tolist() == pytest.approx([0.3, 0.4])


def test_clipping_by_value() -> None:
    first, untouched, last = grads([-3.0, 0.5], None, [2.0])
    assert clip_gradients([first, untouched, last], spec(max_gradient_value=1.0)) is None
    assert first.grad is not None
    assert last.grad is not None
    assert (first.grad.tolist(), last.grad.tolist()) == ([-1.0, 0.5], [1.0])


def test_nothing_is_clipped_where_nothing_was_asked_or_given() -> None:
    (parameter,) = grads([100.0])
    assert clip_gradients([parameter], spec()) is None
    assert parameter.grad is not None
    assert parameter.grad.item() == 100.0
    assert clip_gradients(grads(None), spec(max_gradient_norm=1.0)) is None
    assert clip_gradients([], spec(max_gradient_norm=1.0)) is None


def test_a_norm_that_is_not_finite_is_given_back_as_it_is() -> None:
    norm = clip_gradients(grads([float("inf"), 1.0]), spec(max_gradient_norm=1.0))
    assert norm is not None
    assert norm.item() == float("inf")
