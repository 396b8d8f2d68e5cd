"""PyTorchBaseModel of release 1.6: what its subclasses count on, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from portwright.compat.modelzoo_base_model import PyTorchBaseModel
from portwright.errors import UserError


def params(mode: str = "train", **model: Any) -> dict[str, Any]:
    optimizer = {"optimizer_type": "SGD", "learning_rate": 0.1, "momentum": 0.9}
    return {"model": {"mixed_precision": True, **model}, "optimizer": optimizer, "runconfig": {"mode": mode}}


class Plain(PyTorchBaseModel):
    def __init__(self, params: dict[str, Any], device: Any = None) -> None:
        self.calls: list[str] = []
        self.model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 2))
        super().__init__(params=params, model=self.model, device=device)

    def _post_device_transfer(self) -> None:
        self.calls.append("transferred")

    def __call__(self, data: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.model(data.pop("x")).mean()  # type: ignore[no-any-return]


def test_attributes_and_the_hook_after_the_transfer() -> None:
    model = Plain(params(), torch.device("cpu"))
    assert model.calls == ["transferred"]
    assert model.mode == "train"
    assert model.mixed_precision is True
    assert model.get_optimizer() is None
    model.eval()
    assert (model.mode, model.model.training) == ("eval", False)
    model.train()
    assert (model.mode, model.model.training) == ("train", True)


def test_the_batch_stays_whole() -> None:
    batch = {"x": torch.ones(1, 2)}
    model = Plain(params())
    model(batch)
    model(batch)
    assert set(batch) == {"x"}


@pytest.mark.parametrize("mode", ["train", "eval", "train_and_eval", "eval_all", "predict"])
def test_modes(mode: str) -> None:
    assert Plain(params(mode)).mode == mode


def test_a_model_that_narrows_its_modes() -> None:
    class EvalOnly(Plain):
        @property
        def supported_non_cs_modes(self) -> tuple[str, ...]:
            return ("eval",)

    assert EvalOnly(params("eval")).supports_mode("eval_all")
    with pytest.raises(UserError, match="EvalOnly does not support mode train"):
        EvalOnly(params("train"))


@pytest.mark.parametrize("name", ["get_state", "set_state", "get_lr_scheduler", "_configure_lr_scheduler"])
def test_what_would_never_be_called_is_refused(name: str) -> None:
    special = type("Special", (Plain,), {name: lambda self, *args: None})
    with pytest.raises(UserError, match=f"Special overrides {name}"):
        special(params())


def test_only_the_trainable_parameters_train() -> None:
    class Head(Plain):
        def trainable_named_parameters(self) -> Any:
            return [(name, p) for name, p in self.model.named_parameters() if name.startswith("2.")]

    trained = [name for name, p in Head(params()).model.named_parameters() if p.requires_grad]
    assert trained == ["2.weight", "2.bias"]


def test_an_optimizer_of_its_own() -> None:
    class Own(Plain):
        def _configure_optimizer(self, oparams: dict[str, Any]) -> torch.optim.Optimizer:
            made = super()._configure_optimizer(oparams)
            assert isinstance(made, torch.optim.SGD)
            return torch.optim.Adagrad(self.model.parameters(), oparams["learning_rate"])

    assert isinstance(Own(params()).get_optimizer(), torch.optim.Adagrad)
    assert Own(params("eval")).get_optimizer() is None


def test_names_of_shared_tensors() -> None:
    class Tied(Plain):
        def _post_device_transfer(self) -> None:
            self.model[1].weight = self.model[2].weight = nn.Parameter(torch.ones(3, 3))  # type: ignore[assignment,index]

    both = {"1.weight", "2.weight"}
    assert Tied(params()).duplicate_params_map == {"1.weight": both, "2.weight": both}
    assert Plain(params()).duplicate_params_map == {}
