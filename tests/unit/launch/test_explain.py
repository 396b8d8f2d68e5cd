"""Logs explained: real messages of SLURM and of containers, recorded; the sites' own lists; healthy logs; rubbish."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from portwright.cli.launch import explain_log as command
from portwright.errors import UserError
from portwright.launch.explain import explain_log, explain_text, read_log, scan_log, write_report
from portwright.launch.log_scan import BLOCK_BYTES, KnownError, load_errors

TRACEBACK = 'Traceback (most recent call last):\n  File "run.py", line 3, in <module>\n    main()\n'
EXPLAINED = [error for error in load_errors() if error.kind not in ("region", "well", "done", "hidden")]

# Recorded from SLURM 22.05.8: a batch job of one srun with two tasks.
TIME_LIMIT = """\
slurmstepd-chk-1: error: *** JOB 34 ON chk-1 CANCELLED AT 2026-11-16T19:46:11 DUE TO TIME LIMIT ***
srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
slurmstepd-chk-1: error: *** STEP 34.0 ON chk-1 CANCELLED AT 2026-11-16T19:46:11 DUE TO TIME LIMIT ***
srun: got SIGCONT
srun: forcing job termination
srun: error: chk-1: tasks 0-1: Terminated
"""
CANCELLED = """\
srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
slurmstepd-chk-2: error: *** JOB 35 ON chk-2 CANCELLED AT 2026-11-16T19:45:04 ***
srun: got SIGCONT
srun: forcing job termination
slurmstepd-chk-2: error: *** STEP 35.0 ON chk-2 CANCELLED AT 2026-11-16T19:45:04 ***
srun: error: chk-2: tasks 0-1: Terminated
"""
NODE_DOWN = """\
srun: error: Node failure on chk-2
slurmstepd-chk-2: error: *** JOB 36 ON chk-2 CANCELLED AT 2026-11-16T19:45:10 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***
"""
REQUEUED = """\
slurmstepd-chk-2: error: *** JOB 37 ON chk-2 CANCELLED AT 2026-11-16T19:45:17 DUE TO JOB REQUEUE ***
srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
slurmstepd-chk-2: error: *** STEP 37.0 ON chk-2 CANCELLED AT 2026-11-16T19:45:17 DUE TO JOB REQUEUE ***
srun: got SIGCONT
srun: forcing job termination
srun: error: chk-2: tasks 0-1: Terminated
"""
KILLED_TASK = """\
srun: error: chk-2: task 1: Killed
srun: launch/slurm: _step_signal: Terminating StepId=27.1
slurmstepd-chk-2: error: *** STEP 27.1 ON chk-2 CANCELLED AT 2026-11-16T19:44:33 ***
srun: error: chk-2: task 0: Terminated
srun: Force Terminated StepId=27.1
"""
# What sbatch 22.05.8 answered to scripts that ask for what a cluster has not.
REFUSED = {
    "allocation failure: Invalid partition name specified": "slurm-partition",
    "sbatch: error: Invalid generic resource (gres) specification": "slurm-gres-invalid",
    "allocation failure: Requested node configuration is not available": "slurm-configuration",
    "sbatch: error: Invalid --time specification": "slurm-time-invalid",
    "allocation failure: Invalid node name specified": "slurm-configuration",
    "allocation failure: Requested reservation is invalid": "slurm-reservation",
    "allocation failure: Unable to contact slurm controller (connect failure)": "slurm-no-controller",
    "sbatch: unrecognized option '--bogus'": "bad-arguments",
    "srun: error: Unable to create step for job 27: More processors requested than permitted": "slurm-processors",
    "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified": "slurm-invalid-account",
}
# The titles of the sites' own lists of errors.
LISTED = {
    "FATAL: could not open image /path/to/cbcore-latest.sif": "image-missing",
    "srun: error: Unable to allocate resources: Invalid qos specification": "slurm-invalid-qos",
    "cp: cannot open '/ocean/neocortex/cerebras/modelzoo/a' for reading: Permission denied": "permission-denied",
    "Warning! ***HDF5 library version mismatched error***": "hdf5-mismatch",
    "More processors requested than permitted": "slurm-processors",
    "FATAL:  Couldn't determine user account information: user: unknown userid 73858": "unknown-user-id",
    "ERROR:   Failed to transfer 5 out of 1943 weight tensors. Raising the first error encountered.": "cerebras-weights-transfer",
    "urllib.error.HTTPError: HTTP Error 503: Service Unavailable": "http-503",
    "remote: Repository not found.": "github-404",
    "19-Sep 17:45:36 - Error - FAILURE: Execute Snprof": "sambatune-profile",
    "Segmentation fault (core dumped)": "segmentation-fault",
    # A variable that is known better than by its name alone keeps its own words.
    "/x/job.sh: line 40: CS_IP_ADDR: is not set here, and a step needs it": "cerebras-address",
    "/x/job.sh: line 40: CS_IP_ADDR: unbound variable": "cerebras-address",
}
HEALTHY = [
    "step 100/2000  loss 0.2467  error: 0.01  12.5 steps/s",
    "error: 0.01",
    "error: 1e-3 nan_count 0",
    "MeanSquaredError: 0.02, AbsoluteError: 0.1",
    "validation error: 0.31 best error: 0.29",
    "srun: job 10671 queued and waiting for resources\nsrun: job 10671 has been allocated resources",
    "2023-08-22 W tensorflow/compiler/xla/dso_loader.cc:64] Could not load dynamic library 'libcudart.so.11.0'; dlerror: libcudart.so.11.0: cannot open shared object file: No such file or directory",
    "UserWarning: Failed to load image Python extension: libc10_cuda.so: cannot open shared object file: No such file or directory",
    "Failed to find compiled extension; rebuilding.",
    "23:48:29.162 3555537 POPRUN [D] Status for partition slurm_10673: OK (error 0)",
    "INFO:tensorflow:global step 99700: loss = 0.0003674 (471.25 steps/sec)",
    "INFO:   Waiting for all Activation pods to be running, current running: 0/24.",
    "1 x Skipped: could not import 'triton': No module named 'triton'",
    "Epochs:   0%|          | 0/10 [00:00<?,[poptorch:cpp] [warning] [DISPATCHER] Type coerced from Long to Int",
    "retry: permission denied is not what this says",
    "note: checkpoint_100 saved in 0.3 s",
    "note: Worker 3: the connection to n1:24001 broke (StatusCode.UNAVAILABLE: Connection reset by peer).",
    "worker 1: note: retrying after BrokenPipeError: Connection refused",
    "loss is nan-safe; timeouts: 0; killed: 0; Killed words: 3",
    "portwright: validate begins at 2026-11-16T20:01:02Z with 1 task(s).\nportwright: validate has ended well.",
    "WARNING:root:[input_fn] - flat_map(): use map() instead of flat_map()",
    "batch 403 of 404, 503 samples",
    "exit code 0, 0 errors, 0 exceptions",
    "srun: Job 123 step creation temporarily disabled, retrying (Requested nodes are busy)\nsrun: Step created for job 123",
    "srun: Job 123 step creation temporarily disabled, retrying (Requested nodes are busy)\nsrun: Step created for StepId=123.1",
]


def names(text: str) -> list[str]:
    return [found.name for found in explain_text(text)]


def test_entries_are_whole_and_unique() -> None:
    errors = load_errors()
    assert len({error.name for error in errors}) == len(errors) > 90
    for error in errors:
        assert all((error.meaning, error.cure, error.source, error.examples, error.hints)), error.name
        assert all(len(hint) >= 3 for hint in error.hints), error.name
        placed = {"step", *(error.pattern.groupindex if error.pattern else ())}
        assert set(re.findall(r"\{(\w+)\}", error.meaning + error.cure)) <= placed, error.name


@pytest.mark.parametrize("error", EXPLAINED, ids=lambda error: error.name)
def test_every_entry_is_found_by_its_examples(error: KnownError) -> None:
    for example in error.examples:
        found = explain_text((TRACEBACK if error.within else "") + example + "\n")
        assert [told.name for told in found] == [error.name], example
        assert "{" not in found[0].meaning, found[0].meaning
        assert found[0].text.strip() == " ".join(example.split(" ")).strip()


@pytest.mark.parametrize(
    "label", ["", "0: ", "[rank3]: ", "[1,0]<stderr>:", "\x1b[31m", "  ", "process 1: ", "chief: "]
)
def test_labels_and_colours_are_no_hindrance(label: str) -> None:
    text = f"{label}ModuleNotFoundError: No module named 'portwright'\x1b[0m\n"
    assert names(text) == ["portwright-missing"]


@pytest.mark.parametrize(
    ("log", "name", "line", "num_followers"),
    [(TIME_LIMIT, "slurm-time-limit", 1, 4), (CANCELLED, "slurm-cancelled", 2, 5), (NODE_DOWN, "slurm-node-failure", 1, 0)],
)  # fmt: skip
def test_what_slurm_prints_when_it_ends_a_job(log: str, name: str, line: int, num_followers: int) -> None:
    found = explain_text(log)
    assert [(told.name, told.line, told.num_followers, told.level) for told in found] == [
        (name, line, num_followers, "error")
    ]


def test_a_requeue_is_no_error() -> None:
    report = scan_log(io.BytesIO(REQUEUED.encode()))
    assert [told.name for told in report.explanations] == ["slurm-requeued"]
    assert not report.has_errors


def test_followers_alone_are_explained_by_the_one_that_says_most() -> None:
    (found,) = explain_text(KILLED_TASK)
    assert (found.name, found.line, found.num_followers) == ("task-killed", 1, 4)


@pytest.mark.parametrize(("line", "name"), [*REFUSED.items(), *LISTED.items()])
def test_known_messages(line: str, name: str) -> None:
    (found,) = explain_text(f"loading\n{line}\nmore\n")
    assert (found.name, found.line) == (name, 2)


@pytest.mark.parametrize("text", HEALTHY)
def test_healthy_lines_raise_no_alarm(text: str) -> None:
    assert explain_text(text) == []


def test_the_first_cause_is_named_and_what_follows_is_folded_under_it() -> None:
    log = (
        "epoch 1\n"
        "OSError: [Errno 122] Disk quota exceeded\n"
        "[rank1]: RuntimeError: [x/gloo/gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer\n"
        + KILLED_TASK
        + "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.batch\n"
    )
    first, second = explain_text(log)
    assert (first.name, first.line, first.is_first) == ("disk-quota", 2, True)
    assert first.num_followers == 6
    assert "task 1: Killed" in first.followers[1].text
    assert (second.name, second.is_first, second.num_followers) == ("slurm-out-of-memory", False, 0)


def test_a_symptom_before_its_cause_is_folded_too() -> None:
    # slurmstepd's word often comes after srun's, though it is the reason.
    log = "srun: error: n1: task 0: Killed\nslurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0\n"
    (found,) = explain_text(log)
    assert (found.name, found.followers[0].line) == ("slurm-out-of-memory", 1)


def attempt(step: str, body: str) -> str:
    return f"portwright: {step} begins at 2026-11-16T20:01:02Z with 7 task(s).\n{body}"


def test_attempts_of_a_job_are_told_apart() -> None:
    again = "portwright: train ended with status 137 (retry:137). The job is requeued; the newest checkpoint is 300.\n"
    log = (
        attempt("validate", "portwright: validate has ended well.\n")
        + attempt("train", NODE_DOWN + again)
        + attempt(
            "train", "torch.OutOfMemoryError: CUDA out of memory.\nportwright: train failed with status 1.\n"
        )
    )
    found = explain_text(log)
    assert [(told.name, told.step, told.attempt) for told in found] == [
        ("slurm-node-failure", "train", 1),
        ("cuda-out-of-memory", "train", 2),
    ]
    page = write_report(scan_log(io.BytesIO(log.encode())), "log.txt")
    assert page.index("CUDA out of memory") < page.index("Node failure on")
    assert "attempt 2" in page


def test_what_was_overcome_is_a_note() -> None:
    log = attempt("train", NODE_DOWN) + attempt("train", "portwright: All steps are done.\n")
    report = scan_log(io.BytesIO(log.encode()))
    assert report.is_done
    assert not report.has_errors
    assert [(told.name, told.level) for told in report.explanations] == [("slurm-node-failure", "note")]
    assert "ended well" in write_report(report, "log.txt")


def test_a_worker_that_died_in_a_step_that_ended_well_is_a_note() -> None:
    body = "srun: error: n3: task 3: Killed\nportwright: train has ended well.\n"
    report = scan_log(io.BytesIO((attempt("train", body) + attempt("eval", "50%\r")).encode()))
    assert [(told.name, told.level) for told in report.explanations] == [("task-killed", "note")]


def test_what_job_sh_says_is_known() -> None:
    """Every sentence of job.sh and task.sh that names an end, so that a change there is noticed here."""
    from portwright.launch import script_control, task_script

    sources = "".join(Path(str(module.__file__)).read_text() for module in (script_control, task_script))
    sentences = re.findall(
        r'(?:say|fail "\$\d"|echo) "((?:portwright: )?[^"\n]*(?:\([^)]*\)[^"\n]*)*)"', sources
    )
    known = {
        "has ended well",
        "was done before",
        "is asked to save",
        "The log is",
        "begins at",
        "All steps are done",
    }
    told = [sentence for sentence in sentences if re.search(r"[a-z] [a-z]", sentence)]
    assert len(told) > 10
    for sentence in told:
        if any(words in sentence for words in known):
            continue
        line = re.sub(
            r"\$\(\([^)]*\)\)|\$\([^)]*\)|\$\{[^}]*\}|\$[A-Z_]{2,}|\$[a-z]+_seconds|\$\d", "7", sentence
        )
        line = re.sub(r"\$[a-z_]+", "train", line).removeprefix("portwright: ")
        assert explain_text(f"portwright: {line}\n"), line


def test_an_error_after_a_good_end_is_an_error() -> None:
    log = attempt("train", "portwright: All steps are done.\n") + attempt("train", NODE_DOWN)
    assert scan_log(io.BytesIO(log.encode())).has_errors


def test_statuses_of_ours() -> None:
    assert names("srun: error: n: tasks 0-6: Exited with exit code 85\n") == ["status-requeue"]
    (found,) = explain_text("srun: error: n: task 0: Exited with exit code 3\n")
    assert (found.name, found.level) == ("status-non-finite", "error")
    (found,) = explain_text("srun: error: n: task 0: Exited with exit code 31\n")
    assert found.name == "task-failed"
    assert "status 31" in found.meaning


def test_a_waiting_job_is_a_note_until_it_has_its_nodes() -> None:
    (found,) = explain_text("srun: job 5 queued and waiting for resources\n")
    assert (found.name, found.level) == ("slurm-still-waiting", "note")


def test_a_step_that_waits_for_another_is_no_cause() -> None:
    waits = "srun: Job 123 step creation temporarily disabled, retrying (Requested nodes are busy)\n"
    (found,) = explain_text(waits)
    assert (found.name, found.level) == ("slurm-step-waits", "note")
    assert "Requested nodes are busy" in found.meaning
    first, second = explain_text(waits + "OSError: [Errno 28] No space left on device\n")
    assert (first.name, first.is_first, second.level) == ("disk-full", True, "note")


def test_a_program_that_may_not_be_run_was_found() -> None:
    (denied,) = explain_text("slurmstepd: error: execve(): /jobs/a/task.sh: Permission denied\n")
    assert denied.name == "program-not-permitted"
    assert "'/jobs/a/task.sh' is there" in denied.meaning
    assert "not found" not in denied.meaning
    assert names("slurmstepd: error: execve(): task.sh: No such file or directory\n") == ["program-missing"]
    assert names("slurmstepd: error: execve(): task.sh: Exec format error\n") == ["program-format"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('Lmod has detected the following error: The following module(s) are unknown: "x/1"', '"x/1"'),
        ("ERROR: Unable to locate a modulefile for 'x/1'", "'x/1'"),
        ("srun: error: Task launch for StepId=7.0 failed on node sdf-1: Invalid job credential", "sdf-1"),
        ("/a/job.sh: line 3: X_ROOT: is not set here, and a step needs it", "X_ROOT"),
        ("/a/b.sh: line 3: X_ROOT: unbound variable", "X_ROOT"),
    ],
)
def test_what_a_line_names_is_in_its_meaning(line: str, said: str) -> None:
    (found,) = explain_text(f"{line}\n")
    assert said in found.meaning
    assert found.level == "error"


def test_an_exception_counts_only_under_a_traceback() -> None:
    assert explain_text("KeyError: 'x'\n") == []
    (found,) = explain_text(f"{TRACEBACK}KeyError: 'x'\n")
    assert found.meaning == "Python stopped with KeyError: 'x'."
    (found,) = explain_text(TRACEBACK + "  deep\n" * 100 + "torch._dynamo.exc.InternalError: 3\n")
    assert found.line == 104


def test_progress_bars_count_as_one_line() -> None:
    log = (
        b"begin\r\n" + b"\r".join(b"%d%%|###" % n for n in range(100)) + b"\rKilled?\nMemoryError: \r\nx\r\n"
    )
    report = scan_log(io.BytesIO(log))
    assert [(told.name, told.line) for told in report.explanations] == [("memory-error", 3)]
    assert report.num_lines == 4
    assert report.tail == ("begin", "Killed?", "MemoryError:", "x")


@pytest.mark.parametrize(
    "lead", [b"", b"x" * 10, b"x" * (BLOCK_BYTES - 20), b"x" * (3 * BLOCK_BYTES + 7), b"ab\n" * 400_000]
)
@pytest.mark.parametrize("trail", [b"", b"\n", b"y" * (BLOCK_BYTES + 5)])
def test_long_lines_and_block_edges(lead: bytes, trail: bytes) -> None:
    log = lead + b" CANCELLED AT 2026-11-16T19:46:11 DUE TO TIME LIMIT ***" + trail
    (found,) = scan_log(io.BytesIO(log)).explanations
    assert (found.name, found.line, found.count) == ("slurm-time-limit", lead.count(b"\n") + 1, 1)
    assert len(found.text) <= 400


@pytest.mark.parametrize("shift", range(0, 60, 7))
def test_a_text_across_the_edge_of_a_block(shift: int) -> None:
    log = b"a" * (BLOCK_BYTES - shift) + b"DUE TO JOB REQUEUE" + b"b" * 100
    (found,) = scan_log(io.BytesIO(log)).explanations
    assert (found.name, found.count) == ("slurm-requeued", 1)


class Dripping(io.RawIOBase):
    """A pipe that gives few bytes at a time, and never goes back."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data, self._at, self._size = data, 0, size

    def read(self, size: int = -1) -> bytes:
        part = self._data[self._at : self._at + self._size]
        self._at += len(part)
        return part


@pytest.mark.parametrize("size", [1, 3, 64])
def test_a_slow_pipe_gives_the_same(size: int) -> None:
    log = (TIME_LIMIT + "ünïcode\r50%\r100%\n").encode()
    assert scan_log(Dripping(log, size)) == scan_log(io.BytesIO(log))  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.sampled_from([b"\n", b"\r", b"\x1b[", b"error: ", b"Killed", b"Traceback"]),
        )
    )
)
def test_rubbish_survives(parts: list[bytes]) -> None:
    log = b"".join(parts)
    report = scan_log(io.BytesIO(log + b"\nOSError: [Errno 28] No space left on device\n"))
    assert "disk-full" in [told.name for told in report.explanations]
    assert report.num_lines == log.count(b"\n") + 2
    json.dumps(report.as_dict())


def test_a_flood_of_hits_is_counted_not_kept() -> None:
    report = scan_log(io.BytesIO(b"srun: error: n1: task 1: Killed\n" * 20_000))
    (found,) = report.explanations
    assert (found.count, found.num_followers, len(found.followers)) == (20_000, 19_999, 19)
    assert found.followers[-1].line == 20_000


# -- the command ----------------------------------------------------------------------------------------------------------


def run(*words: str, stdin: bytes | None = None) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, list(words), input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_the_command_says_cause_and_cure(tmp_path: Path) -> None:
    log = tmp_path / "slurm 1.out"
    log.write_text(TIME_LIMIT)
    status, page = run(str(log))
    assert status == 1
    assert "line 1: slurmstepd" in page
    assert "Cure: Ask for more time" in page
    assert "and 1 more" in page


def test_the_command_on_stdin_as_json() -> None:
    status, out = run("-", "--json", stdin=NODE_DOWN.encode())
    report = json.loads(out)
    assert status == 1
    assert (report["log"], report["has_errors"], report["explanations"][0]["name"]) == (
        "stdin",
        True,
        "slurm-node-failure",
    )


def test_a_terminal_that_knows_few_signs(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("error: ünïcode fails here\n")
    words = [sys.executable, "-m", "portwright", "explain-log", str(log)]
    done = subprocess.run(
        words, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "\\xfcn\\xefcode" in done.stdout


def test_nothing_known_says_what_to_look_at(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("one\ntwo\n")
    status, page = run(str(log))
    assert status == 0
    assert "Nothing in it is known as an error" in page
    assert page.endswith("  one\n  two\n")


def test_an_empty_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    status, page = run(str(log))
    assert status == 0
    assert "is empty" in page


def test_a_job_folder_is_its_log(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(KILLED_TASK)
    status, page = run(str(tmp_path))
    assert status == 1
    assert page.startswith("log.txt: 5 lines")


def test_a_job_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from portwright.launch.registry import Entry, write_entry

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "jobs" / "mnist-1"
    folder.mkdir(parents=True)
    write_entry(Entry("mnist-1", folder, "local", "none", scheduler_id="77"))
    with pytest.raises(UserError, match="has no log yet"):
        run("mnist-1")
    (folder / "log.txt").write_text(TIME_LIMIT)
    assert run("mnist-1")[0] == run("77")[0] == 1
    with pytest.raises(UserError, match="neither a file nor a job") as raised:
        run("mnist-2")
    assert "mnist-1" in raised.value.cure


def test_bad_paths_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(UserError):
        run(str(tmp_path / "nope"))
    with pytest.raises(UserError, match="no path"):
        run("x" * 5000)
    with pytest.raises(UserError, match="cannot read"):
        read_log(tmp_path)
    with pytest.raises(UserError):
        explain_log(tmp_path / "nope")
