"""Checks before the queue, with SLURM's answers as release 22.05.8 printed them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from portwright.launch import check_paths, check_run
from portwright.launch.check_paths import needed_paths
from portwright.launch.check_run import parse_quota
from portwright.launch.checks import Answer, Finding, check_job, run_program
from portwright.launch.job import Container, Job, Resources, Step
from portwright.launch.site import Site
from portwright.launch.slurm import Gres, parse_gres, read_nodes, read_partitions

# Recorded: scontrol -o show partition, of a cluster made for it.
PARTITION = (
    "PartitionName={name} AllowGroups={groups} AllowAccounts={accounts} AllowQos=ALL AllocNodes=ALL Default={default} QoS=N/A "
    "DefaultTime=04:00:00 DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO MaxNodes={max_nodes} MaxTime={max_time} "
    "MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED Nodes=chk-1 PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO "
    "OverSubscribe=NO OverTimeLimit=NONE PreemptMode=OFF State={state} TotalCPUs=16 TotalNodes={nodes} "
    "SelectTypeParameters=NONE JobDefaults=(null) DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED "
    "TRES=cpu=16,mem=62.50G,node=1,billing=16"
)
DEFAULTS = {
    "groups": "ALL", "accounts": "ALL", "default": "NO", "max_nodes": "UNLIMITED", "max_time": "UNLIMITED", "state": "UP",
    "nodes": "2",
}  # fmt: skip
PARTITIONS = "\n".join(
    PARTITION.format(**{**DEFAULTS, **values})
    for values in (
        {"name": "sdf", "default": "YES", "max_time": "2-00:00:00"},
        {"name": "RM", "max_nodes": "1"},
        {"name": "off", "state": "DOWN"},
        {"name": "acct", "accounts": "special,other"},
        {"name": "closed", "groups": "nobodyhere"},
    )
)
NODES = "chk-1|16|64000|cs:cerebras:1|idle\nchk-2|16|64000|gpu:v100-32:8(S:0-1),nvme:1|mixed\n"
STARTS = "sbatch: Job 1 to start at 2026-11-16T19:42:28 using 1 processors on nodes chk-1 in partition sdf\n"
NO_SLURM = Answer(1, "", "sinfo: error: fetch_config: DNS SRV lookup failed\nscontrol: fatal: Could not establish a configuration source\n")  # fmt: skip
NO_ACCOUNTING = Answer(1, "", "You are not running a supported accounting_storage plugin\nOnly 'accounting_storage/slurmdbd' is supported.\n")  # fmt: skip


class Programs:
    """Answers for programs, by their first words; what is not answered is not on the machine."""

    def __init__(self, **changed: Answer | str) -> None:
        self.answers: dict[str, Answer | str] = {
            "scontrol": PARTITIONS, "sinfo": NODES, "sbatch": Answer(0, "", STARTS), "id": "ana abc123p users\n",
            "sacctmgr": NO_ACCOUNTING, "sshare": "", "quota": "", **changed,
        }  # fmt: skip
        self.calls: list[list[str]] = []
        self.script = ""

    def __call__(self, words: Sequence[str], *, timeout_seconds: float = 15.0) -> Answer:
        assert 0 < timeout_seconds < 600
        self.calls.append(list(words))
        if words[0] == "sbatch":
            self.script = Path(words[-1]).read_text()
        answer = self.answers.get(words[0], Answer(None, err=f"there is no {words[0]} here"))
        return Answer(0, answer) if isinstance(answer, str) else answer


def make_site(folder: Path, **changed: Any) -> Site:
    tables = {
        "name": "here", "scheduler": "slurm", "target": "CPU",
        "storage": {"shared": [str(folder)]}, **changed,
    }  # fmt: skip
    return Site.model_validate(tables)


def make_job(folder: Path, site: Site | None = None, **asked: Any) -> Job:
    return Job(
        name="mnist-1",
        folder=folder / "jobs" / "mnist-1",
        workdir=folder,
        site=site or make_site(folder),
        target="CPU",
        steps=(Step("train", asked.get("ntasks", 1), ("python", "run.py")),),
        resources=Resources(**asked),
        model_dir=folder / "model_dir",
    )


def levels(findings: list[Finding], level: str) -> list[str]:
    return [finding.what for finding in findings if finding.level == level]


def errors(job: Job, params: Mapping[str, Any] | None = None, **programs: Answer | str) -> list[Finding]:
    found = check_job(job, params or {}, run=Programs(**programs))
    return [finding for finding in found if finding.level == "error"]


def only_error(job: Job, params: Mapping[str, Any] | None = None, **programs: Answer | str) -> Finding:
    (found,) = errors(job, params, **programs)
    assert found.what.endswith(".")
    assert found.cure.endswith((".", "one."))
    return found


def test_a_good_job_has_no_errors(tmp_path: Path) -> None:
    programs = Programs()
    found = check_job(make_job(tmp_path, minutes=60, gres="cs:cerebras:1"), {}, run=programs)
    assert {finding.level for finding in found} == {"note"}
    assert any("about 2026-11-16T19:42:28 on chk-1" in note for note in levels(found, "note"))
    assert programs.script.startswith("#!")
    assert "#SBATCH --gres=cs:cerebras:1" in programs.script
    assert not (tmp_path / "jobs").exists()


# -- a machine that is not the site's -------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [NO_SLURM, Answer(None, err="there is no scontrol here"), Answer(0, "")])
def test_without_slurm_nothing_fails(tmp_path: Path, answer: Answer) -> None:
    site = make_site(tmp_path, storage={"shared": ["/ocean-that-is-not-here"]})
    programs = Programs(scontrol=answer)
    job = make_job(tmp_path, site, partition="nope", gres="zz:9", account="none-such", minutes=10)
    found = check_job(job, {}, run=programs)
    assert {finding.level for finding in found} == {"note"}
    assert any("were not checked here" in note for note in levels(found, "note"))
    assert {call[0] for call in programs.calls} <= {"scontrol", "id"}


def test_what_a_site_without_slurm_needs_is_asked_of_no_slurm(tmp_path: Path) -> None:
    programs = Programs()
    found = check_job(make_job(tmp_path, make_site(tmp_path, scheduler="none")), {}, run=programs)
    assert levels(found, "error") == levels(found, "warning") == []
    assert programs.calls == []
    csctl = check_job(make_job(tmp_path, make_site(tmp_path, scheduler="csctl")), {}, run=Programs())
    assert "csctl does not answer" in csctl[0].what


def test_the_real_runner_never_hangs_and_never_raises() -> None:
    assert run_program(["no-such-program-anywhere"]).status is None
    slow = run_program(["sleep", "30"], timeout_seconds=0.2)
    assert (slow.status, "did not answer" in slow.words) == (None, True)
    assert run_program(["sh", "-c", "printf '\\377'; echo a >&2; echo b >&2; exit 3"]) == Answer(
        3, "�", "a\nb\n"
    )
    assert Answer(1, "x", "a\nb\n").words == "b"


# -- account --------------------------------------------------------------------------------------------------------------


def test_account_required(tmp_path: Path) -> None:
    site = make_site(tmp_path, job={"account": "required", "account_lower": True})
    found = only_error(make_job(tmp_path, site))
    assert "none is given" in found.what
    assert "abc123p" in found.cure
    found = only_error(make_job(tmp_path, site, account="ABC123P"))
    assert "received 'ABC123P'" in found.what
    assert found.cure == "Give --account abc123p."
    assert errors(make_job(tmp_path, site, account="abc123p")) == []


def test_an_account_that_is_no_group_is_a_warning_without_accounting(tmp_path: Path) -> None:
    site = make_site(tmp_path, job={"account": "required", "account_lower": True})
    found = check_job(make_job(tmp_path, site, account="abc132p"), {}, run=Programs())
    (warning,) = [finding for finding in found if finding.level == "warning"]
    assert "Did you mean 'abc123p'?" in warning.cure


@pytest.mark.parametrize(
    "programs",
    [{"sacctmgr": "abc123p\nother\n"}, {"sacctmgr": NO_ACCOUNTING, "sshare": "abc123p|\n  other|\n"}],
)
def test_accounting_that_answers_decides(tmp_path: Path, programs: dict[str, Answer | str]) -> None:
    assert errors(make_job(tmp_path, account="abc123p"), **programs) == []
    found = only_error(make_job(tmp_path, account="abc132p"), **programs)
    assert "no account 'abc132p'" in found.what
    assert "Did you mean 'abc123p'?" in found.cure


@pytest.mark.parametrize("error", [KeyError("getpwuid(): uid not found: 12345"), OSError("No username set")])
def test_a_user_without_a_name_is_asked_about_by_sshare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def raises() -> str:
        raise error

    monkeypatch.setattr("getpass.getuser", raises)
    programs = Programs(sacctmgr="of-another\n", sshare="abc123p|\n")
    found = check_job(make_job(tmp_path, account="abc123p"), {}, run=programs)
    assert levels(found, "error") == []
    assert "sacctmgr" not in {call[0] for call in programs.calls}


def test_an_account_where_there_are_none(tmp_path: Path) -> None:
    site = make_site(tmp_path, job={"account": "none"})
    found = check_job(make_job(tmp_path, site, account="x"), {}, run=Programs())
    assert len(levels(found, "warning")) == 1


# -- partition and size ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "what", "cure"),
    [
        ({"partition": "sfd"}, "no partition 'sfd'", "Did you mean 'sdf'?"),
        ({"partition": "off"}, "off is DOWN", "another --partition"),
        ({"partition": "acct", "account": "foo"}, "takes no account 'foo'", "other, special"),
        ({"partition": "acct"}, "(none is given)", "other, special"),
        ({"minutes": 6000}, "at most 2-00:00:00, received --time 4-04:00:00", "Give --time 2-00:00:00"),
        ({"partition": "RM", "nodes": 2}, "at most 1 node(s), received --nodes 2", "fewer nodes"),
        ({"nodes": 3}, "at most 2 node(s)", "fewer nodes"),
        ({"ntasks": 40}, "40 tasks of 1 CPU(s) do not fit on 2 node(s) of sdf, which take 32", "--ntasks"),
        ({"ntasks": 20, "nodes": 1}, "do not fit on 1 node(s)", "more nodes"),
        ({"ntasks": 3, "cpus_per_task": 9}, "which take 2", "--cpus-per-task"),
        ({"cpus_per_task": 40}, "40 CPUs for one task; the largest has 16", "--cpus-per-task"),
        ({"memory": "900G"}, "900G of memory; the largest has 62G", "--memory"),
        ({"gres": "zz:1"}, "no node of the partition sdf has zz:1", "cs:cerebras:1, gpu:v100-32:8, nvme:1"),
        ({"gres": "cs:cerebras:4"}, "has cs:cerebras:4", "cs:cerebras:1"),
        ({"gres": "cs:wse3:1"}, "has cs:wse3:1", "cs:cerebras:1"),
        ({"gres": "cs:cerebras:1", "nodes": 2}, "only 1 node(s) of sdf have", "fewer nodes"),
        ({"gres": "cs:cerebras:1,gpu:1"}, "has gpu:1", "--gres"),
        ({"minutes": 2, "grace_seconds": 120}, "as soon as it begins", "longer --time"),
    ],
)  # fmt: skip
def test_what_a_partition_does_not_have(tmp_path: Path, asked: dict[str, Any], what: str, cure: str) -> None:
    found = only_error(make_job(tmp_path, **asked))
    assert what in found.what
    assert cure in found.cure


@pytest.mark.parametrize(
    "asked",
    [{"gres": "gpu:v100-32:8"}, {"gres": "gpu:2"}, {"gres": "gpu"}, {"gres": "gpu:8,nvme:1"}, {"ntasks": 32},
     {"ntasks": 2, "cpus_per_task": 9}, {"memory": "0"}, {"memory": "64000"}, {"memory": "62G"}, {"minutes": 2880},
     {"partition": "off,RM"}, {"partition": "RM", "minutes": 100000}],
)  # fmt: skip
def test_what_it_has(tmp_path: Path, asked: dict[str, Any]) -> None:
    assert errors(make_job(tmp_path, **asked)) == []


def test_groups_of_a_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = only_error(make_job(tmp_path, partition="closed"))
    assert "for the groups nobodyhere" in found.what
    assert errors(make_job(tmp_path, partition="closed"), id="nobodyhere\n") == []


def test_no_default_partition(tmp_path: Path) -> None:
    found = only_error(make_job(tmp_path), scontrol=PARTITIONS.replace("Default=YES", "Default=NO"))
    assert "no partition is given" in found.what
    assert "sdf" in found.cure


def test_nodes_out_of_service_are_a_warning(tmp_path: Path) -> None:
    found = check_job(
        make_job(tmp_path), {}, run=Programs(sinfo="n1|16|64000|(null)|down*\nn2|16|64000|(null)|drained\n")
    )
    (told,) = levels(found, "warning")
    assert "down*, drained" in told


def test_a_silent_sinfo_is_a_note(tmp_path: Path) -> None:
    found = check_job(make_job(tmp_path, gres="zz:1"), {}, run=Programs(sinfo=Answer(1, "", "timed out")))
    assert levels(found, "error") == []
    assert any("nodes of sdf were not checked" in note for note in levels(found, "note"))


@pytest.mark.parametrize(
    ("text", "gres"),
    [
        ("(null)", ()),
        ("gpu:8", (Gres("gpu", None, 8),)),
        ("gpu", (Gres("gpu", None, 1),)),
        ("gpu:a100", (Gres("gpu", "a100", 1),)),
        ("gpu:v100-32:8(S:0-1),nvme:1", (Gres("gpu", "v100-32", 8), Gres("nvme", None, 1))),
        ("gres/gpu:2", (Gres("gpu", None, 2),)),
        ("craynetwork:4,mem:2K", (Gres("craynetwork", None, 4), Gres("mem", None, 2048))),
        ("gpu:1g.5gb:2", (Gres("gpu", "1g.5gb", 2),)),
        ("gpu:h100:4(S:0,2)", (Gres("gpu", "h100", 4),)),
    ],
)
def test_devices_as_slurm_writes_them(text: str, gres: tuple[Gres, ...]) -> None:
    assert parse_gres(text) == gres


def test_rubbish_of_programs_is_borne() -> None:
    partitions, _ = read_partitions(
        Programs(scontrol="garbage\n\0\nPartitionName=a MaxTime=odd TotalNodes=x\n")
    )
    assert partitions is not None
    assert partitions["a"].max_minutes is None
    assert read_nodes("a", Programs(sinfo="a|b\n||||\nn1|x|y|z|idle\n"))


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (Answer(1, "", "allocation failure: Requested node configuration is not available\n"), "No node of the partition has"),
        (Answer(1, "", "sbatch: error: Invalid account or account/partition combination specified\n"), "SLURM does not know the account"),
        (Answer(1, "", "allocation failure: Unable to contact slurm controller (connect failure)\n"), "controller does not answer"),
        (Answer(255, "", "sbatch: unrecognized option '--bogus'\n"), "unrecognized option '--bogus'"),
        (Answer(9, "", "something new\n"), "something new"),
        (Answer(9), "status 9"),
    ],
)  # fmt: skip
def test_what_sbatch_says_is_explained(tmp_path: Path, answer: Answer, what: str) -> None:
    found = only_error(make_job(tmp_path), sbatch=answer)
    assert found.what.startswith("sbatch refuses the job")
    assert what in found.what


# -- time -----------------------------------------------------------------------------------------------------------------


def write_run(
    model_dir: Path, *, rate: float, step: int = 100, size: int = 1000, save_seconds: float = 0
) -> None:
    """A run that ended at `step`, with one checkpoint."""
    (model_dir / "train").mkdir(parents=True)
    lines = [
        {"step": number, "kind": "train", "values": {"loss": 1.0, "steps_per_second": rate}, "time_seconds": number / rate, "wall_time": 1e9 + number / rate}
        for number in range(10, step + 1, 10)
    ]  # fmt: skip
    (model_dir / "train" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    folder = model_dir / f"checkpoint_{step}"
    folder.mkdir()
    now = time.time()
    for name, moment in (("weights.bin", now - save_seconds), ("manifest.json", now)):
        (folder / name).write_bytes(b"x" * (size // 2))
        os.utime(folder / name, (moment, moment))


def test_the_estimate_counts_requeues(tmp_path: Path) -> None:
    write_run(tmp_path / "model_dir", rate=2.0)
    params = {"runconfig": {"max_steps": 20_000}}
    found = check_job(make_job(tmp_path, minutes=62, grace_seconds=120), params, run=Programs())
    (told,) = [note for note in levels(found, "note") if "steps are left" in note]
    assert "19900 steps are left, at 2 steps/s" in told
    assert "2:46:00" in told
    assert "about 2 time(s)" in told
    found = check_job(make_job(tmp_path, minutes=300), params, run=Programs())
    assert any("within the limit of 5:00:00" in note for note in levels(found, "note"))


def test_a_short_limit_without_checkpoints_is_an_error(tmp_path: Path) -> None:
    write_run(tmp_path / "model_dir", rate=2.0)
    params = {"runconfig": {"max_steps": 20_000, "checkpoint_steps": 0}}
    assert "nothing is saved" in only_error(make_job(tmp_path, minutes=62), params).what


@pytest.mark.parametrize(
    ("runconfig", "left"),
    [({"num_steps": 50, "max_steps": 1000}, 50), ({"num_epochs": 3, "steps_per_epoch": 100}, 200), ({"max_steps": 100}, 0),
     ({"max_steps": 40}, 0)],
)  # fmt: skip
def test_steps_that_are_left(tmp_path: Path, runconfig: dict[str, Any], left: int) -> None:
    write_run(tmp_path / "model_dir", rate=2.0)
    found = check_job(make_job(tmp_path, minutes=62), {"runconfig": runconfig}, run=Programs())
    assert any(note.startswith(f"{left} steps are left") for note in levels(found, "note"))


@pytest.mark.parametrize(
    "params",
    [{}, {"runconfig": None}, {"runconfig": {"max_steps": "many"}}, {"runconfig": {"num_epochs": 3}}],
)
def test_an_estimate_that_is_not_known_is_said(tmp_path: Path, params: dict[str, Any]) -> None:
    found = check_job(make_job(tmp_path, minutes=62), params, run=Programs())
    assert any("no earlier run" in note for note in levels(found, "note"))
    write_run(tmp_path / "model_dir", rate=2.0)
    found = check_job(make_job(tmp_path, minutes=62), params, run=Programs())
    assert any("do not say how many steps" in note for note in levels(found, "note"))


def test_damaged_metrics_are_no_estimate(tmp_path: Path) -> None:
    folder = tmp_path / "model_dir" / "train"
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_bytes(b"\0\0{]\n\xff\n")
    assert errors(make_job(tmp_path, minutes=62), {"runconfig": {"max_steps": 9}}) == []


def test_grace_against_the_time_of_a_checkpoint(tmp_path: Path) -> None:
    write_run(tmp_path / "model_dir", rate=2.0, save_seconds=90)
    found = check_job(make_job(tmp_path, minutes=62, grace_seconds=120), {}, run=Programs())
    (told,) = [finding for finding in found if finding.level == "warning"]
    assert "at least 90 s" in told.what
    assert "220" in told.cure
    assert (
        levels(check_job(make_job(tmp_path, minutes=62, grace_seconds=300), {}, run=Programs()), "warning")
        == []
    )


def test_the_limit_of_the_site(tmp_path: Path) -> None:
    site = make_site(tmp_path, job={"max_time": "1:00:00"})
    assert "here takes jobs of at most 1:00:00" in only_error(make_job(tmp_path, site, minutes=61)).what


# -- paths ----------------------------------------------------------------------------------------------------------------


def test_paths_of_params(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    params = {
        "train_input": {"data_dir": ["data", str(tmp_path / "nö such"), "s3://bucket/x", None], "vocab_file": "v.txt"},
        "eval_input": {"data_dir": "", "nested": {"label_files": ["$DATA/x", "a*.csv"]}},
        "runconfig": {"checkpoint_path": "c/checkpoint_1", "mount_dirs": ["/no/mount"], "compile_dir": "later"},
        "model": {"vocab_file": 3},
    }  # fmt: skip
    job = make_job(tmp_path)
    found = check_job(job, params, run=Programs())
    assert levels(found, "error")[:3] == [
        f"train_input.data_dir '{tmp_path}/nö such' does not exist.",
        f"train_input.vocab_file '{tmp_path}/v.txt' does not exist.",
        f"runconfig.checkpoint_path '{tmp_path}/c/checkpoint_1' does not exist.",
    ]
    assert "runconfig.mount_dirs '/no/mount' does not exist." in levels(found, "warning")
    assert not any("later" in finding.what for finding in found)


def test_paths_that_may_not_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    forbidden = {tmp_path / "data", tmp_path}
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) not in forbidden)
    job = replace(make_job(tmp_path), model_dir=tmp_path / "file" / "below")
    told = levels(
        check_job(job, {"train_input": {"data_dir": "data", "x_path": "link"}}, run=Programs()), "error"
    )
    assert f"train_input.data_dir '{tmp_path}/data' may not be read by you." in told
    assert f"model_dir '{tmp_path}/file/below' lies below the file '{tmp_path}/file'." in told
    assert any("cannot be written" in what and "the job's folder" in what for what in told)
    assert any("link' does not exist" in what for what in told)
    told = levels(check_job(replace(job, model_dir=tmp_path / "file"), {}, run=Programs()), "error")
    assert f"model_dir '{tmp_path}/file' is a file, not a folder." in told


def test_file_systems_that_nodes_do_not_see(tmp_path: Path) -> None:
    shared = tmp_path / "ocean"
    shared.mkdir()
    (tmp_path / "to-ocean").symlink_to(shared)
    site = make_site(tmp_path, storage={"shared": [str(shared)]})
    job = replace(make_job(shared, site), model_dir=tmp_path / "elsewhere")
    found = only_error(job)
    assert f"model_dir '{tmp_path}/elsewhere'" in found.what
    assert str(shared) in found.cure
    assert errors(replace(job, model_dir=tmp_path / "to-ocean" / "run")) == []  # a link that leads there
    on_nodes = make_site(tmp_path, storage={"shared": [str(shared)], "on_nodes": ["/local1"]})
    assert errors(make_job(shared, on_nodes), {"train_input": {"data_dir": "/local1/data"}}) == []


def test_the_interpreter(tmp_path: Path) -> None:
    assert errors(replace(make_job(tmp_path), python="/usr/bin/env")) == []
    gone = replace(make_job(tmp_path), python=str(tmp_path / "venv/bin/python"))
    assert only_error(gone).what == f"the interpreter '{tmp_path}/venv/bin/python' does not exist."
    assert errors(replace(make_job(tmp_path), python="python3")) == []


def test_where_the_site_lists_none_only_local_disks_are_suspicious(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mounts"
    table.write_text(f"server:/x {tmp_path} nfs rw 0 0\n/dev/sda1 / ext4 rw 0 0\n")
    monkeypatch.setattr(check_paths, "MOUNTS", table)
    monkeypatch.setattr("portwright.launch.check_paths._LOCAL", ("/tmp-of-this-test",))
    site = make_site(tmp_path, storage={"shared": []})
    found = check_job(make_job(tmp_path, site), {}, run=Programs())
    assert levels(found, "warning") == levels(found, "error") == []
    monkeypatch.setattr("portwright.launch.check_paths._LOCAL", (str(tmp_path),))
    (told,) = levels(check_job(make_job(tmp_path, site), {}, run=Programs()), "warning")
    assert told.startswith("on a disk that each machine has of its own")
    assert told.count(str(tmp_path)) == 3  # one finding for all
    monkeypatch.setattr("portwright.launch.check_paths._LOCAL", ())
    table.write_text("/dev/sda1 / ext4 rw 0 0\n")
    assert any(
        "(ext4)" in note for note in levels(check_job(make_job(tmp_path, site), {}, run=Programs()), "note")
    )


def test_a_file_system_that_this_machine_has_not(tmp_path: Path) -> None:
    site = make_site(tmp_path, storage={"shared": ["/no-such-ocean", str(tmp_path)]})
    params = {"train_input": {"data_dir": "/no-such-ocean/data"}}
    found = check_job(make_job(tmp_path, site), params, run=Programs())
    assert levels(found, "error") == []
    assert any("this machine has no /no-such-ocean" in note for note in levels(found, "note"))


def test_odd_names(tmp_path: Path) -> None:
    odd = tmp_path / "a b'c\"d$(e)%jü"
    odd.mkdir()
    assert errors(make_job(odd, make_site(tmp_path))) == []
    (odd / "a\nb").mkdir()
    assert "line break" in only_error(make_job(odd / "a\nb", make_site(tmp_path))).what
    assert [
        finding.level for finding in errors(make_job(tmp_path), {"train_input": {"data_dir": "x" * 5000}})
    ] == ["error"]
    assert errors(make_job(tmp_path), {"train_input": {"data_dir": "nul\0byte"}})


# -- image ----------------------------------------------------------------------------------------------------------------

SIF = b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\x0001\0" + b"\0" * 100


def with_image(folder: Path, content: bytes | None, kind: str = "apptainer", **changed: Any) -> Job:
    image = folder / "image.sif"
    if content is not None:
        image.write_bytes(content)
    container = Container(kind=kind, image=str(image), binds=((str(folder), str(folder)),), **changed)  # type: ignore[arg-type]
    return replace(make_job(folder), container=container)


@pytest.mark.parametrize(
    ("content", "kind", "what"),
    [
        (SIF, "apptainer", None),
        (SIF, "singularity", None),
        (b"hsqs" + b"\0" * 99, "apptainer", None),
        (b"#!/usr/bin/env run-singularity\nhsqs", "singularity", None),
        (b"\0" * 1080 + b"\x53\xef", "singularity", None),
        (b"hsqs" + b"\0" * 99, "ch-run", None),
        (SIF, "ch-run", "no SquashFS file but a SIF file"),
        (b"", "apptainer", "is empty"),
        (b"<!DOCTYPE html>", "apptainer", "a page of HTML"),
        (b"version https://git-lfs.github.com/spec/v1", "apptainer", "Git LFS"),
        (b"\x1f\x8b\x08", "ch-run", "gzip"),
        (b"hello", "apptainer", "begins with b'hello'"),
        (None, "apptainer", "does not exist"),
    ],
)
def test_images(tmp_path: Path, content: bytes | None, kind: str, what: str | None) -> None:
    found = errors(with_image(tmp_path, content, kind))
    if what is None:
        assert found == []
    else:
        assert what in found[0].what
        assert "--image" in found[0].cure


def test_image_folders_and_copies_on_nodes(tmp_path: Path) -> None:
    job = with_image(tmp_path, None)
    image = tmp_path / "image.sif"
    image.mkdir()
    assert "the root of a system (it has nothing)" in only_error(job).what
    (image / "usr").mkdir()
    assert errors(job) == []
    (image / "usr").rmdir()
    image.rmdir()
    job = with_image(tmp_path, None, images_on_nodes=("/local1/x.sif",))
    assert errors(job) == []
    assert any("/local1/x.sif" in what for what in levels(check_job(job, {}, run=Programs()), "warning"))


def test_an_image_from_the_outside_is_a_warning(tmp_path: Path) -> None:
    job = replace(make_job(tmp_path), container=Container("apptainer", "docker://python", ()))
    assert any("docker://python" in what for what in levels(check_job(job, {}, run=Programs()), "warning"))


def test_a_bind_that_is_missing(tmp_path: Path) -> None:
    job = with_image(tmp_path, SIF)
    assert job.container is not None
    binds = (*job.container.binds, (str(tmp_path / "gone"), "/data"))
    job = replace(job, container=replace(job.container, binds=binds))
    assert only_error(job).what == f"the bound path '{tmp_path}/gone' does not exist."


# -- room -----------------------------------------------------------------------------------------------------------------


class Disk:
    f_frsize, f_files, f_favail = 1, 100, 50

    def __init__(self, free: int) -> None:
        self.f_bavail = free


def test_room_for_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "model_dir", rate=1.0, size=1 << 20)
    monkeypatch.setattr(check_run.os, "statvfs", lambda path: Disk(3 << 20))
    found = only_error(make_job(tmp_path), {"runconfig": {"max_checkpoints": 4}})
    assert "has 3.0 MiB free, and checkpoints need about 4.0 MiB" in found.what
    assert errors(make_job(tmp_path), {"runconfig": {"max_checkpoints": 2}}) == []
    everything = {"runconfig": {"max_checkpoints": None, "checkpoint_steps": 10, "max_steps": 1000}}
    assert "about 100.0 MiB" in only_error(make_job(tmp_path), everything).what
    assert errors(make_job(tmp_path), {"runconfig": {"checkpoint_steps": 0}}) == []


def test_room_without_a_checkpoint_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = check_job(make_job(tmp_path), {}, run=Programs())
    assert any("has no checkpoint yet" in note for note in levels(found, "note"))
    monkeypatch.setattr(check_run.os, "statvfs", lambda path: Disk(1000))
    assert any(
        "only 1000 B free" in what
        for what in levels(check_job(make_job(tmp_path), {}, run=Programs()), "warning")
    )


def test_quotas_are_read_leniently() -> None:
    projects = "Project: cis210012p PI: A\n  Extreme Memory   1,000 SU remain of 1,000 SU   active: Yes\n  Ocean /ocean/projects/cis210012p 14.43G used of 1000G \n"
    (ocean,) = parse_quota(projects)
    assert (ocean.place, round(ocean.limit_bytes / (1 << 30))) == ("/ocean/projects/cis210012p", 1000)
    quota = "Disk quotas for user ana (uid 7):\n     Filesystem  blocks   quota   limit   grace   files   quota   limit\n server:/home  1200*   1000    2000   6days      10       0       0\n /dev/sda1 5 0 0 1 0 0\n"
    (home,) = parse_quota(quota)
    assert (home.place, home.used_bytes, home.limit_bytes) == ("server:/home", 1200 << 10, 2000 << 10)
    assert parse_quota("none\n\0\n 1 2 3\n 5 of 6 nodes\n") == []


def test_a_full_quota(tmp_path: Path) -> None:
    site = make_site(tmp_path, storage={"shared": [str(tmp_path)], "quota": ["projects"]})
    full = f"Ocean {tmp_path} 1000G used of 1000G\n"
    found = only_error(make_job(tmp_path, site), projects=full)
    assert "1000.0 GiB, of which 1000.0 GiB are used" in found.what
    other = check_job(
        make_job(tmp_path, site), {}, run=Programs(projects="Ocean /else 1001G used of 1000G\n")
    )
    assert levels(other, "error") == []
    assert any("/else" in what for what in levels(other, "warning"))
    write_run(tmp_path / "model_dir", rate=1.0, size=1 << 20)
    tight = f"Ocean {tmp_path} 10M used of 12M\n"
    assert "checkpoints need about 5.0 MiB" in only_error(make_job(tmp_path, site), projects=tight).what


# -- probe ----------------------------------------------------------------------------------------------------------------


def test_the_probe_asks_a_node(tmp_path: Path) -> None:
    (tmp_path / "data dir").mkdir()
    job = make_job(tmp_path, partition="sdf", account="x", minutes=10)
    params = {"train_input": {"data_dir": "data dir"}}
    programs = Programs(srun=Answer(0, f"portwright-probe: r {tmp_path}/data dir\nportwright-probe: done\n"))
    found = check_job(job, params, run=programs, probe=True)
    assert levels(found, "error") == [f"a node cannot read '{tmp_path}/data dir'."]
    (call,) = [call for call in programs.calls if call[0] == "srun"]
    assert {"--partition=sdf", "--account=x"} <= set(call)
    assert str(tmp_path / "data dir") in call


def test_the_probe_is_a_script_that_works(tmp_path: Path) -> None:
    """The words after srun's flags, run here in its place."""
    odd = tmp_path / "a b'$x"
    odd.mkdir()

    class Here(Programs):
        def __call__(self, words: Sequence[str], *, timeout_seconds: float = 15.0) -> Answer:
            if words[0] != "srun":
                return super().__call__(words, timeout_seconds=timeout_seconds)
            return run_program(words[list(words).index("/bin/sh") :])

    job = make_job(odd, minutes=10)
    assert len(needed_paths(job, {})) == 3
    found = check_job(job, {}, run=Here(), probe=True)
    assert found[-1] == Finding("note", "a node sees all paths of the job.", "")


def test_a_probe_starts_the_container(tmp_path: Path) -> None:
    job = with_image(tmp_path, SIF)
    good = Programs(srun="portwright-probe: done\n")
    assert check_job(job, {}, run=good, probe=True)[-1].what.endswith("the container starts there.")
    assert [call for call in good.calls if call[0] == "srun"][-1][-1] == "true"

    class Fails(Programs):
        def __call__(self, words: Sequence[str], *, timeout_seconds: float = 15.0) -> Answer:
            if words[0] == "srun" and words[-1] == "true":
                return Answer(255, "", "FATAL:   could not open image /x.sif: no such file\n")
            return super().__call__(words, timeout_seconds=timeout_seconds)

    found = check_job(job, {}, run=Fails(srun="portwright-probe: done\n"), probe=True)
    assert found[-1].level == "error"
    assert "image was not found" in found[-1].what


def test_a_probe_that_gets_no_node_is_a_warning(tmp_path: Path) -> None:
    busy = Answer(1, "", "srun: error: Unable to allocate resources: Requested nodes are busy\n")
    found = check_job(make_job(tmp_path), {}, run=Programs(srun=busy), probe=True)
    assert found[-1].level == "warning"
    assert "no node could be asked" in found[-1].what
