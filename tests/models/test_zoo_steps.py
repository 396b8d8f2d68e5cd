"""One training step of every reference model: cut into stages, and under torch.compile, each beside the plain step.

In float64, where what is equal is equal to many digits; in float32 a few pixels of cosmictagger's empty images make up whole percents.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from small import overrides_of
from stages import run_in_stages
from torch import Tensor
from zoo import NAMES, Model, loaded

from portwright.base_model import LossModule, split_loss
from portwright.watching.random_states import seed_all

NUM_STAGES = 3
TOLERANCE = 1e-6  # losses are taken in float32 by some


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    with loaded(request.param, overrides=overrides_of(request.param)) as found:
        yield found


@pytest.fixture(scope="module")
def batch(model: Model) -> Any:
    return torch.utils._pytree.tree_map(
        lambda value: value.double() if torch.is_tensor(value) and value.is_floating_point() else value,
        model.batch(),
    )


Step = tuple[Tensor, dict[str, Tensor]]


def fresh(model: Model) -> LossModule:
    module = model.make()
    module.train()
    module.net.double()
    seed_all(7, torch.device("cpu"))  # dropout draws the same in every step that is compared
    return module


def gradients(module: LossModule) -> dict[str, Tensor]:
    return {name: p.grad for name, p in module.net.named_parameters() if p.grad is not None}


@pytest.fixture(scope="module")
def plain(model: Model, batch: Any) -> Step:
    module = fresh(model)
    loss, _ = split_loss(module(batch))
    loss.backward()
    return loss.detach(), gradients(module)


def assert_same(loss: Tensor, found: dict[str, Tensor], plain: Step) -> None:
    torch.testing.assert_close(loss, plain[0], rtol=TOLERANCE, atol=TOLERANCE)
    assert found.keys() == plain[1].keys()
    for name, gradient in found.items():
        scale = float(plain[1][name].abs().max())
        torch.testing.assert_close(
            gradient,
            plain[1][name],
            rtol=0,
            atol=TOLERANCE * max(scale, 1e-2),
            msg=lambda text, name=name: f"{name}: {text}",
        )


def test_stages_give_the_same_loss_and_gradients(model: Model, batch: Any, plain: Step, record: Any) -> None:
    module = fresh(model)
    loss = run_in_stages(module, batch, NUM_STAGES)
    assert_same(loss, gradients(module), plain)
    record(model.name, "pipelined", "equal")


def test_compiled_gives_the_same_loss_and_gradients(
    model: Model, batch: Any, plain: Step, record: Any
) -> None:
    """By torch's own tracing of forward and backward; what its code generators make of that is torch's."""
    from torch._dynamo.backends.debugging import aot_eager

    graphs = []

    def count(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return aot_eager(graph, inputs)

    torch._dynamo.reset()
    module = fresh(model)
    module.net.compile(backend=count)
    loss, _ = split_loss(module(batch))
    loss.backward()
    torch._dynamo.reset()
    assert_same(loss.detach(), gradients(module), plain)
    shown = {0: "nothing is compiled", 1: "equal"}.get(len(graphs), f"equal, in {len(graphs)} graphs")
    record(model.name, "compile", shown)
