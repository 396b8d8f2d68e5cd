"""`make demo` as a user sees it: a plain script checked, ported, proven and trained, and lowered where the SDK is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from portwright.discover import get_target
from portwright.job.vendor_env import find_known

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"
ENVIRONMENT = get_target("CSX").environment
assert ENVIRONMENT is not None
pytestmark = pytest.mark.skipif(ENVIRONMENT.is_here(), reason="the SDK's own environment is not a user's")


def demo(out: Path, envs: str | None = None) -> subprocess.CompletedProcess[str]:
    env = os.environ if envs is None else {**os.environ, "PORTWRIGHT_ENVS": envs}
    return subprocess.run(
        [sys.executable, str(DEMO), "--out", str(out)], env=env, capture_output=True, text=True, check=False
    )


def test_the_main_job_from_script_to_trained_port(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    done = demo(out, envs=str(tmp_path / "none"))
    assert done.returncode == 0, done.stdout + done.stderr
    proof = json.loads((out / "proof.json").read_text())
    assert proof["equal"]
    assert proof["steps"] == 20
    assert proof["first_difference"] is None
    assert "accuracy: 1.0000" in done.stdout + done.stderr
    assert "was not asked: `make csx-env`" in done.stdout
    assert done.stdout.rstrip().endswith(f"report: {out / 'report.html'}")
    page = (out / "report.html").read_text()
    assert 'href="proof.html"' in page
    assert (out / "proof.html").exists()
    assert (out / "check.html").exists()
    for name in ("model.py", "data.py", "utils.py", "run.py", "configs/params.yaml"):
        assert (out / "ported" / name).is_file()


def test_a_folder_of_somebody_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    done = demo(tmp_path, envs="none")
    assert done.returncode == 1
    assert "is not from an earlier demo" in done.stderr
    assert (tmp_path / "mine.txt").read_text() == "keep"


@pytest.mark.vendor
@pytest.mark.skipif(find_known(ENVIRONMENT) is None, reason="portwright env csx was not run here")
def test_the_real_front_end_lowers_the_port(tmp_path: Path) -> None:
    done = demo(tmp_path / "demo")
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    assert "accepted by the front end, not placed on a wafer" in told
