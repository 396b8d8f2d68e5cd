"""Where the emulator was found to differ from what Graphcore's own public tests of PopTorch ask; models and words are ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from portwright.emulate import poptorch


class Applied(nn.Module):
    """A function of the input, beside a tensor that is no buffer."""

    def __init__(self, function: Callable[[Applied, Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.plain = torch.tensor([1.0, 2.0, 3.0, 4.0])
        self.register_buffer("kept", torch.tensor([1.0, 2.0, 3.0, 4.0]))
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def infer(function: Callable[[Applied, Tensor], Any], x: Tensor | None = None) -> Any:
    return poptorch.inferenceModel(Applied(function))(torch.ones(4) if x is None else x)


# Tensors of the host

ON_HOST: dict[str, Callable[[Applied, Tensor], Tensor]] = {
    "attribute": lambda m, x: x * m.plain,
    "computed on the host": lambda m, x: x + (m.plain * 2).sqrt(),
    "old constructor": lambda m, x: torch.index_select(x, 0, torch.LongTensor([1, 0])),
    "from numpy": lambda m, x: torch.where(x > 0, x, torch.from_numpy(np.zeros(4, dtype=np.float32))),
    "device named": lambda m, x: x - torch.ones(4, device="cpu"),
    "no default device": lambda m, x: F.linear(x, torch.eye(4)),
    "one number": lambda m, x: x * m.plain[0],
    "in a list": lambda m, x: torch.cat([x, m.plain]),
    "loss": lambda m, x: F.mse_loss(x, m.plain),
}


@pytest.mark.parametrize("function", ON_HOST.values(), ids=ON_HOST)
def test_a_tensor_of_the_host_does_not_mix_with_those_of_the_ipu(function: Any) -> None:
    with pytest.raises(poptorch.Error, match=r"IPU tensor is expected.*test_poptorch_oracle\.py:\d+"):
        infer(function)


ON_IPU: dict[str, Callable[[Applied, Tensor], Tensor]] = {
    "buffer": lambda m, x: x * m.kept,
    "made in forward": lambda m, x: x * torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "moved": lambda m, x: x * m.plain.to("ipu"),
    "moved to x's device": lambda m, x: x * m.plain.to(x.device),
    "moved to x": lambda m, x: x * m.plain.to(x),
    "by keyword": lambda m, x: x * m.plain.type_as(other=x),
    "type_as": lambda m, x: x * m.plain.type_as(x),
    "moved, then computed": lambda m, x: x * (m.plain.to("ipu") + 0),
    "copied into": lambda m, x: x * torch.zeros(4).copy_(m.plain),
    "new_tensor": lambda m, x: x * x.new_tensor([1.0, 2.0, 3.0, 4.0]),
    "made by arange": lambda m, x: x * (torch.arange(4) + 1),
}


@pytest.mark.parametrize("function", ON_IPU.values(), ids=ON_IPU)
def test_a_constant_gets_onto_the_ipu(function: Any) -> None:
    torch.testing.assert_close(infer(function), torch.tensor([1.0, 2.0, 3.0, 4.0]))


def test_indices_in_a_list_are_no_tensor_of_the_host() -> None:
    x = torch.arange(4.0)
    assert infer(lambda m, t: t[[2, 0]], x).tolist() == [2.0, 0.0]


def test_a_result_of_the_host_alone_is_a_constant() -> None:
    assert infer(lambda m, x: (x, m.plain * 2))[1].tolist() == [2.0, 4.0, 6.0, 8.0]


def test_what_torch_makes_for_itself_is_where_its_arguments_are() -> None:
    def loss(m: Applied, x: Tensor) -> Tensor:
        targets = torch.ones(1, 2, dtype=torch.long)
        return F.ctc_loss((x * m.weight).log_softmax(0).expand(5, 1, 4), targets, (5,), (2,))

    expected = F.ctc_loss(
        torch.ones(4).log_softmax(0).expand(5, 1, 4), torch.ones(1, 2, dtype=torch.long), (5,), (2,)
    )
    torch.testing.assert_close(infer(loss), expected)


# Weights in forward()


class ByName(nn.Module):
    """Finds its weights in the ways that ask for their class."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0, 3.0]))
        self.register_buffer("offset", torch.tensor([1.0, 1.0]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        assert isinstance(self.weight, nn.Parameter)
        assert not isinstance(self.offset, nn.Parameter)
        out = x * self.get_parameter("weight") + self.get_buffer("offset")
        return out, poptorch.identity_loss(out, reduction="sum")


@pytest.mark.parametrize("training", [True, False])
def test_weights_are_parameters_while_the_model_runs(training: bool) -> None:
    model = ByName()
    wrapped: Any
    if training:
        wrapped = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5))
    else:
        wrapped = poptorch.inferenceModel(model)
    out, _ = wrapped(torch.ones(2))
    assert out.tolist() == [3.0, 4.0]
    if training:
        wrapped.copyWeightsToHost()
        assert model.weight.tolist() == [1.5, 2.5]
    assert isinstance(model.weight, nn.Parameter)


def test_tied_weights_are_parameters_under_each_name() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(2, 2, bias=False)
            self.second = nn.Linear(2, 2, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            assert self.get_parameter("second.weight") is self.get_parameter("first.weight")
            out: Tensor = self.second(self.first(x))
            return out

    model = Tied()
    x = torch.randn(3, 2)
    torch.testing.assert_close(poptorch.inferenceModel(model)(x), model(x).detach())


# Half


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_in_half_may_keep_its_statistics_in_float(training: bool) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(3)
    norm.running_mean.normal_()  # type: ignore[union-attr]
    norm.train(training)
    plain = nn.BatchNorm1d(3)
    plain.load_state_dict(norm.state_dict())
    plain.train(training)
    x = torch.randn(8, 3).half()
    expected = plain(x.float()).detach()
    norm.half()
    norm.running_mean, norm.running_var = norm.running_mean.float(), norm.running_var.float()  # type: ignore[union-attr]
    wrapped = poptorch.inferenceModel(norm)
    out = wrapped(x)
    assert out.dtype is torch.float16
    torch.testing.assert_close(out.float(), expected, rtol=1e-2, atol=1e-2)
    wrapped.copyWeightsToHost()
    assert norm.running_mean.dtype is torch.float32
    torch.testing.assert_close(norm.running_mean, plain.running_mean, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(norm.running_var, plain.running_var, rtol=1e-2, atol=1e-3)


# What the table says of ops


def test_bilinear_upsampling_to_a_size_takes_any_even_factor() -> None:
    x = torch.randn(1, 2, 2, 8)
    model = nn.Upsample(size=(7, 28), mode="bilinear")
    torch.testing.assert_close(poptorch.inferenceModel(model)(x), model(x))
    for wrong in (nn.Upsample(scale_factor=3.5, mode="bilinear"), nn.Upsample(size=(7, 27), mode="bilinear")):
        with pytest.raises(poptorch.Error, match="bilinear"):
            poptorch.inferenceModel(wrong)(x)


# An inference model of a part of what is trained, as in Graphcore's own MNIST example


class WithLoss(nn.Module):
    """A model inside of the one that is trained."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        out = self.inner(x)
        return out, F.mse_loss(out, target)


@pytest.mark.parametrize("made_first", [True, False], ids=["before training", "after training"])
@pytest.mark.parametrize("of_part", [True, False], ids=["a part", "the same model"])
def test_an_inference_takes_what_was_trained_when_it_reads_the_weights(
    made_first: bool, of_part: bool, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    inner = nn.Linear(3, 2)
    whole = WithLoss(inner)
    x, target = torch.randn(1, 3), torch.randn(1, 2)
    wrapped: Any = inner if of_part else whole
    given = (x,) if of_part else (x, target)
    inference: Any = poptorch.inferenceModel(wrapped) if made_first else None
    training: Any = poptorch.trainingModel(whole, optimizer=torch.optim.SGD(whole.parameters(), lr=0.1))
    for _ in range(5):
        training(x, target)
    before = inner.weight.detach().clone()
    inference = inference or poptorch.inferenceModel(wrapped)
    first = inference(*given)
    assert not torch.equal(inner.weight, before), "the host has them now, too"
    first = first if of_part else first[0]
    torch.testing.assert_close(first, inner(x).detach())
    assert "does not follow" not in caplog.text
    if not of_part and not made_first:
        return
    training(x, target)
    again = inference(*given)
    torch.testing.assert_close(again if of_part else again[0], first)
    assert "does not follow" in caplog.text
    inference.copyWeightsToDevice()
    last = inference(*given)
    assert not torch.equal(last if of_part else last[0], first)


def test_a_setting_that_changes_results_elsewhere_is_told(caplog: pytest.LogCaptureFixture) -> None:
    options = poptorch.Options()
    options._Popart.set("groupNormStridedChannelGrouping", True)
    model = nn.GroupNorm(2, 4)
    x = torch.randn(1, 4, 3)
    wrapped: Any = poptorch.inferenceModel(model, options)
    torch.testing.assert_close(wrapped(x), model(x).detach())
    assert "groupNormStridedChannelGrouping" in caplog.text
    assert "every n-th channel" in caplog.text


def test_linspace_is_made_in_a_model() -> None:
    assert infer(lambda m, x: x * torch.linspace(0, 3, steps=4)).tolist() == [0.0, 1.0, 2.0, 3.0]


# Optimizer states


def test_a_state_of_any_numbers_runs() -> None:
    """As on the device, nonsense gives nonsense, and no error."""
    model = WithLoss(nn.Linear(3, 2))
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.1, betas=(0.5, 0.6))
    optimizer.variable_attrs.markAsVariable("betas")
    training: Any = poptorch.trainingModel(model, optimizer=optimizer)
    training.compile(torch.randn(1, 3), torch.randn(1, 2))
    state = optimizer.state_dict()
    for name, value in state["ipu_param"].items():
        state["ipu_param"][name] = torch.full_like(value, -0.5)
    for name, value in state["ipu_state"].items():
        state["ipu_state"][name] = torch.full_like(value, 0.5)
    optimizer.load_state_dict(state)
    training(torch.randn(1, 3), torch.randn(1, 2))
    after = optimizer.state_dict()
    for name, value in state["ipu_param"].items():
        assert torch.equal(after["ipu_param"][name], value), name


def test_a_groups_velocity_scaling_has_no_part_in_a_separate_velocity() -> None:
    model = WithLoss(nn.Linear(3, 2))
    optimizer = poptorch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, loss_scaling=2.0, use_combined_accum=False
    )
    training: Any = poptorch.trainingModel(model, optimizer=optimizer)
    training(torch.randn(1, 3), torch.randn(1, 2))
    optimizer.loss_scaling = 4.0
    optimizer.param_groups[0]["velocity_scaling"] = 4.0
    training.setOptimizer(optimizer)
    training(torch.randn(1, 3), torch.randn(1, 2))
    combined = poptorch.optim.SGD(WithLoss(nn.Linear(3, 2)).parameters(), lr=0.1, use_combined_accum=True)
    combined.variable_attrs.markAsConstant("velocity_scaling")
    other = WithLoss(nn.Linear(3, 2))
    combined.param_groups[0]["params"] = list(other.parameters())
    trained: Any = poptorch.trainingModel(other, optimizer=combined)
    trained(torch.randn(1, 3), torch.randn(1, 2))
    combined.param_groups[0]["velocity_scaling"] = 4.0
    with pytest.raises(poptorch.Error, match="velocity_scaling"):
        trained.setOptimizer(combined)
