"""Any model, cut into any number of stages that are run one after another here, gives its own loss and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelined_models import MODELS, Samples
from torch import nn

from portwright.base_model import LossModule, split_loss
from portwright.errors import UserError
from portwright.runtime.pipelined.cuts import _balance, choose_cuts, locate
from portwright.runtime.pipelined.micro_batches import (
    Run,
    count_samples,
    guess_samples,
    plan_runs,
    signature_of,
    split_batch,
)
from portwright.runtime.pipelined.program import Program, make_programs
from portwright.runtime.pipelined.recorder import record
from portwright.runtime.pipelined.tape import Place, Tape
from portwright.runtime.pipelined.weights import StandIns, weights_of

CPU = torch.device("cpu")


class Recurrent(nn.Module):
    """Keeps its weights in a list beside the module's own, and gives a tuple in a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.out = (
            nn.Embedding(9, 4),
            nn.LSTM(4, 4, 2, batch_first=True),
            nn.Linear(4, 9),
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden, (last, _) = self.lstm(self.embed(ids))
        return F.cross_entropy(self.out(hidden).transpose(1, 2), ids) + last.mean()


class Sevenfold(torch.autograd.Function):
    """A gradient that is not the derivative, so that tracing through it shows."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return 7 * grad


class OwnGradient(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(Sevenfold.apply(self.second(Sevenfold.apply(self.first(x))))).pow(2).mean()


class InPlace(nn.Module):
    """Writes to a tensor and to its view, to a buffer, and to what a layer gave."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        filled = torch.zeros(len(x), 4)
        row = filled[0]
        filled[:, :2] = hidden[:, :2]
        row[2] = hidden[0, 2]
        self.count += 1
        y = self.second(filled)
        y[y < 0] = 0
        return self.last(y.mul_(2)).sum(-1).mean()


class Distilled(nn.Module):
    """A teacher without gradients before the first layer that has any; the loss is in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.teacher = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            wanted = self.teacher(x)
        return {"loss": F.mse_loss(self.student(x), wanted)}


class Attentive(nn.Module):
    """torch's own encoder, whose Python asks for the values of its mask."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.encoder(x, mask).pow(2).mean()


def made(name: str, **options: Any) -> tuple[nn.Module, Any]:
    samples = Samples(name, 4)
    return MODELS[name]({"model": {"dropout": 0.0, **options}}), samples.fields  # type: ignore[return-value]


CASES: dict[str, Any] = {
    "mlp": lambda: made("MLP"),
    "gpt": lambda: made("GPT"),
    "gpt checkpointed": lambda: made("GPT", checkpoint=True),
    "tied modules": lambda: made("TiedModules"),
    "unet": lambda: made("UNet"),
    "unet with batchnorm": lambda: made("UNet", batchnorm=True),
    "frozen": lambda: made("Frozen"),
    "recurrent": lambda: (Recurrent(), torch.randint(0, 9, (3, 5))),
    "own gradient": lambda: (OwnGradient(), torch.randn(3, 4)),
    "in place": lambda: (InPlace(), torch.randn(3, 4)),
    "distilled": lambda: (Distilled(), torch.randn(3, 4)),
    "torch's encoder": lambda: (Attentive(), torch.randn(2, 5, 8)),
}


def trace(net: Any, batch: Any, *, training: bool = True) -> tuple[LossModule, Tape]:
    module = LossModule(net)
    module.train(training)
    return module, record(module, batch, StandIns(module.net, CPU), None, CPU)


def run_stages(programs: list[Program], batch: Any, net: nn.Module) -> torch.Tensor:
    """Forward and backward through the stages, each with leaves of its own at its beginning."""
    weights, inputs, outputs = weights_of(net), [], []
    given: Any = ()
    for program in programs:
        taken = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in given]
        given = program.run(taken, batch, weights, "cpu")
        inputs.append(taken)
        outputs.append(given)
    grads: list[Any] = [torch.ones_like(given[0])]
    for taken, result in zip(reversed(inputs), reversed(outputs), strict=True):
        pairs = [(o, g) for o, g in zip(result, grads, strict=True) if o.requires_grad and g is not None]
        if pairs:
            torch.autograd.backward([o for o, _ in pairs], [g for _, g in pairs])
        grads = [tensor.grad for tensor in taken]
    return given[0].detach()


@pytest.mark.parametrize("case", CASES)
def test_stages_give_the_models_own_loss_gradients_and_buffers(case: str) -> None:
    torch.manual_seed(0)
    net, batch = CASES[case]()
    module = LossModule(net)
    before = {name: buffer.clone() for name, buffer in module.net.named_buffers()}
    loss, _ = split_loss(module(batch))
    loss.backward()
    grads = {name: p.grad for name, p in module.net.named_parameters()}
    after = {name: buffer.clone() for name, buffer in module.net.named_buffers()}
    _, tape = trace(net, batch)
    num_cut = 0
    for num_stages in range(1, 6):
        for name, buffer in module.net.named_buffers():
            buffer.copy_(before[name])
        for parameter in module.net.parameters():
            parameter.grad = None
        try:
            places = choose_cuts(tape, num_stages, None)
        except UserError:  # it has no more places to cut at
            break
        programs = make_programs(tape, locate(tape, places))
        torch.testing.assert_close(run_stages(programs, batch, module.net), loss.detach())
        for name, parameter in module.net.named_parameters():
            assert (parameter.grad is None) == (grads[name] is None), name
            if parameter.grad is not None:
                torch.testing.assert_close(parameter.grad, grads[name])
        for name, buffer in module.net.named_buffers():
            torch.testing.assert_close(buffer, after[name])
        num_cut += 1
    assert num_cut >= 3


def test_a_trace_leaves_the_model_as_it_was() -> None:
    net, batch = made("UNet", batchnorm=True)
    torch.manual_seed(3)
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    attributes = {name: set(vars(module)) for name, module in net.named_modules()}
    draws = torch.get_rng_state()
    trace(net, batch)
    assert torch.equal(torch.get_rng_state(), draws)
    assert {name: set(vars(module)) for name, module in net.named_modules()} == attributes
    for name, tensor in net.state_dict().items():
        assert type(tensor) is torch.Tensor
        assert torch.equal(tensor, state[name])


def test_whole_modules_of_a_stage_stay_python() -> None:
    """A block that lies in one stage is called, hooks and all; only one that is cut is played back."""
    net, batch = made("GPT")
    calls: list[str] = []
    for name, block in net.blocks.named_children():
        block.register_forward_hook(lambda *_, name=name: calls.append(name))
    module, tape = trace(net, batch)
    calls.clear()
    run_stages(make_programs(tape, locate(tape, [Place("blocks.1.mlp", 0)])), batch, module.net)
    assert calls == ["0", "2"]


def test_only_what_is_needed_is_sent() -> None:
    net, batch = made("GPT")
    _, tape = trace(net, batch)
    programs = make_programs(tape, locate(tape, [Place("blocks.1", 0), Place("blocks.2", 0)]))
    assert [[value.shape for value in p.looks(p.takes)] for p in programs] == [
        [],
        [(4, 6, 8)],
        [(4, 6, 8)],
    ], "no mask"
    assert "embed.weight" in programs[0].weight_names & programs[2].weight_names


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["blocks.7"], "'blocks.7' is no module that the model calls. Did you mean"),
        (
            ["blocks"],
            "is a list of modules and is never called itself. Name what is in it, such as blocks.1.",
        ),
        (["embed"], "nothing comes before 'embed'"),
        (["blocks.1", "blocks.1.norm1"], "begin at the same place"),
    ],
)
def test_cuts_that_name_no_place_are_refused(asked: list[str], message: str) -> None:
    _, tape = trace(*made("GPT"))
    with pytest.raises(UserError, match=r"runconfig\.pipeline\.cuts") as caught:
        choose_cuts(tape, len(asked) + 1, asked)
    assert message in str(caught.value)


def test_a_cut_between_a_tensor_and_a_write_to_its_view_is_refused() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.first(x)
            row = hidden[0]
            more = self.second(x)
            row.mul_(2)
            return (hidden * more + row).mean()

    _, tape = trace(Net(), torch.randn(3, 4))
    with pytest.raises(
        UserError, match=r"test_cutting.py:\d+ changes in place a tensor that is cut from its views"
    ):
        choose_cuts(tape, 2, ["second"])


class Wild(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.first, self.last, self.how = nn.Linear(4, 4), nn.Linear(4, 1), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        import random

        x = self.first(x)
        if self.how == "reads":
            x = x * float(x.max().item())
        elif self.how == "picks":
            x = x[x > 0][None].expand(4, -1)
        elif self.how == "draws" and random.random() < 2:
            x = -x
        elif self.how == "differentiates":
            x = x + torch.autograd.grad(x.sum(), x, create_graph=True)[0]
        return self.last(x).mean()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("reads", r"test_cutting.py:\d+: item needs the value of a tensor"),
        ("picks", r"test_cutting.py:\d+: __getitem__ needs the value of a tensor"),
        ("draws", "draws from Python's random"),
        ("differentiates", r"test_cutting.py:\d+ takes gradients inside the model"),
    ],
)
def test_what_cannot_be_traced_is_refused_with_its_line(how: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        trace(Wild(how), torch.randn(3, 4))
    assert caught.value.cure


@given(
    work=st.lists(st.integers(1, 50), min_size=3, max_size=9),
    num_stages=st.integers(2, 4),
    seed=st.integers(0, 9),
)
@settings(max_examples=60, deadline=None)
def test_the_busiest_stage_is_nearly_as_idle_as_can_be(work: list[int], num_stages: int, seed: int) -> None:
    from itertools import accumulate, combinations, pairwise

    total = [float(t) for t in accumulate(work, initial=0)]
    positions = list(range(1, len(work)))
    num_stages = min(num_stages, len(positions) + 1)
    sent = [(position * 7 + seed) % 5 for position in positions]

    def busiest(cuts: Any) -> float:
        return max(total[b] - total[a] for a, b in pairwise([0, *cuts, len(work)]))

    best = min(busiest(cuts) for cuts in combinations(positions, num_stages - 1))
    chosen = _balance(positions, total, sent, num_stages)
    assert len(chosen) == num_stages - 1
    assert chosen == sorted(set(chosen))
    assert busiest(chosen) <= 1.03 * best + 1e-9


@given(num_samples=st.integers(1, 200), wanted=st.integers(1, 40), least=st.integers(1, 8))
@settings(max_examples=100, deadline=None)
def test_runs_hold_every_sample_once(num_samples: int, wanted: int, least: int) -> None:
    runs = plan_runs(num_samples, wanted, lambda count: count >= least)
    assert sum(run.num_micro * run.size for run in runs) == num_samples
    assert all(run.size >= 1 and run.num_micro >= 1 for run in runs)
    assert sum(run.num_micro for run in runs) <= max(wanted, 1)
    batch = {"x": torch.arange(num_samples), "scale": torch.ones(()), "name": "kept"}
    parts = [part for group in split_batch(batch, num_samples, runs) for part in group]
    assert torch.equal(torch.cat([part["x"] for part in parts]), batch["x"])
    assert all(part["name"] == "kept" and part["scale"].ndim == 0 for part in parts)


def test_a_batch_without_rows_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"a batch of 8 samples has no tensor with that many rows: batch \[3, 8\]"
    ):
        split_batch(torch.zeros(3, 8), 8, [Run(2, 4)])


def test_the_samples_of_a_batch_are_not_its_first_rows_at_any_rate() -> None:
    batch = {"mask": torch.zeros(5, 5), "x": torch.zeros(4, 2)}
    assert count_samples(batch, 4) == 4
    assert guess_samples(batch, 8, 2) == 4
    assert guess_samples(batch, None, 1) == 5, "nobody knows better"


def test_whatever_has_an_item_for_each_sample_is_split() -> None:
    batch = {
        "x": torch.arange(8.0).view(4, 2),
        "names": list("abcd"),
        "array": np.arange(4),
        "boxes": [{"box": torch.full((2, 3), float(i))} for i in range(4)],
        "classes": ["cat", "dog"],
        "rate": 0.5,
    }
    first, second = split_batch(batch, 4, [Run(2, 2)])[0]
    assert second["x"].tolist() == [[4, 5], [6, 7]]
    assert (first["names"], second["names"]) == (["a", "b"], ["c", "d"])
    assert second["array"].tolist() == [2, 3]
    assert [item["box"][0, 0].item() for item in second["boxes"]] == [2, 3]
    assert (second["classes"], second["rate"]) == (["cat", "dog"], 0.5)
    pair = (torch.zeros(2, 3), torch.ones(2))
    assert [len(part) for part in split_batch(pair, 2, [Run(2, 1)])[0]] == [2, 2]


def test_arrays_are_known_by_all_their_values() -> None:
    """The text of a long array leaves out its middle, and of each number some digits."""
    arrays = [np.zeros(3000), np.zeros(3000), np.zeros(3000)]
    arrays[1][1500], arrays[2][0] = 1, 1e-12
    assert len({signature_of({"array": array}) for array in arrays}) == 3
    with pytest.raises(UserError, match=r"batch\['graph'\] is a object"):
        signature_of({"graph": object()})
