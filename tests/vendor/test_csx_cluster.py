"""Where the front end ends and a cluster would begin: what is left behind, what is missing, and an address that does not answer."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.vendor, pytest.mark.filterwarnings("default")]

COMMON = ("--mode", "train", "--params", "configs/params.yaml", "--json")


@pytest.fixture
def no_cluster(tmp_path: Path) -> dict[str, str]:
    """Even where the machine is a user node of a cluster."""
    return {"CSCONFIG_PATH": str(tmp_path / "nowhere")}


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Something listens there, and it is no cluster."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def test_compile_only_leaves_artefacts_and_names_the_setting(
    model_folder: Path, run_script: Any, no_cluster: dict[str, str], tmp_path: Path
) -> None:
    done = run_script(
        model_folder, "CSX", *COMMON, "--compile_only", "--compile_dir", str(tmp_path / "out"), env=no_cluster
    )
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert "kernel compiler lives on the cluster" in document["error"]
    assert "runconfig.mgmt_address" in document["cure"]
    assert "--mgmt_address" in document["cure"]
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["sdk"] == "2.10.0"
    assert manifest["cirh_ops"]["MatMul"] == 8
    assert "not compiled" in manifest["verdict"]
    for name in ("torch.mlir", "cirh.mlir"):
        assert (tmp_path / "out" / name).stat().st_size > 1000
    assert not list((model_folder / "model_dir").glob("checkpoint_*"))


def test_training_without_a_cluster_stops_at_once(
    model_folder: Path, run_script: Any, no_cluster: dict[str, str]
) -> None:
    done = run_script(model_folder, "CSX", *COMMON, env=no_cluster)
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert "no Cerebras cluster is configured" in document["error"]
    for way_out in (
        "runconfig.mgmt_address",
        "--mgmt_address",
        "--validate_only",
        "--on_cpu",
        str(no_cluster["CSCONFIG_PATH"]),
    ):
        assert way_out in document["cure"]


def test_an_address_that_does_not_answer(
    model_folder: Path, run_script: Any, no_cluster: dict[str, str]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    done = run_script(
        model_folder, "CSX", *COMMON, "-D", f"runconfig.mgmt_address=127.0.0.1:{port}", env=no_cluster
    )
    assert done.returncode == 1
    assert "runconfig.mgmt_address) does not answer" in json.loads(done.stdout)["error"]


def test_what_answers_and_is_no_cluster_is_the_sdks_to_judge(
    model_folder: Path, run_script: Any, no_cluster: dict[str, str], silent_port: int, tmp_path: Path
) -> None:
    # The SDK pings before it connects, and connects for ever: let the ping fail, wherever this runs.
    (tmp_path / "ping").write_text("#!/bin/sh\necho no route >&2\nexit 1\n")
    (tmp_path / "ping").chmod(0o755)
    no_cluster["PATH"] = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = run_script(
        model_folder,
        "CSX",
        *COMMON,
        "--mgmt_address",
        f"127.0.0.1:{silent_port}",
        "--compile_only",
        env=no_cluster,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    error = json.loads(done.stdout)["error"]
    assert f"cannot use the cluster at 127.0.0.1:{silent_port}" in error
    assert "no route" in error
