"""Must show 2: one coordinator and six workers on the cluster; every sample exactly once an epoch, though workers are killed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from slurm_cluster import SlurmCluster
from training_run import PORTWRIGHT, WAIT_SECONDS, TrainingRun

pytestmark = pytest.mark.timeout(1200)

NUM_SAMPLES, BATCH, NUM_EPOCHS = 100_000, 100, 2
NUM_STEPS = NUM_EPOCHS * NUM_SAMPLES // BATCH
SITE = """
summary = "the tests' own cluster, without a container"
scheduler = "slurm"
target = "CPU"
tasks = "stream"

[job]
account = "none"
ntasks = 7
nodes = 4
time = "30"
max_retries = 0

[container]
kind = "none"
"""
# The model writes down which samples it was trained on, in the order in which they came.
RUN = """
import time
from pathlib import Path

import torch
from portwright import PyTorchBaseModel, run
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, number):
        return torch.ones(4), torch.tensor(number)

    def __getitems__(self, numbers):
        time.sleep(self.seconds)  # a slow file system
        return [self[number] for number in numbers]


def train_data(params):
    options = params["train_input"]
    return DataLoader(Numbers(options["seconds"]), batch_size=BATCH, shuffle=True, num_workers=options["num_workers"])


class Recorder(PyTorchBaseModel):
    def __init__(self, params, device=None):
        self.path = Path(params["model"]["record"])
        self.layer = torch.nn.Linear(4, 1)
        super().__init__(params=params, model=self.layer, device=device)

    def __call__(self, data):
        images, numbers = data
        with self.path.open("ab") as file:
            file.write(numbers.numpy().tobytes())
        return self.layer(images).square().mean()


run(model_fn=Recorder, train_data_fn=train_data)
"""
PARAMS = """
train_input: {{seconds: 0, num_workers: 1}}
model: {{record: {record}}}
optimizer: {{optimizer_type: SGD, learning_rate: 0.001}}
runconfig: {{max_steps: {steps}, checkpoint_steps: {steps}, log_steps: 100, seed: 5}}
"""


def write_model(folder: Path) -> Path:
    (folder / "configs").mkdir(parents=True)
    sizes = f"NUM_SAMPLES, BATCH = {NUM_SAMPLES}, {BATCH}\n"
    (folder / "run.py").write_text(sizes + RUN)
    params = PARAMS.format(record=json.dumps(str(folder / "record")), steps=NUM_STEPS)
    (folder / "configs" / "params.yaml").write_text(params)
    return folder


def submit(cluster: SlurmCluster, model: Path, folder: Path) -> TrainingRun:
    site = folder / "plain.toml"
    site.write_text(SITE)
    command = [
        *PORTWRIGHT, "submit", str(model), "--site", str(site), "--name", "killed", "--steps", "train", "--json", "--no-follow",
        "--jobs-dir", str(folder / "jobs"), "--model_dir", str(folder / "model_dir"), "-D", "train_input.seconds=0.03",
    ]  # fmt: skip
    environ = {**cluster.environ, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(folder / "state")}
    done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    told = json.loads(done.stdout)
    return TrainingRun(cluster, int(told["scheduler_id"]), Path(told["folder"]), folder / "model_dir")


def num_recorded(model: Path) -> int:
    record = model / "record"
    return record.stat().st_size // 8 if record.exists() else 0


def test_each_sample_exactly_once_an_epoch_while_workers_are_killed(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    model = write_model(tmp_path / "streamed")
    run = submit(cluster, model, tmp_path)
    rng = random.Random()
    ranks = rng.sample(range(1, 7), 2)
    moments = sorted(rng.sample(range(NUM_SAMPLES // 20, NUM_EPOCHS * NUM_SAMPLES - NUM_SAMPLES // 2), 2))
    for rank, moment in zip(ranks, moments, strict=True):
        cluster.wait(
            lambda moment=moment: num_recorded(model) >= moment,
            WAIT_SECONDS,
            lambda: f"{num_recorded(model):,} samples came\n{run.log()}",
        )
        run.kill_task(rank)
    run.wait_done()
    told = f"ranks {ranks} were killed after {moments} samples\n{run.log()}"
    got = np.fromfile(model / "record", np.int64).reshape(NUM_EPOCHS, NUM_SAMPLES)
    for epoch in got:
        assert np.array_equal(np.sort(epoch), np.arange(NUM_SAMPLES)), told
    assert not np.array_equal(got[0], got[1])
    log = (run.folder / "log.txt").read_text(errors="replace")
    assert all(f"Worker {rank} is gone" in log for rank in ranks), told
    assert "no worker has answered" not in log, told

    alone = write_model(tmp_path / "alone")
    words = [
        "run.py",
        "CPU",
        "--mode",
        "train",
        "--params",
        "configs/params.yaml",
        "--model_dir",
        "model_dir",
    ]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, *words], cwd=alone, env=environ, check=True, capture_output=True, timeout=600
    )
    assert np.array_equal(np.fromfile(alone / "record", np.int64), got.reshape(-1)), f"another order; {told}"
