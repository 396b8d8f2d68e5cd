"""What the PopTorch emulator does beside the large rules: settings, products and looks that scripts rely on."""

from __future__ import annotations

import contextlib
import copy
import io
import random
import re
import subprocess
import sys
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from portwright.emulate import poptorch

aten = torch.ops.aten
HALF = torch.float16


# Half partials: many groups at once give what one after the other gives


# Weights inside of forward()


class Asking(nn.Module):
    """Looks at its weights in the ways that models do."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.scales = nn.ParameterList([nn.Parameter(torch.full((4,), 1.0 + k)) for k in range(2)])
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.register_buffer("shift", torch.zeros(4))
        self.seen: dict[str, Any] = {}

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weight = self.get_parameter("first.weight")
        self.seen.update(
            parameters=all(isinstance(p, nn.Parameter) for p in self.parameters()),
            number=len(list(self.parameters())),
            buffer=isinstance(self.get_buffer("shift"), nn.Parameter),
            trained=[name for name, p in self.named_parameters() if p.requires_grad],
        )
        out = x @ weight.t() + self.first.bias
        for scale in self.scales:
            out = out * scale
        out = out * self.frozen + self.shift
        return out, poptorch.identity_loss(out**2, "mean")


def test_weights_are_parameters_inside_of_forward() -> None:
    torch.manual_seed(0)
    model, x = Asking(), torch.randn(3, 4)
    plain = copy.deepcopy(model)
    result = plain.first(x) * plain.scales[0] * plain.scales[1] * plain.frozen
    (result**2).mean().backward()
    trainer = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    trainer(x)
    assert model.seen["parameters"]
    assert model.seen["number"] == 5
    assert not model.seen["buffer"]
    assert model.seen["trained"] == ["first.weight", "first.bias", "scales.0", "scales.1"]
    trainer.copyWeightsToHost()
    for name, parameter in plain.named_parameters():
        step = 0 if parameter.grad is None else 0.1 * parameter.grad
        torch.testing.assert_close(
            model.get_parameter(name), nn.Parameter(parameter - step), atol=1e-6, rtol=1e-6
        )


# Automatic loss scaling


class Small(nn.Module):
    """Its loss is small enough that gradients are lost in half, unless they are scaled."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.last = nn.Linear(8, 4)
        self.factor = factor

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out = self.last(torch.tanh(self.first(x)))
        return out, poptorch.identity_loss(((out * out) * self.factor).float().mean(), "none")


def scaled(model: nn.Module, optimizer: Any, options: Any = None, anchored: bool = True) -> Any:
    options = options or poptorch.Options()
    options.Training.setAutomaticLossScaling(True)
    if anchored:
        options.anchorTensor("scale", "finalLossScale", poptorch.OutputMode.All)
    return poptorch.trainingModel(model, options, optimizer)


def small_half(factor: float = 1.0) -> Small:
    torch.manual_seed(0)
    return Small(factor).half()


@pytest.mark.parametrize("initial", [1.0, 4.0])
@pytest.mark.parametrize(
    "make",
    [
        poptorch.optim.SGD,
        poptorch.optim.Adam,
        poptorch.optim.AdamW,
        poptorch.optim.RMSprop,
        poptorch.optim.LAMB,
    ],
)
def test_the_loss_scale_doubles_as_long_as_gradients_are_small(make: Any, initial: float) -> None:
    model, x = small_half(), torch.randn(3, 4).half()
    more = {"use_combined_accum": False, "momentum": 0.9} if make is poptorch.optim.SGD else {}
    optimizer = make(model.parameters(), lr=0.0, loss_scaling=initial, **more)
    trainer = scaled(model, optimizer, poptorch.Options().deviceIterations(2))
    trainer.compile(x.repeat(2, 1))
    for call in range(3):
        before = optimizer.state_dict()["ipu_state"]["lossScaleUpdateFactor"]
        trainer(x.repeat(2, 1))
        assert before == 4.0**call
        assert trainer.getAnchoredTensor("scale").tolist() == [initial * before, 2 * initial * before]


def test_the_loss_scale_is_halved_where_gradients_come_near_the_end_of_half() -> None:
    model, x = small_half(), torch.ones(3, 4).half()
    trainer = scaled(model, poptorch.optim.SGD(model.parameters(), lr=0.0, loss_scaling=1.0))
    scales = []
    for _ in range(40):
        trainer(x)
        scales.append(trainer.getAnchoredTensor("scale").item())
    top = max(scales)
    assert scales[: scales.index(top) + 1] == [2.0**k for k in range(scales.index(top) + 1)]
    assert set(scales[scales.index(top) :]) == {top, top / 2}  # goes up and down at the edge
    assert top < 2.0**40


def test_gradients_that_half_loses_arrive_with_it_and_only_with_it() -> None:
    x = torch.randn(3, 4).half()
    start = small_half(2.0**-22).state_dict()

    def train(automatic: bool) -> tuple[dict[str, Tensor], Any]:
        model = small_half(2.0**-22)
        optimizer = poptorch.optim.SGD(model.parameters(), lr=2.0**14)
        trainer = (
            scaled(model, optimizer) if automatic else poptorch.trainingModel(model, optimizer=optimizer)
        )
        for _ in range(12):
            trainer(x)
        trainer.copyWeightsToHost()
        return model.state_dict(), trainer

    lost, _ = train(False)
    kept, _ = train(True)
    name = "first.weight"
    assert torch.equal(lost[name], start[name])
    assert not torch.equal(kept[name], start[name])
    assert all(torch.isfinite(value).all() for value in kept.values())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("combined", [True, False])
def test_the_loss_scale_changes_no_update(momentum: float, combined: bool) -> None:
    """Weights in float32, layers in half: powers of two come out of the update as they went into the loss."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.linspace(-1, 1, 12).reshape(3, 4))

        def forward(self, x: Tensor) -> Tensor:
            out = nn.functional.linear(x, self.weight.half())
            return poptorch.identity_loss(out.float().pow(2).mean(), "none")

    def train(automatic: bool) -> Tensor:
        torch.manual_seed(0)
        model, xs = Mixed(), torch.randn(8, 5, 4).half()
        optimizer = poptorch.optim.SGD(
            model.parameters(), lr=0.05, momentum=momentum, weight_decay=0.01, use_combined_accum=combined
        )
        trainer = (
            scaled(model, optimizer, anchored=False)
            if automatic
            else poptorch.trainingModel(model, optimizer=optimizer)
        )
        for x in xs:
            trainer(x)
        trainer.copyWeightsToHost()
        return model.weight.detach()

    torch.testing.assert_close(train(True), train(False), rtol=1e-5, atol=1e-6)


def test_the_loss_scale_is_kept_in_states() -> None:
    model, x = small_half(), torch.randn(3, 4).half()
    trainer = scaled(model, poptorch.optim.Adam(model.parameters(), lr=1e-3))
    for _ in range(3):
        trainer(x)
    other = small_half()
    optimizer = poptorch.optim.Adam(other.parameters(), lr=1e-3)
    resumed = scaled(other, optimizer)
    resumed(x)
    assert resumed.getAnchoredTensor("scale").item() == 1.0
    optimizer.load_state_dict(trainer._link.optimizer.state_dict())
    resumed(x)
    assert resumed.getAnchoredTensor("scale").item() == 8.0


def test_popart_settings_of_the_loss_scale() -> None:
    def scales(**settings: Any) -> list[float]:
        model, options = small_half(), poptorch.Options()
        for name, value in settings.items():
            options._Popart.set(f"automaticLossScalingSettings.{name}", value)
        trainer = scaled(model, poptorch.optim.SGD(model.parameters(), lr=0.0, loss_scaling=8.0), options)
        found = []
        for _ in range(4):
            trainer(torch.ones(3, 4).half())
            found.append(trainer.getAnchoredTensor("scale").item())
        return found

    assert scales() == [8, 16, 32, 64]
    assert scales(binEdgeLocation=0.0) == [8, 4, 2, 1]
    assert scales(binEdgeLocation=0.0, thresholdUpperCountProportion=1.0) == [8, 16, 32, 64]
    assert scales(updatePeriod=2) == [8, 16, 16, 32]
    with pytest.raises(poptorch.Error, match=r"from 0 to 1"):
        scales(binEdgeLocation=1.5)


def test_the_loss_scale_refusals() -> None:
    x = torch.randn(3, 4)
    model = Small()
    before = copy.deepcopy(model.state_dict())
    trainer = scaled(model, poptorch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(poptorch.Error, match="no gradient of the model is half"):
        trainer(x)
    trainer.copyWeightsToHost()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    options = poptorch.Options()
    options.Training.setAutomaticLossScaling(True)
    with pytest.raises(poptorch.Error, match="options of its own"):
        poptorch.inferenceModel(Small(), options)(x)


# Stochastic rounding


# Functions of torch.compile, names of errors, numbers of IPUs


def bent(x: Tensor) -> Tensor:
    return torch.relu(x) + 1


class Applied(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x))


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda: torch.compile(bent, backend="eager"), id="function"),
        pytest.param(lambda: lambda x: torch.compile(bent, backend="eager")(x), id="inside"),
        pytest.param(lambda: torch.compile(nn.ReLU(), backend="eager").forward, id="method"),
    ],
)
def test_compiled_functions_inside_of_forward_are_refused(function: Any) -> None:
    model, x = Applied(function()), torch.randn(2, 4)
    before = torch.compile
    with pytest.raises(poptorch.Error, match=r"torch\.compile is called inside .*leftovers\.py:\d+"):
        poptorch.inferenceModel(model)(x)
    assert torch.compile is before
    with torch.no_grad():  # on the host it goes on working
        assert model(x).shape == (2, 4)


def test_functions_that_are_kept_from_compilation_run() -> None:
    model, x = Applied(torch.compiler.disable(bent)), torch.randn(2, 4)
    torch.testing.assert_close(poptorch.inferenceModel(model)(x), model(x).detach())


def test_an_uncaught_error_is_called_as_the_script_knows_it(tmp_path: Any) -> None:
    code = (
        "import pickle, sys\n"
        "from portwright.emulate import lend\n"
        "lend('poptorch')\n"
        "import poptorch\n"
        "again = pickle.loads(pickle.dumps(poptorch.Error('x')))\n"
        "assert type(again) is poptorch.Error is poptorch.poptorch_core.Error\n"
        "poptorch.Options().deviceIterations(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("poptorch.poptorch_core.Error: ")


def test_errors_that_are_not_exported_are_called_as_the_script_knows_them(tmp_path: Any) -> None:
    code = (
        "import pickle\n"
        "from portwright.emulate import lend\n"
        "lend('poptorch')\n"
        "import poptorch\n"
        "try:\n"
        "    poptorch.removeBlocks(3)\n"
        "except poptorch.Error as error:\n"
        "    assert type(pickle.loads(pickle.dumps(error))) is type(error)\n"
        "    raise\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("poptorch._errors.AssertedError: ")


# Blocks inside of blocks, and numbers of IPUs


class Nested(nn.Module):
    """Ops before, in and behind an inner block, as far as `parts` says."""

    def __init__(self, parts: str) -> None:
        super().__init__()
        self.parts = parts
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with poptorch.Block("first", ipu_id=0):
            x = self.layer(x)
            with poptorch.Block("second", ipu_id=0):
                x = torch.relu(x)
            if "between" in self.parts:
                x = torch.tanh(x)
            if "again" in self.parts:
                with poptorch.Block("third", ipu_id=0):
                    x = torch.tanh(x)
        if "behind" in self.parts:
            x = torch.tanh(x)
        return x


def test_what_comes_behind_an_inner_block_is_told_of_nesting() -> None:
    x = torch.randn(2, 4)
    with pytest.raises(poptorch.Error, match=r"nested in block 'first'\. .*leftovers\.py:\d+"):
        poptorch.inferenceModel(Nested("between"))(x)
    with pytest.raises(poptorch.Error, match="is in no block"):
        poptorch.inferenceModel(Nested("again behind"))(x)
    for parts in ("", "again"):
        model = Nested(parts)
        torch.testing.assert_close(poptorch.inferenceModel(model)(x), model(x).detach())


@pytest.mark.parametrize("ipu_id", [-1, "1", True, 1.0])
def test_numbers_of_ipus_are_checked_when_a_block_is_made(ipu_id: Any) -> None:
    for make in (
        lambda: poptorch.BeginBlock(nn.Linear(2, 2), ipu_id=ipu_id),
        lambda: poptorch.BeginBlock(torch.relu, ipu_id=ipu_id),
        lambda: poptorch.Block(ipu_id=ipu_id),
        lambda: poptorch.BlockFunction(ipu_id=ipu_id),
    ):
        with pytest.raises(poptorch.Error, match="number from 0"):
            make()


def three_ipus(options: Any) -> Any:
    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            for number, layer in enumerate(self.layers):
                with poptorch.Block(f"b{number}", ipu_id=number):
                    x = layer(x)
            return x

    return poptorch.inferenceModel(Blocks(), options.deviceIterations(3))


def test_only_real_ipus_come_in_powers_of_two() -> None:
    x = torch.randn(3, 4)
    with pytest.raises(poptorch.Error, match="powers of two: 4"):
        three_ipus(poptorch.Options()).compile(x)
    three_ipus(poptorch.Options().autoRoundNumIPUs(True))(x)
    three_ipus(poptorch.Options().useIpuModel(True))(x)
    three_ipus(poptorch.Options().useOfflineIpuTarget()).compile(x)


# Implicit copies


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out = self.layer(self.norm(x))
        return out, poptorch.identity_loss(out.pow(2).mean(), "none")


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> tuple[Counted, Any, Any]:
    """A model, its training under implicit copies, and a function that says how many copies there were since it was asked last."""
    monkeypatch.setenv("PORTWRIGHT_POPTORCH_COPIES", "implicit")
    torch.manual_seed(0)
    model = Counted()
    trainer = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5))
    copies: list[int] = []
    original = trainer.copyWeightsToHost

    def count() -> None:
        copies.append(1)
        original()

    trainer.copyWeightsToHost = count

    def asked() -> int:
        number = len(copies)
        copies.clear()
        return number

    return model, trainer, asked


@pytest.mark.parametrize(
    "look",
    [
        lambda model: model.state_dict(),
        lambda model: model(torch.randn(3, 4)),
        lambda model: str(list(model.parameters())),
        lambda model: model.layer.weight.data,
        lambda model: model.layer.weight.detach().numpy(),
        lambda model: torch.equal(model.layer.bias, torch.zeros(2)),
        lambda model: model.norm.running_mean + 1,
        lambda model: copy.deepcopy(model),
        lambda model: torch.save(model, io.BytesIO()),
        lambda model: poptorch.inferenceModel(model)(torch.randn(3, 4)),
    ],
)
def test_the_first_look_copies_once(counting: tuple[Counted, Any, Any], look: Any) -> None:
    model, trainer, asked = counting
    for _ in range(3):
        trainer(torch.randn(3, 4))
    assert asked() == 0  # training needs none
    look(model)
    assert asked() == 1
    look(model)
    assert asked() == 0
    trainer(torch.randn(3, 4))
    look(model)
    assert asked() == 1


def test_weights_that_nobody_looked_at_are_restored_by_copying_to_the_device(
    counting: tuple[Counted, Any, Any],
) -> None:
    model, trainer, asked = counting
    before, x = copy.deepcopy(model.state_dict()), torch.randn(3, 4)
    trainer(x)
    trainer.copyWeightsToDevice()
    assert asked() == 0
    trainer.copyWeightsToHost()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    trainer(x)
    after = copy.deepcopy(model.state_dict())  # a look
    trainer.copyWeightsToDevice()
    trainer.copyWeightsToHost()
    assert all(torch.equal(value, after[name]) for name, value in model.state_dict().items())
    assert not torch.equal(after["layer.weight"], before["layer.weight"])


def test_copies_and_files_are_plain_and_so_is_a_model_that_was_given_back(
    counting: tuple[Counted, Any, Any],
) -> None:
    model, trainer, _ = counting
    trainer(torch.randn(3, 4))
    kept = io.BytesIO()
    torch.save(model, kept)
    kept.seek(0)
    saved, copied = torch.load(kept, weights_only=False), copy.deepcopy(model)
    trainer.destroy()
    for other in (saved, copied, model):
        assert type(other) is Counted
        assert {type(p) for p in other.parameters()} == {nn.Parameter}
        assert {type(b) for b in other.buffers()} == {Tensor}
        assert all(torch.equal(value, model.state_dict()[name]) for name, value in other.state_dict().items())
    other_trainer = poptorch.trainingModel(copied)
    other_trainer(torch.randn(3, 4))
    assert not torch.equal(copied.layer.weight, model.layer.weight)


# States of an optimizer that were changed by hand

OPTIMIZERS = [
    poptorch.optim.SGD,
    poptorch.optim.Adam,
    poptorch.optim.AdamW,
    poptorch.optim.RMSprop,
    poptorch.optim.LAMB,
]


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("make", OPTIMIZERS)
def test_what_is_written_into_a_state_reaches_the_device(make: Any, is_whole: bool) -> None:
    torch.manual_seed(0)
    model, x = Counted(), torch.randn(3, 4)
    optimizer = make(model.parameters(), lr=0.0)
    optimizer.variable_attrs._variable_attributes = list(optimizer.variable_attrs._allowed_attributes)
    trainer = poptorch.trainingModel(model, optimizer=optimizer)
    trainer.compile(x)
    state = optimizer.state_dict()
    left_out = {}
    for part in ("ipu_param", "ipu_state"):
        if not is_whole:
            name = next(iter(state[part]))
            left_out[part] = (name, state[part].pop(name).clone())
        state[part] = {name: torch.rand_like(value) * 0.5 for name, value in state[part].items()}
    written = copy.deepcopy(state)
    optimizer.load_state_dict(state)
    found = optimizer.state_dict()
    for part in ("ipu_param", "ipu_state"):
        assert found[part].keys() == written[part].keys()
        assert all(torch.equal(found[part][name], value) for name, value in written[part].items())
    trainer(x)
    found = optimizer.state_dict()
    assert all(torch.equal(found["ipu_param"][name], value) for name, value in written["ipu_param"].items())
    assert not any(
        torch.allclose(found["ipu_state"][name], value) for name, value in written["ipu_state"].items()
    )
    if not is_whole:
        name, value = left_out["ipu_param"]
        assert torch.equal(found["ipu_param"][name], value)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("more", [{}, {"momentum": 0.9}, {"momentum": 0.9, "use_combined_accum": False}])
def test_a_rate_in_a_state_counts_until_the_next_one_is_set(decay: float, more: dict[str, Any]) -> None:
    def train(rates: list[float], *, by_state: bool) -> Tensor:
        torch.manual_seed(0)
        model, x = Counted(), torch.randn(3, 4)
        given = {"use_combined_accum": False, **more}
        optimizer = poptorch.optim.SGD(
            model.parameters(), lr=rates[0], weight_decay=decay, loss_scaling=4.0, **given
        )
        trainer = poptorch.trainingModel(model, optimizer=optimizer)
        trainer(x)
        if by_state:
            state = copy.deepcopy(optimizer.state_dict())
            for name in state["ipu_param"]:
                if name.startswith("learningRate"):
                    state["ipu_param"][name] = torch.tensor(rates[1])
                elif name.startswith("scaledLearningRate0"):
                    state["ipu_param"][name] = torch.tensor(rates[1] / 4)
                elif name.startswith("weightDecayScaleFactor0"):
                    state["ipu_param"][name] = torch.tensor(1 - rates[1] * decay)
            optimizer.load_state_dict(state)
        else:
            optimizer.param_groups[0]["lr"] = rates[1]
            trainer.setOptimizer(optimizer)
        trainer(x)
        optimizer.param_groups[0]["lr"] = rates[2]
        trainer.setOptimizer(optimizer)
        trainer(x)
        trainer.copyWeightsToHost()
        return model.layer.weight.detach()

    rates = [0.1, 0.3, 0.02]
    torch.testing.assert_close(
        train(rates, by_state=True), train(rates, by_state=False), rtol=1e-5, atol=1e-6
    )
    assert not torch.allclose(train(rates, by_state=True), train([0.1, 0.1, 0.02], by_state=True))


def test_a_state_whose_number_is_several_is_refused() -> None:
    model, x = Counted(), torch.randn(3, 4)
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.1)
    trainer = poptorch.trainingModel(model, optimizer=optimizer)
    trainer(x)
    state = optimizer.state_dict()
    state["ipu_param"]["learningRate___specific___layer.bias"] = torch.ones(2)
    state["ipu_param"]["of something else"] = torch.ones(2)  # passed over, as in PopTorch
    optimizer.load_state_dict(state)
    with pytest.raises(poptorch.Error, match=r"learningRate___specific___layer\.bias of shape \(2,\)"):
        trainer(x)


# Floating-point exceptions, and other ops that fail when they run


BROKEN = [
    pytest.param(lambda x, w: w / (x - x), 1.0, torch.float32, id="division by zero"),
    pytest.param(lambda x, w: (x - 2).sqrt() * w, 1.0, torch.float32, id="root"),
    pytest.param(lambda x, w: x * (w - w), float("inf"), torch.float32, id="inf times zero"),
    pytest.param(lambda x, w: (x > w) * w, float("nan"), torch.float32, id="comparison of nan"),
    pytest.param(lambda x, w: w * x * 1000, 100.0, torch.float16, id="overflow of half"),
    pytest.param(lambda x, w: torch.where(x > 0, w, w / (x - x)), 1.0, torch.float32, id="hidden by where"),
    pytest.param(lambda x, w: (w - x).abs().sqrt(), 1.0, torch.float32, id="gradient"),
]


def test_an_index_out_of_range_of_a_later_call_names_the_line() -> None:
    model = nn.Sequential(nn.Embedding(5, 2))

    class Looked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = model

        def forward(self, x: Tensor) -> Tensor:
            return self.table(x)

    runner = poptorch.inferenceModel(Looked())
    runner(torch.tensor([1, 2]))
    for kind in (IndexError, poptorch.Error):
        with pytest.raises(kind, match=r"embedding.*out of range.*leftovers\.py:\d+") as caught:
            runner(torch.tensor([1, 7]))
    assert "leftovers.py:" in caught.value.location
    assert runner(torch.tensor([4, 0])).shape == (2, 2)


# What a script for a GPU does with a result


def test_backward_of_what_is_computed_from_a_result_is_told_in_our_words() -> None:
    trainer, x = poptorch.trainingModel(Counted()), torch.randn(3, 4)
    _, loss = trainer(x)
    for call in (
        lambda: (loss * 2).backward(),
        lambda: loss.mean().backward(),
        lambda: torch.amp.GradScaler("cpu").scale(loss).backward(),
    ):
        for kind in (poptorch.Error, RuntimeError):
            with pytest.raises(kind, match="a trainingModel has run the backward pass"):
                call()
    weight = torch.ones(2, requires_grad=True)
    (weight * 3).sum().backward()  # others train as ever
    assert torch.equal(weight.grad, torch.full((2,), 3.0))
    with pytest.raises(RuntimeError, match="implicitly"):
        (weight * 3).backward()


@pytest.mark.parametrize("clip", [clip_grad_norm_, clip_grad_value_])
def test_clipping_on_the_host_is_told_once_a_line(clip: Any, caplog: pytest.LogCaptureFixture) -> None:
    model, x = Counted(), torch.randn(3, 4)
    trainer = poptorch.trainingModel(model)
    with caplog.at_level("WARNING", "poptorch"):
        for _ in range(3):
            trainer(x)
            with contextlib.suppress(RuntimeError):  # torch 2.13's own, of values without a gradient
                clip(model.parameters(), 1.0)
    found = [r.getMessage() for r in caplog.records if clip.__name__ in r.getMessage()]
    assert len(found) == 1
    assert "max_grad_norm" in found[0]
    assert "test_poptorch_leftovers.py:" in found[0]
    caplog.clear()
    other = torch.ones(2, requires_grad=True)
    other.grad = torch.full((2,), 3.0)
    clip([other], 0.5)
    assert other.grad.norm() <= 0.75
    other.grad = torch.full((2,), 3.0)
    clip(other, 0.5)
    assert other.grad.norm() <= 0.75
    trainer.destroy()
    with contextlib.suppress(RuntimeError):
        clip(model.parameters(), 1.0)
    assert not [r for r in caplog.records if "clip_grad" in r.getMessage()]


# Numbers that Python draws


by_name = random.uniform


def chosen(x: Tensor) -> Tensor:
    return x if random.random() < 0.5 else -x


def scaled_by_numpy(x: Tensor) -> Tensor:
    return x * float(numpy.random.rand())


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (chosen, r"random\.random\(\) is drawn once.*leftovers\.py:\d+"),
        (lambda x: x * random.randint(1, 3), r"random\.randint\(\) is drawn once.*leftovers\.py:\d+"),
        (scaled_by_numpy, r"numpy\.random\.rand\(\) is drawn once.*leftovers\.py:\d+"),
        (lambda x: x * by_name(1, 2), r"forward\(\) draws from random is drawn once"),
    ],
)
def test_numbers_that_are_drawn_while_tracing_are_told(
    draw: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    functions = random.random, random.randint, numpy.random.rand
    runner, x = poptorch.inferenceModel(Applied(draw)), torch.randn(2, 4)
    with caplog.at_level("WARNING", "poptorch"):
        first = runner(x)
        assert torch.equal(first, runner(x))
    found = [r.getMessage() for r in caplog.records if "drawn once" in r.getMessage()]
    assert len(found) == 1
    assert re.search(said, found[0])
    assert functions == (random.random, random.randint, numpy.random.rand)


def test_models_that_draw_nothing_or_with_torch_are_not_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", "poptorch"):
        poptorch.trainingModel(Counted())(torch.randn(3, 4))
        poptorch.inferenceModel(Applied(lambda x: F.dropout(x, 0.5)))(torch.randn(3, 4))
    assert "drawn" not in caplog.text


def test_functions_of_random_come_back_after_a_failed_trace() -> None:
    before = dict(vars(random)), dict(vars(numpy.random))
    with pytest.raises(poptorch.Error):
        poptorch.inferenceModel(Applied(lambda x: x * x.sum().item()))(torch.randn(2, 4))
    assert before == (dict(vars(random)), dict(vars(numpy.random)))


# Losses of several numbers


class Classed(nn.Module):
    def __init__(self, loss: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.loss = nn.Linear(4, 3), loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(F.cross_entropy(self.layer(x), y, reduction="none"))


def test_a_loss_of_several_numbers_must_be_reduced() -> None:
    x, y = torch.randn(5, 4), torch.tensor([0, 1, 2, 1, 0])
    for loss in (lambda each: each, torch.mean, lambda each: poptorch.identity_loss(each, "none")):
        with pytest.raises(poptorch.Error, match=r"shape \[5\].*identity_loss.*leftovers\.py:\d+"):
            poptorch.trainingModel(Classed(loss))(x, y)
    for loss in (
        lambda each: poptorch.identity_loss(each, "mean"),
        lambda each: poptorch.identity_loss(each.mean(), "none"),
        lambda each: poptorch.identity_loss(each.mean().reshape(1, 1), "none"),
    ):
        model = Classed(loss)
        trainer = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5))
        found = trainer(x, y)
        trainer.copyWeightsToHost()
        plain = Classed(torch.mean)
        expected = plain(x, y)
        expected.backward()
        torch.testing.assert_close(found.reshape(()), expected.detach())
        torch.testing.assert_close(model.layer.weight, plain.layer.weight - 0.5 * plain.layer.weight.grad)
    poptorch.inferenceModel(Classed(lambda each: each))(x, y)  # nothing starts there
