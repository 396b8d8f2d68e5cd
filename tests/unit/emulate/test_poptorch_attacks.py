"""What a careless user does, found by attacking the emulator: nothing of it may pass without a word."""

from __future__ import annotations

import copy
import io
import logging
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from unit.emulate.executor_models import Classifier, make_batch

from portwright.emulate import poptorch


def make_trainer(
    model: nn.Module | None = None, **values: Any
) -> tuple[Any, nn.Module, torch.optim.Optimizer]:
    model = Classifier() if model is None else model
    optimizer = poptorch.optim.SGD(model.parameters(), **{"lr": 0.1, **values})
    return poptorch.trainingModel(model, poptorch.Options(), optimizer), model, optimizer


def warned(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)


@pytest.fixture(autouse=True)
def heard(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("poptorch"), "propagate", True)
    caplog.set_level(logging.WARNING, "poptorch")


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    optimizer.param_groups[0]["lr"] = rate


# The optimizer


def test_a_rate_that_was_not_sent_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    executor, _, optimizer = make_trainer()
    executor(*make_batch(4))
    set_rate(optimizer, 0.025)
    executor(*make_batch(4))
    assert "lr is 0.025 and 0.1 on the device. Only setOptimizer(optimizer)" in warned(caplog)
    caplog.clear()
    executor(*make_batch(4))
    assert "setOptimizer" not in warned(caplog)


def test_a_rate_that_was_sent_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    executor, _, optimizer = make_trainer()
    set_rate(optimizer, 0.05)  # before it is compiled
    executor(*make_batch(4))
    set_rate(optimizer, 0.025)
    executor.setOptimizer(optimizer)
    executor(*make_batch(4))
    assert "setOptimizer" not in warned(caplog)
    set_rate(optimizer, 0.01)
    executor(*make_batch(4))
    assert "lr is 0.01 and 0.025" in warned(caplog)


# The host's weights


def edit_in_place(model: Any) -> None:
    with torch.no_grad():
        model.last.weight.zero_()


def load_state(model: Any) -> None:
    model.load_state_dict({name: tensor + 1 for name, tensor in model.state_dict().items()})


def replace_layer(model: Any) -> None:
    model.last = nn.Linear(8, 3)


@pytest.mark.parametrize("change", [edit_in_place, load_state, replace_layer])
@pytest.mark.parametrize("is_training", [True, False])
def test_host_weights_that_the_device_does_not_see(
    change: Callable[[Any], None], is_training: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model = Classifier()
    executor = make_trainer(model)[0] if is_training else poptorch.inferenceModel(model.eval())
    batch = make_batch(4) if is_training else make_batch(4)[:1]
    executor(*batch)
    executor(*batch)
    assert "copyWeightsToDevice" not in warned(caplog)
    change(model)
    executor(*batch)
    assert "last.weight" in warned(caplog)
    assert "copyWeightsToDevice()" in warned(caplog)
    caplog.clear()
    change(model)
    executor.copyWeightsToDevice()
    executor(*batch)
    assert "copyWeightsToDevice" not in warned(caplog)


def test_copies_by_the_executor_itself_are_no_edits(caplog: pytest.LogCaptureFixture) -> None:
    executor, model, _ = make_trainer(Classifier(norm=True))
    executor(*make_batch(4))
    inference = poptorch.inferenceModel(model)
    for _ in range(2):
        executor(*make_batch(4))
        inference(make_batch(4)[0])
        executor.copyWeightsToHost()
        executor.load_state_dict(copy.deepcopy(model.state_dict()))
    executor.detachFromDevice()
    executor(*make_batch(4))
    assert "copyWeightsToDevice" not in warned(caplog)


def test_a_type_that_changes_after_compiling_is_refused() -> None:
    executor, model, _ = make_trainer()
    executor(*make_batch(4))
    model.half()
    for act in (lambda: executor(*make_batch(4)), executor.copyWeightsToHost, executor.copyWeightsToDevice):
        with pytest.raises(
            poptorch.Error, match=r"first.weight was torch.float32 \[8, 6\] when .* torch.float16"
        ):
            act()
    executor.destroy()
    assert model.get_parameter("first.weight").dtype == torch.float16


def test_a_layer_that_is_added_after_compiling_is_refused() -> None:
    executor, model, _ = make_trainer()
    executor(*make_batch(4))
    model.extra = nn.Linear(2, 2)
    with pytest.raises(poptorch.Error, match=r"extra\.bias, extra\.weight.*destroy\(\)"):
        executor(*make_batch(4))
    executor.destroy()
    executor(*make_batch(4))  # compiled anew


def test_freezing_after_compiling_is_told(caplog: pytest.LogCaptureFixture) -> None:
    executor, model, _ = make_trainer()
    executor(*make_batch(4))
    model.get_submodule("first").requires_grad_(False)
    executor(*make_batch(4))
    assert "requires_grad of first.weight, first.bias changed" in warned(caplog)


def test_weights_of_two_training_models_are_told(caplog: pytest.LogCaptureFixture) -> None:
    one, two = Classifier(), Classifier()
    two.first = one.first
    first, _, _ = make_trainer(one)
    assert "also trained" not in warned(caplog)
    second, _, _ = make_trainer(two)
    assert "first.weight is also trained by the trainingModel made at" in warned(caplog)
    assert first is not second


# Processes


@pytest.mark.parametrize("is_compiled", [True, False])
def test_an_executor_stays_in_its_process(is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    executor, _, _ = make_trainer()
    if is_compiled:
        executor(*make_batch(4))
    monkeypatch.setattr(os, "getpid", lambda: -1)
    for act in (executor, executor.compile):
        with pytest.raises(poptorch.Error, match=r"another process .*worker of a DataLoader"):
            act(*make_batch(4))


# Copies and files


@pytest.mark.parametrize("copies", [copy.deepcopy, lambda model: torch.save(model, io.BytesIO())])
def test_copies_of_stale_weights_are_told(
    copies: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    executor, model, _ = make_trainer()
    executor(*make_batch(4))
    copies(model)
    assert "a copy or file of the model reads the host's weights" in warned(caplog)


# Data, wrapping and options


def make_dataset(size: int) -> torch.utils.data.Dataset[Any]:
    return torch.utils.data.TensorDataset(*make_batch(size))


def test_a_dataset_that_fills_no_call_is_told(caplog: pytest.LogCaptureFixture) -> None:
    options = poptorch.Options().deviceIterations(8)
    assert not len(poptorch.DataLoader(options, make_dataset(31), batch_size=4))
    assert "has 31 elements, and one call takes 32" in warned(caplog)
    caplog.clear()
    assert len(poptorch.DataLoader(options, make_dataset(32), batch_size=4)) == 1
    assert "no batch" not in warned(caplog)


def test_data_parallel_is_refused() -> None:
    model = Classifier()
    parallel = nn.DataParallel(model)
    for wrap in (poptorch.trainingModel, poptorch.inferenceModel):
        with pytest.raises(poptorch.Error, match=r"\.module\), and set Options\.replicationFactor"):
            wrap(parallel)


@pytest.mark.parametrize(
    "ask",
    [
        lambda o: o.anchorTensor(["a"], "loss"),
        lambda o: o.anchorTensor("a", None),
        lambda o: o.anchorTensor("", "loss"),
        lambda o: o.anchorTensor("a", "loss", "All"),
        lambda o: o.updatableNamedBuffers("norm.running_mean"),
        lambda o: o.updatableNamedBuffers([3]),
        lambda o: o.relaxOptimizerAttributesChecks(0),
    ],
)
def test_options_of_a_wrong_type_are_refused(ask: Callable[[Any], Any]) -> None:
    with pytest.raises((poptorch.Error, AssertionError), match="not"):
        ask(poptorch.Options())


# Python that runs once


class Counting(Classifier):
    """Keeps what changes in Python, which a program does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.fixed = (1, 2)
        self.seen: torch.Tensor | None = None

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        self.calls += 1
        self.fixed = (1, 2)
        self.seen = x * 1
        return super().forward(x * self.calls, labels)


def test_attributes_that_forward_sets_are_told(caplog: pytest.LogCaptureFixture) -> None:
    executor, _, _ = make_trainer(Counting())
    executor(*make_batch(4))
    assert "forward() sets self.calls, self.seen, which happens once" in warned(caplog)
    caplog.clear()
    executor(*make_batch(4))
    make_trainer()[0](*make_batch(4))
    assert "happens once" not in warned(caplog)


@pytest.mark.parametrize(
    ("norm", "dropout", "told"), [(True, 0.0, True), (False, 0.5, True), (False, 0.0, False)]
)
def test_inference_in_training_mode_is_told(
    norm: bool, dropout: float, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model = Classifier(norm, dropout)
    poptorch.inferenceModel(model)(make_batch(4)[0])
    assert ("training mode" in warned(caplog)) == told
    caplog.clear()
    poptorch.inferenceModel(model.eval())(make_batch(4)[0])
    assert "training mode" not in warned(caplog)


# Loaders, stages and executors that do not belong together


@pytest.mark.parametrize("mode", list(poptorch.DataLoaderMode))
def test_a_loader_with_other_options_is_told(mode: Any, caplog: pytest.LogCaptureFixture) -> None:
    executor, _, _ = make_trainer()
    strategy = poptorch.SharingStrategy.Fork
    for iterations in (1, 2):
        options = poptorch.Options().deviceIterations(iterations)
        settings = {} if mode is poptorch.DataLoaderMode.Sync else {"sharing_strategy": strategy}
        loader = poptorch.DataLoader(
            options, make_dataset(8), batch_size=8 // iterations, mode=mode, async_options=settings
        )
        for batch in loader:
            executor(*batch)
        assert ("made this batch for 2 micro-batches" in warned(caplog)) == (iterations == 2)
    assert "cuts it into 1: each has 2 times" in warned(caplog)


def test_a_stage_of_no_block_is_told(caplog: pytest.LogCaptureFixture) -> None:
    for name in ("last", "lats"):
        model = Classifier()
        model.first = poptorch.BeginBlock(model.first, "first", ipu_id=0)
        model.last = poptorch.BeginBlock(model.last, "last", ipu_id=1)
        blocks = ["first", "last"] if name == "last" else ["first", "lats", "last"]
        options = poptorch.Options()
        options.Training.gradientAccumulation(8)
        options.setExecutionStrategy(poptorch.PipelinedExecution(*map(poptorch.Stage, blocks)))
        poptorch.trainingModel(model, options)(*make_batch(8))
        assert ("a stage for 'lats', which the model never enters" in warned(caplog)) == (name == "lats")
    assert "Blocks of the model: 'first', 'last'" in warned(caplog)


def test_an_executor_inside_of_a_model_is_refused() -> None:
    inner, _, _ = make_trainer()

    class Outer(Classifier):
        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
            inner(x, labels)
            return super().forward(x, labels)

    executor, _, _ = make_trainer(Outer())
    with pytest.raises(poptorch.Error, match=r"one program cannot run another.*\[.*test_poptorch_attacks"):
        executor(*make_batch(4))
