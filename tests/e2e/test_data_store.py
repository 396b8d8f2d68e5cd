"""A run on a prepared store: killed, resumed with other workers and processes, damaged, measured; through run.py and the CLI."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from stores import write_store
from warm_python import WarmPython

DATA = """
from pathlib import Path
from torch.utils.data import DataLoader
from portwright.data import StoreDataset

def shake(batch, draws):
    return {**batch, "images": (batch["images"] + 0.1 * draws.uniform("noise", 64)).astype("float32")}

def make(options):
    data = StoreDataset(Path(__file__).parent / "store", shake)
    return DataLoader(data, options["batch_size"], shuffle=True, num_workers=options["num_workers"])

def get_train_dataloader(params):
    return make(params["train_input"])

def get_eval_dataloader(params):
    return make(params["eval_input"])
"""
MODEL = """
import os, signal
import fc_model

class MNISTModel(fc_model.MNISTModel):
    calls = 0

    def __call__(self, data):
        MNISTModel.calls += 1
        if MNISTModel.calls == int(os.environ.get("KILL_AT_CALL", "0")):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__((data["images"], data["labels"]))
"""
ARGUMENTS = (
    "CPU", "--mode", "train", "--params", "configs/params.yaml", "--max_steps", "40",
    "-D", "runconfig.checkpoint_steps=4", "-D", "runconfig.log_steps=1", "-D", "model.dropout=0.0",
    "-D", "optimizer.optimizer_type=SGD", "-D", "optimizer.learning_rate=0.1", "-D", "optimizer.weight_decay_rate=0.0",
)  # fmt: skip


@pytest.fixture
def store_folder(model_folder: Path) -> Path:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    # 1,000 samples in batches of 64: 16 batches an epoch, the last of 40.
    arrays = {"images": (pixels[:1000] / 16).astype(np.float32), "labels": labels[:1000].astype(np.int64)}
    write_store(model_folder / "store", arrays, made_by={"test": "digits"}, shard_records=300)
    (model_folder / "model.py").rename(model_folder / "fc_model.py")
    (model_folder / "model.py").write_text(MODEL)
    (model_folder / "data.py").write_text(DATA)
    return model_folder


def weights(folder: Path, name: str) -> dict[str, torch.Tensor]:
    return load_file(folder / name / "checkpoint_40" / "model.safetensors")


def test_kills_and_other_workers_and_processes_change_nothing(
    store_folder: Path, run_script, warm_python: WarmPython
) -> None:
    whole = run_script(store_folder, *ARGUMENTS, "--model_dir", "whole")
    assert whole.returncode == 0, whole.stderr

    for num_workers, call in ((2, 11), (1, 14)):
        workers = ("-D", f"train_input.num_workers={num_workers}", "--model_dir", "killed")
        killed = run_script(store_folder, *ARGUMENTS, *workers, env={"KILL_AT_CALL": str(call)})
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    finished = run_script(store_folder, *ARGUMENTS, "--model_dir", "killed")
    assert finished.returncode == 0, finished.stderr
    expected, found = weights(store_folder, "whole"), weights(store_folder, "killed")
    assert all(expected[name].equal(found[name]) for name in expected)

    half = run_script(store_folder, *ARGUMENTS, "--model_dir", "spread", env={"KILL_AT_CALL": "15"})
    assert half.returncode == -signal.SIGKILL, half.stderr
    with socket.create_server(("localhost", 0)) as listening:
        port = listening.getsockname()[1]
    common = {**os.environ, "NO_COLOR": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    sizes = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    envs = [{**common, **sizes, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    for done in warm_python.run_together(
        (*ARGUMENTS, "--model_dir", "spread"), store_folder, envs, timeout=300
    ):
        assert done.returncode == 0, done.stderr
    found = weights(store_folder, "spread")
    assert max((expected[name] - found[name]).abs().max().item() for name in expected) < 1e-5


def test_a_damaged_record_ends_the_run_and_is_found(store_folder: Path, run_script, run_cli) -> None:
    shard = store_folder / "store" / "shard-00001.bin"
    content = bytearray(shard.read_bytes())
    content[4 * 64 * 17] ^= 1
    shard.write_bytes(bytes(content))
    ended = run_script(store_folder, *ARGUMENTS, "--model_dir", "run")
    assert ended.returncode == 2
    error = ended.stderr.strip().splitlines()[-1]
    assert "shard-00001.bin: records 0 to" in error
    assert "damaged in 'images'" in error
    assert "sample" in error
    checked = run_cli("data", "check", "store", "--json", cwd=store_folder)
    assert checked.returncode == 1
    assert "shard-00001.bin: records 0 to" in json.loads(checked.stdout)["problems"][0]


def test_bench_of_a_store_and_of_a_model(store_folder: Path, run_cli) -> None:
    alone = run_cli(
        "data", "bench", "store", "--batch-size", "50", "--seconds", "0.1", "--json", cwd=store_folder
    )
    assert alone.returncode == 0, alone.stderr
    report = json.loads(alone.stdout)
    assert report["keeps_up"] is None
    assert report["loader"]["samples_per_second"] > 0
    assert report["loader"]["batch_size"] == 50
    assert "gathering records" in report["loader"]["seconds_a_batch"]
    whole = run_cli("data", "bench", ".", "--target", "CPU", "--seconds", "0.2", "--json", cwd=store_folder)
    assert whole.returncode in (0, 1), whole.stderr  # how quick this machine is is not the test's affair
    report = json.loads(whole.stdout)
    assert report["keeps_up"] is (whole.returncode == 0)
    assert report["step"]["target"] == "CPU"
    assert report["step"]["samples_per_second"] > 0
    assert 0 <= report["waiting_share"] <= 1
    assert "the transform" in report["loader"]["seconds_a_batch"]
    told = run_cli("data", "bench", ".", "--target", "CPU", "--seconds", "0.1", cwd=store_folder)
    assert ("keeps up" in told.stdout) or ("does not keep up: bound by" in told.stdout)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("bench", "nowhere"), "there is no 'nowhere'"),
        (("bench", "configs"), "holds neither a store"),
        (("bench", "store", "--batch-size", "0"), "--batch-size is 0"),
        (("bench", "store", "--seconds", "0"), "--seconds is 0"),
        (("bench", "store", "--workers", "-1"), "--workers is -1"),
        (("bench", ".", "--params", "none.yaml"), "none.yaml"),
        (("check", "nowhere"), "there is no folder nowhere"),
        (("check", "configs"), "holds no manifest.json"),
        (("pack", "nowhere.h5", "--out", "x"), "'nowhere.h5' does not exist"),
    ],
)
def test_bad_commands_are_one_line(
    store_folder: Path, run_cli, words: tuple[str, ...], complaint: str
) -> None:
    done = run_cli("data", *words, cwd=store_folder)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
