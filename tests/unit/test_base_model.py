"""How users' models are held and called, whatever shape they have."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from portwright import PyTorchBaseModel, UserError
from portwright.base_model import LossModule, make_model, split_loss

BATCH = (torch.ones(4, 3), torch.zeros(4, 2))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class Seeds(PyTorchBaseModel):
    """As the seeds write it: self.model before super().__init__()."""

    def __init__(self, params: dict[str, Any], device: Any = None) -> None:
        self.model = Net()
        self.loss_fn = nn.MSELoss()
        super().__init__(params=params, model=self.model, device=device)

    def __call__(self, data: Any) -> torch.Tensor:
        return self.loss_fn(self.model(data[0]), data[1])


class Later(Seeds):
    """The later signature: a function that makes the module."""

    def __init__(self, params: dict[str, Any]) -> None:
        self.loss_fn = nn.MSELoss()
        PyTorchBaseModel.__init__(self, params, Net, None)


class Positional(Seeds):
    def __init__(self, params: dict[str, Any], device: Any) -> None:
        self.loss_fn = nn.MSELoss()
        PyTorchBaseModel.__init__(self, params, Net(), device)


class Plain(nn.Module):
    def __init__(self, params: dict[str, Any]) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, batch: Any) -> torch.Tensor:
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])


class Spread(Plain):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        outputs = self.net(x)
        return nn.functional.mse_loss(outputs, y), outputs


class Named(Plain):
    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> dict[str, torch.Tensor]:  # type: ignore[override]
        outputs = self.net(x)
        return {"loss": nn.functional.mse_loss(outputs, y), "logits": outputs}


@pytest.mark.parametrize(
    "model_fn",
    [
        Seeds,
        Later,
        Positional,
        Plain,
        Spread,
        Named,
        lambda params: Plain(params),
        partial(Seeds, device=None),
    ],
)
def test_every_kind_gives_its_loss(model_fn: Any) -> None:
    torch.manual_seed(0)
    module = make_model(model_fn, {"model": {}}, torch.device("cpu"))
    loss, _ = split_loss(module(BATCH))
    assert loss.ndim == 0
    assert loss.requires_grad
    assert len(list(module.net.parameters())) == 2


def test_a_batch_that_is_a_dict_is_spread_by_name() -> None:
    module = LossModule(Named({}))
    loss, outputs = split_loss(module({"x": BATCH[0], "y": BATCH[1]}))
    assert loss.ndim == 0
    assert set(outputs) == {"logits"}


class Hugging(Plain):
    def forward(
        self, x: torch.Tensor, labels: torch.Tensor | None = None, **more: Any
    ) -> dict[str, torch.Tensor]:  # type: ignore[override]
        assert set(more) == {"attention_mask"}
        return {"loss": nn.functional.mse_loss(self.net(x), labels)}


def test_a_forward_that_takes_any_name_gets_every_key() -> None:
    batch = {"x": BATCH[0], "labels": BATCH[1], "attention_mask": torch.ones(4)}
    assert split_loss(LossModule(Hugging({}))(batch))[0].ndim == 0


def test_keys_that_do_not_fit_are_named() -> None:
    with pytest.raises(UserError, match="inputs"):
        LossModule(Spread({}))({"inputs": BATCH[0], "y": BATCH[1]})


def test_weights_outside_the_model_are_refused_unless_frozen() -> None:
    class Outside(Seeds):
        def __init__(self, params: dict[str, Any], frozen: bool) -> None:
            super().__init__(params)
            self.teacher = nn.Linear(2, 2).requires_grad_(not frozen)

    LossModule(Outside({}, frozen=True))
    with pytest.raises(UserError, match="teacher"):
        LossModule(Outside({}, frozen=False))


def test_a_finished_model_is_no_model_fn() -> None:
    with pytest.raises(UserError, match="Pass the class"):
        make_model(Net(), {}, None)


def test_canonical_names_are_those_of_the_users_module() -> None:
    assert set(LossModule(Seeds({})).net.state_dict()) == {"layer.weight", "layer.bias"}
    assert set(LossModule(Plain({})).net.state_dict()) == {"net.layer.weight", "net.layer.bias"}


def test_it_is_no_module_and_switches_its_model() -> None:
    model = Seeds({})
    assert not isinstance(model, nn.Module)
    model.eval()
    assert not model.model.training
    LossModule(model).train()
    assert model.model.training


@pytest.mark.parametrize(
    ("result", "what"),
    [
        (None, "NoneType"),
        (torch.ones(3), "shape"),
        ({"logits": torch.ones(1)}, "dict"),
        ("text", "str"),
        ((), "tuple"),
    ],
)
def test_results_without_a_loss_are_explained(result: Any, what: str) -> None:
    with pytest.raises(UserError, match=what):
        split_loss(result)


def test_losses_come_out_of_every_shape() -> None:
    loss = torch.tensor(2.0)
    for result in (
        loss,
        loss.reshape(1),
        (loss, 1),
        [loss],
        {"loss": loss},
        SimpleNamespace(loss=loss, logits=loss),
    ):
        assert split_loss(result)[0].shape == ()


@pytest.mark.parametrize("made", [None, 3, nn.Linear, "net"])
def test_what_is_no_model_is_refused(made: Any) -> None:
    with pytest.raises(UserError):
        make_model(lambda params: made, {}, None)


def test_a_base_model_without_a_module_says_how() -> None:
    class Empty(PyTorchBaseModel):
        def __init__(self, params: dict[str, Any]) -> None:
            super().__init__(params)

    with pytest.raises(UserError, match=r"super\(\).__init__"):
        Empty({})
    with pytest.raises(UserError, match="__call__"):
        PyTorchBaseModel({}, Net())(BATCH)
