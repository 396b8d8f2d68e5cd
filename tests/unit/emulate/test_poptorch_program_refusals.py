"""What would freeze a value of the one run that is traced is refused, with the user's line; nothing is frozen silently."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from unit.emulate.program_models import Step, find_loss, rows, scored, trace, unjudged, weights_of

from portwright.emulate.poptorch import poptorch_core
from portwright.emulate.poptorch._program_trace import trace as trace_program

HERE = Path(__file__).name


def lengths(x: Tensor) -> Tensor:
    return (x[:, 0] > 100).long() + 2


# Each reads a value of x, which is an input, or of something drawn; more of them are in test_poptorch_rules.py.
READS: dict[str, Callable[[Tensor], Any]] = {
    "numpy through NumPy": lambda x: np.asarray(x),
    "NumPy's functions": lambda x: np.multiply(x.detach(), 2),
    "a copy through NumPy": lambda x: torch.from_numpy(x.detach().numpy()) + 1,
    "deepcopy": lambda x: copy.deepcopy(x) + 1,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)) + 1,
    "save": lambda x: torch.save(x, io.BytesIO()),
    "dlpack": lambda x: torch.from_dlpack(x) + 1,
    "a storage": lambda x: torch.tensor([], dtype=x.dtype).set_(x.untyped_storage()) + 1,
    "an address": lambda x: x.data_ptr(),
    "a function of each value": lambda x: x.clone().apply_(lambda value: value + 1),
    "is_nonzero": lambda x: torch.is_nonzero(x[0, 0]),
    "one_hot": lambda x: F.one_hot(x.long().abs()),
    "tensor_split": lambda x: torch.tensor_split(x, x[0].long().abs()),
    "random": lambda x: torch.rand(1).item(),
    "random choice": lambda x: 1 if torch.randint(0, 2, (1,)) else 2,
    "what was written": lambda x: torch.zeros(3).copy_(x[0, :3]).sum().item(),
    "a part of what was written": lambda x: _write_part(x).sum().item(),
    "unset memory": lambda x: torch.empty(3).sum().item(),
}  # fmt: skip
SIZES: dict[str, Callable[[Tensor], Any]] = {
    "bincount": lambda x: torch.bincount(lengths(x)),
    "packed": lambda x: pack_padded_sequence(x.unsqueeze(-1), lengths(x), batch_first=True).data,
}
KINDS: dict[str, Callable[[Tensor], Any]] = {
    "sparse": lambda x: x.to_sparse().coalesce(),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize(),
    "generator": lambda x: x + torch.rand(3, 6, generator=torch.Generator()),
    "other data": lambda x: setattr(x, "data", x + 1),
    "resized": lambda x: x.clone().resize_(2, 2),
}


def _write_part(x: Tensor) -> Tensor:
    table = torch.zeros(4, 3)
    table[1].copy_(x[0, :3])
    return table[2:]


def refused(read: Callable[[Tensor], Any], match: str = ".", **more: Any) -> str:
    lines: list[int] = []

    def forward(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        lines.append(read.__code__.co_firstlineno)
        read(x)
        return scored(m, x, y)

    model = Step(forward)
    with pytest.raises(poptorch_core.Error, match=match) as caught:
        trace(model, rows(), **more)
    said = str(caught.value)
    assert f"{HERE}:" in said, "the user's line"
    return said


@pytest.mark.parametrize("name", READS)
def test_a_value_cannot_be_read(name: str) -> None:
    said = refused(READS[name])
    assert "reads a tensor of the graph on the host" in said or "size of its result" in said


@pytest.mark.parametrize("name", SIZES)
def test_a_size_cannot_depend_on_values(name: str) -> None:
    refused(SIZES[name], "size")


@pytest.mark.parametrize("name", KINDS)
def test_what_an_ipu_does_not_have(name: str) -> None:
    refused(KINDS[name])


@pytest.mark.parametrize("name", ["random", "packed", "numpy through NumPy", "deepcopy"])
def test_inference_refuses_as_training_does(name: str) -> None:
    refused((READS | SIZES)[name], training=False)


def test_the_line_is_the_one_that_reads() -> None:
    said = refused(lambda x: x.item() if x.numel() == 1 else x[0, 0].item())
    line = refused.__code__.co_firstlineno
    assert f"{HERE}:{line}" not in said
    number = int(said.split(f"{HERE}:")[1].split("]")[0].split(",")[0])
    assert "x[0, 0].item()" in Path(__file__).read_text().splitlines()[number - 1]


def test_a_value_may_be_read_in_python_where_it_is_the_same_in_every_run() -> None:
    table, mask = torch.arange(6.0), torch.tensor([True, False, True, True, False, False])

    def forward(m: nn.Module, x: Tensor, y: Tensor) -> Any:
        kept = table[mask]
        assert kept.tolist() == [0, 2, 3]
        assert np.asarray(kept).sum() == 5
        assert torch.nonzero(table > 3).shape == (2, 1)
        assert not torch.equal(kept, kept + 1)
        return kept * table.sum().item(), scored(m, x, y)

    model, inputs = Step(forward), rows()
    (outputs, _), _ = trace(model, inputs).run(weights_of(model), inputs)
    assert outputs.tolist() == [0, 30, 45]


def test_a_buffer_is_no_constant() -> None:
    class Switched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("is_on", torch.tensor(True))
            self.linear = nn.Linear(6, 4)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return scored(self, x, y) if self.is_on else scored(self, x, y) * 2

    with pytest.raises(poptorch_core.Error, match=HERE):
        trace(Switched(), rows())


def test_a_cumulative_mean_reads_its_counter() -> None:
    class Averaged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = nn.BatchNorm1d(6, momentum=None), nn.Linear(6, 4)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return scored(self, self.norm(x), y)

    with pytest.raises(poptorch_core.Error, match=HERE):
        trace(Averaged(), rows())


def test_a_function_whose_gradient_reads_a_value_is_refused_with_the_line_that_called_it() -> None:
    class Reading(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return gradients[0] * gradients[0].sum().item()

    with pytest.raises(poptorch_core.Error, match=HERE):
        trace(Step(lambda m, x, y: F.mse_loss(Reading.apply(m.linear(x)), y)), rows())


def test_gradients_cannot_read_a_parameter_of_the_host() -> None:
    hidden = nn.Parameter(torch.ones(4))

    class Late(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return gradients[0] * hidden

    with pytest.raises(poptorch_core.Error, match="behind the forward pass"):
        trace(Step(lambda m, x, y: F.mse_loss(Late.apply(m.linear(x)), y)), rows())


def test_random_states_are_those_of_each_run() -> None:
    def forward(m: nn.Module, x: Tensor, y: Tensor) -> Any:
        with torch.random.fork_rng(devices=[]):
            first = torch.rand(3)
        return first, torch.rand(3), scored(m, x, y)

    model, inputs = Step(forward), rows()
    program = trace(model, inputs)
    torch.manual_seed(3)
    (first, second, _), _ = program.run(weights_of(model), inputs)
    (third, _, _), _ = program.run(weights_of(model), inputs)
    assert torch.equal(first, second)
    assert not torch.equal(first, third)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(3), first)


@pytest.mark.parametrize(
    ("weights", "trained", "said"),
    [
        ({"w": torch.ones(3)}, ["v"], "v cannot be trained"),
        ({"w": torch.ones(3, dtype=torch.int32)}, ["w"], "w cannot be trained.*int32"),
    ],
)
def test_what_cannot_be_trained(weights: dict[str, Tensor], trained: list[str], said: str) -> None:
    with pytest.raises(poptorch_core.Error, match=said), unjudged():
        trace_program(
            lambda w, i: w["w"].float().sum(),
            weights,
            [],
            training=True,
            find_loss=find_loss,
            trained=trained,
        )


def test_after_a_refusal_torch_is_as_before() -> None:
    before = (torch.get_rng_state, torch.set_rng_state, torch.nn.modules.transformer._detect_is_causal_mask)
    model, inputs = Step(lambda m, x, y: torch.rand(3).sum().item()), rows()
    state, grad = torch.get_rng_state(), torch.is_grad_enabled()
    with pytest.raises(poptorch_core.Error):
        trace(model, inputs)
    assert before == (
        torch.get_rng_state,
        torch.set_rng_state,
        torch.nn.modules.transformer._detect_is_causal_mask,
    )
    assert torch.equal(state, torch.get_rng_state())
    assert torch.is_grad_enabled() is grad
    assert torch.ones(2).sum().item() == 2
    assert torch.ones(2).numpy().sum() == 2


def test_lengths_of_ctc_are_those_of_each_run() -> None:
    class Speech(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 5)

        def forward(self, x: Tensor, y: Tensor, given: Tensor, wanted: Tensor) -> Tensor:
            return F.ctc_loss(self.linear(x).log_softmax(-1), y, given, wanted)

    torch.manual_seed(0)
    model = Speech()
    inputs = [torch.randn(8, 2, 4), torch.randint(1, 5, (2, 3)), torch.tensor([8, 7]), torch.tensor([3, 2])]
    program = trace(model, inputs)
    for given in ([8, 7], [6, 5]):
        inputs[2] = torch.tensor(given)
        (loss,), _ = program.run(weights_of(model), inputs)
        torch.testing.assert_close(loss, model(*inputs).detach())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # newer torch wants another compiler
def test_a_module_of_torch_jit_keeps_its_parameters_to_itself() -> None:
    class Scripted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.jit.script(nn.Linear(6, 4))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return scored(self, x, y)

    with pytest.raises(poptorch_core.Error, match=r"torch\.jit"):
        trace(Scripted(), rows())


def test_a_parameter_that_is_not_the_models_is_said_to_be_a_constant(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hidden = nn.Parameter(torch.ones(4))
    with caplog.at_level("WARNING", "poptorch"):
        trace(Step(lambda m, x, y: F.mse_loss(m.linear(x) * hidden.to("ipu"), y)), rows())
    assert f"{HERE}:" in caplog.text
    assert "is not trained" in caplog.text
