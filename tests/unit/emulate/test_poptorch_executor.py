"""Training and inference through an executor: equal to plain torch at the same batches, results in PopTorch's shapes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from unit.emulate.executor_models import Classifier, make_batch, train_plainly

from portwright.emulate import poptorch
from portwright.emulate.poptorch._batching import Batching

MICRO = 2


def options(iterations: int = 1, accumulation: int = 1, replicas: int = 1, **modes: Any) -> Any:
    made = poptorch.Options().deviceIterations(iterations).replicationFactor(replicas)
    made.Training.gradientAccumulation(accumulation)
    if modes:
        made.outputMode(**modes)
    return made


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("replicas", [1, 2])
def test_training_equals_torch(optimizer: str, iterations: int, accumulation: int, replicas: int) -> None:
    torch.manual_seed(1)
    model = Classifier()
    batches = [make_batch(MICRO * iterations * accumulation * replicas, seed) for seed in range(3)]
    expected, losses = train_plainly(
        model, OPTIMIZERS[optimizer], batches, micro=MICRO, per_update=accumulation * replicas
    )
    every = options(iterations, accumulation, replicas, output_mode=poptorch.OutputMode.All)
    executor = poptorch.trainingModel(model, every, OPTIMIZERS[optimizer](model.parameters()))
    got = torch.cat([executor(*batch)[1].reshape(-1) for batch in batches])
    torch.testing.assert_close(got, torch.stack(losses), rtol=1e-6, atol=1e-6)
    executor.copyWeightsToHost()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("strategy", list(poptorch.MeanReductionStrategy))
@pytest.mark.parametrize("mean", [True, False])
def test_reduction_of_gradients(strategy: Any, mean: bool) -> None:
    torch.manual_seed(1)
    model = Classifier()
    batches = [make_batch(MICRO * 6, seed) for seed in range(2)]
    expected, _ = train_plainly(model, OPTIMIZERS["sgd"], batches, micro=MICRO, per_update=6, mean=mean)
    chosen = options(1, 3, 2)
    kind = poptorch.ReductionType.Mean if mean else poptorch.ReductionType.Sum
    chosen.Training.accumulationAndReplicationReductionType(kind)
    chosen.Training.setMeanAccumulationAndReplicationReductionStrategy(strategy)
    executor = poptorch.trainingModel(model, chosen, OPTIMIZERS["sgd"](model.parameters()))
    for batch in batches:
        executor(*batch)
    executor.copyWeightsToHost()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-6)


def test_without_optimizer_it_is_sgd_at_a_hundredth() -> None:
    model = Classifier()
    batch = make_batch(4)
    expected, _ = train_plainly(
        model, lambda parameters: torch.optim.SGD(parameters, lr=0.01), [batch], micro=4, per_update=1
    )
    executor = poptorch.trainingModel(model)
    executor(*batch)
    executor.copyWeightsToHost()
    torch.testing.assert_close(model.first.weight.detach(), expected["first.weight"])


def test_batch_norm_sees_micro_batches_and_its_statistics_come_back() -> None:
    torch.manual_seed(0)
    model = Classifier(norm=True)
    batches = [make_batch(12, seed) for seed in range(2)]
    expected, _ = train_plainly(model, OPTIMIZERS["sgd"], batches, micro=4, per_update=3)
    executor = poptorch.trainingModel(model, options(1, 3), OPTIMIZERS["sgd"](model.parameters()))
    for batch in batches:
        executor(*batch)
    assert int(model.norm.num_batches_tracked) == 0
    executor.copyWeightsToHost()
    assert int(model.norm.num_batches_tracked) == 6
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-6)


def test_replicas_keep_buffers_of_their_own() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(1, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total.copy_(self.total + x)
            return self.total * 1

    with pytest.raises(poptorch.Error, match=r"broadcastBuffers\(False\)"):
        poptorch.inferenceModel(Counting(), options(replicas=2))(torch.ones(2, 2))
    model = Counting()
    chosen = options(replicas=2)
    chosen.broadcastBuffers(False)
    executor = poptorch.inferenceModel(model, chosen)
    for _ in range(5):
        result = executor(torch.tensor([[9.0, 9.0], [2.0, 2.0]]))
    assert result.tolist() == [[45.0, 45.0], [10.0, 10.0]]
    assert model.total.tolist() == [[0.0, 0.0]]
    executor.copyWeightsToHost()
    assert model.total.tolist() == [[45.0, 45.0]]  # the first replica's


MODES: dict[
    str, tuple[Any, dict[str, int]]
] = {  # the last: PopART returns all micro-batches of every N-th iteration
    "All": (lambda values, per_update, replicas: values, {}),
    "Final": (lambda values, per_update, replicas: values[-replicas:], {}),
    "EveryN": (
        lambda values, per_update, replicas: [v for i, v in enumerate(values) if (i // per_update) % 2 == 1],
        {"output_return_period": 2},
    ),
}


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_output_modes_in_training(mode: str, accumulation: int, replicas: int) -> None:
    torch.manual_seed(0)
    model = Classifier()
    iterations = 4
    batch = make_batch(MICRO * iterations * accumulation * replicas)
    pick, more = MODES[mode]
    frozen = lambda parameters: torch.optim.SGD(parameters, lr=0.0)  # noqa: E731
    logits, _ = model(*batch)
    _, losses = train_plainly(model, frozen, [batch], micro=MICRO, per_update=accumulation * replicas)
    chosen = options(iterations, accumulation, replicas, output_mode=poptorch.OutputMode[mode], **more)
    got_logits, got_loss = poptorch.trainingModel(model, chosen, frozen(model.parameters()))(*batch)
    expected = torch.cat(pick(list(logits.detach().split(MICRO)), accumulation * replicas, replicas))
    torch.testing.assert_close(got_logits, expected)
    picked = pick(losses, accumulation * replicas, replicas)
    torch.testing.assert_close(got_loss, torch.stack(picked) if len(picked) > 1 else picked[0])


@pytest.mark.parametrize("replicas", [1, 2])
def test_sum_adds_up_a_replica(replicas: int) -> None:
    model = Classifier()
    x, y = make_batch(MICRO * 3 * replicas)
    chosen = options(3, 1, replicas, output_mode=poptorch.OutputMode.Sum)
    executor = poptorch.trainingModel(model, chosen, torch.optim.SGD(model.parameters(), lr=0.0))
    logits, loss = executor(x, y)
    parts = [model(x[i : i + MICRO], y[i : i + MICRO]) for i in range(0, len(x), MICRO)]
    sums = [sum(parts[i][0] for i in range(r, len(parts), replicas)) for r in range(replicas)]
    torch.testing.assert_close(logits, torch.cat(sums).detach())
    losses = [sum(parts[i][1] for i in range(r, len(parts), replicas)).detach() for r in range(replicas)]
    torch.testing.assert_close(loss, torch.stack(losses) if replicas > 1 else losses[0])


def test_inference_returns_all_and_training_the_last() -> None:
    model = Classifier()
    x, y = make_batch(8)
    assert poptorch.inferenceModel(model, options(4))(x).shape == (8, 3)
    executor = poptorch.trainingModel(model, options(4))
    assert executor.options.output_mode == poptorch.OutputMode.Final
    logits, loss = executor(x, y)
    assert logits.shape == (2, 3)
    assert loss.shape == ()


def test_a_period_that_does_not_divide_the_iterations_is_refused() -> None:
    chosen = options(4, output_mode=poptorch.OutputMode.EveryN, output_return_period=3)
    with pytest.raises(poptorch.Error, match="every 3 batches"):
        poptorch.inferenceModel(Classifier(), chosen)(torch.randn(4, 6))


def test_results_keep_their_structure_and_lose_64_bits() -> None:
    class Many(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return {"b": x + 1, "a": [x.argmax(1), (x * 2, None, "name")]}

    x = torch.randn(4, 3)
    result = poptorch.inferenceModel(Many())(x)
    assert list(result) == ["b", "a"]
    assert result["a"][0].dtype == torch.int32
    assert result["a"][0].tolist() == x.argmax(1).tolist()
    assert result["a"][1][1:] == (None, "name")
    assert isinstance(result["a"][1], tuple)


def test_a_model_without_result() -> None:
    class Nothing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> None:
            self.seen.add_(x.sum())

    model = Nothing()
    executor = poptorch.inferenceModel(model)
    assert executor(torch.ones(2)) is None
    assert executor(torch.ones(2)) is None
    executor.copyWeightsToHost()
    assert float(model.seen) == 4.0


def test_inputs_changed_in_place_change_on_the_host() -> None:
    class Adds(nn.Module):
        def forward(self, x: torch.Tensor, pair: Any) -> torch.Tensor:
            x += 1
            pair["a"].mul_(2)
            return x * 10

    executor = poptorch.inferenceModel(Adds(), options(2))
    executor.compile(torch.zeros(2), {"a": torch.ones(2), "b": torch.ones(2)})
    x, pair = torch.zeros(2), {"a": torch.ones(2), "b": torch.ones(2)}
    assert executor(x, pair).tolist() == [10.0, 10.0]
    assert executor(x, pair).tolist() == [20.0, 20.0]
    assert x.tolist() == [2.0, 2.0]
    assert pair["a"].tolist() == [4.0, 4.0]
    assert pair["b"].tolist() == [1.0, 1.0]


def test_python_runs_once() -> None:
    class Counting(nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            Counting.calls += 1
            assert poptorch.isRunningOnIpu()
            return x * Counting.calls

    executor = poptorch.inferenceModel(Counting(), options(3))
    for _ in range(4):
        assert torch.equal(executor(torch.ones(3)), torch.ones(3))
    assert Counting.calls == 1
    assert not poptorch.isRunningOnIpu()


@given(
    iterations=st.integers(1, 4),
    accumulation=st.integers(1, 4),
    replicas=st.integers(1, 4),
    micro=st.integers(1, 3),
)
def test_micro_batches_cover_the_input(iterations: int, accumulation: int, replicas: int, micro: int) -> None:
    batching = Batching(iterations, accumulation, replicas)
    x = torch.arange(batching.micro_batches * micro)
    assert batching.micro_batch_size(x, "x") == micro
    runs = range(iterations * accumulation)
    given_out = [batching.micro_batch(x, run, replica) for run in runs for replica in range(replicas)]
    assert torch.equal(torch.cat(given_out), x)  # the order in memory, replicas fastest


def test_the_same_seed_drops_the_same_and_leaves_the_host_alone() -> None:
    x = torch.randn(4, 6)
    results = []
    for seed in (7, 7, 8):
        torch.manual_seed(0)
        model = Classifier(dropout=0.5)
        executor = poptorch.inferenceModel(model, options(2).randomSeed(seed))
        before = torch.get_rng_state()
        results.append([executor(x), executor(x)])
        assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    assert not torch.equal(results[0][0], results[0][1])
    assert not torch.equal(results[0][0], results[2][0])


def test_the_random_state_can_be_read_and_set() -> None:
    executor = poptorch.inferenceModel(Classifier(dropout=0.5), options().randomSeed(3))
    with pytest.raises(poptorch.Error, match="not compiled"):
        _ = executor.rng_state
    x = torch.randn(4, 6)
    executor.compile(x)
    state = executor.rng_state
    assert state[0] == 3
    first = executor(x)
    assert not torch.equal(first, executor(x))
    executor.rng_state = state
    assert torch.equal(first, executor(x))
    executor.rng_state = [3]
    assert torch.equal(first, executor(x))
    with pytest.raises(poptorch.Error, match="random state"):
        executor.rng_state = [3, 1, 2]


def test_anchored_tensors() -> None:
    torch.manual_seed(0)
    model = Classifier()
    x, y = make_batch(4)
    plain = copy.deepcopy(model)
    _, loss = plain(x, y)
    loss.backward()
    chosen = options()
    chosen.anchorTensor("grad", "Gradient___last.bias")
    chosen.anchorTensor("new", "UpdatedVar___last.bias")
    chosen.anchorTensor("weight", "last.bias")
    chosen.anchorTensor("hidden", "first/Linear:0")
    chosen.anchorTensor("loss", "loss")
    chosen.anchorTensor("x", "input/x")
    chosen.anchorTensor("rate", "scaledLearningRate0___specific___last.bias")
    executor = poptorch.trainingModel(model, chosen, torch.optim.SGD(model.parameters(), lr=0.5))
    with pytest.raises(AssertionError, match="nothing was kept"):
        executor.getAnchoredTensor("grad")
    executor(x, y)
    torch.testing.assert_close(executor.getAnchoredTensor("grad"), plain.last.bias.grad)
    new = plain.last.bias - 0.5 * plain.last.bias.grad
    torch.testing.assert_close(executor.getAnchoredTensor("new"), new.detach())
    assert torch.equal(executor.getAnchoredTensor("weight"), plain.last.bias)
    torch.testing.assert_close(executor.getAnchoredTensor("hidden"), plain.first(x).detach())
    torch.testing.assert_close(executor.getAnchoredTensor("loss"), loss.detach())
    assert torch.equal(executor.getAnchoredTensor("x"), x)
    assert float(executor.getAnchoredTensor("rate")) == 0.5
    assert {"Gradient___first.weight", "UpdatedVar___first.weight", "first.weight"} <= set(
        executor.getTensorNames()
    )


def test_a_gradient_that_there_is_none_of() -> None:
    class Unused(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.spare = nn.Linear(2, 2)

    chosen = options()
    chosen.anchorTensor("grad", "Gradient___spare.bias")
    with pytest.raises(poptorch.Error, match=r"does not depend on spare\.bias"):
        poptorch.trainingModel(Unused(), chosen)(*make_batch(4))
    model = Unused()
    before = model.spare.weight.detach().clone()
    executor = poptorch.trainingModel(model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.1))
    executor(*make_batch(4))
    executor.copyWeightsToHost()
    assert torch.equal(model.spare.weight, before)  # as in torch: without a gradient, not even decay


def test_an_unknown_anchor_is_refused_with_the_nearest() -> None:
    chosen = options()
    chosen.anchorTensor("grad", "Gradient___last.bais")
    with pytest.raises(poptorch.Error, match=r"Did you mean 'Gradient___last.bias'"):
        poptorch.trainingModel(Classifier(), chosen)(*make_batch(4))


def test_anchors_of_all_micro_batches() -> None:
    model = Classifier()
    chosen = options(2, 2, output_mode=poptorch.OutputMode.All)
    chosen.anchorTensor("grad", "Gradient___last.bias")
    chosen.anchorTensor("final", "Gradient___last.bias", poptorch.OutputMode.Final)
    executor = poptorch.trainingModel(model, chosen)
    executor(*make_batch(8))
    assert executor.getAnchoredTensor("grad").shape == (12,)
    assert torch.equal(executor.getAnchoredTensor("final"), executor.getAnchoredTensor("grad")[-3:])


def test_tied_weights_are_one() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4, bias=False)
            self.b = nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.mse_loss(self.b(self.a(x)), torch.zeros_like(x))

    torch.manual_seed(0)
    model = Tied()
    plain = copy.deepcopy(model)
    x = torch.randn(5, 4)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        optimizer.zero_grad()
        loss = plain(x)
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(executor(x), loss.detach())
    executor.copyWeightsToHost()
    assert model.a.weight is model.b.weight
    torch.testing.assert_close(model.a.weight, plain.a.weight)


@pytest.mark.parametrize("scaling", [1.0, 128.0])
def test_loss_scaling_has_no_part_in_the_result(scaling: float) -> None:
    torch.manual_seed(0)
    model = Classifier()
    batch = make_batch(4)
    make = lambda parameters: torch.optim.Adam(parameters, lr=0.01)  # noqa: E731
    expected, losses = train_plainly(model, make, [batch] * 3, micro=2, per_update=2)
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.01, loss_scaling=scaling)
    executor = poptorch.trainingModel(model, options(1, 2), optimizer)
    for _ in range(3):
        _, loss = executor(*batch)
    torch.testing.assert_close(loss, losses[-1])
    executor.copyWeightsToHost()
    torch.testing.assert_close(model.last.weight.detach(), expected["last.weight"])
