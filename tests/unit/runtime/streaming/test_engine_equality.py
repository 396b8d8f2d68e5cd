"""Weight streaming computes what a resident session computes, to the bit: for every shape of net and setting of the update."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from streaming_cases import (
    CASES,
    HUGGING_FACE,
    assert_equal_runs,
    assert_same,
    everything,
    make_job,
    open_resident,
    open_streaming,
    train,
)

from portwright.job.optimizer import OPTIMIZERS
from portwright.job.params import load_params
from portwright.runtime.streaming import device_update
from portwright.runtime.streaming.fetch import Fetcher
from portwright.runtime.streaming.gradients import Gradients
from portwright.runtime.streaming.updates import Updates
from portwright.target import JobSpec

MODELS = Path(__file__).parents[4] / "src" / "portwright" / "models"
ADAM = ("optimizer.optimizer_type=AdamW", "runconfig.precision=bf16")
CLIPPED = "optimizer.max_gradient_norm=1.5"  # some steps of most nets, and not others

pytestmark = pytest.mark.filterwarnings(
    r"ignore:.torch.cpu.amp.autocast\(args:FutureWarning"
)  # torch 2.4's own checkpoint


@pytest.fixture(autouse=True)
def gradients_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the small nets of these tests send them as large ones do."""
    monkeypatch.setattr(Gradients, "alone_from", 100)


@pytest.mark.parametrize("name", CASES)
def test_any_net(name: str) -> None:
    assert_equal_runs(CASES[name], num_steps=6)


@pytest.mark.parametrize("name", HUGGING_FACE)
@pytest.mark.filterwarnings("ignore")
def test_nets_of_hugging_face(name: str) -> None:
    pytest.importorskip("transformers")
    assert_equal_runs(HUGGING_FACE[name], CLIPPED, num_steps=4)


def bundled(name: str, params: str, *overrides: str) -> JobSpec:
    """The job of a model that comes with the package."""
    folder = MODELS / name
    sys.path.insert(0, str(folder))
    try:
        for module in ("data", "model", "utils"):
            sys.modules.pop(module, None)
        import data
        import model
        import utils
    finally:
        sys.path.remove(str(folder))
        for module in ("data", "model", "utils"):
            sys.modules.pop(module, None)
    loaded = load_params(
        folder / "configs" / params,
        overrides=overrides,
        default_params_fn=utils.set_defaults,
        user_schemas=utils.PARAMS_SCHEMA,
    )
    model_fn = model.AlphabetModel if name == "alphabet" else model.CosmicTaggerModel
    return JobSpec(loaded, model_fn, data.get_train_dataloader, data.get_eval_dataloader, "train")


@pytest.mark.parametrize(
    ("name", "params", "overrides"),
    [
        ("alphabet", "params.yaml", ("model.variant=pytorch", "model.dropout=0.1")),
        ("alphabet", "params.yaml", ("model.variant=layers", CLIPPED)),
        (
            "cosmictagger",
            "params.yaml",
            ("train_input.downsample=5", "train_input.num_samples=8", "model.depth=2"),
        ),
    ],
)
def test_models_of_the_package(name: str, params: str, overrides: tuple[str, ...]) -> None:
    job = bundled(name, params, *overrides)
    resident, streaming = open_resident(job), None
    losses = train(resident, 0, 3)
    streaming = open_streaming(job)
    assert train(streaming, 0, 3) == losses
    assert_same(everything(streaming), everything(resident) | _rng(streaming))
    streaming.close()


def _rng(session: Any) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in everything(session).items() if name.startswith("rng/")}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_any_optimizer(optimizer: str) -> None:
    """The speculative steps of some, and the undo of others."""
    assert_equal_runs(
        CASES["frozen"],
        f"optimizer.optimizer_type={optimizer}",
        "optimizer.max_gradient_norm=0.9",
        num_steps=5,
    )


@pytest.mark.parametrize(
    "overrides",
    [
        ("optimizer.max_gradient_norm=0.01",),
        ("optimizer.max_gradient_norm=1000.0",),
        ("optimizer.max_gradient_value=0.01",),
        ("optimizer.grad_accum_steps=2",),
        ("optimizer.grad_accum_steps=3", "optimizer.max_gradient_norm=0.5"),
        ("optimizer.grad_accum_steps=2", "optimizer.max_gradient_value=0.01"),
        ("optimizer.loss_scaling_factor=128.0",),
        ("optimizer.loss_scaling_factor=100.0",),
        ("optimizer.loss_scaling_factor=dynamic", "optimizer.steps_per_increase=2", CLIPPED),
        ("optimizer.loss_scaling_factor=dynamic", "optimizer.grad_accum_steps=2"),
        ("optimizer.log_summaries=true",),
        ("optimizer.log_summaries=true", "optimizer.grad_accum_steps=2"),
        (
            "optimizer.weight_decay_rate=0.1",
            "optimizer.learning_rate={scheduler: Linear, initial_learning_rate: 0.1, end_learning_rate: 0.0, steps: 5}",
        ),
        ("runconfig.precision=fp64", CLIPPED),
        ("runconfig.streaming={slots: 2}",),
        ("runconfig.streaming={slots: 9, offload_activations: true}",),
        ("runconfig.streaming={layers: ['blocks.?.net.*', blocks.0.norm]}",),
        ("runconfig.check_loss_values=false",),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("name", ["dropout", "wandering"])
def test_any_setting(name: str, overrides: tuple[str, ...]) -> None:
    assert_equal_runs(CASES[name], *overrides, num_steps=6)


def test_a_step_is_both_kept_and_rolled_back() -> None:
    """The settings above do what they are there for."""
    session = assert_equal_runs(CASES["stack"], "optimizer.max_gradient_norm=0.8", num_steps=24)
    updates = session._engine._updates
    assert updates is not None
    assert 0 < updates.num_rolled_back < 24


@given(
    name=st.sampled_from(["dropout", "shared", "wandering", "frozen", "sometimes", "side_loss", "unet"]),
    optimizer=st.sampled_from(["AdamW", "SGD", "Adafactor", "Lamb"]),
    num_accumulated=st.integers(1, 3),
    clip=st.sampled_from(["max_gradient_norm=0.3", "max_gradient_norm=1.5", "max_gradient_value=0.02", ""]),
    scale=st.sampled_from(["dynamic", "64.0", "1.0"]),
    slots=st.integers(2, 4),
    seed=st.integers(0, 999),
)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_combinations(
    name: str, optimizer: str, num_accumulated: int, clip: str, scale: str, slots: int, seed: int
) -> None:
    update = [
        f"optimizer.optimizer_type={optimizer}",
        f"optimizer.grad_accum_steps={num_accumulated}",
        f"optimizer.loss_scaling_factor={scale}",
        *([f"optimizer.{clip}"] if clip else []),
    ]
    run = (f"runconfig.streaming={{slots: {slots}}}", f"runconfig.seed={seed}")
    assert_equal_runs(CASES[name], *update, *run, num_steps=4)


# -- timing ------------------------------------------------------------------------------------------------------


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads stop for a moment here and there, as they do on a busy machine."""
    draw = random.Random(7)

    def delay(kind: type, name: str) -> None:
        method = getattr(kind, name)

        def slow(self: Any, *args: Any, **kwargs: Any) -> Any:
            if draw.random() < 0.4:
                time.sleep(draw.random() * 0.002)
            return method(self, *args, **kwargs)

        monkeypatch.setattr(kind, name, slow)

    for kind, name in ((Fetcher, "_fill"), (Updates, "_process"), (Updates, "_judge"), (Updates, "_over")):
        delay(kind, name)


@pytest.mark.usefixtures("delays")
@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("wandering", ("optimizer.max_gradient_norm=1.0", "optimizer.optimizer_type=Adafactor")),
        ("wandering", ("optimizer.loss_scaling_factor=dynamic", "optimizer.grad_accum_steps=2")),
        ("shared", ("optimizer.max_gradient_norm=1.0",)),
        ("sometimes", ("optimizer.max_gradient_norm=0.7",)),
        ("dropout", ()),
    ],
)
def test_timing_changes_nothing(name: str, overrides: tuple[str, ...]) -> None:
    for _ in range(2):
        assert_equal_runs(CASES[name], "runconfig.streaming={slots: 2}", *overrides, num_steps=6)


@pytest.mark.usefixtures("delays")
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_timing_changes_nothing_in_half_precision(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_update, "CHUNK", 17)
    runs = []
    for section in (
        f"slots: 2, update_on_device: {share}",
        f"slots: 4, update_on_device: {share}",
        "slots: 2",
    ):
        session = open_streaming(make_job(CASES["gpt"], *ADAM, f"runconfig.streaming={{{section}}}"))
        runs.append((train(session, 0, 6), everything(session)))
        session.close()
    assert runs[0][0] == runs[1][0]
    assert_same(runs[0][1], runs[1][1])
    # A kernel rounds the last elements of an array otherwise than the ones before, and chunks have other last ones.
    assert runs[0][0] == pytest.approx(runs[2][0], rel=1e-3)
    for key, value in runs[2][1].items():
        torch.testing.assert_close(runs[0][1][key], value, rtol=1e-2, atol=1e-3)


# -- half precision ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("native", ["1", "0"])
@pytest.mark.parametrize(
    "overrides", [(), (CLIPPED,), ("optimizer.grad_accum_steps=2", CLIPPED)], ids=" ".join
)
@pytest.mark.parametrize("name", ["gpt", "unet"])
def test_half_precision_is_resident_to_its_precision(
    name: str, overrides: tuple[str, ...], native: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORTWRIGHT_NATIVE", native)
    job = make_job(CASES[name], *ADAM, *overrides)
    resident = open_resident(job)
    losses = train(resident, 0, 8)
    streaming = open_streaming(job)
    assert train(streaming, 0, 8) == pytest.approx(losses, rel=0.02)
    wanted, found = everything(resident), everything(streaming)
    assert wanted.keys() == found.keys()
    for key in wanted:
        if key.startswith("model/") and wanted[key].is_floating_point():
            torch.testing.assert_close(found[key], wanted[key], rtol=0.05, atol=0.02)
    assert all(found[key].dtype == wanted[key].dtype for key in wanted)
    streaming.close()
