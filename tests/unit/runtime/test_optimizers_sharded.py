from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from portwright.job.optimizer import OPTIMIZERS

WORKER = Path(__file__).with_name("sharded_optimizers.py")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("sharded")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    workers = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), str(folder / "store"), str(folder / "out")],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [worker.communicate(timeout=240)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0], "\n".join(outputs)
    return [json.loads((folder / f"out.{rank}.json").read_text()) for rank in range(2)]


def test_shards_train_and_resume_like_whole_tensors(results: list[dict[str, Any]]) -> None:
    assert results[0]["differences"] == results[1]["differences"]
    seen = {json.loads(case)["optimizer_type"] for case in results[0]["differences"]}
    assert seen == set(OPTIMIZERS) - {"Rprop"}
    wrong = {case: found for case, found in results[0]["differences"].items() if not found < 1e-12}
    assert wrong == {}


def test_processes_agree_on_an_overflow_that_one_of_them_saw(results: list[dict[str, Any]]) -> None:
    unchanged, num_skipped, scale = 1.0, 1.0, 2.0**14
    assert [result["overflow"] for result in results] == [[unchanged, num_skipped, scale]] * 2
