"""Streaming in several processes computes what DDP and one process do, and each holds a part of the weights only."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from warm_python import WarmPython

TESTS = Path(__file__).parents[1]
CASES = Path(__file__).with_name("streaming_rank_cases.py")
ARGUMENTS = (
    "CPU", "--mode", "train", "--params", "configs/params.yaml", "--max_steps", "12",
    "-D", "optimizer.learning_rate=0.01", "-D", "model.dropout=0.0", "-D", "model.hidden_sizes=[48, 48, 33]",
    "-D", "optimizer.optimizer_type=SGD", "-D", "optimizer.momentum=0.9", "-D", "optimizer.max_gradient_norm=1.0",
    "-D", "runconfig.checkpoint_steps=6", "-D", "runconfig.log_steps=1", "-D", "train_input.batch_size=37",
)  # fmt: skip
STREAMING = ("-D", "runconfig.execution=streaming")

Ended = list["subprocess.CompletedProcess[str]"]


def run_ranks(warm: WarmPython, folder: Path, num_processes: int, *arguments: str) -> Ended:
    with socket.create_server(("localhost", 0)) as listening:
        port = listening.getsockname()[1]
    shared = {"NO_COLOR": "1", "COLUMNS": "400", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    sizes = {"WORLD_SIZE": str(num_processes), "LOCAL_WORLD_SIZE": str(num_processes)}
    envs = [
        {**os.environ, **shared, **sizes, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        for rank in range(num_processes)
    ]
    return warm.run_together(arguments, folder, envs, timeout=300)


def run_well(warm: WarmPython, folder: Path, num_processes: int, *arguments: str) -> None:
    for done in run_ranks(warm, folder, num_processes, *arguments):
        assert done.returncode == 0, done.stderr


def run_cases(warm: WarmPython, folder: Path, num_processes: int, *cases: str) -> list[dict[str, Any]]:
    """What each process has found."""
    shutil.copyfile(CASES, folder / "run.py")
    run_well(warm, folder, num_processes, str(TESTS), "out", *cases)
    return [json.loads((folder / f"out.{rank}").read_text()) for rank in range(num_processes)]


def assert_equal(found: list[dict[str, Any]], case: str, tolerance: float) -> None:
    for rank, results in enumerate(found):
        for name in ("losses", "state", "evaluation", "losses_resumed", "state_resumed"):
            assert results[case][name] <= tolerance, (rank, case, name, results[case])


EQUAL_DDP = ("plain", "tokens", "batchnorm", "clipped_dropout", "scaled", "bf16", "wanders", "frozen")
OPTIMIZERS = (
    "SGD", "Adagrad", "RMSprop", "Adamax", "Lion", "NAdam", "RAdam", "Adadelta", "ASGD", "Rprop", "Adam",
)  # fmt: skip
REFUSED = ("Lamb", "fsdp", "looks_in", "spoilt", "spoilt_clipped", "overflowing")


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory, warm_python: WarmPython) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("two")
    return run_cases(warm_python, folder, 2, *EQUAL_DDP, *OPTIMIZERS, *REFUSED)


def test_two_processes_equal_ddp(of_two: list[dict[str, Any]]) -> None:
    for case in EQUAL_DDP:
        assert_equal(of_two, case, 1e-6)
    for results in of_two:
        assert results["clipped_dropout"]["rolled_back"] > 0, "the first step was not speculated"
        assert results["scaled"]["rolled_back"] > 0
        assert results["plain"]["late"] <= 2, "the order of the calls was not foreseen"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_elementwise_optimizer_updates_parts(of_two: list[dict[str, Any]], name: str) -> None:
    assert_equal(of_two, name, 1e-6)


def test_what_cannot_be_split_is_refused(of_two: list[dict[str, Any]]) -> None:
    for results in of_two:
        assert "Lamb may look at whole weights" in results["Lamb"]["error"]
        assert "AdamW" in results["Lamb"]["cure"]
        assert "runconfig.distributed: fsdp" in results["fsdp"]["error"]
        assert (
            "'blocks.1.wide.weight' of the streamed layer 'blocks.1' is used outside"
            in results["looks_in"]["error"]
        )


def test_a_value_that_is_not_finite_in_one_process_holds_all(of_two: list[dict[str, Any]]) -> None:
    for results in of_two:
        for case in ("spoilt", "spoilt_clipped"):
            assert "the loss is nan at step 3 (first on process 1)" in results[case]["error"]
            assert results[case]["held"], "a process updated its part from a loss that was not finite"
        assert "the gradients of step 3 are not finite" in results["overflowing"]["error"]
        assert results["overflowing"]["held"]


def test_three_processes_equal_one(tmp_path: Path, warm_python: WarmPython) -> None:
    """Three processes split every batch unevenly, and some have no element of a small weight."""
    found = run_cases(
        warm_python,
        tmp_path,
        3,
        "fp64",
        "rare",
        "rare_accumulated",
        "accumulated",
        "speculated",
        "one_process",
    )
    for case in ("fp64", "rare"):
        assert_equal(found, case, 1e-12)
    for case in ("rare_accumulated", "speculated"):
        assert_equal(found, case, 1e-5)
    for results in found:
        assert results["speculated"]["rolled_back"] == 0
        assert max(results["one_process"].values()) <= 1e-5


def weights(folder: Path, name: str, step: int = 12) -> dict[str, Any]:
    return load_file(folder / name / f"checkpoint_{step}" / "model.safetensors")


def test_a_run_moves_between_numbers_of_processes_and_modes_and_evaluates_the_same(
    model_folder: Path, run_script, warm_python: WarmPython
) -> None:
    one = run_script(model_folder, *ARGUMENTS, "--model_dir", "one")
    assert one.returncode == 0, one.stderr
    wanted = weights(model_folder, "one")
    run_well(warm_python, model_folder, 3, *ARGUMENTS, *STREAMING, "--model_dir", "three", "--max_steps", "6")
    shutil.copytree(model_folder / "three", model_folder / "to_one")
    run_well(warm_python, model_folder, 2, *ARGUMENTS, *STREAMING, "--model_dir", "three")
    rest = run_script(model_folder, *ARGUMENTS, "--model_dir", "to_one")
    assert rest.returncode == 0, rest.stderr
    for name in ("three", "to_one"):
        got = weights(model_folder, name)
        assert got.keys() == wanted.keys()
        assert max((got[key] - wanted[key]).abs().max().item() for key in wanted) <= 1e-6, name
    # In batches of 23 the last one splits unevenly.
    evaluate = ("--mode", "eval", "-D", "eval_input.batch_size=23", "--json", "--model_dir", "to_one")
    alone = json.loads(run_script(model_folder, *ARGUMENTS, *evaluate).stdout)["values"]
    done = run_ranks(warm_python, model_folder, 2, *ARGUMENTS, *evaluate, *STREAMING)
    assert done[0].returncode == 0, done[0].stderr
    together = json.loads(done[0].stdout)["values"]
    assert together["eval/accuracy"] == alone["eval/accuracy"]
    assert together["eval/loss"] == pytest.approx(alone["eval/loss"], abs=1e-6)


SKIPPING = """
        rank = int(__import__("os").environ["RANK"])
        x = images.flatten(1)
        for index, layer in enumerate(self.layers):
            if index != 3 + 3 * rank:
                x = layer(x)
        return x
"""


def test_processes_that_call_other_layers_are_told(model_folder: Path, warm_python: WarmPython) -> None:
    path = model_folder / "model.py"
    path.write_text(
        path.read_text().replace(
            "        logits: torch.Tensor = self.layers(images.flatten(1))\n        return logits\n",
            SKIPPING[1:],
        )
    )
    done = run_ranks(
        warm_python, model_folder, 2, *ARGUMENTS, *STREAMING, "-D", "model.hidden_sizes=[48, 48, 48]"
    )
    assert all(process.returncode != 0 for process in done)
    said = done[0].stderr + done[1].stderr
    assert "the processes do not stream the same layers: process 0" in said, said
