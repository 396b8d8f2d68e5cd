"""What a lazy front end cannot do is found with its line, and the rest of the step is seen all the same."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from portwright.graph.capturing.capture import capture
from portwright.graph.graph import Graph
from portwright.graph.inputs import TensorSpec
from portwright.graph.match import match
from portwright.targets.csx.kernels import table

Change = Callable[[Tensor], Any]


class Step(nn.Module):
    """A layer, what a case does with its output, and an op behind it that shows how far the trace came."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.layer, self.change = nn.Linear(8, 8), change

    def forward(self, x: Tensor) -> Tensor:
        changed = self.change(self.layer(x))
        return torch.erf(changed).mean() + self.layer.weight.sum()


def stops_of(change: Change) -> Graph:
    return capture(lambda: Step(change), TensorSpec((4, 8)))


def say(x: Tensor) -> Tensor:
    print(x)
    return x


def count_down(x: Tensor) -> Tensor:
    while x.sum() < 10:
        x = x * 2
    while not (x > 3).any():
        x = x + 1
    while x.sum().item() > 0:
        x = x - 1
    return x


def check_first(x: Tensor) -> Tensor:
    assert (x == x).all()
    if torch.isnan(x).any():
        raise ValueError("nan")
    return x


READS: list[tuple[str, Change]] = [
    ("aten._local_scalar_dense.default", lambda x: x * x.sum().item()),
    ("aten._local_scalar_dense.default", lambda x: x + 1 if x.sum() > 0 else x),
    ("aten._local_scalar_dense.default", lambda x: x * int(x.max())),
    ("aten._local_scalar_dense.default", lambda x: x * float(x.max())),
    ("aten._local_scalar_dense.default", lambda x: x[: x.argmax() + 1]),
    ("aten._local_scalar_dense.default", lambda x: sum(x for _ in range(x.argmax()))),
    ("aten._local_scalar_dense.default", lambda x: x * x.sum(1).tolist()[0]),
    ("aten._local_scalar_dense.default", lambda x: x * len(x.tolist()[0])),
    ("aten._local_scalar_dense.default", lambda x: x * {False: 1.0, True: 2.0}[bool(x[0, 0] > 0)]),
    ("aten.equal.default", lambda x: x * torch.equal(x, x)),
    ("aten.allclose.default", lambda x: x * torch.allclose(x, x)),
    ("aten._to_copy.default", lambda x: x.cpu()),
    ("aten._to_copy.default", lambda x: x.to("cpu")),
    ("aten._to_copy.default", lambda x: x.to(torch.device("cpu"))),
    ("aten._to_copy.default", lambda x: x.to(device="cpu", dtype=torch.float64)),
    ("aten._to_copy.default", lambda x: x * float(x.detach().numpy().sum())),
    ("aten._to_copy.default", lambda x: x * float(np.asarray(x.detach()).sum())),
    ("aten._to_copy.default", say),
    ("aten._to_copy.default", lambda x: x * len(f"{x.sum()}")),
]

SHAPES: list[tuple[str, Change]] = [
    ("aten.nonzero.default", lambda x: x + x.nonzero().sum()),
    ("aten.nonzero.default", lambda x: x[torch.where(x > 0)]),
    ("aten.index.Tensor", lambda x: x[x > 0]),
    ("aten.index.Tensor", lambda x: x[x.sum(1) > 0]),
    ("aten.masked_select.default", lambda x: x.masked_select(x > 0)),
    ("aten._unique2.default", lambda x: x + torch.unique(x.long(), return_counts=True)[1].sum()),
    ("aten.unique_dim.default", lambda x: x + torch.unique(x.long(), dim=0).sum()),
    ("aten.unique_consecutive.default", lambda x: x + torch.unique_consecutive(x.long()).sum()),
    ("aten.bincount.default", lambda x: x + torch.bincount(x.long().flatten().abs()).sum()),
    ("aten.repeat_interleave.Tensor", lambda x: x.repeat_interleave(x[:, 0].long().abs(), dim=0)),
]

HOSTS: list[tuple[str, Change]] = [
    ("aten.add.Tensor", lambda x: x + torch.arange(8)),
    ("aten.add.Tensor", lambda x: x + torch.from_numpy(np.ones(8, np.float32))),
    ("aten.mul.Tensor", lambda x: x * torch.ones(1000, 8).sum(0)),
    ("aten.where.self", lambda x: torch.where(x > 0, x, torch.zeros(8))),
    ("aten._to_copy.default", lambda x: x.cuda()),
    ("aten._to_copy.default", lambda x: x.to("cuda:1", torch.float16).float()),
    ("aten._to_copy.default", lambda x: x + torch.zeros(8, device="cuda")),
    ("aten._to_copy.default", lambda x: x.type(x.type())),
]

FINE: list[Change] = [
    lambda x: x + torch.arange(8, device=x.device),
    lambda x: x + torch.ones(8).to(x.device),
    lambda x: x + torch.ones(8).to(x),
    lambda x: x + torch.ones(8, dtype=torch.float64).type_as(x),
    lambda x: x + torch.ones(200, 200).tril().to(x.device)[0, :8],
    lambda x: x * torch.tensor(2.0),
    lambda x: x[torch.arange(2)],
    lambda x: x * torch.arange(3)[1].item(),
    lambda x: x * sum(torch.linspace(0, 1, 4).tolist()),
    lambda x: x + x.new_zeros(8) + torch.zeros_like(x),
    lambda x: x * float(str(torch.ones(2).numpy()[0])),
    lambda x: x.to(torch.float64).to(x.device, torch.float32),
    lambda x: x.repeat_interleave(2, dim=0),
    lambda x: x * (x.shape[0] if x.dim() == 2 and len(x) else 1),
]


def name_of(case: tuple[str, Change]) -> str:
    return f"{case[0]}:{case[1].__code__.co_firstlineno}"


@pytest.mark.parametrize(
    ("kind", "case"),
    [("host_read", case) for case in READS]
    + [("dynamic_shape", case) for case in SHAPES]
    + [("host_tensor", case) for case in HOSTS],
    ids=lambda part: part if isinstance(part, str) else name_of(part),
)
def test_a_stop_has_its_line_and_the_rest_is_seen(
    kind: str, case: tuple[str, Change], capsys: pytest.CaptureFixture[str]
) -> None:
    op, change = case
    graph = stops_of(change)
    (stop,) = {(s.kind, s.op) for s in graph.stops}
    assert stop == (kind, op)
    place = graph.stops[0].place
    assert place is not None
    assert Path(place.file) == Path(__file__)
    first = change.__code__.co_firstlineno
    assert first <= place.line <= first + 1
    assert not any(s.is_last for s in graph.stops)
    assert any(node.op == "aten.erf.default" for node in graph.nodes)
    assert graph.loss >= 0
    assert any(node.phase == "backward" for node in graph.nodes)


@pytest.mark.parametrize("change", FINE, ids=lambda change: str(change.__code__.co_firstlineno))
def test_what_a_lazy_front_end_does_is_no_stop(change: Change) -> None:
    graph = stops_of(change)
    assert graph.stops == ()
    assert any(node.op == "aten.erf.default" for node in graph.nodes)


def add_causal_mask(x: Tensor) -> Tensor:
    mask = nn.Transformer.generate_square_subsequent_mask(8, device="cpu")
    assert bool((mask <= torch.zeros(8, 8, device=mask.device)).all())
    return x.unsqueeze(1) + mask.to(x.device)


def cut_ones(x: Tensor) -> Tensor:
    return x.masked_fill(torch.triu(torch.ones(4, 8, dtype=torch.bool), 1).to(x.device), 0.0)


def scale_by_table(x: Tensor) -> Tensor:
    return x * torch.hann_window(8, dtype=torch.float64).to(x.device, torch.float32)


def scale_by_table_like(x: Tensor) -> Tensor:
    return x * torch.hann_window(8, dtype=torch.float64).to(x)


@pytest.mark.parametrize("change", [add_causal_mask, cut_ones, scale_by_table, scale_by_table_like])
def test_what_the_host_computes_before_a_move_is_none_of_the_targets_business(change: Change) -> None:
    kernels = table()
    graph = capture(lambda: Step(change), TensorSpec((4, 8)), casts=kernels.casts())
    assert graph.stops == ()
    assert match(graph, kernels, "csx").refused == ()


def test_a_mask_of_the_host_is_refused_where_it_meets_the_device() -> None:
    def meet(x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(8, device="cpu")
        return x.unsqueeze(1) + mask

    (stop,) = capture(lambda: Step(meet), TensorSpec((4, 8)), casts=table().casts()).stops
    assert stop.place is not None
    assert stop.place.line == meet.__code__.co_firstlineno + 2


class Decoding(nn.Module):
    """Torch looks at the mask on the host, finds it causal and drops it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        mask = self.net.generate_square_subsequent_mask(x.shape[1], device="cpu")
        return self.net(x, x, tgt_mask=mask).mean()


def test_a_causal_mask_of_the_host_that_torch_drops_is_no_stop() -> None:
    assert capture(Decoding, TensorSpec((2, 4, 8))).stops == ()


def test_one_capture_finds_them_all() -> None:
    def change(x: Tensor) -> Tensor:
        if x.sum() > 0:  # first
            x = x + 1
        x = x[x > 0]  # second
        return x * torch.ones(3)[: x.shape[0] % 2 + 1].item() if False else x.cpu()  # third

    graph = stops_of(change)
    kinds = [stop.kind for stop in graph.stops]
    assert kinds == ["host_read", "dynamic_shape", "host_read"]
    lines = [stop.place.line - change.__code__.co_firstlineno for stop in graph.stops if stop.place]
    assert lines == [1, 3, 4]


def test_loops_that_wait_for_a_value_end() -> None:
    graph = stops_of(count_down)
    assert [stop.kind for stop in graph.stops] == ["host_read"] * 3
    assert graph.loss >= 0


def test_a_loop_that_never_ends_is_left() -> None:
    def change(x: Tensor) -> Tensor:
        while x.sum().item() < 1000:  # more than is ever guessed
            x = x.detach()
        return x

    graph = stops_of(change)
    assert [(stop.kind, stop.is_last) for stop in graph.stops] == [("host_read", True)]


def test_checks_of_values_are_taken_to_pass() -> None:
    graph = stops_of(check_first)
    assert [stop.kind for stop in graph.stops] == ["host_read", "host_read"]
    assert graph.loss >= 0


def test_the_same_read_in_each_layer_is_told_once_a_line() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * x.max().item()

    graph = capture(lambda: nn.Sequential(*(Block() for _ in range(3))), TensorSpec((4, 8)))
    assert [(stop.op, stop.module) for stop in graph.stops] == [("aten._local_scalar_dense.default", "0")]


@pytest.mark.parametrize(
    ("change", "message", "op"),
    [
        (lambda x: x @ x, "RuntimeError", "aten.mm.default"),
        (lambda x: {}["width"], "KeyError: 'width'", ""),
        (lambda x: F.cross_entropy(x, x[:2]), "Error", None),
        (lambda x: sys.exit(3), "SystemExit: 3", ""),
        (lambda x: x.undefined, "AttributeError", ""),
    ],
)
def test_an_error_of_the_users_model_has_its_line(change: Change, message: str, op: str | None) -> None:
    graph = stops_of(change)
    (stop,) = graph.stops
    assert stop.kind == "failure"
    assert stop.is_last
    assert message in stop.message
    assert op is None or stop.op == op
    assert stop.place is not None
    assert stop.place.line == change.__code__.co_firstlineno
    assert graph.loss == -1
    assert graph.nodes  # what came before it


def test_an_error_knows_the_module_that_it_came_from() -> None:
    graph = capture(lambda: nn.Sequential(nn.Linear(8, 4), nn.Linear(8, 4)), TensorSpec((2, 8)))
    (stop,) = graph.stops
    assert (stop.kind, stop.module, stop.op) == ("failure", "1", "aten.addmm.default")


def test_an_error_behind_a_guess_is_not_told_as_one() -> None:
    graph = stops_of(lambda x: x.view(int(x.sum()), 3))
    assert [(stop.kind, stop.is_last) for stop in graph.stops] == [("host_read", True)]


def test_an_error_behind_a_stop_without_a_guess_is_told() -> None:
    graph = stops_of(lambda x: x.cuda() @ x)
    assert [(stop.kind, stop.is_last) for stop in graph.stops] == [("host_tensor", False), ("failure", True)]


def test_an_error_of_the_constructor() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, -1)  # broken

    graph = capture(Broken, TensorSpec((4, 8)))
    (stop,) = graph.stops
    assert stop.kind == "failure"
    assert stop.place is not None
    assert stop.place.code.endswith("# broken")
    assert graph.nodes == ()


def test_a_loss_that_nothing_can_be_learnt_from() -> None:
    graph = capture(lambda: lambda batch: batch.sum(), TensorSpec((4, 8)))
    (stop,) = graph.stops
    assert "does not depend on a weight" in stop.message
    graph = capture(lambda: lambda batch: None, TensorSpec((4, 8)))
    (stop,) = graph.stops
    assert "no loss" in stop.message


def test_a_failure_in_backward_is_told_as_one() -> None:
    def change(x: Tensor) -> Tensor:
        y = x.exp()
        z = y * 2
        y.add_(1)  # exp's gradient needs y
        return z

    graph = stops_of(change)
    (stop,) = graph.stops
    assert stop.kind == "failure"
    assert "backward" in stop.message


def test_a_model_made_for_cuda_is_seen_without_one() -> None:
    class Moved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8, device="cuda")
            self.cuda()

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.to("cuda")).sum()

    graph = capture(Moved, TensorSpec((4, 8)))
    assert {stop.kind for stop in graph.stops} == {"host_tensor"}
    assert len({stop.place for stop in graph.stops}) == 3
    assert graph.loss >= 0


def test_a_default_device_that_is_not_here() -> None:
    class Default(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.set_default_device("cuda")
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).sum()

    graph = capture(Default, TensorSpec((4, 8)))
    assert {stop.kind for stop in graph.stops} == {"host_tensor"}
    assert graph.loss >= 0
    assert torch.zeros(1).device.type == "cpu"


def make_vector(x: Tensor) -> Tensor:
    return x + torch.ones(8, device=x.device)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_a_scripted_function_makes_tensors_on_the_device_that_it_names() -> None:
    assert stops_of(torch.jit.script(make_vector)).stops == ()


def test_a_compiled_model_runs_as_it_was_written() -> None:
    def make() -> nn.Module:
        model = Step(torch.tanh)
        model.layer = torch.compile(model.layer)
        return model

    graph = capture(make, TensorSpec((4, 8)))
    assert graph.stops == ()
    assert any(node.op == "aten.addmm.default" for node in graph.nodes)
