"""The step that is taken from a script's tape: done again, it gives the same loss and the same gradients."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from torch import nn

from portwright.errors import UnsupportedError
from portwright.verify.replay import ReplayedStep, call_from
from portwright.verify.step_watch import NoTrainingError, StepWatch, WatchedStep
from portwright.verify.tensor_trees import (
    ReadFloat,
    ReadInt,
    follow_number,
    iter_read_numbers,
    iter_tensors,
    replace_tensors,
)

HEAD = """
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)
    def forward(self, x, *others, scale=1, mask=None):
        out = self.lin(x) * scale
        return out if mask is None else out * mask

def batches(*shapes, **options):
    whole = [torch.randint(0, 8, (16,)) if shape == "labels" else torch.randn(16, *shape) for shape in shapes]
    return DataLoader(TensorDataset(*whole), batch_size=4, **options)
"""

Seen = dict[str, Any]
Watch = Callable[..., Seen]


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Runs a script up to its update; gives the step, the loss that the script had and the one of the step done again."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])

    def run(text: str, number: int = 0) -> Seen:
        script = tmp_path / "train.py"
        script.write_text(HEAD + dedent(text), encoding="utf-8")
        seen: Seen = {}

        def use(watched: WatchedStep) -> None:
            seen["step"], seen["plan"] = watched, watched.plan
            trained = [p for module in watched.plan.modules for p in module.parameters()]
            before = [None if p.grad is None else p.grad.clone() for p in trained]
            again = ReplayedStep(watched.plan, watched.names)(*watched.plan.fed)
            seen["losses"] = [t.item() for b in watched.plan.backwards for t in b.tensors]
            seen["again"] = [loss.item() for loss, _ in again]
            for loss, gradient in again:
                loss.backward(gradient)
            seen["gradients"] = [
                (old, p.grad - old) for p, old in zip(trained, before, strict=True) if old is not None
            ]
            raise KeyboardInterrupt  # as a driver may end the script

        with pytest.raises(KeyboardInterrupt):
            StepWatch(use, number).run([str(script)])
        return seen

    return run


def assert_same(seen: Seen) -> None:
    assert seen["again"] == pytest.approx(seen["losses"], rel=1e-6)
    assert seen["gradients"], "nothing was trained"
    for old, new in seen["gradients"]:
        torch.testing.assert_close(new, old)


# Loop, tensors fed, constants. Where a second step is looked at, or the update has begun, a rate of zero keeps the weights.
LOOPS: dict[str, tuple[str, int, int]] = {
    "criterion": (
        """
        model, criterion = Net(), nn.CrossEntropyLoss(label_smoothing=0.1)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in batches((8,), "labels"):
            opt.zero_grad()
            criterion(model(x), y).backward()
            opt.step()
        """, 2, 0),
    "weights_written_in_place": (  # torch refuses to say whether such a view is a leaf
        """
        model = Net()
        with torch.no_grad():
            model.lin.weight[0].fill_(0.5)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in batches((8,), "labels"):
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
        """, 2, 0),
    "arithmetic": (
        """
        model = Net()
        opt = torch.optim.Adam(model.parameters())
        for x, y in batches((8,), (8,)):
            x = x.view(4, -1)
            diff = model(x) - y
            loss = (diff * diff).mean() + 0.1 * sum(p.norm() for p in model.parameters())
            loss += 1
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, 2, 0),
    "in_place": (
        """
        model = Net()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in batches((8,), "labels"):
            keep = torch.zeros_like(x)
            keep[:, :4] = 1
            view = keep[0]
            view.fill_(2.0)
            out = model(x * keep)
            out.div_(2)
            loss = F.cross_entropy(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, 2, 0),
    "odd_arguments": (
        """
        model = Net()
        opt = torch.optim.SGD(model.parameters(), lr=0.0)
        weight = torch.linspace(0, 1, 8)
        for batch in DataLoader([{"x": torch.ones(8), "y": 3, "name": "a"}] * 16, batch_size=4):
            out = model(batch["x"], None, 3, [1, {"a": (batch["y"], None)}], scale=2, mask=torch.ones(1, 8))
            loss = F.cross_entropy(out, batch["y"], weight=weight)
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, 2, 2),
    "store_of_data": (
        """
        model = Net()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        X, Y = torch.randn(64, 8), torch.randint(0, 8, (64,))
        for i in range(0, 64, 16):
            loss = F.cross_entropy(model(X[i:i + 16]), Y[i:i + 16])
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, 2, 0),
    "evaluation_first": (
        """
        model = Net()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.no_grad():
            model.eval()
            for x, y in batches((8,), "labels"):
                F.cross_entropy(model(x), y).item()
        model.train()
        for x, y in batches((8,), "labels", num_workers=2):
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, 2, 0),
    "teacher": (
        """
        teacher, model = Net(), Net()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        for (x,) in batches((8,)):
            with torch.no_grad():
                wanted = teacher(x)
            loss = F.mse_loss(model(x), wanted)
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, 1, 0),
    "methods_and_bare_parameter": (
        """
        scale = torch.ones(8, requires_grad=True)
        class Coder(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(8, 4), nn.Linear(4, 8)
            def encode(self, x):
                return torch.tanh(self.a(x))
        model = Coder()
        opt = torch.optim.SGD([*model.parameters(), scale], lr=0.1)
        for (x,) in batches((8,)):
            loss = F.mse_loss(model.b(model.encode(x)) * scale, x)
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, 1, 0),
    "function": (
        """
        class Twice(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2
            @staticmethod
            def backward(ctx, gradient):
                return gradient * 2
        model = torch.compile(Net())
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in batches((8,), "labels"):
            loss = F.cross_entropy(Twice.apply(model(x)), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, 2, 0),
    "penalty": (
        """
        model = Net()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        for (x,) in batches((8,)):
            mixed = (x * 0.5).requires_grad_(True)
            (slope,) = torch.autograd.grad(model(mixed).tanh().sum(), mixed, create_graph=True)
            loss = model(x).mean() + slope.norm()
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, 1, 0),
    "given_gradient": (
        """
        model = Net()
        opt = torch.optim.SGD(model.parameters(), lr=0.0)
        for x in DataLoader([torch.arange(8.0)] * 16, batch_size=4):
            opt.zero_grad()
            model(x).mean(1, keepdim=True).sum(0).backward(torch.full((1,), 3.0))
            opt.step()
        """, 1, 1),
    "named_gpu": (
        """
        model = Net().cuda()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in batches((8,), "labels"):
            loss = F.cross_entropy(model(x.cuda(non_blocking=True)), y.to("cuda:0"))
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, 2, 0),
    "by_hand": (
        """
        model = Net()
        hidden = torch.zeros(4, 8)
        for x, y in batches((8,), "labels"):
            out = model(x + hidden)
            hidden = out.detach()
            model.zero_grad()
            F.cross_entropy(out, y).backward()
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-0.0)
        """, 3, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
def test_a_step_done_again_is_the_same(watch: Watch, name: str) -> None:
    loop, num_fed, num_constants = LOOPS[name]
    if name == "named_gpu" and torch.cuda.is_available():
        pytest.skip("there is a GPU to name here")
    seen = watch(loop)
    assert_same(seen)
    assert (len(seen["plan"].fed), len(seen["plan"].constants)) == (num_fed, num_constants)


def test_accumulated_passes_are_one(watch: Watch) -> None:
    seen = watch("""
        model = Net()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        for i, (x, y) in enumerate(batches((8,), "labels")):
            (F.cross_entropy(model(x), y) / 2).backward()
            if i % 2:
                opt.step()
                opt.zero_grad()
    """)
    assert len(seen["losses"]) == len(seen["plan"].backwards) == 1
    assert "2 like backward passes" in seen["plan"].notes[0]
    assert seen["again"] == pytest.approx(seen["losses"])


GAN = """
    G, D = Net(), nn.Linear(8, 1)
    g, d = torch.optim.Adam(G.parameters()), torch.optim.SGD(D.parameters(), lr=0.1)
    for (real,) in batches((8,)):
        d.zero_grad()
        F.softplus(-D(real)).mean().backward()
        fake = G(torch.randn(4, 8))
        F.softplus(D(fake.detach())).mean().backward()
        d.step()
        g.zero_grad()
        F.softplus(-D(fake)).mean().backward()
        g.step()
"""


def test_each_optimizer_has_a_step_of_its_own(watch: Watch) -> None:
    critic, generator = watch(GAN, 0), watch(GAN, 1)
    assert type(generator["step"].optimizer) is torch.optim.Adam
    assert generator["step"].names == ("D", "G")
    assert len(generator["losses"]) == 1
    assert type(critic["step"].optimizer) is torch.optim.SGD
    assert len(critic["losses"]) == 2
    assert critic["step"].num_optimizers == 2
    assert critic["again"] == pytest.approx(critic["losses"])


def test_a_changing_target_is_fed_and_a_mask_is_not(watch: Watch) -> None:
    seen = watch("""
        model = Net()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.randn(41, 8)
        for i in range(0, 40, 10):
            mask = torch.ones(5, 8).tril().mean(0, keepdim=True)
            out = model(data[i:i + 10], mask=mask)
            loss = ((out.reshape(-1) - data[i + 1:i + 11].reshape(-1)) ** 2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
    """)
    assert [tuple(t.shape) for t in seen["plan"].fed] == [(10, 8), (80,)]
    assert [tuple(t.shape) for t in seen["plan"].constants] == [(1, 8)]


def test_a_carried_state_is_a_constant(watch: Watch) -> None:
    seen = watch("""
        class Cell(nn.Module):
            def __init__(self):
                super().__init__()
                self.cell = nn.RNN(8, 8)
            def forward(self, x, h):
                return self.cell(x, h)
        model, h = Cell(), torch.zeros(1, 4, 8)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.randn(40, 4, 8)
        for i in range(0, 40, 10):
            out, h = model(data[i:i + 10], h.detach())
            opt.zero_grad()
            out.mean().backward()
            opt.step()
    """)
    assert [tuple(t.shape) for t in seen["plan"].constants] == [(1, 4, 8)]
    assert [tuple(t.shape) for t in seen["plan"].fed] == [(10, 4, 8)]


def test_a_number_that_goes_back_into_the_loss_is_read_in_the_step(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[torch.Tensor] = []
    item = torch.Tensor.item
    loop = """
        model = Net()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        total = 0.0
        for x, y in batches((8,), "labels"):
            out = model(x)
            {use}
            total += F.cross_entropy(out, y).item()
            loss = F.cross_entropy(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
    """
    replayed = "portwright.verify.replay.call_from"

    def spy(place: Any, function: Any, args: Any, kwargs: Any) -> Any:
        if function is item:
            read.append(args[0])
        return call_from(place, function, args, kwargs)

    monkeypatch.setattr(replayed, spy)
    watch(loop.format(use="print(f'{out.max().item():.2f}')"))
    assert not read, "what is only printed is no part of the step"
    watch(loop.format(use="out = out * (1 / (out.abs().max().item() + 1e-6))"))
    assert len(read) == 1


def test_clipping_and_host_reads_are_kept_apart(watch: Watch) -> None:
    step = watch("""
        from torch.nn.utils import clip_grad_norm_
        model = Net()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in batches((8,), "labels"):
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            clip_grad_norm_(model.parameters(), 0.5)
            print(loss.item())
            opt.step()
    """)["step"]
    (clip,) = step.clippings
    assert clip.args == (0.5,)
    assert len(clip.parameters) == 2
    assert [(read.name, read.before_backward) for read in step.reads] == [("item", False)]


def test_gradients_that_the_loop_changes_are_said(watch: Watch) -> None:
    loop = LOOPS["criterion"][0]
    assert not watch(loop)["step"].notes
    changing = loop.replace("opt.step()", "model.lin.weight.grad.mul_(0.5)\n            opt.step()")
    assert "gradients by hand" in watch(changing)["step"].notes[0]


def test_what_torch_does_not_show_is_not_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    script = tmp_path / "train.py"
    text = """
    @torch.jit.script
    def hidden(x: torch.Tensor) -> torch.Tensor:
        return x * x
    model = Net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches((8,), "labels"):
        F.cross_entropy(hidden(model(x)), y).backward()
        opt.step()
    """
    script.write_text(
        "import warnings; warnings.simplefilter('ignore')" + HEAD + dedent(text), encoding="utf-8"
    )
    with pytest.raises(UnsupportedError, match="torch does not show it"):
        StepWatch(lambda step: pytest.fail("it was cut off")).run([str(script)])


def test_lines_are_those_of_the_script(watch: Watch) -> None:
    plan = watch(LOOPS["criterion"][0])["plan"]
    lines = [entry.place.code for entry in plan.entries if entry.place]
    assert lines == ["criterion(model(x), y).backward()"] * 2
    place = plan.entries[0].place

    def frame() -> tuple[str, int, str]:
        caller = sys._getframe(1)
        return caller.f_code.co_filename, caller.f_lineno, caller.f_code.co_name

    assert call_from(place, frame, (), {}) == (place.file, place.line, "<module>")


def test_torch_is_as_before(watch: Watch) -> None:
    before = (nn.Module.__call__, torch.autograd.backward, torch.optim.Optimizer.__init__, torch.Tensor.cuda)
    watch(LOOPS["criterion"][0])
    assert before == (
        nn.Module.__call__,
        torch.autograd.backward,
        torch.optim.Optimizer.__init__,
        torch.Tensor.cuda,
    )
    assert torch._C._len_torch_function_stack() == 0


@pytest.mark.parametrize(
    "text", ["print(1)", "model = Net(); model(torch.ones(2, 8))", "raise SystemExit(0)"]
)
def test_a_script_that_does_not_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    script = tmp_path / "train.py"
    script.write_text(HEAD + text, encoding="utf-8")
    with pytest.raises(NoTrainingError):
        StepWatch(lambda step: pytest.fail("there is none")).run([str(script)])


def test_read_numbers_follow_arithmetic() -> None:
    source = torch.ones(1)
    number = follow_number(2.0, source, None)
    for result in (
        number * 2,
        1 / number,
        -number,
        number**2,
        3 - number,
        follow_number(3, source, None) * 0.5,
    ):
        assert isinstance(result, ReadFloat)
        assert result.source is source
    assert isinstance(follow_number(3, source, None) + 1, ReadInt)
    assert follow_number(True, source, None) is True
    assert follow_number("a", source, None) == "a"
    assert list(iter_read_numbers({"a": [1, (number,)]})) == [number]


def test_tensors_in_objects() -> None:
    class Batch:
        def __init__(self) -> None:
            self.x, self.names = torch.ones(2), ["a"]

    batch = Batch()
    given = {"a": [batch, (torch.zeros(1), None)], "b": 3}
    assert [tuple(t.shape) for t in iter_tensors(given)] == [(2,), (1,)]
    twin = replace_tensors(given, lambda tensor: tensor + 5)
    assert batch.x.tolist() == [1, 1]
    assert twin["a"][0].x.tolist() == [6, 6]
    assert twin["a"][0].names is batch.names
    assert twin["b"] == 3
