"""SLURM's commands where they fail, with programs in their place; what they print is as the real ones print it.

tests/cluster/test_submit.py asks a real SLURM.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from portwright.launch import slurm
from portwright.launch.registry import Entry, ask_state, judge, status_of
from portwright.launch.slurm import NoAnswerError, SlurmError, SlurmState

RUNNING = (
    "JobId=1 JobName=try-1 UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901759 Nice=0 Account=(null) "
    "QOS=(null) JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:0 "
    "RunTime=00:01:02 TimeLimit=1-00:05:00 TimeMin=N/A SubmitTime=2026-11-16T20:00:00 StartTime=2026-11-16T20:00:01 "
    "EndTime=2026-11-17T20:05:01 NodeList=sub-[1-2] BatchHost=sub-1 Command=/a JobState=FAKE/job.sh Power="
)

Put = Callable[..., Path]


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Puts programs on PATH; each one writes its words to calls.txt."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def write(**programs: str) -> Path:
        for name, body in programs.items():
            path = folder / name
            path.write_text(f'#!/bin/bash\nprintf "%s\\n" "{name} $*" >>"{tmp_path}/calls.txt"\n{body}\n')
            path.chmod(0o755)
        return tmp_path / "calls.txt"

    return write


def test_a_machine_without_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmError, match="no sbatch here") as told:
        slurm.submit(tmp_path / "job.sh")
    assert "--site local" in told.value.cure


def test_a_controller_that_hangs(put: Put) -> None:
    put(squeue="exec sleep 600")
    with pytest.raises(NoAnswerError, match=r"squeue within 0 s"):
        slurm.run_slurm(["squeue"], timeout_seconds=0.2)


@pytest.mark.parametrize(
    "said",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
        "sbatch: error: slurm_receive_msg: Zero Bytes were transmitted or received",
    ],
)
def test_a_controller_that_is_down(put: Put, said: str) -> None:
    put(scontrol=f"echo '{said}' >&2; exit 1")
    with pytest.raises(NoAnswerError, match="does not answer"):
        slurm.job_state("1")


@pytest.mark.parametrize(
    ("said", "cure"),
    [
        ("sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified", "--account"),
        ("sbatch: error: invalid partition specified: nono\nsbatch: error: Batch job submission failed: Invalid partition name specified", "--partition"),
        ("sbatch: error: Invalid generic resource (gres) specification", "--gres"),
        ("sbatch: error: Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)", "--time"),
        ("sbatch: error: something new", "SLURM names"),
    ],
)  # fmt: skip
def test_a_job_that_is_refused(put: Put, tmp_path: Path, said: str, cure: str) -> None:
    put(sbatch=f"cat >&2 <<'X'\n{said}\nX\nexit 1")
    with pytest.raises(SlurmError) as told:
        slurm.submit(tmp_path / "job.sh")
    assert said.rpartition(": ")[2] in told.value.message
    assert cure in told.value.cure
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(("out", "job_id"), [("12\n", "12"), ("12;cluster\n", "12"), ("hello\n12\n", "12")])
def test_the_id_is_read(put: Put, tmp_path: Path, out: str, job_id: str) -> None:
    put(sbatch=f"printf '{out}'")
    assert slurm.submit(tmp_path / "job.sh") == job_id


def test_an_answer_without_an_id(put: Put, tmp_path: Path) -> None:
    put(sbatch="echo Thank you")
    with pytest.raises(SlurmError, match="Thank you"):
        slurm.submit(tmp_path / "job.sh")


def test_what_the_shell_says_does_not_change_the_script(
    put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(sbatch="env >env.txt; echo 5")
    for name in ("SBATCH_PARTITION", "SLURM_NTASKS", "SQUEUE_FORMAT"):
        monkeypatch.setenv(name, "wrong")
    monkeypatch.setenv("SLURM_CONF", "kept")
    slurm.submit(tmp_path / "job.sh")
    seen = (tmp_path / "env.txt").read_text()
    assert "wrong" not in seen
    assert "SLURM_CONF=kept" in seen


def test_a_job_is_read() -> None:
    state = slurm.parse_job(RUNNING)
    assert (state.state, state.word, state.nodes, state.restarts) == ("running", "RUNNING", "sub-[1-2]", 2)
    assert (state.time_left, state.exit, state.start_estimate) == ("1-0:03:58", None, None)


@pytest.mark.parametrize(
    ("word", "code", "expected", "status"),
    [
        ("COMPLETED", "0:0", "done", 0),
        ("FAILED", "3:0", "failed", 3),
        ("FAILED", "0:9", "failed", 137),
        ("TIMEOUT", "0:15", "failed", 143),
        ("CANCELLED", "0:0", "cancelled", 0),
        ("NODE_FAIL", "1:0", "failed", 1),
        ("PENDING", "0:0", "pending", None),
        ("COMPLETING", "0:0", "running", None),
        ("A_NEW_ONE", "0:0", "unknown", None),
    ],
)
def test_states(word: str, code: str, expected: str, status: int | None) -> None:
    text = RUNNING.replace("JobState=RUNNING", f"JobState={word}").replace("ExitCode=0:0", f"ExitCode={code}")
    state = slurm.parse_job(text)
    assert (state.state, state.exit) == (expected, status)


@pytest.mark.parametrize(
    "text", ["", "nonsense", "JobState=", "JobState=RUNNING RunTime=x TimeLimit=UNLIMITED"]
)
def test_odd_answers_are_no_crash(text: str) -> None:
    assert slurm.parse_job(text).time_left is None


def test_a_job_that_slurm_has_forgotten_is_judged_by_its_folder(put: Put, tmp_path: Path) -> None:
    put(scontrol="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    entry = Entry("x-1", tmp_path, "s", "slurm", "5", submitted="now")
    assert ask_state(entry).state == "unknown"
    assert "never began" in ask_state(entry).reason
    (tmp_path / "state.json").write_text(json.dumps({"state": "running", "status": 0}))
    assert "last word was 'running'" in ask_state(entry).reason
    (tmp_path / "state.json").write_text(json.dumps({"state": "failed", "status": 2}))
    state = ask_state(entry)
    assert (state.state, state.exit, status_of(state)) == ("failed", 2, 2)


def test_the_script_knows_its_status_better_than_slurm(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(json.dumps({"state": "failed", "status": 3}))
    assert judge(tmp_path, SlurmState("failed", "FAILED", exit=1)).exit == 3
    assert judge(tmp_path, SlurmState("running", "RUNNING")).state == "running"  # of the attempt before


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (SlurmState("done", exit=0), 0),
        (SlurmState("failed", exit=3), 3),
        (SlurmState("failed", exit=0), 1),
        (SlurmState("failed"), 1),
        (SlurmState("cancelled", exit=143), 143),
        (SlurmState("failed", exit=70000), 1),
        (SlurmState("unknown"), 1),
    ],
)
def test_a_command_ends_as_its_job_did(state: SlurmState, status: int) -> None:
    assert status_of(state) == status


def test_scancel_of_one_that_has_ended(put: Put) -> None:
    put(scancel="echo 'scancel: error: Kill job error on job id 1: Invalid job id specified' >&2; exit 1")
    assert slurm.cancel("1") is False
