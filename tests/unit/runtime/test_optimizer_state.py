from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from portwright.errors import UserError
from portwright.job.optimizer import OPTIMIZERS, optimizer_schema
from portwright.runtime.optimizers import load_optimizer_state, make_optimizer, optimizer_state

SETTINGS: list[dict[str, Any]] = [
    *({"optimizer_type": name} for name in sorted(OPTIMIZERS)),
    {"optimizer_type": "Adam", "amsgrad": True},
    {"optimizer_type": "AdamW", "correct_bias": False, "amsgrad": True},
    {"optimizer_type": "SGD", "momentum": 0.9},
    {"optimizer_type": "RMSprop", "momentum": 0.9, "centered": True},
    {"optimizer_type": "Adafactor", "beta1": 0.9},
    {"optimizer_type": "Adafactor", "relative_step": True, "learning_rate": None},
]


def spec(optimizer_type: str = "Adam", **values: Any) -> Any:
    return optimizer_schema(optimizer_type).model_validate({"learning_rate": 0.01, **values})


def make_net(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.ModuleDict(
        {
            "conv": nn.Conv2d(1, 2, 2),
            "norm": nn.LayerNorm(8),
            "a/b": nn.Linear(8, 3),
            "unused": nn.Linear(2, 2),
        }
    ).to(dtype)


def train(net: Any, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    dtype = next(net.parameters()).dtype
    for step in range(first, last):
        optimizer.zero_grad()
        batch = torch.randn(4, 1, 3, 3, generator=torch.Generator().manual_seed(step)).to(dtype)
        net["a/b"](net["norm"](net["conv"](batch).flatten(1))).square().mean().backward()
        optimizer.step()


def names_of(net: nn.Module) -> dict[Tensor, str]:
    return {parameter: name for name, parameter in net.named_parameters()}


def saved(net: nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[str, Tensor]]:
    return [(name, tensor.clone()) for name, tensor in optimizer_state(optimizer, names_of(net))]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_training_goes_on_bit_for_bit(
    settings: dict[str, Any], dtype: torch.dtype, memory_format: Any
) -> None:
    net = make_net(dtype).to(memory_format=memory_format)
    chosen = spec(**settings)
    optimizer = make_optimizer(net, chosen)
    train(net, optimizer, 0, 3)
    other = copy.deepcopy(net)
    resumed = make_optimizer(other, chosen)
    # As a checkpoint gives them: contiguous, and in no particular order.
    items = [(name, tensor.contiguous()) for name, tensor in reversed(saved(net, optimizer))]
    load_optimizer_state(resumed, names_of(other), items)
    train(net, optimizer, 3, 6)
    train(other, resumed, 3, 6)
    for (name, mine), theirs in zip(net.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs), name
    again = dict(saved(other, resumed))
    for name, tensor in saved(net, optimizer):
        assert torch.equal(tensor, again[name]), name
        assert tensor.dtype == again[name].dtype, name


def test_names_are_parameter_and_state() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    optimizer = make_optimizer(net, spec("Adam", weight_decay_rate=0.1))
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state = dict(saved(net, optimizer))
    assert sorted(state) == sorted(
        f"0.{p}/{k}" for p in ("weight", "bias") for k in ("step", "exp_avg", "exp_avg_sq")
    )
    assert state["0.weight/step"].shape == ()
    assert state["0.weight/step"].dtype == torch.float32
    assert state["0.weight/step"].item() == 1.0


def test_a_parameter_without_a_gradient_is_marked_and_may_come_back_so() -> None:
    net = make_net()
    optimizer = make_optimizer(net, spec("Adam"))
    assert {name.rpartition("/")[2] for name, _ in saved(net, optimizer)} == {"untouched"}
    train(net, optimizer, 0, 2)
    items = saved(net, optimizer)
    marked = [name for name, _ in items if name.endswith("untouched")]
    assert marked == ["unused.weight/untouched", "unused.bias/untouched"]
    resumed = make_optimizer(net, spec("Adam"))
    load_optimizer_state(resumed, names_of(net), items)
    assert net["unused"].weight not in resumed.state
    load_optimizer_state(
        resumed, names_of(net), [(f"{name}/untouched", torch.tensor(True)) for name in names_of(net).values()]
    )
    assert len(resumed.state) == 0


def test_an_optimizer_without_state_gives_and_takes_none() -> None:
    net = make_net()
    optimizer = make_optimizer(net, spec("SGD"))
    train(net, optimizer, 0, 2)
    assert saved(net, optimizer) == []
    load_optimizer_state(optimizer, names_of(net), [])


def test_finding_out_what_is_expected_changes_nothing() -> None:
    net = make_net()
    before = copy.deepcopy(net.state_dict())
    optimizer = make_optimizer(net, spec("Adafactor", relative_step=True, learning_rate=None))
    calls: list[int] = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    rate = optimizer.param_groups[0]["lr"]
    saved(net, optimizer)
    assert calls == []
    assert optimizer.param_groups[0]["lr"] == rate
    assert len(optimizer.state) == 0
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])


def test_loaded_tensors_are_not_the_givers() -> None:
    net = make_net()
    optimizer = make_optimizer(net, spec("Adam"))
    train(net, optimizer, 0, 2)
    items = saved(net, optimizer)
    kept = [tensor.clone() for _, tensor in items]
    resumed = make_optimizer(net, spec("Adam"))
    load_optimizer_state(resumed, names_of(net), items)
    train(net, resumed, 2, 4)
    assert all(torch.equal(tensor, copy) for (_, tensor), copy in zip(items, kept, strict=True))


def broken(items: dict[str, Tensor], how: str) -> dict[str, Tensor]:
    changed = dict(items)
    if how == "missing":
        del changed["norm.weight/exp_avg"]
    elif how == "missing whole":
        changed = {name: tensor for name, tensor in items.items() if not name.startswith("norm.weight/")}
    elif how == "extra":
        changed["norm.weight/momentum_buffer"] = torch.zeros(8)
    elif how == "stranger":
        changed["head.weight/exp_avg"] = torch.zeros(8)
    elif how == "no name":
        changed["nonsense"] = torch.zeros(())
    elif how == "shape":
        changed["norm.weight/exp_avg"] = torch.zeros(9)
    elif how == "step":
        changed["norm.weight/step"] = torch.zeros(1)
    elif how == "dtype":
        changed["norm.weight/exp_avg"] = torch.zeros(8, dtype=torch.float64)
    return changed


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("missing", "norm.weight/exp_avg is missing"),
        ("missing whole", "norm.weight/step is missing, norm.weight/exp_avg is missing"),
        ("extra", "norm.weight/momentum_buffer is not of this optimizer"),
        ("stranger", "head.weight/exp_avg is of no parameter that is trained"),
        ("no name", "nonsense is of no parameter"),
        ("shape", r"norm.weight/exp_avg has shape \[9\], expected \[8\]"),
        ("step", r"norm.weight/step has shape \[1\], expected \[\]"),
        ("dtype", "norm.weight/exp_avg is torch.float64, which torch.float32 cannot hold"),
    ],
)
@pytest.mark.parametrize("has_stepped", [False, True])
def test_a_state_that_does_not_fit_is_named_and_not_loaded(how: str, told: str, has_stepped: bool) -> None:
    net = make_net()
    optimizer = make_optimizer(net, spec("Adam"))
    train(net, optimizer, 0, 2)
    items = broken(dict(saved(net, optimizer)), how)
    resumed = make_optimizer(net, spec("Adam"))
    if has_stepped:
        train(net, resumed, 0, 1)
    before = saved(net, resumed)
    with pytest.raises(UserError, match=told) as caught:
        load_optimizer_state(resumed, names_of(net), items.items())
    assert "--is_pretrained_checkpoint" in caught.value.cure
    assert "\n" not in str(caught.value)
    for (name, tensor), (_, kept) in zip(saved(net, resumed), before, strict=True):
        assert torch.equal(tensor, kept), name


def test_the_state_of_another_optimizer_is_told_in_one_short_line() -> None:
    net = make_net()
    optimizer = make_optimizer(net, spec("SGD", momentum=0.9))
    train(net, optimizer, 0, 2)
    with pytest.raises(UserError, match=r"conv.weight/step is missing, .* and \d+ more") as caught:
        load_optimizer_state(make_optimizer(net, spec("Adam")), names_of(net), saved(net, optimizer))
    assert len(str(caught.value)) < 400


def test_a_narrower_type_is_widened_exactly() -> None:
    net = make_net(torch.float64)
    optimizer = make_optimizer(net, spec("Adam"))
    train(net, optimizer, 0, 2)
    narrow = [(name, tensor.float() if tensor.ndim else tensor) for name, tensor in saved(net, optimizer)]
    resumed = make_optimizer(net, spec("Adam"))
    load_optimizer_state(resumed, names_of(net), narrow)
    for (_, tensor), (_, given) in zip(saved(net, resumed), narrow, strict=True):
        assert torch.equal(tensor, given.to(tensor.dtype))
    train(net, resumed, 2, 3)


class Counting(torch.optim.Optimizer):
    """A user's own optimizer, with Python numbers in its state."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state["count"] = state.get("count", 0) + 1
                    state["mean"] = 0.5 * state.get("mean", torch.zeros_like(parameter)) + parameter.grad
                    state["size"] = 0.5 * state.get("size", 0.0) + 1 / 3
                    parameter -= group["lr"] * state["mean"] / state["count"] * state["size"]


def test_a_users_own_optimizer_resumes_too() -> None:
    net = make_net()
    optimizer = Counting(net.parameters())
    train(net, optimizer, 0, 3)
    other = copy.deepcopy(net)
    resumed = Counting(other.parameters())
    load_optimizer_state(resumed, names_of(other), saved(net, optimizer))
    assert resumed.state[other["norm"].weight]["count"] == 3
    assert isinstance(resumed.state[other["norm"].weight]["count"], int)
    train(net, optimizer, 3, 5)
    train(other, resumed, 3, 5)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


class Hoarding(Counting):
    def step(self, closure: Any = None) -> Any:
        self.state[self.param_groups[0]["params"][0]]["history"] = [1, 2]


def test_state_that_no_checkpoint_can_hold_is_named() -> None:
    net = make_net()
    optimizer = Hoarding(net.parameters())
    optimizer.step()
    with pytest.raises(UserError, match=r"'conv\.weight/history' as list"):
        saved(net, optimizer)


def test_an_optimizer_of_tensors_outside_the_model_is_refused() -> None:
    net = make_net()
    with pytest.raises(UserError, match=r"shape \(2,\) that is no parameter of the model"):
        saved(net, Counting([nn.Parameter(torch.zeros(2))]))
