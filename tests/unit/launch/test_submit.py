"""The commands submit, jobs, logs, cancel and shell: real jobs of this machine, and schedulers that fail."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from portwright.cli import launch as cli_launch
from portwright.errors import UserError
from portwright.launch import local, registry, watch
from portwright.launch.interactive import make_shell
from portwright.launch.planning import Request
from portwright.launch.process_tree import living, marked
from portwright.launch.slurm import SlurmState
from portwright.launch.submit import prepare, refuse_same_model_dir, submit
from portwright.launch.times import now

# Behaves as a run.py does, without a framework: says its step, and waits where a file asks it to.
RUN = """\
import os, pathlib, signal, sys, time
words = sys.argv[1:]
model_dir = pathlib.Path(words[words.index("--model_dir") + 1])
params = pathlib.Path(words[words.index("--params") + 1]).read_text()
kind = "validate" if "--validate_only" in words else words[words.index("--mode") + 1]
here = pathlib.Path(__file__).parent
def save(number, frame):
    (model_dir / "checkpoint_5").mkdir(parents=True, exist_ok=True)
    print("saved", flush=True)
    sys.exit(85)
signal.signal(signal.SIGUSR1, save)
signal.signal(signal.SIGTERM, save)
# In one piece: print() writes the line's end apart where nothing is buffered, and tasks share the log.
os.write(1, f"{kind} is task {os.environ['RANK']} of {os.environ['WORLD_SIZE']}\\n".encode())
if "open-sesame" in params:
    print("has its params", flush=True)
while kind == "train" and (here / "wait").exists():
    time.sleep(0.02)
if kind == "train":
    model_dir.mkdir(parents=True, exist_ok=True)
if (here / f"{kind}.fails").exists():
    sys.exit(int((here / f"{kind}.fails").read_text()))
pathlib.Path(os.environ["PORTWRIGHT_END_NOTE"]).touch()
"""
PARAMS = "train_input: {}\\neval_input: {}\\noptimizer: {optimizer_type: sgd, learning_rate: 0.1}\\n".replace(
    "\\n", "\n"
)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("_LOOK_SECONDS", "LOCAL_POLL_SECONDS"):
        monkeypatch.setattr(watch, name, 0.1)
    for name in ("PORTWRIGHT_JOBS", "PORTWRIGHT_SITES", "SBATCH_ACCOUNT", "SLURM_ACCOUNT", "SLURM_CONF"):
        monkeypatch.delenv(name, raising=False)
    here = tmp_path / 'it\'s "my" $place'
    (here / "a model" / "configs").mkdir(parents=True)
    (here / "a model" / "run.py").write_text(RUN)
    (here / "a model" / "configs" / "params.yaml").write_text(PARAMS)
    monkeypatch.chdir(here)
    yield here
    for entry in registry.read_entries():
        for pid in marked(local.FOLDER_VARIABLE, str(entry.folder)):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def site(tmp_path: Path) -> str:
    """A site with SLURM, of which nothing is needed but its commands."""
    folder = tmp_path / "config" / "portwright" / "sites"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text('scheduler = "slurm"\ntarget = "CPU"\n[job]\ntime = "10"\n')
    return "mine"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Puts programs on PATH in place of SLURM's; those that are not named fail as where there is no cluster."""
    folder = tmp_path / "bin"
    folder.mkdir()
    silent = "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1"

    def put(**bodies: str) -> Path:
        for name in ("sbatch", "squeue", "scontrol", "scancel", "sinfo", "sacctmgr", "srun"):
            path = folder / name
            path.write_text(
                f'#!/bin/bash\nprintf "%s\\n" "{name} $*" >>"{tmp_path}/calls.txt"\n{bodies.get(name, silent)}\n'
            )
            path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        return tmp_path / "calls.txt"

    return put


def run(*words: str) -> Result:
    app = typer.Typer()
    for function in (
        cli_launch.submit,
        cli_launch.jobs,
        cli_launch.logs,
        cli_launch.cancel,
        cli_launch.shell,
    ):
        app.command()(function)
    return CliRunner().invoke(app, list(words))


def fails(*words: str) -> str:
    result = run(*words)
    assert isinstance(result.exception, UserError), result.output
    return str(result.exception)


def wait_until(is_so: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, "this never came"
        time.sleep(0.05)


def log_of(name: str) -> str:
    return registry.find_entry(name).folder.joinpath("log.txt").read_text()


def wait_for_end(name: str) -> SlurmState:
    folder = registry.find_entry(name).folder
    wait_until(lambda: local.job_state(folder).is_ended)
    return local.job_state(folder)


def test_a_job_is_submitted_followed_listed_and_read(place: Path) -> None:
    result = run("submit", "a model", "--site", "local", "--ntasks", "2", "-D", "model.password=open-sesame")
    assert result.exit_code == 0, result.output
    log = log_of("a-model-1")
    assert sorted(line for line in log.splitlines() if " is task " in line) == [
        "eval is task 0 of 1", "train is task 0 of 2", "train is task 1 of 2", "validate is task 0 of 1",
    ]  # fmt: skip
    assert "has its params" in log
    listed = json.loads(run("jobs", "--json").stdout)["jobs"]
    assert [(job["name"], job["state"]) for job in listed] == [("a-model-1", "done")]
    assert "a-model-1" in run("jobs").stdout
    assert "done" in run("jobs", "a-model-1").stdout
    assert json.loads(run("jobs", "a-model-1", "--json").stdout)["state"] == "done"
    assert run("logs", "a-model-1").stdout == log
    assert run("logs", "a-model-1", "--lines", "1").stdout == log.splitlines()[-1] + "\n"
    trained = run("logs", "a-model-1", "--step", "train").stdout
    assert "train is task 1 of 2" in trained
    assert "eval is" not in trained
    assert "validate is" not in trained
    assert run("logs", "a-model-1", "-f").stdout == log
    assert "has ended already" in run("cancel", "a-model-1").stdout
    assert "nothing" not in fails("logs", "a-model-1", "--step", "trian")


def test_no_secret_and_nobody_elses_eyes(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "hunter2")
    assert (
        run(
            "submit", "a model", "--site", "local", "-D", "model.password=open-sesame", "--pass", "MY_TOKEN"
        ).exit_code
        == 0
    )
    folder = registry.find_entry("a-model-1").folder
    texts = {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}
    assert [name for name, text in texts.items() if "hunter2" in text] == []
    assert [name for name, text in texts.items() if "open-sesame" in text] == ["params.yaml"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "params.yaml").stat().st_mode) == 0o600


def test_a_failed_step_ends_the_chain_with_its_status(place: Path) -> None:
    (place / "a model" / "train.fails").write_text("3")
    result = run("submit", "a model", "--site", "local")
    assert result.exit_code == 3
    assert "eval is task" not in log_of("a-model-1")
    result = run("submit", "a model", "--site", "local", "--json")
    assert result.exit_code == 3
    document = json.loads(result.stdout)
    assert (document["name"], document["state"], document["status"]) == ("a-model-2", "failed", 3)


def test_one_document_without_following(place: Path) -> None:
    document = json.loads(run("submit", "a model", "--site", "local", "--no-follow", "--json").stdout)
    assert document["scheduler_id"].isdecimal()
    assert document["steps"] == ["validate", "train", "eval"]
    assert wait_for_end("a-model-1").state == "done"


def test_a_running_job_is_cancelled_with_all_its_processes_and_goes_on_when_submitted_again(
    place: Path,
) -> None:
    (place / "a model" / "wait").touch()
    run("submit", "a model", "--site", "local", "--ntasks", "2", "--no-follow")
    folder = registry.find_entry("a-model-1").folder
    wait_until(lambda: log_of("a-model-1").count("train is task") == 2)
    assert json.loads(run("jobs", "--json").stdout)["jobs"][0]["state"] == "running"
    told = fails("submit", "a model", "--site", "local")
    assert "a-model-1" in told
    assert "--model_dir" in told
    assert len(registry.read_entries()) == 1
    assert (
        run(
            "submit", "a model", "--site", "local", "--model_dir", "else where", "--steps", "validate"
        ).exit_code
        == 0
    )
    said = run("cancel", str(folder)).stdout
    assert "half a minute" in said
    assert wait_for_end("a-model-1").state == "cancelled"
    assert living(marked(local.FOLDER_VARIABLE, str(folder))) == []
    assert log_of("a-model-1").count("saved") >= 2
    assert log_of("a-model-1").count("train begins") == 1  # not again
    (place / "a model" / "wait").unlink()
    assert run("submit", "a model", "--site", "local").exit_code == 0


def test_a_job_that_is_started_again_by_hand_is_a_job(place: Path, tmp_path: Path) -> None:
    (place / "a model" / "wait").touch()
    run("submit", "a model", "--site", "local", "--no-follow")
    folder = registry.find_entry("a-model-1").folder
    wait_until(lambda: "train is task" in log_of("a-model-1"))
    run("cancel", "a-model-1")
    wait_for_end("a-model-1")
    state = lambda: json.loads(run("jobs", "a-model-1", "--json").stdout)["state"]  # noqa: E731
    assert state() == "cancelled"
    assert registry.find_entry("a-model-1").ended == "cancelled"

    def start_by_hand(log: Path) -> subprocess.Popen[bytes]:
        words = ["bash", str(folder.relative_to(place) / "job.sh")]
        with log.open("wb") as file:
            process = subprocess.Popen(words, stdout=file, stderr=file)
        wait_until(lambda: "train is task" in log.read_text())
        return process

    script = start_by_hand(tmp_path / "by hand.txt")
    assert state() == "running"
    assert "a-model-1" in fails("submit", "a model", "--site", "local")
    assert "was ended" in run("cancel", "a-model-1").stdout
    assert script.wait(30) == 143  # it heard of it, too, and began no further step
    assert "saved" in (tmp_path / "by hand.txt").read_text()
    assert living(marked(local.FOLDER_VARIABLE, str(folder))) == []
    assert state() == "cancelled"
    assert "ended already" in run("cancel", "a-model-1").stdout

    script = start_by_hand(tmp_path / "again.txt")
    (place / "a model" / "wait").unlink()
    assert script.wait(60) == 0
    assert state() == "done"


def test_a_job_of_a_machine_that_is_gone_can_be_noted_as_cancelled(place: Path) -> None:
    folder = place / "portwright_jobs" / "old-1"
    folder.mkdir(parents=True)
    (folder / "supervisor.json").write_text('{"pid": 7, "started": "1@a", "host": "old-name"}')
    (folder / "state.json").write_text('{"state": "running"}')
    registry.write_entry(registry.Entry("old-1", folder, "local", "none", "7", now(), str(place / "m")))
    told = run("cancel", "old-1")
    assert told.exit_code == 2
    assert "old-name" in told.stdout
    assert "--force" in told.stdout
    with pytest.raises(UserError, match="old-1"):
        refuse_same_model_dir(place / "m")
    assert "noted as cancelled" in run("cancel", "--force", "old-1").stdout
    refuse_same_model_dir(place / "m")
    assert registry.find_entry("old-1").ended == "cancelled"


def test_a_task_that_is_killed_is_tried_again_and_the_log_goes_on(place: Path) -> None:
    (place / "a model" / "wait").touch()
    run("submit", "a model", "--site", "local", "--ntasks", "2", "--no-follow")
    folder = registry.find_entry("a-model-1").folder
    wait_until(lambda: log_of("a-model-1").count("train is task") == 2)
    tasks = [pid for pid in marked("RANK", "1") if pid in marked(local.FOLDER_VARIABLE, str(folder))]
    for pid in tasks:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: log_of("a-model-1").count("train is task") == 4)
    (place / "a model" / "wait").unlink()
    state = wait_for_end("a-model-1")
    assert (state.state, state.restarts) == ("done", 1)
    assert log_of("a-model-1").count("validate is task") == 1  # done before


def test_a_dry_run_writes_nothing(place: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    result = run("submit", "a model", "--site", "local", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "run_step train" in result.stdout
    assert "set -euo pipefail" in result.stdout
    document = json.loads(run("submit", "a model", "--site", "local", "--dry-run", "--json").stdout)
    assert "run_step train" in document["files"]["job.sh"]
    assert sorted(tmp_path.rglob("*")) == before


def test_errors_found_beforehand_stop_it_unless_forced(place: Path) -> None:
    bad = ("submit", "a model", "--site", "local", "-D", "optimizer.lerning_rate=1")
    result = run(*bad, "--dry-run")
    assert result.exit_code == 1
    assert "lerning_rate" in result.stdout
    told = fails(*bad)
    assert "lerning_rate" in told
    assert "--force" in told
    assert registry.read_entries() == []
    assert not (place / "portwright_jobs").exists()
    assert run(*bad, "--force").exit_code == 0


def test_a_refused_job_leaves_word_and_can_be_submitted_again(
    site: str, programs: Callable[..., Path], place: Path
) -> None:
    programs(sbatch="echo 'sbatch: error: Batch job submission failed: Invalid account' >&2; exit 1")
    told = fails("submit", "a model", "--site", site, "--no-follow", "--force")
    assert "Invalid account" in told
    assert "can be given again" in told
    entry = registry.find_entry("a-model-1")
    assert not entry.was_taken
    assert "Invalid account" in entry.error
    assert "not submitted" in (entry.folder / "log.txt").read_text()
    assert json.loads(run("jobs", "--json").stdout)["jobs"][0]["state"] == "not taken"
    assert "never submitted" in run("cancel", "a-model-1").stdout
    programs(sbatch="echo 41")
    assert run("submit", "a model", "--site", site, "--no-follow", "--force").exit_code == 0
    assert registry.find_entry("41").name == "a-model-2"
    assert (registry.find_entry("41").folder / "scheduler_id").read_text() == "41\n"


def test_a_scheduler_that_does_not_answer_is_told_and_nothing_is_lost(
    site: str, programs: Callable[..., Path], place: Path
) -> None:
    programs(sbatch="echo 41")
    run("submit", "a model", "--site", site, "--no-follow", "--force")
    listed = json.loads(run("jobs", "--json").stdout)["jobs"]
    assert listed[0]["unanswered"]
    assert "does not answer" in run("jobs").output
    assert "does not answer" in fails("submit", "a model", "--site", site, "--force")  # is model_dir free?
    assert run("cancel", "a-model-1").exit_code == 2
    assert not registry.find_entry("a-model-1").ended


def test_an_answer_that_was_lost_is_looked_for(site: str, programs: Callable[..., Path], place: Path) -> None:
    lost = "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"
    calls = programs(sbatch=lost, squeue="echo 77")
    run("submit", "a model", "--site", site, "--no-follow", "--force")
    assert registry.find_entry("77").name == "a-model-1"
    assert "--name=a-model-1" in calls.read_text()


def test_a_submission_that_was_cut_off_is_found_in_the_queue(
    site: str, programs: Callable[..., Path], tmp_path: Path
) -> None:
    programs(squeue="echo 78")
    registry.write_entry(registry.Entry("cut-1", tmp_path, site, "slurm", submitted="now", model_dir="/m"))
    run("jobs", "--json")
    assert registry.find_entry("cut-1").scheduler_id == "78"


def test_names_taken_meanwhile_are_passed_over(place: Path) -> None:
    prepared = prepare(Request("a model", name="mine", steps="validate"))
    (place / "portwright_jobs" / "mine").mkdir(parents=True)
    (place / "portwright_jobs" / "mine" / "something").touch()
    entry = submit(prepared)
    assert entry.name == "mine-2"
    assert "mine-2" in (entry.folder / "job.sh").read_text()
    assert wait_for_end("mine-2").state == "done"


def test_a_link_to_the_same_model_dir_is_the_same(place: Path, tmp_path: Path) -> None:
    (place / "a model" / "wait").touch()
    run("submit", "a model", "--site", "local", "--no-follow")
    (place / "a model" / "model_dir").mkdir(exist_ok=True)
    (place / "link").symlink_to(place / "a model" / "model_dir")
    with pytest.raises(UserError, match="a-model-1"):
        refuse_same_model_dir(place / "link")
    refuse_same_model_dir(place / "other")
    (place / "a model" / "wait").unlink()
    wait_for_end("a-model-1")
    refuse_same_model_dir(place / "link")


def test_jobs_that_are_not_there(place: Path) -> None:
    assert "no job has been submitted" in run("jobs").stdout
    assert "there is no job 'x'" in fails("jobs", "x")
    assert "there is no job 'x'" in fails("logs", "x")
    assert "there is no job 'x'" in fails("cancel", "x")
    assert "-f follows one job" in fails("jobs", "-f")


def test_the_shell_of_a_site_with_a_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(
        "shell", "--site", "neocortex", "--account", "ABC", "--time", "30", "--bind", "/data:/d", "--dry-run"
    )
    assert result.exit_code == 0, result.output
    words = make_shell(Request("", site="neocortex", account="abc", time="30")).words
    assert words[:2] == ("srun", "--pty")
    assert {"--account=abc", "--partition=sdf", "--time=0:30:00", "--ntasks=1"} < set(words)
    assert [word for word in words if word.startswith("--cpus-per-task")] == ["--cpus-per-task=28"]
    assert not any(word.startswith("--gres") for word in words)  # compiling needs no device
    assert words[-3:-1] == ("bash", "-c")
    assert "exec singularity shell --cleanenv" in words[-1]
    assert "CS_IP_ADDR" in words[-1]
    assert "/data:/d" in result.stdout
    given = make_shell(
        Request("", site="neocortex", account="abc", gres="cs:cerebras:1", cpus_per_task=3)
    ).words
    assert {"--gres=cs:cerebras:1", "--cpus-per-task=3"} < set(given)


def test_the_shell_of_this_machine(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setenv("SHELL", "/bin/my shell")
    assert (
        run("shell", "--site", "local", "--env", "A=b c", "--dry-run").stdout == "A='b c' '/bin/my shell'\n"
    )
    assert "charges" in fails("shell", "--site", "neocortex", "--dry-run")
    monkeypatch.setenv("SHELL", "/nowhere/shell")
    assert "cannot start /nowhere/shell" in fails("shell", "--site", "local")


def test_a_job_that_nobody_knows_any_more_is_in_nobodys_way(
    site: str, programs: Callable[..., Path], place: Path
) -> None:
    programs(
        sbatch="echo 41",
        scontrol="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1",
        squeue="",
        scancel="",
    )
    run("submit", "a model", "--site", site, "--no-follow", "--force")
    assert "a-model-1" in fails("submit", "a model", "--site", site, "--no-follow", "--force")
    assert "noted as cancelled" in run("cancel", "a-model-1").stdout
    assert run("submit", "a model", "--site", site, "--no-follow", "--force").exit_code == 0
    shutil.rmtree(place / "portwright_jobs")
    assert json.loads(run("jobs", "a-model-2", "--json").stdout)["state"] == "failed"
    assert registry.find_entry("a-model-2").ended == "failed"


def test_a_cluster_that_queues_by_itself(programs: Callable[..., Path], tmp_path: Path, place: Path) -> None:
    """The training runs in a process here; what it has started there is found by its label."""
    folder = tmp_path / "bin"
    calls = programs()
    listed = "NAME     TYPE     PHASE    LABELS        \\nwsjob-a  execute  RUNNING  name=cfg-1    \\nwsjob-b  execute  RUNNING  name=other-1"
    for name, body in {
        "csctl": f'echo "csctl $*" >>"{calls}"; [ "$1" != get ] || printf "{listed}\\n"',
        "cszoo": f'echo "cszoo $*" >>"{calls}"; echo begun; exec sleep 600',
    }.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    (place / "cfg.yaml").write_text("trainer: {init: {}}\n")
    result = run(
        "submit", "cfg.yaml", "--site", "alcf-cerebras", "--steps", "train", "--no-follow", "--force"
    )
    assert result.exit_code == 0, result.output
    wait_until(lambda: "begun" in log_of("cfg-1"))
    assert json.loads(run("jobs", "cfg-1", "--json").stdout)["state"] == "running"
    assert "ended wsjob-a on the cluster" in run("cancel", "cfg-1").stdout
    assert wait_for_end("cfg-1").state == "cancelled"
    said = calls.read_text()
    assert "cszoo fit " in said
    assert "--job_labels name=cfg-1" in said
    assert "csctl cancel job wsjob-a\n" in said
    assert "wsjob-b" not in said
