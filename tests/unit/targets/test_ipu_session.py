"""The IPU's session under the emulator, held against torch's: optimizers, models of all kinds, blocks, metrics, modes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from portwright import PyTorchBaseModel
from portwright.discover import get_target
from portwright.errors import NonFiniteError, PortwrightError, UnsupportedError, UserError
from portwright.job.params import load_params
from portwright.runtime.backend import TorchBackend
from portwright.runtime.metrics import AccuracyMetric, Metric
from portwright.target import CompilerSession, JobSpec, Session, Stretch
from portwright.targets.ipu.session import IpuBackend


class Net(nn.Module):
    """Gives its loss; a norm with running statistics, a tied weight and a frozen one."""

    def __init__(self, params: Any = None) -> None:
        super().__init__()
        self.enter = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.middle = nn.Linear(8, 8)
        self.again = nn.Linear(8, 8)
        self.again.weight = self.middle.weight
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.leave = nn.Linear(8, 3)

    def scores(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.enter(x)))
        hidden = self.again(torch.tanh(self.middle(hidden)))
        scores: Tensor = self.leave(torch.tanh(self.frozen(hidden)))
        return scores

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.scores(x), y)


class Classifier(PyTorchBaseModel):
    """The taught form, with a metric and predictions."""

    def __init__(self, params: dict[str, Any], device: Any = None) -> None:
        self.accuracy = AccuracyMetric(name="eval/accuracy")
        super().__init__(params=params, model=Net(), device=device)

    def __call__(self, data: Any) -> Tensor:
        scores = self.model.scores(data[0])  # type: ignore[operator]
        if not self.model.training:
            self.accuracy(labels=data[1], predictions=scores.argmax(-1))
        return nn.functional.cross_entropy(scores, data[1])

    def predict(self, data: Any) -> dict[str, Tensor]:
        scores = self.model.scores(data[0])  # type: ignore[operator]
        return {"scores": scores, "class": scores.argmax(-1), "given": data[0]}


def make_data(num_samples: int = 48, batch_size: int = 4) -> Callable[[Any], DataLoader[Any]]:
    def data_fn(params: Any) -> DataLoader[Any]:
        draw = torch.Generator().manual_seed(3)
        x = torch.randn(num_samples, 6, generator=draw)
        y = (x[:, :3] * 3).argmax(-1)
        return DataLoader(TensorDataset(x, y), batch_size=batch_size)

    return data_fn


class Harness:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "params.yaml"
        self.notes: list[str] = []

    def job(
        self,
        optimizer: Mapping[str, Any],
        ipu: Mapping[str, Any],
        model_fn: Any,
        data_fn: Any,
        eval_fn: Any,
        mode: str,
        **runconfig: Any,
    ) -> JobSpec:
        values = {
            "model": {},
            "optimizer": dict(optimizer),
            "ipu": dict(ipu),
            "runconfig": {"seed": 2, **runconfig},
        }
        self._path.write_text(yaml.safe_dump(values))
        params = load_params(self._path, target_sections=get_target("IPU").sections)
        return JobSpec(params, model_fn, data_fn, eval_fn, mode)  # type: ignore[arg-type]

    def open(
        self,
        target: str,
        *,
        optimizer: Mapping[str, Any] | None = None,
        ipu: Mapping[str, Any] | None = None,
        model_fn: Any = Net,
        data_fn: Any = None,
        eval_fn: Any = None,
        mode: str = "train_and_eval",
        flags: Mapping[str, Any] | None = None,
        **runconfig: Any,
    ) -> Session:
        job = self.job(
            {"optimizer_type": "SGD", "learning_rate": 0.05, **(optimizer or {})},
            ipu or {},
            model_fn,
            data_fn or make_data(),
            eval_fn or make_data(24, 8),
            mode,
            **runconfig,
        )
        if target == "CPU":
            return TorchBackend("cpu", {}, self.notes.append).open(job)
        return IpuBackend({"emulate": True, **(flags or {})}, self.notes.append).open(job)

    def losses(self, target: str, steps: int = 8, **options: Any) -> list[float]:
        return losses(self.open(target, **options), 0, steps)

    def same(
        self, *, cpu: Mapping[str, Any] | None = None, ipu: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        expected = self.losses("CPU", **{**options, **(cpu or {})})
        assert self.losses("IPU", ipu=ipu, **options) == pytest.approx(expected, rel=1e-5)
        assert len(set(expected)) == len(expected)


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path)


def losses(session: Session, first: int, last: int) -> list[float]:
    stretch = Stretch(first, last, log_steps=0, boundary_steps=0, should_stop=lambda: False)
    return [loss for event in session.train(stretch) for loss in event.losses]


def weights(session: Session) -> dict[str, Tensor]:
    return {shard.name: shard.tensor for shard in session.state() if shard.name.startswith("model/")}


@pytest.mark.parametrize(
    "optimizer",
    [
        {"optimizer_type": "SGD", "momentum": 0.9, "use_nesterov": True, "weight_decay": 0.1},
        {"optimizer_type": "SGD", "momentum": 0.9, "loss_scaling_factor": 16.0},
        {"optimizer_type": "Adam", "weight_decay": 0.1, "learning_rate": 0.01},
        {"optimizer_type": "AdamW", "weight_decay": 0.1, "learning_rate": 0.01, "max_gradient_norm": 0.1},
        {"optimizer_type": "RMSprop", "momentum": 0.5, "learning_rate": 0.001, "eps": 1e-3},
        {"optimizer_type": "RMSprop", "centered": True, "learning_rate": 0.001, "eps": 1e-3},
        {"optimizer_type": "Lamb", "weight_decay": 0.1, "learning_rate": 0.01},
        {"optimizer_type": "SGD", "learning_rate": [{"scheduler": "Exponential", "initial_learning_rate": 0.1,
                                                     "decay_rate": 0.5, "total_iters": 4}]},
    ],
    ids=lambda o: "-".join(str(v) for v in o.values())[:40],
)  # fmt: skip
def test_every_optimizer_trains_as_torchs(harness: Harness, optimizer: dict[str, Any]) -> None:
    harness.same(optimizer=optimizer)


@pytest.mark.parametrize(
    "optimizer", [{"optimizer_type": "RMSprop", "momentum": 0.5, "learning_rate": 0.001}, {"momentum": 0.9}]
)
def test_state_of_every_kind_resumes_exactly(harness: Harness, optimizer: dict[str, Any]) -> None:
    whole = harness.open("IPU", optimizer=optimizer)
    losses(whole, 0, 4)
    shards, counters = list(whole.state()), whole.counters()
    rest = losses(whole, 4, 8)
    resumed = harness.open("IPU", optimizer=optimizer)
    resumed.load_state(shards, counters)
    assert losses(resumed, 4, 8) == rest
    on_cpu = harness.open("CPU", optimizer=optimizer)
    on_cpu.load_state(shards, counters)
    assert losses(on_cpu, 4, 8) == pytest.approx(rest, rel=1e-5)


def _dict_model(params: Any) -> nn.Module:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def forward(self, x: Tensor, y: Tensor, scale: Tensor) -> dict[str, Tensor]:
            scores = self.net.scores(x) * scale
            return {"loss": nn.functional.cross_entropy(scores, y), "scores": scores}

    return Named()


def _dict_data(params: Any) -> list[dict[str, Tensor]]:
    batches = list(make_data()(params))
    return [{"x": x, "y": y.int(), "scale": torch.tensor(1.5)} for x, y in batches]


def test_batches_by_name_with_a_scalar_and_outputs_beside_the_loss(harness: Harness) -> None:
    def data_fn(params: Any) -> list[dict[str, Tensor]]:
        return [{**batch, "y": batch["y"].long()} for batch in _dict_data(params)]

    harness.same(model_fn=_dict_model, data_fn=data_fn)
    harness.same(
        model_fn=_dict_model,
        data_fn=data_fn,
        ipu={"device_iterations": 2, "gradient_accumulation": 2},
        cpu={"optimizer": {"grad_accum_steps": 2}},
    )


@pytest.mark.parametrize("eval_iterations", [1, 2, 5])
def test_evaluation_and_prediction_are_the_cpus(harness: Harness, eval_iterations: int) -> None:
    """20 samples in batches of 8: a remainder, and calls that are not full."""
    eval_fn = make_data(20, 8)
    found = []
    for target in ("CPU", "IPU"):
        ipu = {"eval_device_iterations": eval_iterations}
        session = harness.open(target, model_fn=Classifier, eval_fn=eval_fn, ipu=ipu)
        losses(session, 0, 4)
        seen: list[int] = []
        values = session.evaluate(None, seen.append)
        assert seen == [1, 2, 3]
        assert session.evaluate(2)["loss"] != values["loss"]
        assert session.evaluate(None) == values
        found.append((values, list(session.predict(None)), losses(session, 4, 8)))
    (expected, predicted, after), (values, outputs, after_ipu) = found
    assert values == pytest.approx(expected, rel=1e-5)
    assert after_ipu == pytest.approx(after, rel=1e-5)
    assert [set(batch) for batch in outputs] == [{"scores", "class", "given"}] * 3
    for one, other in zip(outputs, predicted, strict=True):
        for name in one:
            torch.testing.assert_close(one[name], other[name], check_dtype=False, rtol=1e-4, atol=1e-5)


def test_all_checkpoints_in_turn_use_their_own_weights(harness: Harness) -> None:
    states = []
    trained = harness.open("CPU", model_fn=Classifier)
    for first in (0, 4):
        losses(trained, first, first + 4)
        states.append((list(trained.state()), trained.evaluate(None)))
    evaluated = harness.open("IPU", model_fn=Classifier, mode="eval_all")
    for shards, expected in (*states, states[0]):
        evaluated.load_state(shards, None)
        assert evaluated.evaluate(None) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("execution", ["pipelined", "sharded"])
def test_blocks_on_several_ipus_compute_the_same(harness: Harness, execution: str) -> None:
    blocks = [{"module": "enter", "ipu": 0}, {"module": "m[ia]ddle", "ipu": 1}, {"module": "leave", "ipu": 2}]
    ipu = {"blocks": blocks, "execution": execution, "gradient_accumulation": 6}
    with pytest.raises(UnsupportedError, match=r"3 IPUs.*autoRoundNumIPUs is ipu.auto_round_num_ipus"):
        harness.losses("IPU", model_fn=Classifier, ipu=ipu)
    ipu["auto_round_num_ipus"] = True
    harness.same(model_fn=Classifier, ipu=ipu, cpu={"optimizer": {"grad_accum_steps": 6}})
    values = [harness.open(target, model_fn=Classifier, ipu=ipu).evaluate(None) for target in ("CPU", "IPU")]
    assert values[1] == pytest.approx(values[0], rel=1e-5)


@pytest.mark.parametrize(
    ("blocks", "told"),
    [
        (
            [{"module": "enter", "ipu": 0}, {"module": "leav", "ipu": 1}],
            "no module 'leav'.*Did you mean 'leave'",
        ),
        ([{"module": "enter", "ipu": 0}, {"module": "e*", "ipu": 1}], "as 'enter' does"),
    ],
)
def test_blocks_that_cannot_begin_are_refused(harness: Harness, blocks: list[Any], told: str) -> None:
    with pytest.raises(UserError) as raised:
        harness.open("IPU", ipu={"blocks": blocks})
    assert re.search(told, str(raised.value))


@pytest.mark.parametrize("mode", ["sum", "final"])
def test_other_output_modes_train_the_same_and_say_what_they_log(harness: Harness, mode: str) -> None:
    ipu = {
        "device_iterations": 2,
        "gradient_accumulation": 3,
        "replication_factor": 2,
        "broadcast_buffers": False,
    }
    plain, told = harness.open("IPU", ipu=ipu), harness.open("IPU", ipu={**ipu, "output_mode": mode})
    exact, coarse = losses(plain, 0, 4), losses(told, 0, 4)
    for name, tensor in weights(plain).items():
        assert tensor.equal(weights(told)[name]), name
    assert coarse[0] == coarse[1]
    assert any(f"output_mode: {mode}" in note for note in harness.notes)
    if mode == "sum":
        assert coarse == pytest.approx([sum(exact[:2]) / 2] * 2 + [sum(exact[2:]) / 2] * 2)


def test_half_precision_learns_and_keeps_half_weights(harness: Harness) -> None:
    session = harness.open(
        "IPU",
        precision="fp16",
        optimizer={"loss_scaling_factor": 64.0, "learning_rate": 0.2},
        ipu={"partials": "half"},
    )
    exact = harness.losses("CPU", optimizer={"learning_rate": 0.2})
    rough = losses(session, 0, 8)
    assert rough == pytest.approx(exact, rel=0.02)
    assert rough != pytest.approx(exact, rel=1e-5)
    kinds = {name: tensor.dtype for name, tensor in weights(session).items()}
    assert kinds["model/enter.weight"] == torch.float16


def test_a_program_compiles_and_cannot_be_called_offline(harness: Harness, tmp_path: Path) -> None:
    session = harness.open(
        "IPU", model_fn=Classifier, flags={"compile_only": True}, ipu={"offline_target": 21}
    )
    assert isinstance(session, CompilerSession)
    made = session.compile(tmp_path / "made", ("train", "eval"))
    assert [Path(step["file"]).name for step in made.details["steps"]] == ["train.poptorch", "eval.poptorch"]
    assert "Bow" in made.lines[0]
    with pytest.raises(UnsupportedError, match="offline"):
        losses(session, 0, 1)


def test_a_folder_for_executables_changes_no_run(harness: Harness, tmp_path: Path) -> None:
    ipu = {"enable_executable_caching": str(tmp_path / "cache")}
    assert harness.losses("IPU", ipu=ipu) == harness.losses("IPU")


class _Late(Metric):
    def sum_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {"total": ()}

    def update(self, value: Tensor) -> None:
        self.add(total=value.sum())

    def value(self, sums: Mapping[str, Tensor]) -> float:
        return float(sums["total"])


def test_a_metric_updated_inside_the_program_is_refused(harness: Harness) -> None:
    class Model(Classifier):
        def __init__(self, params: dict[str, Any], device: Any = None) -> None:
            self.late = _Late("eval/late")
            super().__init__(params, device)

        def __call__(self, data: Any) -> Tensor:
            if not self.model.training:
                self.late.update(data[0])
            return super().__call__(data)

    with pytest.raises(UnsupportedError, match="'eval/late' is updated inside the program"):
        harness.open("IPU", model_fn=Model).evaluate(None)


def test_metrics_with_weights_and_constants_see_every_batch(harness: Harness) -> None:
    class Model(Classifier):
        def __init__(self, params: dict[str, Any], device: Any = None) -> None:
            self.late = _Late("eval/late")
            super().__init__(params, device)

        def __call__(self, data: Any) -> Tensor:
            self.late(data[0].abs())  # in training too, where it counts for nothing
            return super().__call__(data)

    values = [harness.open(target, model_fn=Model).evaluate(None) for target in ("CPU", "IPU")]
    assert values[1] == pytest.approx(values[0], rel=1e-5)
    session = harness.open("IPU", model_fn=Model)
    losses(session, 0, 2)
    assert session.evaluate(None)["eval/late"] == pytest.approx(values[0]["eval/late"], rel=1e-5)


@pytest.mark.parametrize(
    ("options", "kind", "told"),
    [
        ({"optimizer": {"optimizer_type": "Lion"}}, UnsupportedError, "no such optimizer"),
        ({"model_fn": lambda params: _with_own_optimizer()}, UnsupportedError, "brings its own optimizer"),
        ({"optimizer": {"learning_rate": 1e30}}, NonFiniteError, "at step"),
        ({"data_fn": make_data(3, 4)}, UserError, "3 samples where 4"),
        ({"eval_fn": lambda params: [[torch.ones(n, 6), torch.zeros(n).long()] for n in (2, 3, 4)]}, UserError, "one shape"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_told(
    harness: Harness, options: dict[str, Any], kind: type[PortwrightError], told: str
) -> None:
    def run() -> None:
        session = harness.open("IPU", **options)
        losses(session, 0, 8)
        session.evaluate(None)

    with pytest.raises(kind, match=told):
        run()


def _with_own_optimizer() -> Any:
    class Own(Classifier):
        def get_optimizer(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.model.parameters(), lr=0.1)

    return Own({})


def test_several_processes_are_refused(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UnsupportedError, match=r"2 processes.*replication_factor"):
        harness.open("IPU")


def test_an_assertion_of_the_users_stays_theirs(harness: Harness) -> None:
    class Model(Net):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            assert x.shape[1] == 7, "seven were promised"
            return super().forward(x, y)

    with pytest.raises(AssertionError, match="seven were promised"):
        harness.losses("IPU", model_fn=lambda params: Model())
