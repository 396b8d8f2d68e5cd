"""Rules of an executor, each broken on purpose: what is refused, by which class of error, and what is said."""

from __future__ import annotations

import copy
import gc
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from unit.emulate.executor_models import Classifier, make_batch

from portwright.emulate import poptorch
from portwright.emulate.ledger import LEDGERS

# Wrapping


def test_options_must_be_options() -> None:
    with pytest.raises(poptorch.Error, match="not dict"):
        poptorch.trainingModel(Classifier(), {"deviceIterations": 4})  # type: ignore[arg-type]


class Compiled(nn.Module):
    """As torch.compile gives it, without what it imports."""

    def __init__(self) -> None:
        super().__init__()
        self._orig_mod = nn.Linear(2, 2)


@pytest.mark.parametrize("what", [None, 3, lambda x: x, Compiled()])
def test_only_modules_are_wrapped(what: Any) -> None:
    for wrap in (poptorch.trainingModel, poptorch.inferenceModel):
        with pytest.raises(poptorch.Error, match="rap"):
            wrap(what)


@pytest.mark.parametrize("strategy", [None, poptorch.ShardedExecution()])
def test_inference_accumulates_nothing(strategy: Any) -> None:
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    if strategy is not None:
        options.setExecutionStrategy(strategy)
    with pytest.raises(poptorch.Error, match="gradientAccumulation is 2") as caught:
        poptorch.inferenceModel(Classifier(), options)
    assert ("deviceIterations" in str(caught.value)) == (strategy is None)


def test_options_are_frozen_once_given() -> None:
    options = poptorch.Options()
    executor = poptorch.inferenceModel(Classifier(), options)
    with pytest.raises(AttributeError):
        options.deviceIterations(3)
    with pytest.raises(AttributeError):
        executor.options.deviceIterations(3)
    options.clone().deviceIterations(3)


@pytest.mark.parametrize("through_executor", [True, False])
def test_a_model_is_wrapped_for_training_once(through_executor: bool) -> None:
    model = Classifier()
    executor = poptorch.trainingModel(model)
    with pytest.raises(RuntimeError, match="already been wrapped") as caught:
        poptorch.trainingModel(executor if through_executor else model)
    assert isinstance(caught.value, poptorch.Error)
    assert __file__ in str(caught.value)
    executor(*make_batch(2))
    (executor if through_executor else model).destroy()
    assert type(model) is Classifier
    poptorch.trainingModel(executor if through_executor else model)(*make_batch(2))


def test_a_model_whose_executor_is_gone_can_be_freed() -> None:
    model = Classifier()
    poptorch.trainingModel(model)
    gc.collect()
    with pytest.raises(RuntimeError, match="already been wrapped"):
        poptorch.trainingModel(model)
    model.destroy()  # type: ignore[operator]
    assert type(model) is Classifier
    model(*make_batch(2))[1].backward()


def test_parameters_of_another_model_are_refused() -> None:
    with pytest.raises(poptorch.Error, match=r"shape \[8, 6\] that is no parameter of Classifier"):
        poptorch.trainingModel(Classifier(), optimizer=torch.optim.SGD(Classifier().parameters(), lr=0.1))


@pytest.mark.parametrize("optimizer", [torch.optim.Adagrad, torch.optim.Rprop, torch.optim.Adamax])
def test_optimizers_that_poptorch_lacks(optimizer: Any) -> None:
    model = Classifier()
    with pytest.raises(AssertionError, match=optimizer.__name__):
        poptorch.trainingModel(model, optimizer=optimizer(model.parameters()))
    assert type(model) is Classifier
    executor = poptorch.trainingModel(model)
    with pytest.raises(AssertionError, match=optimizer.__name__):
        executor.setOptimizer(optimizer(model.parameters()))


def test_an_optimizer_must_be_one() -> None:
    model = Classifier()
    with pytest.raises(poptorch.Error, match=r"0\.01"):
        poptorch.trainingModel(model, optimizer=0.01)  # type: ignore[arg-type]
    executor = poptorch.trainingModel(model)
    with pytest.raises(poptorch.Error, match="Hand over"):
        executor.setOptimizer(None)  # type: ignore[arg-type]
    with pytest.raises(poptorch.Error, match="inferenceModel"):
        poptorch.inferenceModel(Classifier()).setOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize(
    "move", ["to", "cuda", "cpu", "half", "float", "double", "bfloat16", "type", "to_empty"]
)
def test_the_wrapper_is_not_lost_by_moving(move: str) -> None:
    executor = poptorch.trainingModel(Classifier())
    assert hasattr(executor, move)
    with pytest.raises(poptorch.Error, match=rf"\.{move}\(\).*loses the wrapper"):
        getattr(executor, move)("cpu")


def test_attributes_are_the_models_own() -> None:
    model = Classifier()
    model.note = "mine"  # type: ignore[assignment]
    executor = poptorch.trainingModel(model)
    assert executor.note == "mine"
    assert executor.model is model
    assert executor.first is model.first
    assert [name for name, _ in executor.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert not hasattr(executor, "nothing")
    with pytest.raises(AttributeError):
        _ = executor.nothing


def test_it_says_that_it_is_emulated() -> None:
    assert "emulated" in repr(poptorch.inferenceModel(Classifier()))
    assert "emulated" in repr(poptorch.trainingModel(Classifier()))
    assert "Linear(in_features=6" in repr(poptorch.trainingModel(Classifier()))


def test_an_executor_is_not_copied() -> None:
    executor = poptorch.trainingModel(Classifier())
    with pytest.raises(poptorch.Error, match="cannot be copied"):
        copy.deepcopy(executor)


# Inputs


def test_inputs_stay_as_compiled() -> None:
    executor = poptorch.inferenceModel(Classifier())
    executor(torch.randn(4, 6))
    with pytest.raises(poptorch.Error, match=r"Shape mismatch for x: compiled for \[4, 6\] and got \[3, 6\]"):
        executor(torch.randn(3, 6))
    with pytest.raises(poptorch.Error, match=r"compiled for torch.float32 and got torch.float16"):
        executor(torch.randn(4, 6).half())
    with pytest.raises(
        poptorch.Error, match="Type mismatch for labels: compiled for NoneType None and got a tensor"
    ):
        executor(*make_batch(4))
    with pytest.raises(poptorch.Error, match="Type mismatch for x"):
        executor((torch.randn(4, 6),))
    assert executor(torch.randn(4, 6)).shape == (4, 3)
    executor.destroy()
    assert executor(torch.randn(3, 6)).shape == (3, 3)


class Nested(nn.Module):
    def forward(self, pair: Any, scale: float = 1.0, **more: Any) -> torch.Tensor:
        return (pair[0] + pair[1]["b"] + more["extra"]) * scale


def test_nested_inputs_stay_as_compiled() -> None:
    one = torch.ones(2)
    executor = poptorch.inferenceModel(Nested())
    assert executor((one, {"b": one}), 2.0, extra=one).tolist() == [6.0, 6.0]
    assert executor((one * 2, {"b": one}), 2.0, extra=one).tolist() == [8.0, 8.0]
    with pytest.raises(poptorch.Error, match=r"Value mismatch for scale: compiled for 2\.0"):
        executor((one, {"b": one}), 3.0, extra=one)
    with pytest.raises(poptorch.Error, match="Length mismatch for pair"):
        executor((one, {"b": one}, one), 2.0, extra=one)
    with pytest.raises(poptorch.Error, match="Missing arguments: b"):
        executor((one, {}), 2.0, extra=one)
    with pytest.raises(poptorch.Error, match=r"Unexpected arguments: c"):
        executor((one, {"b": one, "c": one}), 2.0, extra=one)
    with pytest.raises(poptorch.Error, match="Missing arguments: extra"):
        executor((one, {"b": one}), 2.0)
    with pytest.raises(poptorch.Error, match=r"Shape mismatch for pair\[1\]\[b\]"):
        executor((one, {"b": torch.ones(3)}), 2.0, extra=one)


def test_names_may_come_in_any_order() -> None:
    class Differs(nn.Module):
        def forward(self, pair: dict[str, torch.Tensor], **more: torch.Tensor) -> torch.Tensor:
            return pair["a"] - pair["b"] + 10 * (more["c"] - more["d"])

    a, b, c, d = (torch.tensor([float(value)]) for value in (1, 2, 4, 8))
    executor = poptorch.inferenceModel(Differs())
    for pair, more in (
        ({"a": a, "b": b}, {"c": c, "d": d}),
        ({"b": b, "a": a}, {"c": c, "d": d}),
        ({"a": a, "b": b}, {"d": d, "c": c}),
    ):
        assert executor(pair, **more).tolist() == [-41.0]


class Any_(nn.Module):
    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return sum(tensors, torch.zeros(()))


def test_the_number_of_inputs_stays() -> None:
    executor = poptorch.inferenceModel(Any_())
    assert float(executor(torch.ones(()), torch.ones(()))) == 2.0
    with pytest.raises(poptorch.Error, match=r"compiled for 2 .* and got 3"):
        executor(*[torch.ones(())] * 3)


@pytest.mark.parametrize(
    ("size", "iterations", "accumulation", "replicas"),
    [(5, 2, 1, 1), (1, 2, 1, 1), (6, 1, 4, 1), (6, 2, 2, 2)],
)
def test_a_batch_that_cannot_be_cut(size: int, iterations: int, accumulation: int, replicas: int) -> None:
    options = poptorch.Options().deviceIterations(iterations).replicationFactor(replicas)
    options.Training.gradientAccumulation(accumulation)
    product = iterations * accumulation * replicas
    with pytest.raises(AssertionError, match=rf"cannot be cut into .* = {product} equal parts\.") as caught:
        poptorch.trainingModel(Classifier(), options)(*make_batch(size))
    assert isinstance(caught.value, poptorch.Error)
    assert f"[{size}, 6]" in str(caught.value)


def test_scalars_go_with_one_micro_batch_only() -> None:
    assert float(poptorch.inferenceModel(Any_())(torch.tensor(3.0))) == 3.0
    with pytest.raises(AssertionError, match="Invalid batch dimension"):
        poptorch.inferenceModel(Any_(), poptorch.Options().deviceIterations(2))(torch.tensor(3.0))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.ones((2, 6), np.float32), "numpy.ndarray"),
        (torch.ones(0, 6), r"Zero-sized .* \[0, 6\]"),
        (torch.ones(2, 6, dtype=torch.complex64), "complex64"),
        (torch.full((2, 6), 2**40), "32-bit"),
        (torch.ones(2, 6).to_sparse(), "sparse"),
    ],
)
def test_inputs_that_are_no_inputs(value: Any, said: str) -> None:
    with pytest.raises(poptorch.Error, match=said):
        poptorch.inferenceModel(Any_())(value)


def test_wide_floats_are_narrowed() -> None:
    assert poptorch.inferenceModel(Any_())(torch.ones(2, dtype=torch.float64)).dtype == torch.float32
    assert poptorch.inferenceModel(Any_())(torch.ones(2, dtype=torch.bfloat16)).dtype == torch.float32


def test_an_input_that_wants_gradients_is_detached(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "poptorch"):
        result = poptorch.inferenceModel(Any_())(torch.ones(2, requires_grad=True))
    assert "requires_grad" in caplog.text
    assert not result.requires_grad


def test_forward_may_not_replace_weights() -> None:
    class Replaces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("y", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.y = x + 1
            return x * 2

    class Removes(Replaces):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self._buffers.pop("y", None)
            return x * 2

    for model in (Replaces(), Removes()):
        before = model.y
        with pytest.raises(poptorch.Error, match="y"):
            poptorch.inferenceModel(model)(torch.ones(1))
        assert model.y is before


class Holding(nn.Module):
    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.value = nn.Parameter(value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.value


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex64])
def test_weights_that_ipus_do_not_have(dtype: torch.dtype) -> None:
    with pytest.raises(poptorch.Error, match=str(dtype)):
        poptorch.inferenceModel(Holding(torch.ones(2, dtype=dtype)))(torch.ones(2))


def test_replica_groups_of_weights_are_not_emulated() -> None:
    executor = poptorch.inferenceModel(Holding(torch.ones(2)))
    assert executor.value.shape == (2,)
    with pytest.raises(poptorch.Error, match="not emulated"):
        executor.value.replicaGrouping(
            poptorch.CommGroupType.Orthogonal, 2, poptorch.VariableRetrievalMode.OnePerGroup
        )


# On the host


def test_backward_on_a_result_is_refused() -> None:
    model = Classifier()
    _, loss = poptorch.trainingModel(model)(*make_batch(4))
    with pytest.raises(poptorch.Error, match="result of a PopTorch model"):
        loss.backward()
    own = torch.ones(2, requires_grad=True)
    own.sum().backward()
    assert own.grad is not None


def test_training_on_the_host_is_refused_until_destroy() -> None:
    model = Classifier()
    executor = poptorch.trainingModel(model)
    executor(*make_batch(4))
    _, loss = model(*make_batch(4))  # to look at
    with pytest.raises(poptorch.Error, match="backward"):
        loss.backward()
    executor.destroy()
    _, loss = model(*make_batch(4))
    loss.backward()


# Devices


def test_offline_targets_run_nothing(tmp_path: Path) -> None:
    executor = poptorch.inferenceModel(Classifier(), poptorch.Options().useOfflineIpuTarget())
    with pytest.raises(AssertionError, match="offline"):
        executor(torch.randn(2, 6))
    executor.compile(torch.randn(2, 6))
    assert executor.isCompiled()
    assert not executor.isAttachedToDevice()
    with pytest.raises(AssertionError, match="offline"):
        executor.attachToDevice()
    with pytest.raises(poptorch.Error, match="not attached"):
        executor.detachFromDevice()
    executor.compileAndExport(str(tmp_path / "a.poptorch"), torch.randn(2, 6))
    assert (tmp_path / "a.poptorch").is_file()


def test_attaching_and_detaching() -> None:
    model = Classifier()
    executor = poptorch.trainingModel(
        model, poptorch.Options().connectionType(poptorch.ConnectionType.OnDemand)
    )
    for method in (executor.attachToDevice, executor.detachFromDevice, executor.copyWeightsToHost):
        with pytest.raises(poptorch.Error, match="not compiled"):
            method()
    with pytest.raises(poptorch.Error, match="not compiled"):
        executor.copyWeightsToDevice()
    assert not executor.isAttachedToDevice()
    executor(*make_batch(2))
    assert executor.isAttachedToDevice()
    with pytest.raises(poptorch.Error, match="attached already"):
        executor.attachToDevice()
    executor.detachFromDevice()
    with pytest.raises(poptorch.Error, match="not attached"):
        executor.detachFromDevice()
    executor(*make_batch(2))  # attaches by itself
    assert executor.isAttachedToDevice()
    executor.destroy()
    assert not executor.isCompiled()
    with pytest.raises(poptorch.Error, match="destroyed"):
        executor.copyWeightsToHost()


def test_several_processes_are_not_emulated() -> None:
    options = poptorch.Options()
    options.Distributed.configureProcessId(0, 2)
    with pytest.raises(poptorch.Error, match="not emulated"):
        poptorch.inferenceModel(Classifier(), options)(torch.randn(2, 6))


def test_compiling_twice_is_said(caplog: pytest.LogCaptureFixture) -> None:
    executor = poptorch.inferenceModel(Classifier())
    executor.compile(torch.randn(2, 6))
    with caplog.at_level(logging.WARNING, "poptorch"):
        executor.compile(torch.randn(3, 6))
        executor.eval()
    assert "compiled already" in caplog.text
    assert "eval() has no effect" in caplog.text


# The ledger

_ledger = LEDGERS["poptorch"]


def test_what_was_made_and_called_is_counted() -> None:
    before = _ledger.call_counts()
    unused = len(_ledger.unused_executors())
    model = Classifier()
    executor = poptorch.trainingModel(model)
    made = _ledger.unused_executors()[-1]
    assert (made.kind, made.model, made.calls) == ("training", "Classifier", 0)
    assert made.where.startswith(f"{__file__}:")
    executor(*make_batch(2))
    executor(*make_batch(2))
    executor.setOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    executor.copyWeightsToHost()
    poptorch.inferenceModel(model)(torch.randn(2, 6))
    assert len(_ledger.unused_executors()) == unused
    after = _ledger.call_counts()
    difference = {name: after[name] - before[name] for name in after}
    assert difference == {"training": 2, "inference": 1, "setOptimizer": 1, "copyWeightsToHost": 1}
    del executor
    poptorch.trainingModel(Classifier())  # dropped at once
    assert len(_ledger.unused_executors()) == unused + 1
