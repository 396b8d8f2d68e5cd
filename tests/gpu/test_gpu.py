"""The workflow on a real GPU. CI has none, so these are counted as skipped there; `make test-gpu` runs them where one is."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from conformance import contract
from safetensors.torch import load_file

from portwright.errors import NonFiniteError
from portwright.runtime.backend import TorchBackend
from portwright.target import JobSpec, Session

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")
PARAMS = ("--params", "configs/params.yaml")


def open_gpu(job: JobSpec) -> Session:
    return TorchBackend("cuda", {}, print).open(job)


@pytest.fixture(autouse=True)
def deterministic() -> None:
    # Bit-identical comparisons need kernels that add in a fixed order.
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(torch.cuda.is_available())


@pytest.mark.parametrize("check", contract.ALL, ids=lambda check: check.__name__)
def test_contract(check) -> None:
    check(open_gpu)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_no_host_sync_at_a_step_that_is_not_logged(precision: str, optimizer: str) -> None:
    """torch itself raises on any synchronising call between two events."""
    extra = ("optimizer.loss_scaling_factor=dynamic",) if precision == "fp16" else ()
    rate = "0.002" if optimizer == "AdamW" else "0.05"
    job = contract.make_job(
        "train", f"runconfig.precision={precision}", f"optimizer.optimizer_type={optimizer}", f"optimizer.learning_rate={rate}",
        "optimizer.max_gradient_norm=1.0", *extra,
    )  # fmt: skip
    session = open_gpu(job)
    events = session.train(contract.stretch(0, 60, log=20, boundary=0))
    next(events)
    session._note = print
    # Batches of this data set come from pageable memory, and copying those waits by nature: bring them over beforehand.
    batches = [tuple(t.cuda() for t in batch) for batch in session.sample_batches("train_input", 18)]
    session._batches = iter(batches)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(20, 38):
            session._update(step)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_mixed_precision_trains(model_folder: Path, run_script) -> None:
    for precision, more in (("bf16", ()), ("fp16", ("-D", "optimizer.loss_scaling_factor=dynamic"))):
        done = run_script(
            model_folder, "GPU", "--mode", "train_and_eval", *PARAMS, "--model_dir", precision, "--json",
            "-D", f"runconfig.precision={precision}", *more,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["values"]["eval/accuracy"] > 0.95


def test_nan_is_found_late_and_the_weights_are_still_good() -> None:
    job = contract.make_job("train", "train_input.shuffle=false")
    session = open_gpu(job)
    dataset = session._train_loader._source._loader.dataset
    dataset.tensors[0][64 * 6 + 5] = float("nan")
    with pytest.raises(NonFiniteError, match=r"step 7.*batch\[0\].*sample 5"):
        list(session.train(contract.stretch(0, 64, log=16, boundary=0)))
    assert all(torch.isfinite(s.tensor).all() for s in session.state() if s.name.startswith("model/"))


def test_a_signal_saves_and_the_rest_is_the_same(model_folder: Path, run_script) -> None:
    path = model_folder / "model.py"
    path.write_text(
        path.read_text().replace(
            "        images, labels = data\n",
            "        import os, signal\n        MNISTModel.n = getattr(MNISTModel, 'n', 0) + 1\n"
            "        if MNISTModel.n == int(os.environ.get('KILL_AT', 0)):\n            os.kill(os.getpid(), signal.SIGUSR1)\n"
            "        images, labels = data\n",
        )
    )
    common = ("GPU", "--mode", "train", *PARAMS, "--max_steps", "200", "-D", "runconfig.checkpoint_steps=50")
    assert run_script(model_folder, *common, "--model_dir", "whole").returncode == 0
    stopped = run_script(model_folder, *common, "--model_dir", "stopped", env={"KILL_AT": "77"})
    assert stopped.returncode == 85, stopped.stderr
    assert signal.SIGUSR1.name in stopped.stderr
    assert run_script(model_folder, *common, "--model_dir", "stopped").returncode == 0
    a, b = (
        load_file(model_folder / d / "checkpoint_200" / "model.safetensors") for d in ("whole", "stopped")
    )
    assert max((a[k] - b[k]).abs().max().item() for k in a) < 1e-5


def test_gpu_equals_cpu() -> None:
    job = contract.make_job("train", "optimizer.optimizer_type=SGD", "optimizer.learning_rate=0.1")
    cpu, gpu = TorchBackend("cpu", {}, print).open(job), open_gpu(job)
    gpu.load_state(list(cpu.state()), None)
    expected = [loss for event in cpu.train(contract.stretch(0, 40)) for loss in event.losses]
    assert [loss for event in gpu.train(contract.stretch(0, 40)) for loss in event.losses] == pytest.approx(
        expected, abs=2e-4
    )


def test_compile_only_then_train_compiled(model_folder: Path, run_script) -> None:
    compiled = run_script(model_folder, "GPU", "--mode", "train", *PARAMS, "--compile_only", "--json")
    assert compiled.returncode == 0, compiled.stderr
    assert json.loads(compiled.stdout)["compiled"]["graph_breaks"] == {}
    trained = run_script(
        model_folder, "GPU", "--mode", "train", *PARAMS, "--max_steps", "60", "-D", "runconfig.compile=true"
    )
    assert trained.returncode == 0, trained.stderr


def test_one_process_of_nccl_under_torchrun(model_folder: Path) -> None:
    import subprocess
    import sys

    for strategy in ("ddp", "fsdp"):
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc_per_node=1",
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=localhost:0",
        ]
        done = subprocess.run(
            [*command, "run.py", "GPU", "--mode", "train", *PARAMS, "--max_steps", "20", "-D", f"runconfig.distributed={strategy}"],
            cwd=model_folder, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
