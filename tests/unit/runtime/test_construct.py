"""Models that wait on the host; the device is `meta`, which stands for one that is not there."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from portwright.base_model import PyTorchBaseModel, make_model
from portwright.job.params import load_params
from portwright.runtime.construct import construct, host_bytes
from portwright.target import JobSpec
from portwright.watching import random_states as rng

CPU, META = torch.device("cpu"), torch.device("meta")
ROOM = 10**9


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(10, 10)
        self.register_buffer("seen", torch.zeros(5))


class Model(PyTorchBaseModel):
    """As users are taught to write it."""

    def __init__(self, params: dict[str, Any], device: Any = None) -> None:
        super().__init__(params=params, model=Net(), device=device)
        self.noise = random.random() + float(np.random.rand())


class DrawsLater(PyTorchBaseModel):
    def __init__(self, params: dict[str, Any], device: Any = None) -> None:
        super().__init__(params=params, model=Net(), device=device)
        nn.init.normal_(self.model.fc.weight)


def moved(params: dict[str, Any], device: Any) -> nn.Module:
    return Net().to(device)


def made_there(params: dict[str, Any], device: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(10, 10, device=device), nn.Linear(10, 10, device=device))


def under_a_default(params: dict[str, Any], device: Any) -> nn.Module:
    with torch.device(device):
        return nn.Linear(10, 10)


def by_name(params: dict[str, Any], device: Any) -> nn.Module:
    return Net().to(str(device)).to(dtype=torch.float32).to(device=device)


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., JobSpec]:
    path = tmp_path / "params.yaml"
    path.write_text("optimizer: {learning_rate: 0.1}\nrunconfig: {seed: 7}\n")
    params = load_params(path)
    return lambda model_fn: JobSpec(params, model_fn, None, None, "train")


@pytest.fixture(autouse=True)
def _a_generator_of_meta(monkeypatch: pytest.MonkeyPatch) -> None:
    class Generator:
        state = torch.zeros(1, dtype=torch.uint8)

        @classmethod
        def get_rng_state(cls, device: Any) -> torch.Tensor:
            return cls.state

        @classmethod
        def set_rng_state(cls, state: torch.Tensor, device: Any) -> None:
            cls.state = state

        @staticmethod
        def manual_seed_all(seed: int) -> None: ...

    monkeypatch.setattr(rng, "_device_module", lambda device: Generator)


@pytest.mark.parametrize("model_fn", [Model, moved, made_there, under_a_default, by_name])
def test_a_small_model_goes_where_its_code_puts_it(job: Callable[..., JobSpec], model_fn: Any) -> None:
    made = construct(job(model_fn), META, ROOM)
    assert {p.device.type for p in made.module.net.parameters()} == {"meta"}
    assert not made.was_kept_on_host


@pytest.mark.parametrize("model_fn", [Model, moved, made_there, under_a_default, by_name])
def test_a_large_model_stays_on_the_host_with_its_values(job: Callable[..., JobSpec], model_fn: Any) -> None:
    made = construct(job(model_fn), META, 0)
    assert made.was_kept_on_host
    on_host = [p for p in made.module.net.parameters() if p.device.type == "cpu"]
    assert on_host
    if model_fn not in (made_there, under_a_default):  # those were asked about when one tensor was there
        assert {p.device.type for p in made.module.net.parameters()} == {"cpu"}
        rng.seed_all(7)
        expected = Net()
        assert torch.equal(on_host[0], expected.fc.weight)


def test_draws_after_the_move_are_noticed(job: Callable[..., JobSpec]) -> None:
    assert construct(job(DrawsLater), META, 0).drew_meanwhile
    assert construct(job(moved), META, 0).drew_meanwhile is False


def test_modules_can_move_afterwards_as_before(job: Callable[..., JobSpec]) -> None:
    before = nn.Module.to, nn.Module.cuda
    construct(job(Model), META, 0)
    assert (nn.Module.to, nn.Module.cuda) == before
    assert Net().to(META).fc.weight.device.type == "meta"


def test_a_constructor_that_fails_when_held_is_run_as_it_is(job: Callable[..., JobSpec]) -> None:
    def insists(params: dict[str, Any], device: Any) -> nn.Module:
        net = Net().to(device)
        if net.fc.weight.device.type != "meta":
            raise RuntimeError("not there")
        return net

    made = construct(job(insists), META, 0)
    assert not made.was_kept_on_host
    assert made.module.net.fc.weight.device.type == "meta"


def test_a_constructor_that_fails_says_so(job: Callable[..., JobSpec]) -> None:
    def fails(params: dict[str, Any], device: Any) -> nn.Module:
        raise ValueError("no model today")

    before = nn.Module.to
    for device, room in ((META, 0), (META, ROOM), (CPU, None)):
        with pytest.raises(ValueError, match="no model today"):
            construct(job(fails), device, room)
    assert nn.Module.to is before


@pytest.mark.parametrize("model_fn", [Model, DrawsLater, moved])
def test_a_session_gets_the_same_model_and_generators(job: Callable[..., JobSpec], model_fn: Any) -> None:
    """As if it had been made by the session itself."""
    spec = job(model_fn)
    rng.seed_all(7, CPU)
    expected = make_model(spec.model_fn, spec.params.values, CPU)
    after = rng.capture_rng(CPU)
    taken = construct(spec, CPU, None).as_model_of(spec)
    rng.seed_all(99)
    given = make_model(taken.model_fn, taken.params.values, CPU)
    for one, other in zip(expected.net.parameters(), given.net.parameters(), strict=True):
        assert torch.equal(one, other)
    for name, state in rng.capture_rng(CPU).items():
        assert torch.equal(state, after[name]), name
    again = make_model(taken.model_fn, taken.params.values, CPU)  # a second one is made anew
    assert again.net is not given.net


def test_bytes_of_the_host_count_shared_weights_once() -> None:
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    net[1].weight = net[0].weight
    assert host_bytes(net) == 64
    assert host_bytes(nn.Linear(4, 4, device="meta")) == 0
