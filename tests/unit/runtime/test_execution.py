"""Which execution mode a run takes, and what it says of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from portwright.base_model import PyTorchBaseModel, make_model
from portwright.errors import UnsupportedError, UserError
from portwright.job.execution import check_execution
from portwright.job.params import load_params
from portwright.runtime import execution
from portwright.runtime.backend import TorchBackend
from portwright.runtime.execution import (
    Choice,
    choose_execution,
    device_capacity,
    prepare_execution,
    sure_weight_bytes,
)
from portwright.runtime.precision import resolve_precision
from portwright.runtime.session import TorchSession
from portwright.runtime.speed_model import Expected, measure_rates
from portwright.runtime.step_need import capture_step, count_state, weight_bytes
from portwright.runtime.world import Launch, World
from portwright.target import JobSpec, Stretch
from portwright.targets.cpu import TARGET as CPU_TARGET
from portwright.targets.csx import TARGET as CSX
from portwright.targets.rdu import TARGET as RDU
from portwright.watching import random_states as rng

CPU = torch.device("cpu")
SIZE, DEPTH, BATCH = 32, 6, 8


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(SIZE, SIZE) for _ in range(DEPTH))
        self.head = nn.Linear(SIZE, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x).relu()
        return self.head(x)


class Model(PyTorchBaseModel):
    def __init__(self, params: dict[str, Any], device: Any = None) -> None:
        super().__init__(params=params, model=Net(), device=device)
        self.calls = 0

    def __call__(self, data: Any) -> torch.Tensor:
        self.calls += 1
        return F.cross_entropy(self.model(data[0].to(self.device)), data[1])


class Fails(Model):
    def __call__(self, data: Any) -> torch.Tensor:
        raise RuntimeError("not with these shapes")


def batches(params: dict[str, Any]) -> DataLoader[Any]:
    torch.rand(3)  # what a user's function draws must not move the run's generators
    return DataLoader(
        TensorDataset(torch.rand(4 * BATCH, SIZE), torch.randint(4, (4 * BATCH,))), batch_size=BATCH
    )


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., JobSpec]:
    def make(
        model_fn: Any = Model, mode: str = "train", optimizer: dict[str, Any] | None = None, **runconfig: Any
    ) -> JobSpec:
        path = tmp_path / "params.yaml"
        optimizer = {"optimizer_type": "Adam", "learning_rate": 0.01, **(optimizer or {})}
        path.write_text(
            yaml.safe_dump(
                {"optimizer": optimizer, "runconfig": {"log_steps": 1, "checkpoint_steps": 0, **runconfig}}
            )
        )
        return JobSpec(load_params(path), model_fn, batches, batches, mode)  # type: ignore[arg-type]

    return make


@pytest.fixture
def world() -> World:
    return World(Launch(), "cpu", None)


def choose(spec: JobSpec, world: World, capacity: int, notes: list[str] | None = None) -> Choice:
    rng.seed_all(1)
    module = make_model(spec.model_fn, spec.params.values, CPU)
    said = notes if notes is not None else []
    return choose_execution(spec, module, CPU, world, said.append, capacity=capacity)


def needs(spec: JobSpec, world: World) -> tuple[int, int, int]:
    """Weights, state and peak of a step."""
    module = make_model(spec.model_fn, spec.params.values, CPU)
    precision = resolve_precision(spec.params.values, spec.params.runconfig.precision, "cpu")
    state = count_state(spec, module, precision)
    peak = capture_step(spec, module, CPU, world, precision).peak_bytes
    return weight_bytes(module, precision), state.total, peak


# -- what a step needs ------------------------------------------------------------------------------------------


def test_the_formula_counts_weights_gradients_and_state(job: Callable[..., JobSpec]) -> None:
    module = make_model(Model, {}, CPU)
    num = sum(p.numel() for p in module.net.parameters())
    fp32 = resolve_precision({}, None, "cpu")
    state = count_state(job(), module, fp32)
    assert (state.weights, state.gradients, state.optimizer) == (4 * num, 4 * num, 8 * num)
    assert count_state(job(mode="eval"), module, fp32).total == 4 * num
    sgd = job(optimizer={"optimizer_type": "SGD"})
    assert count_state(sgd, module, fp32).optimizer == 0
    wide = count_state(job(), module, resolve_precision({}, "fp64", "cpu"))
    assert (wide.weights, wide.gradients, wide.optimizer) == (8 * num, 8 * num, 16 * num)
    module.net.blocks.requires_grad_(False)
    frozen = count_state(job(), module, fp32)
    assert frozen.gradients == 4 * (SIZE * 4 + 4)
    assert frozen.weights == 4 * num


def test_the_captured_step_has_activations_and_leaves_no_trace(
    job: Callable[..., JobSpec], world: World
) -> None:
    spec = job()
    module = make_model(Model, {}, CPU)
    before = {name: value.clone() for name, value in module.net.state_dict().items()}
    generators = rng.capture_rng(CPU)
    step = capture_step(spec, module, CPU, world, resolve_precision({}, None, "cpu"))
    state = count_state(spec, module, resolve_precision({}, None, "cpu"))
    assert state.weights + state.optimizer < step.peak_bytes <= state.total + 4 * BATCH * SIZE * 4 * DEPTH
    assert len(step.layers) == DEPTH
    assert step.layers[0].sent_bytes == 4 * (SIZE * SIZE + SIZE)
    assert step.layers[0].forward_flops >= 2 * BATCH * SIZE * SIZE
    assert step.batch_size == BATCH
    for name, value in module.net.state_dict().items():
        assert type(value) is torch.Tensor
        assert torch.equal(value, before[name])
    assert module.net.training
    for name, generator in rng.capture_rng(CPU).items():
        assert torch.equal(generator, generators[name]), name


def test_half_precision_sends_half_the_bytes(job: Callable[..., JobSpec], world: World) -> None:
    spec = job(precision="bf16")
    module = make_model(Model, {}, CPU)
    step = capture_step(spec, module, CPU, world, resolve_precision({}, "bf16", "cpu"))
    whole = 4 * (SIZE * SIZE + SIZE)
    assert step.layers[1].sent_bytes == whole // 2
    assert step.layers[1].gradient_bytes == whole // 2


def test_accumulated_gradients_live_beside_the_next_batch(job: Callable[..., JobSpec], world: World) -> None:
    one = capture_step(job(), make_model(Model, {}, CPU), CPU, world, resolve_precision({}, None, "cpu"))
    spec = job(optimizer={"grad_accum_steps": 4})
    four = capture_step(spec, make_model(Model, {}, CPU), CPU, world, resolve_precision({}, None, "cpu"))
    assert four.peak_bytes == one.peak_bytes + one.gradient_bytes
    assert four.layers[0].forward_flops == 4 * one.layers[0].forward_flops
    assert four.batch_size == 4 * BATCH


# -- auto -------------------------------------------------------------------------------------------------------


def test_a_small_model_is_resident_and_nothing_is_captured(
    job: Callable[..., JobSpec], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "capture_step", lambda *_: pytest.fail("captured"))
    monkeypatch.setattr(execution, "count_state", lambda *_: pytest.fail("counted"))
    choice = choose(job(), world, 10**9)
    assert (choice.mode, choice.is_plain) == ("resident", True)
    assert choice.expected == Expected(1.0, "compute")


def test_weights_whose_size_is_not_known_yet_count_nothing(job: Callable[..., JobSpec], world: World) -> None:
    def lazy(params: dict[str, Any]) -> nn.Module:
        return nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 4))

    assert choose(job(lazy), world, 10**9).numbers["weight_bytes"] == 80
    module = make_model(lazy, {}, CPU)
    assert count_state(job(), module, resolve_precision({}, None, "cpu")).weights == 80


def test_unknown_memory_speaks_for_resident(job: Callable[..., JobSpec], world: World) -> None:
    assert choose(job(), world, 0).mode == "resident"


def test_state_that_fits_while_the_step_does_not(job: Callable[..., JobSpec], world: World) -> None:
    spec = job()
    weights, state, peak = needs(spec, world)
    assert weights < state < peak * 1.1
    fits = choose(spec, world, int(peak * 1.1) + 1)
    assert fits.mode == "resident"
    assert not fits.is_plain
    assert fits.numbers["needed_from"] == "a captured step"
    tight = choose(spec, world, int(peak * 1.1) - 1)
    assert tight.mode == "streaming"
    assert "does not fit" in tight.why
    assert tight.expected is not None
    assert 0 < tight.expected.share <= 1
    assert tight.numbers["host_bytes"] > 0
    assert tight.numbers["device_bytes"] > 0
    assert tight.numbers["expected_samples_per_second"] > 0
    assert "of resident speed (estimated), bound by" in tight.line


def test_state_beyond_the_memory_is_certain(job: Callable[..., JobSpec], world: World) -> None:
    spec = job()
    _, state, _ = needs(spec, world)
    choice = choose(spec, world, state - 1)
    assert choice.mode == "streaming"
    assert "weights, gradients and optimizer state" in choice.why
    assert choice.numbers["needed_bytes"] == state


def test_an_evaluation_needs_no_gradients(job: Callable[..., JobSpec], world: World) -> None:
    spec = job()
    _, state, _ = needs(spec, world)
    assert choose(job(mode="eval"), world, state - 1).mode == "resident"


def test_a_step_that_cannot_be_captured_falls_back_to_the_formula_and_says_so(
    job: Callable[..., JobSpec], world: World
) -> None:
    def fails(params: dict[str, Any]) -> Any:
        raise OSError("no such data")

    spec = job()
    _, state, _ = needs(spec, world)
    broken = JobSpec(spec.params, Model, fails, None, "train")
    notes: list[str] = []
    choice = choose(broken, world, 2 * state, notes)
    assert choice.mode == "resident"
    assert choice.numbers["needed_from"] == "the formula"
    assert any("without activations" in note and "no such data" in note for note in notes)
    assert choose(broken, world, int(1.25 * state) - 1).mode == "streaming"
    notes.clear()
    failing = JobSpec(spec.params, Fails, batches, None, "train")
    assert choose(failing, world, 2 * state, notes).mode == "resident"
    assert "not with these shapes" in notes[0]


def test_a_cap_that_even_streaming_exceeds_is_said(job: Callable[..., JobSpec], world: World) -> None:
    choice = choose(job(streaming={"device_memory": 3000}), world, 3000)
    assert choice.mode == "streaming"
    assert "it may need a smaller batch" in choice.why
    assert "that runconfig.streaming.device_memory allows" in choice.why


@pytest.mark.parametrize(
    ("runconfig", "told"),
    [({"compile": True}, "runconfig.compile"), ({"distributed": "fsdp"}, "runconfig.distributed: fsdp")],
)
def test_what_cannot_be_streamed_stays_resident_with_the_reason(
    job: Callable[..., JobSpec], world: World, runconfig: dict[str, Any], told: str
) -> None:
    choice = choose(job(**runconfig), world, 3000)
    assert choice.mode == "resident"
    assert told in choice.why
    assert not choice.is_plain


def test_the_cap_of_the_params_is_the_devices_size(job: Callable[..., JobSpec]) -> None:
    assert device_capacity(CPU, job(streaming={"device_memory": "1MB"})) == 10**6
    whole = device_capacity(CPU, job())
    assert whole > 2**28
    assert device_capacity(CPU, job(), 4) == whole // 4


def test_what_is_sure_to_fit_leaves_room_for_everything() -> None:
    assert 0 < sure_weight_bytes(24 * 10**9) <= 10**9


# -- what is asked for ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("runconfig", "mode", "told"),
    [
        ({"execution": "resident"}, "resident", "runconfig.execution: resident asks for"),
        ({"execution": "streaming"}, "streaming", "runconfig.execution: streaming asks for"),
        (
            {"execution_strategy": "weight_streaming"},
            "streaming",
            "runconfig.execution_strategy: weight_streaming asks for",
        ),
        ({"execution": "pipelined"}, "pipelined", "runconfig.execution: pipelined asks for"),
        ({"execution": "resident", "execution_strategy": "pipeline"}, "resident", "execution: resident"),
    ],
)
def test_what_is_asked_for_is_done(
    job: Callable[..., JobSpec], world: World, runconfig: dict[str, Any], mode: str, told: str
) -> None:
    spec = job(**runconfig)
    _, choice = prepare_execution(spec, CPU, world, lambda line: None)
    assert choice.mode == mode
    assert told in choice.why
    json.dumps(choice.as_json({"steps_per_second": 3.0}), allow_nan=False)


def test_a_large_model_that_is_streamed_on_demand_is_estimated(
    job: Callable[..., JobSpec], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert choose(job(execution="streaming"), world, 0).expected is None
    monkeypatch.setattr(execution, "_WORTH_ESTIMATING", 1)
    assert choose(job(execution="streaming"), world, 0).expected is not None
    notes: list[str] = []
    spec = job(execution="streaming")
    assert choose(JobSpec(spec.params, Model, None, None, "train"), world, 0, notes).expected is None
    assert "is not estimated" in notes[0]


@pytest.mark.parametrize(
    ("optimizer", "streaming", "says", "counts"),
    [
        ({}, {}, "", "bound by"),
        ({"max_gradient_norm": 1.0}, {}, "what it costs that an update can be undone", "where max_gradient_norm acts"),
        ({"loss_scaling_factor": 8.0}, {}, "what it costs that an update can be undone", "bound by"),
        ({"max_gradient_norm": 1.0, "grad_accum_steps": 2}, {}, "", "bound by"),
        ({"max_gradient_value": 1.0}, {}, "", "bound by"),
        ({}, {"offload_activations": True}, "streaming.offload_activations", "bound by"),
        ({}, {"store": "."}, "the own speed of the disk", "bound by"),
    ],
)  # fmt: skip
def test_the_estimate_counts_what_is_in_force_or_says_that_it_does_not(
    job: Callable[..., JobSpec],
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    optimizer: dict[str, Any],
    streaming: dict[str, Any],
    says: str,
    counts: str,
) -> None:
    monkeypatch.setattr(execution, "_WORTH_ESTIMATING", 1)
    spec = job(execution="streaming", optimizer=optimizer, streaming=streaming)
    line = choose(spec, world, 0).line
    assert counts in line
    assert says in line.partition("Not counted: ")[2]
    assert ("Not counted" in line) == bool(says)


def test_a_pipeline_expects_its_bubble(job: Callable[..., JobSpec], world: World) -> None:
    spec = job(execution="pipelined", pipeline={"stages": 4, "micro_batches": 12})
    choice = prepare_execution(spec, CPU, world, lambda line: None)[1]
    assert choice.expected is not None
    assert choice.expected.share == pytest.approx(12 / 15)
    assert "bound by the pipeline bubble" in choice.line
    assert "Not counted: stages that take unequally long" in choice.line


# -- a device that is not the host: `meta` stands for it --------------------------------------------------------


class DrawsThere(Model):
    def __init__(self, params: dict[str, Any], device: Any = None) -> None:
        super().__init__(params, device)
        nn.init.normal_(self.model.head.weight)


@pytest.fixture
def of_size(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], torch.device]:
    class Generator:
        state = torch.zeros(1, dtype=torch.uint8)

        @classmethod
        def get_rng_state(cls, device: Any) -> torch.Tensor:
            return cls.state

        @staticmethod
        def set_rng_state(state: torch.Tensor, device: Any) -> None: ...

        @staticmethod
        def manual_seed_all(seed: int) -> None: ...

    def make(capacity: int) -> torch.device:
        monkeypatch.setattr(rng, "_device_module", lambda device: Generator)
        monkeypatch.setattr(execution, "device_capacity", lambda *_: capacity)
        rates = measure_rates(CPU, torch.float32, False)
        monkeypatch.setattr("portwright.runtime.speed_model.measure_rates", lambda *_: rates)
        return torch.device("meta")

    return make


def test_a_small_model_is_on_the_device_before_anybody_asks(
    job: Callable[..., JobSpec], world: World, of_size: Callable[[int], torch.device]
) -> None:
    device = of_size(10**9)
    spec, choice = prepare_execution(job(), device, world, lambda line: None)
    assert choice.mode == "resident"
    module = make_model(spec.model_fn, spec.params.values, device)
    assert {p.device.type for p in module.net.parameters()} == {"meta"}


@pytest.mark.parametrize("model_fn", [Model, DrawsThere])
def test_a_model_too_large_never_reaches_the_device(
    job: Callable[..., JobSpec], world: World, of_size: Callable[[int], torch.device], model_fn: Any
) -> None:
    _, state, _ = needs(job(), world)
    device = of_size(state - 1)
    notes: list[str] = []
    spec, choice = prepare_execution(job(model_fn), device, world, notes.append)
    assert choice.mode == "streaming"
    assert choice.expected is not None
    assert notes == []
    module = make_model(spec.model_fn, spec.params.values, CPU)
    assert {p.device.type for p in module.net.parameters()} == {"cpu"}
    rng.seed_all(1)
    expected = model_fn({}, CPU)
    for one, other in zip(module.net.parameters(), expected.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("model_fn", "is_made_again"), [(Model, False), (DrawsThere, True)])
def test_a_model_that_waited_and_fits_is_as_it_would_have_been(
    job: Callable[..., JobSpec],
    world: World,
    of_size: Callable[[int], torch.device],
    model_fn: Any,
    is_made_again: bool,
) -> None:
    """Numbers that the device would have drawn itself must come from there."""
    _, _, peak = needs(job(), world)
    spec = job(model_fn)
    given, choice = prepare_execution(spec, of_size(2 * peak), world, lambda line: None)
    assert choice.mode == "resident"
    assert choice.numbers["needed_from"] == "a captured step"
    assert (given is spec) == is_made_again


def test_free_memory_of_a_gpu_and_its_cap(
    job: Callable[..., JobSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5 * 10**9, 10**10))
    gpu = torch.device("cuda", 0)
    assert device_capacity(gpu, job(), 2) == 5 * 10**9
    assert device_capacity(gpu, job(streaming={"device_memory": "1GB"})) == 10**9
    assert device_capacity(gpu, job(streaming={"device_memory": "100GB"})) == 5 * 10**9


class Pair(World):
    """Two processes, of which the other one chooses `other`."""

    def __init__(self, other: str, rank: int = 0) -> None:
        super().__init__(Launch(), "cpu", None)
        self.size, self.rank, self.is_main, self._other = 2, rank, rank == 0, other

    def gather(self, value: Any) -> list[Any]:
        return [value, self._other if isinstance(value, str) else value]


def test_processes_come_to_one_mode(job: Callable[..., JobSpec]) -> None:
    _, alone = prepare_execution(job(), CPU, Pair("resident"), lambda line: None)
    assert alone.mode == "resident"
    spec, choice = prepare_execution(job(), CPU, Pair("streaming"), lambda line: None)
    assert choice.mode == "streaming"
    assert "another process" in choice.why
    assert not choice.is_plain
    assert spec.model_fn is not Model


def test_only_the_first_process_speaks(job: Callable[..., JobSpec], world: World) -> None:
    spec = job(streaming={"device_memory": int(needs(job(), world)[1] * 2.5)})
    broken = JobSpec(spec.params, Model, None, None, "train")
    for rank in (0, 1):
        notes: list[str] = []
        prepare_execution(broken, CPU, Pair("resident", rank), notes.append)
        assert len(notes) == 1 - rank


def test_copies_of_gradients_count_where_processes_average_them(
    job: Callable[..., JobSpec], world: World
) -> None:
    spec = job()
    _, state, peak = needs(spec, world)
    gradients = state // 4
    one = choose(spec, world, int(1.1 * (peak + gradients)) - 1)
    two = choose(spec, Pair("resident"), int(1.1 * (peak + gradients)) - 1)
    assert one.mode == "resident"
    # Half of the batch each, and DDP's buckets.
    assert two.numbers["needed_bytes"] > one.numbers["needed_bytes"]
    assert choose(job(distributed="fsdp"), Pair("resident"), state).numbers["needed_bytes"] < state


# -- the session ------------------------------------------------------------------------------------------------


def losses(session: Any, num_steps: int = 4) -> list[float]:
    stretch = Stretch(0, num_steps, log_steps=1, boundary_steps=0, should_stop=lambda: False)
    return [loss for event in session.train(stretch) for loss in event.losses]


def open_session(spec: JobSpec, notes: list[str]) -> tuple[TorchBackend, TorchSession]:
    backend = TorchBackend("cpu", {}, notes.append)
    return backend, backend.open(spec)


def test_auto_opens_the_session_that_always_was(job: Callable[..., JobSpec], world: World) -> None:
    notes: list[str] = []
    backend, session = open_session(job(), notes)
    assert type(session) is TorchSession
    assert backend.execution is not None
    assert backend.execution.mode == "resident"
    assert notes == []
    plain = TorchSession(job(), CPU, world, notes.append)
    assert losses(session) == losses(plain)


@pytest.mark.filterwarnings("ignore:.*torch.cpu.amp.autocast:FutureWarning")  # torch 2.4's own checkpointing
def test_auto_streams_what_the_cap_does_not_hold_with_the_same_losses(
    job: Callable[..., JobSpec], world: World
) -> None:
    from portwright.runtime.streaming.session import StreamingSession

    spec = job()
    _, state, _ = needs(spec, world)
    notes: list[str] = []
    backend, session = open_session(job(streaming={"device_memory": state - 1}), notes)
    try:
        assert type(session) is StreamingSession
        assert "execution: streaming, since" in notes[0]
        assert losses(session) == losses(TorchSession(spec, CPU, world, notes.append))
    finally:
        session.close()
        backend.close()


def test_a_precision_that_cannot_be_is_told_before_the_model_is_made(job: Callable[..., JobSpec]) -> None:
    def never(params: dict[str, Any]) -> Any:
        pytest.fail("made")

    with pytest.raises(UserError, match="float16"):
        open_session(job(never, precision="fp16"), [])


def test_a_model_is_made_once(job: Callable[..., JobSpec]) -> None:
    made: list[Any] = []

    def counted(params: dict[str, Any], device: Any) -> Any:
        made.append(Model(params, device))
        return made[-1]

    _, session = open_session(job(counted), [])
    assert len(made) == 1
    assert session._module.__dict__["user_model"] is made[0]
    assert made[0].calls == 0


# -- targets ----------------------------------------------------------------------------------------------------


def test_targets_without_the_mode_refuse_it(job: Callable[..., JobSpec]) -> None:
    config = job(execution="streaming").params.runconfig
    assert check_execution(config, CPU_TARGET) is None
    with pytest.raises(UnsupportedError, match="no execution mode 'streaming'"):
        check_execution(config, RDU)
    said = check_execution(config, CSX)
    assert said is not None
    assert "no effect on CSX" in said
    for execution_mode in ("auto", "resident"):
        assert check_execution(job(execution=execution_mode).params.runconfig, RDU) is None


def test_the_older_key_is_explained_where_it_chooses(job: Callable[..., JobSpec]) -> None:
    config = job(execution_strategy="pipeline").params.runconfig
    said = check_execution(config, CPU_TARGET)
    assert said is not None
    assert "means execution: pipelined on CPU" in said
    assert check_execution(config, CSX) is None
    assert check_execution(config, RDU) is None
    assert (
        check_execution(job(execution="resident", execution_strategy="pipeline").params.runconfig, CPU_TARGET)
        is None
    )


# -- a run ------------------------------------------------------------------------------------------------------

_RUN = """
import sys, torch
from torch import nn
from portwright import run

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return x.square().mean()

def data(params):
    return torch.utils.data.DataLoader(torch.ones(32, 16), batch_size=8)

run(lambda params: Net(), data)
planner = [name for name in sys.modules if name.startswith("portwright.graph")]
assert not planner or "device_memory" in " ".join(sys.argv), planner
"""


@pytest.mark.parametrize(("cap", "mode"), [(None, "resident"), ("16kB", "streaming")])
def test_a_run_tells_its_mode_and_a_small_one_loads_no_planner(
    tmp_path: Path, cap: str | None, mode: str
) -> None:
    (tmp_path / "run.py").write_text(_RUN)
    (tmp_path / "params.yaml").write_text("optimizer: {learning_rate: 0.1}\nrunconfig: {max_steps: 4}\n")
    words = [] if cap is None else ["-D", f"runconfig.streaming.device_memory={cap}"]
    command = [
        sys.executable,
        "run.py",
        "CPU",
        "--mode",
        "train",
        "--params",
        "params.yaml",
        "--json",
        *words,
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)["execution"]
    assert document["mode"] == mode
    assert document["measured"]["steps_per_second"] > 0
    assert ("execution: streaming" in done.stderr) == (mode == "streaming")
