"""Whose weights are where: the device's own, the host's until asked, optimizers and their states."""

from __future__ import annotations

import copy
import io
import logging
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from unit.emulate.executor_models import Classifier, make_batch, train_plainly

from portwright.emulate import poptorch

BATCH = make_batch(4)


def weight(model: Any) -> torch.Tensor:
    return model.last.weight.detach().clone()


def test_the_host_is_stale_until_asked() -> None:
    model = Classifier()
    start = weight(model)
    executor = poptorch.trainingModel(model)
    for _ in range(3):
        executor(*BATCH)
    assert torch.equal(weight(model), start)
    assert torch.equal(model.state_dict()["last.weight"], start)
    assert torch.equal(executor.state_dict()["last.weight"], start)
    executor.copyWeightsToHost()
    assert not torch.equal(weight(model), start)


def test_copying_if_needed_says_whether_it_was() -> None:
    model = Classifier()
    executor = poptorch.trainingModel(model)
    assert not executor.copyWeightsToHostIfNeeded()
    executor(*BATCH)
    assert executor.copyWeightsToHostIfNeeded()
    assert not executor.copyWeightsToHostIfNeeded()
    executor(*BATCH)
    assert model.copyWeightsToHostIfNeeded()
    assert not model.copyWeightsToHostIfNeeded()


def test_a_stale_read_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    model = Classifier()
    executor = poptorch.trainingModel(model)
    with caplog.at_level(logging.WARNING, "poptorch"):
        model.state_dict()
        assert "copyWeightsToHost" not in caplog.text
        executor(*BATCH)
        model.state_dict()
        model.state_dict()
        model(*BATCH)
        assert caplog.text.count("copyWeightsToHost() first") == 1
        executor.copyWeightsToHost()
        model.state_dict()
        assert caplog.text.count("copyWeightsToHost() first") == 1


def test_implicit_copies_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORTWRIGHT_POPTORCH_COPIES", "implicit")
    model = Classifier()
    start = weight(model)
    executor = poptorch.trainingModel(model)
    executor(*BATCH)
    assert not torch.equal(weight(model), start)
    assert not executor.copyWeightsToHostIfNeeded()  # the look has done it
    executor(*BATCH)
    assert executor.copyWeightsToHostIfNeeded()
    inference = poptorch.inferenceModel(model)
    executor(*BATCH)
    torch.testing.assert_close(inference(BATCH[0]), model(BATCH[0]).detach())
    executor(*BATCH)
    torch.testing.assert_close(inference(BATCH[0]), model(BATCH[0]).detach())
    with torch.no_grad():
        model.last.weight.fill_(1.0)
    executor.destroy()  # the host was up to date, so what it did since stays
    assert torch.equal(weight(model), torch.ones(3, 8))


def test_a_word_that_is_neither_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORTWRIGHT_POPTORCH_COPIES", "sometimes")
    model = Classifier()
    with pytest.raises(poptorch.Error, match=r"'sometimes'\. Valid: explicit"):
        poptorch.trainingModel(model)
    assert type(model) is Classifier


@pytest.mark.parametrize("through", ["detachFromDevice", "destroy"])
def test_leaving_the_device_brings_weights_back(through: str) -> None:
    model = Classifier()
    start = weight(model)
    executor = poptorch.trainingModel(model)
    executor(*BATCH)
    getattr(executor, through)()
    assert not torch.equal(weight(model), start)


def test_host_changes_need_copying() -> None:
    model = Classifier()
    executor = poptorch.inferenceModel(model)
    before = executor(BATCH[0])
    with torch.no_grad():
        model.last.weight.zero_()
        model.last.bias.fill_(2.0)
    assert torch.equal(executor(BATCH[0]), before)
    executor.copyWeightsToDevice()
    assert torch.equal(executor(BATCH[0]), torch.full((4, 3), 2.0))


def test_copying_to_the_device_overwrites_training() -> None:
    model = Classifier()
    start = weight(model)
    executor = poptorch.trainingModel(model)
    _, first = executor(*BATCH)
    for _ in range(5):
        executor(*BATCH)
    executor.copyWeightsToDevice()
    assert not executor.copyWeightsToHostIfNeeded()
    _, loss = executor(*BATCH)
    torch.testing.assert_close(loss, first)
    assert torch.equal(weight(model), start)


@pytest.mark.parametrize("before_compiling", [True, False])
def test_loading_a_state_reaches_the_device(before_compiling: bool) -> None:
    model, other = Classifier(), Classifier()
    executor = poptorch.inferenceModel(model)
    if not before_compiling:
        executor(BATCH[0])
    result = executor.load_state_dict(other.state_dict())
    assert (result.missing_keys, result.unexpected_keys) == ([], [])
    torch.testing.assert_close(executor(BATCH[0]), other(BATCH[0]).detach())


def test_named_buffers() -> None:
    class Buffers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("one", torch.ones(1))
            self.register_buffer("two", torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + self.one + self.two).sum()

    model = Buffers()
    executor = poptorch.inferenceModel(model, poptorch.Options().updatableNamedBuffers(["one"]))
    assert executor(torch.ones(3)) == 9
    executor.one.add_(1)
    executor.two.add_(1)
    executor.copyNamedBuffersToDevice()
    assert executor(torch.ones(3)) == 12
    plain = poptorch.inferenceModel(Buffers())
    plain(torch.ones(3))
    with pytest.raises(poptorch.Error, match="updatableNamedBuffers"):
        plain.copyNamedBuffersToDevice()
    with pytest.raises(poptorch.Error, match=r"'three'.*Valid: one, two"):
        poptorch.inferenceModel(Buffers(), poptorch.Options().updatableNamedBuffers(["three"]))(torch.ones(3))


@pytest.mark.parametrize("of_executor", [True, False])
def test_inference_follows_training(of_executor: bool) -> None:
    model = Classifier()
    training = poptorch.trainingModel(model)
    inference = poptorch.inferenceModel(training if of_executor else model)
    first = inference(BATCH[0])
    for _ in range(3):
        training(*BATCH)
    second = inference(BATCH[0])
    assert not torch.equal(first, second)
    training.copyWeightsToHost()
    torch.testing.assert_close(second, model(BATCH[0]).detach())
    training(*BATCH)
    training.destroy()
    torch.testing.assert_close(inference(BATCH[0]), model(BATCH[0]).detach())


def test_inference_follows_after_copies_of_its_own() -> None:
    model = Classifier(norm=True)
    training = poptorch.trainingModel(model)
    inference = poptorch.inferenceModel(model)
    inference(BATCH[0])
    inference.copyWeightsToHost()
    training(*BATCH)
    before = model.last.weight.detach().clone()
    inference(BATCH[0])
    inference.copyWeightsToHost()
    assert not torch.equal(weight(model), before)


def test_inference_made_before_training_does_not_follow(caplog: pytest.LogCaptureFixture) -> None:
    model = Classifier()
    inference = poptorch.inferenceModel(model)
    training = poptorch.trainingModel(model)
    first = inference(BATCH[0])
    training(*BATCH)
    with caplog.at_level(logging.WARNING, "poptorch"):
        assert torch.equal(inference(BATCH[0]), first)
    assert "make it after trainingModel()" in caplog.text or "older than the trainingModel" in caplog.text


def test_the_wrapped_model_is_still_the_users() -> None:
    model = Classifier()
    executor = poptorch.trainingModel(model)
    executor(*BATCH)
    assert isinstance(model, Classifier)
    assert type(model).__name__ == "PoptorchClassifier"
    copied = copy.deepcopy(model)
    assert type(copied) is Classifier
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", FutureWarning
        )  # older versions of torch speak of weights_only in pickle, too
        again = pickle.loads(pickle.dumps(model))
    assert type(again) is Classifier
    assert torch.equal(weight(again), weight(model))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert torch.equal(loaded["last.weight"], weight(model))
    poptorch.trainingModel(copied)(*BATCH)


def test_results_can_be_saved() -> None:
    _, loss = poptorch.trainingModel(Classifier())(*BATCH)
    file = io.BytesIO()
    torch.save(loss, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=True), loss)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_modes_of_the_host_do_not_matter(mode: Any) -> None:
    torch.manual_seed(0)
    model = Classifier(norm=True)
    plain = copy.deepcopy(model)
    executor, reference = poptorch.trainingModel(model), poptorch.trainingModel(plain)
    with mode():
        executor(*BATCH)
    executor(*BATCH)
    with mode():
        executor(*BATCH)
        executor.copyWeightsToHost()
        executor.copyWeightsToDevice()
        inference = poptorch.inferenceModel(model)
        inference(BATCH[0] * 2)
    inference.copyWeightsToDevice()
    executor(*BATCH)
    for _ in range(4):
        reference(*BATCH)
    executor.copyWeightsToHost()
    reference.copyWeightsToHost()
    for name, tensor in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)
    executor.destroy()
    model(*BATCH)[1].backward()


# The optimizer


def test_a_learning_rate_reaches_the_device_through_set_optimizer_only() -> None:
    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    executor = poptorch.trainingModel(model, optimizer=optimizer)
    start = weight(model)
    executor(*BATCH)
    optimizer.param_groups[0]["lr"] = 0.5
    executor(*BATCH)
    executor.copyWeightsToHost()
    assert torch.equal(weight(model), start)
    executor.setOptimizer(optimizer)
    expected, _ = train_plainly(
        model, lambda parameters: torch.optim.SGD(parameters, lr=0.5), [BATCH], micro=4, per_update=1
    )
    executor(*BATCH)
    executor.copyWeightsToHost()
    torch.testing.assert_close(weight(model), expected["last.weight"])


def test_detaching_does_not_smuggle_a_learning_rate_in() -> None:
    model = Classifier()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.0)
    executor = poptorch.trainingModel(model, optimizer=optimizer)
    start = weight(model)
    executor(*BATCH)
    optimizer.param_groups[0]["lr"] = 0.5
    executor.detachFromDevice()
    executor(*BATCH)
    executor.copyWeightsToHost()
    assert torch.equal(weight(model), start)


def test_a_scheduler_with_set_optimizer_is_torch() -> None:
    torch.manual_seed(0)
    model = Classifier()
    plain = copy.deepcopy(model)
    optimizers = [torch.optim.Adam(one.parameters(), lr=0.1) for one in (plain, model)]
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(one, 0.5) for one in optimizers]
    executor = poptorch.trainingModel(model, optimizer=optimizers[1])
    for _ in range(4):
        optimizers[0].zero_grad()
        plain(*BATCH)[1].backward()
        optimizers[0].step()
        schedulers[0].step()
        executor(*BATCH)
        with (
            pytest.warns(UserWarning, match="lr_scheduler.step")
            if schedulers[1].last_epoch == 0
            else _nothing()
        ):
            schedulers[1].step()
        executor.setOptimizer(optimizers[1])
    executor.copyWeightsToHost()
    torch.testing.assert_close(weight(model), weight(plain))


class _nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: Any) -> None: ...


def test_constants_of_the_program_stay() -> None:
    model = Classifier()
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    executor(*BATCH)
    with pytest.raises(poptorch.Error, match="momentum"):
        executor.setOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    with pytest.raises(poptorch.Error, match="ADAM"):
        executor.setOptimizer(torch.optim.Adam(model.parameters(), lr=0.1))
    executor.setOptimizer(torch.optim.SGD(model.parameters(), lr=0.2))
    half = poptorch.optim.SGD(model.parameters(), lr=0.1, use_combined_accum=False, accum_type=torch.float16)
    with pytest.raises(ValueError, match="compiled"):
        executor.setOptimizer(half)


@pytest.mark.parametrize("kind", [poptorch.optim.Adam, torch.optim.Adam])
def test_the_optimizers_state_survives_the_host(kind: Any) -> None:
    torch.manual_seed(0)
    model = Classifier()
    expected, _ = train_plainly(
        model, lambda parameters: torch.optim.Adam(parameters, lr=0.1), [BATCH] * 4, micro=4, per_update=1
    )
    executor = poptorch.trainingModel(model, optimizer=kind(model.parameters(), lr=0.1))
    executor(*BATCH)
    executor.copyWeightsToHost()
    executor(*BATCH)
    executor.detachFromDevice()
    executor.attachToDevice()
    executor(*BATCH)
    executor.copyWeightsToHost()
    executor.copyWeightsToDevice()
    executor(*BATCH)
    executor.copyWeightsToHost()
    torch.testing.assert_close(weight(model), expected["last.weight"])


def test_the_state_of_a_poptorch_optimizer() -> None:
    torch.manual_seed(0)
    model = Classifier()
    expected, _ = train_plainly(
        model, lambda parameters: torch.optim.Adam(parameters, lr=0.1), [BATCH] * 4, micro=4, per_update=1
    )
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, optimizer=optimizer)
    assert optimizer.state_dict()["ipu_state"] is None
    executor.compile(*BATCH)
    empty = optimizer.state_dict()
    assert "learningRate___specific___last.bias" in empty["ipu_param"]
    for _ in range(2):
        executor(*BATCH)
    state = optimizer.state_dict()
    assert not torch.equal(state["ipu_state"]["Accl1___last.bias"], empty["ipu_state"]["Accl1___last.bias"])
    file = io.BytesIO()
    torch.save(state, file)
    executor.destroy()

    file.seek(0)
    again = poptorch.optim.Adam(model.parameters(), lr=0.1)
    again.load_state_dict(torch.load(file, weights_only=True))
    executor = poptorch.trainingModel(model, optimizer=again)
    for _ in range(2):
        executor(*BATCH)
    executor.copyWeightsToHost()
    torch.testing.assert_close(weight(model), expected["last.weight"])


def test_a_loaded_state_reaches_a_running_model() -> None:
    torch.manual_seed(0)
    model = Classifier()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, use_combined_accum=False)
    executor = poptorch.trainingModel(model, optimizer=optimizer)
    executor(*BATCH)
    early = copy.deepcopy(optimizer.state_dict())
    executor(*BATCH)
    late = optimizer.state_dict()
    assert not torch.equal(early["ipu_state"]["Accl1___last.bias"], late["ipu_state"]["Accl1___last.bias"])
    optimizer.load_state_dict(early)
    executor.setOptimizer(optimizer)
    optimizer.host_state_is_dirty = True  # as if somebody asked for the device's
    now = optimizer.state_dict()
    assert torch.equal(early["ipu_state"]["Accl1___last.bias"], now["ipu_state"]["Accl1___last.bias"])
    with pytest.raises(RuntimeError, match="ipu_state"):
        optimizer.load_state_dict(torch.optim.SGD(model.parameters(), lr=0.1).state_dict())


def test_a_new_optimizer_leaves_the_old_one_its_state() -> None:
    model = Classifier()
    first = poptorch.optim.Adam(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, optimizer=first)
    executor(*BATCH)
    kept = {name: value.clone() for name, value in first.state_dict()["ipu_state"].items()}
    executor.setOptimizer(poptorch.optim.Adam(model.parameters(), lr=0.2))
    executor(*BATCH)
    assert all(torch.equal(value, first.state_dict()["ipu_state"][name]) for name, value in kept.items())
