"""job.sh of a SLURM site as bash runs it, where SLURM's programs are stand-ins that say what is hard to make the real one say."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from unit.launch.script_jobs import make_job, make_site

from portwright.launch.job import Step
from portwright.launch.script import render_job
from portwright.launch.task_script import render_task

ANSWER = "JobId=7 JobName=x JobState={state} Reason={reason} Restarts={restarts} StartTime=2026-11-18T10:00:00 PreemptTime={preempted} End=1"
# What `show job` says next is a line of the file `answers`, the last one for good.
SCONTROL = r"""#!/usr/bin/env bash
cd "$(dirname "$0")/.."
case "$*" in
    *"show job"*)
        sed -n 1p answers
        if (($(wc -l <answers) > 1)); then sed -i 1d answers; fi
        ;;
    *"show hostnames"*) echo node-1 ;;
    requeue*)
        echo "$*" >>requeues
        if [[ -e refusals ]]; then
            sed -i 1d refusals
            [[ -s refusals ]] || rm refusals
            exit 1
        fi
        ;;
esac
"""
SQUEUE = '#!/usr/bin/env bash\ncat "$(dirname "$0")/../queue" 2>/dev/null\n'
SLEEP = "#!/usr/bin/env bash\n"


class SlurmJob:
    """A job of one step; `srun` is a text of bash that takes the place of SLURM's."""

    def __init__(self, root: Path, srun: str, *, stream: bool = False, **changes: Any) -> None:
        self.root, self.folder = root, root / "job"
        self.folder.mkdir()
        programs = root / "bin"
        programs.mkdir()
        for name, text in (
            ("scontrol", SCONTROL),
            ("squeue", SQUEUE),
            ("sleep", SLEEP),
        ):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        self.srun_does(srun)
        step = Step("train", 3 if stream else 1, ("python", "run.py"), "stream" if stream else "single")
        self.job = make_job(self.folder, step, site=make_site("slurm"), **changes)
        for name, text in (("job.sh", render_job(self.job)), ("task.sh", render_task(self.job))):
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o700)
        self.slurm_says({})

    def srun_does(self, what: str) -> None:
        path, hosts = self.root / "bin" / "srun", "for rank in 0 1 2; do echo $rank: node-1; done; exit"
        path.write_text(f'#!/usr/bin/env bash\nif [[ "$*" == *printenv* ]]; then {hosts}; fi\n{what}\n')
        path.chmod(0o755)

    def slurm_says(self, *answers: dict[str, str]) -> None:
        usual = {"state": "RUNNING", "reason": "None", "restarts": "0", "preempted": "None"}
        lines = [ANSWER.format(**{**usual, **answer}) for answer in answers]
        (self.root / "answers").write_text("".join(f"{line}\n" for line in lines))

    def run(self, **environ: str) -> int:
        with (self.folder / "log.txt").open("ab") as log:
            return subprocess.run(
                ["bash", str(self.folder / "job.sh")],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                check=False,
                timeout=60,
                env={
                    **os.environ,
                    "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
                    "SLURM_JOB_ID": "7",
                    "SLURM_JOB_NODELIST": "node-1",
                    **environ,
                },
            ).returncode

    @property
    def state(self) -> str:
        path = self.folder / "state.json"
        return path.read_text().split('"')[3] if path.exists() else ""

    @property
    def attempts(self) -> list[str]:
        path = self.folder / "attempts"
        return [line.split()[1] for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def log(self) -> str:
        return (self.folder / "log.txt").read_text()

    @property
    def num_requeues(self) -> int:
        path = self.root / "requeues"
        return len(path.read_text().splitlines()) if path.exists() else 0


def test_a_step_that_ends_well(tmp_path: Path) -> None:
    job = SlurmJob(tmp_path, "exit 0")
    assert job.run() == 0, job.log
    assert (job.state, job.attempts) == ("done", [])
    assert (job.folder / "scheduler_id").read_text() == "7\n"


def test_without_slurm_it_says_so_and_changes_nothing(tmp_path: Path) -> None:
    job = SlurmJob(tmp_path, "exit 0")
    running = '{"state": "running", "step": "train", "status": 0, "restarts": 0, "time": "x"}\n'
    (job.folder / "state.json").write_text(running)
    assert job.run(SLURM_JOB_ID="") == 2
    assert "sbatch" in job.log
    assert (job.folder / "state.json").read_text() == running
    assert job.attempts == []


def test_two_jobs_of_one_folder_do_not_run_at_once(tmp_path: Path) -> None:
    job = SlurmJob(tmp_path, "exit 0")
    (job.folder / "scheduler_id").write_text("5\n")
    (tmp_path / "queue").write_text("5 RUNNING\n")
    assert job.run() == 2
    assert "the job 5" in job.log
    assert job.state == ""
    assert (job.folder / "scheduler_id").read_text() == "5\n"
    (tmp_path / "queue").unlink()
    assert job.run() == 0


def test_a_coordinator_that_was_killed_with_its_shell_is_no_success(tmp_path: Path) -> None:
    """Workers end well, and srun tells the last of them."""
    job = SlurmJob(tmp_path, "exit 0", stream=True)
    assert job.run() == 137
    assert (job.state, job.attempts, job.num_requeues) == ("requeued", ["retry:137"], 1)
    job.srun_does(f'echo 0 >"{job.folder}/steps/train.status"; exit 137')  # a worker's
    assert job.run() == 0, job.log


def test_a_requeue_that_is_refused_is_tried_again(tmp_path: Path) -> None:
    job = SlurmJob(tmp_path, "exit 85")
    (tmp_path / "refusals").write_text("x\nx\n")
    assert job.run() == 85
    assert (job.state, job.attempts, job.num_requeues) == ("requeued", ["requeue:85"], 3)


def test_a_requeue_that_is_refused_for_good_is_told(tmp_path: Path) -> None:
    job = SlurmJob(tmp_path, "exit 85")
    (tmp_path / "refusals").write_text("x\n" * 9)
    assert job.run() == 85
    assert job.state == "failed"
    assert f"sbatch {job.folder}/job.sh" in job.log


@pytest.mark.parametrize(
    ("moment", "attempts", "state"),
    [
        ("2026-11-18T09:00:00", [], "failed"),  # of an earlier attempt: this one was killed
        ("2026-11-18T10:30:00", ["requeue:preempted"], "requeued"),
    ],
)
def test_an_earlier_preemption_is_no_excuse(
    tmp_path: Path, moment: str, attempts: list[str], state: str
) -> None:
    job = SlurmJob(tmp_path, "exit 137", max_retries=0)
    job.slurm_says({"preempted": moment})
    assert job.run() == 137
    assert (job.attempts, job.state) == (attempts, state)


@pytest.mark.parametrize(
    ("line", "attempts", "state"),
    [
        ("CANCELLED AT 2026-11-18T10:00:00 DUE TO PREEMPTION ***", ["requeue:preempted"], "requeued"),
        ("CANCELLED AT 2026-11-18T10:00:00 ***", [], "cancelled"),
    ],
)
def test_a_preemption_that_only_cancels(tmp_path: Path, line: str, attempts: list[str], state: str) -> None:
    job = SlurmJob(tmp_path, f"echo 'slurmstepd: error: *** JOB 7 ON n {line}'; exit 143", max_retries=0)
    job.slurm_says({}, {"state": "COMPLETING"})
    assert job.run() == 143
    assert (job.attempts, job.state) == (attempts, state)
    assert job.num_requeues == len(attempts)


def test_a_cancel_after_an_earlier_preemption_stays_one(tmp_path: Path) -> None:
    job = SlurmJob(tmp_path, "exit 143")
    (job.folder / "log.txt").write_text("slurmstepd: error: *** JOB 7 ON n CANCELLED DUE TO PREEMPTION ***\n")
    job.slurm_says({}, {"state": "COMPLETING"})
    assert job.run() == 143
    assert job.state == "cancelled"


@pytest.mark.parametrize("state", ["CONFIGURING", "SUSPENDED", "RESIZING", "SIGNALING"])
def test_a_job_that_is_still_on_its_nodes_goes_on(tmp_path: Path, state: str) -> None:
    job = SlurmJob(tmp_path, "exit 0")
    job.slurm_says({"state": state})
    assert job.run() == 0, job.log


def test_a_silent_controller_is_no_end(tmp_path: Path) -> None:
    job = SlurmJob(tmp_path, "exit 0")
    (tmp_path / "answers").write_text("")
    assert job.run() == 0, job.log


def test_tasks_get_the_script_s_variables_though_sbatch_exported_none(tmp_path: Path) -> None:
    job = SlurmJob(tmp_path, f'echo "$SLURM_EXPORT_ENV" >"{tmp_path}/said"')
    assert job.run(SLURM_EXPORT_ENV="NONE") == 0, job.log
    assert (tmp_path / "said").read_text() == "ALL\n"
