"""The target HPU, with Intel's package away, broken, or stood in for by a CPU that counts marks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from conformance import contract

from portwright.discover import find_targets, get_target
from portwright.errors import UnsupportedError, UserError
from portwright.job.target_list import describe_targets
from portwright.runtime.backend import TorchBackend
from portwright.runtime.metrics.base import as_tensor
from portwright.runtime.plugin import PluginSession
from portwright.runtime.precision import resolve_precision
from portwright.runtime.world import Launch
from portwright.target import JobSpec, Session
from portwright.targets import hpu
from portwright.verify.proof import find_place
from portwright.watching.random_states import capture_rng, restore_rng, seed_all

STAND_IN = Path(__file__).parents[2] / "fixtures" / "habana_stand_in"
PARAMS = ("--params", "configs/params.yaml", "-D", "model.dropout=0.0", "-D", "runconfig.log_steps=1")


def _forget() -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "habana_frameworks"]:
        del sys.modules[name]


@pytest.fixture
def htcore(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The stand-in, imported; torch is as it was afterwards."""
    monkeypatch.syspath_prepend(str(STAND_IN))
    monkeypatch.setattr(torch, "hpu", None, raising=False)
    _forget()
    import habana_frameworks.torch.core as core  # type: ignore[import-not-found]

    yield core
    core.mode.__exit__(None, None, None)
    _forget()


def open_hpu(job: JobSpec) -> Session:
    return hpu.make_backend({}, print).open(job)


def open_cpu(job: JobSpec) -> Session:
    return TorchBackend("cpu", {}, print).open(job)


def train(session: Session, last: int, first: int = 0) -> list[float]:
    return [loss for e in session.train(contract.stretch(first, last)) for loss in e.losses]


def read_losses(model_dir: Path) -> list[float]:
    lines = (model_dir / "train" / "metrics.jsonl").read_text().splitlines()
    values = [json.loads(line)["values"] for line in lines]
    return [each["loss"] for each in values if "learning_rate" in each]


# -- without the vendor's package ------------------------------------------------------------------------------


def test_without_the_package_one_line_says_how_to_get_it(
    folder: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    folder.arguments = ("HPU", "--mode", "train", *PARAMS)
    assert folder.run() == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: the target HPU cannot run here: habana_frameworks is not installed.")
    assert "habana-torch-plugin" in line
    assert not (folder.path / "model_dir").exists()
    folder.arguments = (*folder.arguments, "--emulate")
    assert folder.run() == 2
    assert "there is no emulator of HPU" in capfd.readouterr().err


def test_it_is_found_by_its_file_and_never_chosen_unasked() -> None:
    assert find_targets()["HPU"] is hpu.TARGET is get_target("hpu")
    assert hpu.TARGET.preference == 0
    assert hpu.TARGET.kernels is None
    (row,) = [row for row in describe_targets() if row["name"] == "HPU"]
    assert not row["available"]
    assert "habana-torch-plugin" in row["says"]


def test_the_targets_can_be_listed_without_torch() -> None:
    code = "import sys, portwright.discover as d; assert 'HPU' in d.find_targets(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise ImportError('libSynapse.so: cannot open\\n  shared object file')", "ImportError: libSynapse.so: cannot open shared object file"),
        ("raise RuntimeError()", "RuntimeError"),
        ("import torch; torch.no_such_name", "AttributeError: module 'torch' has no attribute 'no_such_name'"),
    ],
)  # fmt: skip
def test_a_package_that_does_not_load_is_not_called_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    (tmp_path / "habana_frameworks").mkdir()
    (tmp_path / "habana_frameworks" / "__init__.py").write_text(text + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    reason = hpu.why_not()
    _forget()
    assert reason is not None
    assert f"is installed, and does not load ({said}). Run inside" in reason
    assert "\n" not in reason


@pytest.mark.usefixtures("htcore")
def test_no_device_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HABANA_STAND_IN_DEVICES", "0")
    with pytest.raises(UnsupportedError, match=r"habana_frameworks sees no Gaudi\. Check hl-smi"):
        hpu.make_backend({}, print)


# -- with it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", contract.ALL, ids=lambda check: check.__name__)
@pytest.mark.usefixtures("htcore")
def test_contract(check: Callable[..., object]) -> None:
    check(open_hpu)


def test_losses_and_weights_are_the_cpus(htcore: ModuleType) -> None:
    job = contract.make_job()
    session, cpu = open_hpu(job), open_cpu(contract.make_job())
    assert isinstance(session, PluginSession)
    assert session._device == torch.device("hpu")
    assert train(session, 20) == train(cpu, 20)
    assert htcore.num_marks == 40, "one after each backward pass, one after each update"
    got, expected = contract.weights(session), contract.weights(cpu)
    assert all(torch.equal(got[name], expected[name]) for name in expected)
    values, of_cpu = session.evaluate(None), cpu.evaluate(None)
    assert values["eval/accuracy"] == of_cpu["eval/accuracy"]
    assert values["loss"] == pytest.approx(of_cpu["loss"], rel=1e-6)  # summed in float32


def test_accumulated_batches_are_marked_each(htcore: ModuleType) -> None:
    overrides = ("optimizer.grad_accum_steps=3", "optimizer.max_gradient_norm=1.0")
    session = open_hpu(contract.make_job("train", *overrides))
    cpu = open_cpu(contract.make_job("train", *overrides))
    assert train(session, 4) == pytest.approx(train(cpu, 4), rel=1e-6)
    assert htcore.num_marks == 4 * (3 + 1)


def test_a_mark_comes_after_its_backward_and_before_the_update(
    htcore: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    opened: list[PluginSession] = []

    def mark_step() -> None:
        grads = [p.grad is not None for p in opened[0]._trained]
        seen.append("backward" if all(grads) else "step" if not any(grads) else "between")

    monkeypatch.setattr(htcore, "mark_step", mark_step)
    session = open_hpu(contract.make_job("train"))
    assert isinstance(session, PluginSession)
    opened.append(session)
    train(session, 2)
    assert seen == ["backward", "step"] * 2


def test_evaluation_is_marked_once_a_batch_and_takes_no_gradients(htcore: ModuleType) -> None:
    session = open_hpu(contract.make_job())
    assert isinstance(session, PluginSession)
    steps: list[int] = []
    before = htcore.num_marks
    session.evaluate(2, steps.append)
    assert steps == [1, 2]
    assert htcore.num_marks - before == 2
    assert all(p.grad is None for p in session._trained)


def test_the_cpu_is_not_marked(htcore: ModuleType) -> None:
    train(open_cpu(contract.make_job()), 3)
    assert htcore.num_marks == 0


def test_what_a_run_leaves_goes_on_there_and_on_the_cpu(folder: Any, htcore: ModuleType) -> None:
    """20 steps at once, 12 and 8, and 12 and 8 that move to the CPU or come from it."""

    def run(target: str, name: str, steps: int) -> list[float]:
        folder.arguments = (
            target, "--mode", "train_and_eval", *PARAMS, "--max_steps", str(steps), "--model_dir", name,
        )  # fmt: skip
        assert folder.run() == 0
        return read_losses(folder.path / name)

    whole = run("HPU", "whole", 20)
    assert len(whole) == 20
    assert htcore.num_marks > 40
    assert whole == run("CPU", "cpu", 20)
    for name, first, second in (("resumed", "HPU", "HPU"), ("moved", "HPU", "CPU"), ("back", "CPU", "HPU")):
        assert run(first, name, 12) == whole[:12]
        assert run(second, name, 20) == whole


def test_bf16_reaches_autocast_under_the_devices_own_name(htcore: ModuleType) -> None:
    session = open_hpu(contract.make_job("train", "runconfig.precision=bf16"))
    assert isinstance(session, PluginSession)
    assert session._autocast is not None
    with session._autocast():
        assert torch.is_autocast_enabled("hpu")
        assert torch.get_autocast_dtype("hpu") == torch.bfloat16
    assert len(train(session, 2)) == 2


def test_torch_compile_is_the_vendors(htcore: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **options: asked.append(options))
    open_hpu(contract.make_job("train", "runconfig.compile=true"))
    open_cpu(contract.make_job("train", "runconfig.compile=true"))
    assert asked == [{"backend": "hpu_backend"}, {}]


# -- precision, generators, metrics ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "chosen", "name"),
    [
        ({}, None, "fp32"),
        ({"mixed_precision": True}, None, "bf16"),
        ({"mixed_precision": True, "fp16_type": "cbfloat16"}, None, "bf16"),
        ({}, "bf16", "bf16"),
    ],
)
def test_half_precision_is_bf16(model: dict[str, Any], chosen: str | None, name: str) -> None:
    assert resolve_precision({"model": model}, chosen, "hpu").name == name


@pytest.mark.parametrize(
    ("model", "chosen", "said"),
    [
        ({}, "fp16", "Gaudi trains in bfloat16 or float32. Set runconfig.precision: bf16"),
        ({"mixed_precision": True, "fp16_type": "float16"}, None, "Set model.fp16_type: bfloat16"),
        ({}, "fp64", "Gaudi has no double precision to train in. Set runconfig.precision: fp32"),
    ],
)
def test_other_precisions_are_refused_with_the_cure(
    model: dict[str, Any], chosen: str | None, said: str
) -> None:
    with pytest.raises(UserError) as caught:
        resolve_precision({"model": model}, chosen, "hpu")
    assert said in str(caught.value)


def test_the_devices_own_generator_is_seeded_saved_and_restored(htcore: ModuleType) -> None:
    generator, device = sys.modules["habana_frameworks.torch.hpu"], torch.device("hpu")
    seed_all(7, device)
    first = generator.draw()
    states = capture_rng(device)
    second = generator.draw()
    assert second != first
    restore_rng(states, device)
    assert generator.draw() == second
    seed_all(7, device)
    assert generator.draw() == first
    assert "hpu" not in capture_rng(torch.device("cpu"))
    restore_rng(states, torch.device("cpu"))  # a run that moved to the CPU


def test_metrics_are_counted_on_the_host() -> None:
    class OnHpu(torch.Tensor):
        device = torch.device("hpu")

        def cpu(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            return self.as_subclass(torch.Tensor)

    counted = as_tensor("accuracy", "labels", torch.tensor([1, 2], dtype=torch.int32).as_subclass(OnHpu))
    assert type(counted) is torch.Tensor
    assert counted.dtype == torch.int64
    assert counted.tolist() == [1, 2]


@pytest.mark.parametrize(("devices", "on_target"), [(("hpu:0",), True), (("cpu",), False)])
def test_a_proof_knows_the_device(devices: tuple[str, ...], on_target: bool) -> None:
    steps = [SimpleNamespace(devices=devices)]
    place = find_place(SimpleNamespace(target="HPU", steps=steps, ran_on={}))  # type: ignore[arg-type]
    assert place.on_target is on_target


# -- several processes -------------------------------------------------------------------------------------------


def test_a_process_without_a_device_is_told(htcore: ModuleType) -> None:
    with pytest.raises(
        UserError, match=r"process 2 of this machine has no Gaudi: 2 can be seen\. Start at most 2"
    ):
        hpu.take_device(Launch(2, 3, 2, 3, "torchrun"))


def test_the_vendor_learns_which_process_this_is(htcore: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "ID"):
        monkeypatch.setenv(name, "")
    assert hpu.take_device(Launch(5, 8, 1, 2, "SLURM")) == torch.device("hpu")
    assert [os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")] == ["5", "8", "1"]


def test_two_processes_talk_by_hccl_and_train_as_one(folder: Any, tmp_path: Path) -> None:
    """In processes of their own, as a user starts them."""
    arguments = ("--mode", "train_and_eval", *PARAMS, "--max_steps", "6", "--model_dir")
    folder.arguments = ("CPU", *arguments, "single")
    assert folder.run() == 0
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--rdzv-backend=c10d"]
    env = {
        **os.environ,
        "PYTHONPATH": f"{STAND_IN}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "HABANA_STAND_IN_MARKS": str(tmp_path / "marks"),
    }
    ran = subprocess.run(
        [*launch, "--rdzv-endpoint=localhost:0", "run.py", "HPU", *arguments, "double"],
        cwd=folder.path,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    assert read_losses(folder.path / "double") == pytest.approx(read_losses(folder.path / "single"), rel=1e-5)
    backend, num_marks = (tmp_path / "marks").read_text().split()
    assert backend == "hccl"
    assert int(num_marks) >= 12
