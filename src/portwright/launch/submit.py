"""Submitting a job: its folder, which is written whole or not at all, and its hand-over to the scheduler; and ending a job."""

from __future__ import annotations

import errno
import json
import os
import platform
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from portwright import __version__
from portwright.errors import UserError
from portwright.job.atomic import atomic_write_text, explain_os_error
from portwright.launch import csctl, local, registry, slurm
from portwright.launch.checks import check_job
from portwright.launch.findings import Finding, run_program
from portwright.launch.job import MANIFEST, SCHEDULER_ID
from portwright.launch.planning import Plan, Request, make_plan
from portwright.launch.registry import Entry, adopt, ask_state
from portwright.launch.script import render_job
from portwright.launch.task_script import render_task
from portwright.launch.times import now

_NAME_TRIES = 20


@dataclass(frozen=True)
class Prepared:
    """A job that could be submitted: what would be written, and what was found wrong with it."""

    request: Request
    plan: Plan
    files: dict[str, str]
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.level == "error"]

    def as_dict(self) -> dict[str, Any]:
        job = self.plan.job
        return {
            "name": job.name,
            "folder": str(job.folder),
            "site": job.site.name,
            "target": job.target,
            "model_dir": str(job.model_dir),
            "steps": [step.name for step in job.steps],
            "binds": [] if job.container is None else [list(bind) for bind in job.container.binds],
            "findings": [{"level": f.level, "what": f.what, "cure": f.cure} for f in self.findings],
        }


def prepare(request: Request, *, probe: bool = False) -> Prepared:
    """Plans and checks a job without writing anything. With `probe` a node checks the paths too."""
    plan = make_plan(request)
    findings = [Finding("warning", note, "") for note in plan.notes]
    if plan.params.problem is not None:
        findings.append(Finding("error", plan.params.problem.message, plan.params.problem.cure))
    findings += check_job(plan.job, plan.params.values, probe=probe)
    return Prepared(request, plan, render_files(plan, request), tuple(findings))


def submit(prepared: Prepared, *, force: bool = False) -> Entry:
    """Writes the job's folder and submits the job; a rejected job is noted, and raises."""
    if prepared.errors and not force:
        first = prepared.errors[0]
        raise UserError(
            first.what,
            f"{first.cure} --force submits it all the same.".strip(),
            {"findings": prepared.as_dict()["findings"]},
        )
    with registry.locked():
        refuse_same_model_dir(prepared.plan.job.model_dir)
        prepared = _write(prepared)
        job = prepared.plan.job
        entry = Entry(
            name=job.name,
            folder=job.folder,
            site=job.site.name,
            scheduler=job.site.scheduler,
            submitted=now(),
            model_dir=str(job.model_dir),
            title=prepared.request.subject,
        )
        registry.write_entry(entry)
        # Under the lock, since other submissions cannot see yet that this job will use its model_dir.
        return _hand_over(entry, prepared.plan)


def refuse_same_model_dir(model_dir: Path) -> None:
    """Refuses a model_dir that another living job writes to: they would spoil each other's checkpoints."""
    wanted = model_dir.resolve()
    for entry in registry.read_entries():
        if entry.ended or entry.error or not entry.model_dir or Path(entry.model_dir).resolve() != wanted:
            continue
        entry = adopt(entry)
        if entry.was_taken and not ask_state(entry).is_ended:
            raise UserError(
                f"the job {entry.name} uses {model_dir} and has not ended.",
                f"Wait for it, end it with 'portwright cancel {entry.name}', or choose another --model_dir.",
            )


def cancel_job(entry: Entry, *, force: bool = False) -> str:
    """Ends a job, and says what to expect; with `force`, a job on a machine that cannot be asked is noted as cancelled."""
    entry = adopt(entry)
    if not entry.was_taken:
        return f"{entry.name} was never submitted: there is nothing to end."
    state = ask_state(entry)
    if state.is_ended:
        return f"{entry.name} has ended already ({state.state})."
    if entry.scheduler == "slurm":
        was_there = slurm.cancel(entry.scheduler_id)
    else:
        try:
            was_there = local.cancel(entry.folder)
        except local.ElsewhereError:
            if not force:
                raise
            was_there = False
        if entry.scheduler == "csctl":
            ended = csctl.cancel_jobs(f"name={entry.name}")
            if ended:
                if state.state == "unknown":
                    registry.note_end(entry, "cancelled", None)
                return (
                    f"{entry.name}: ended {', '.join(ended)} on the cluster, and what watched over it here."
                )
    if state.state == "unknown":
        registry.note_end(entry, "cancelled", None)  # so that it blocks no other job
        reason = state.reason or "its scheduler does not know it"
        return f"{entry.name} cannot be found any more ({reason}); it is noted as cancelled."
    if not was_there:
        return f"{entry.name} has ended already."
    if state.state == "pending":
        return f"{entry.name} was taken from the queue; nothing of it has run since it was queued."
    # A local job without a supervisor has ended already.
    is_over = entry.scheduler != "slurm" and ask_state(entry).is_ended
    words = "was ended: its tasks had" if is_over else "is being ended: its tasks have"
    return (
        f"{entry.name} {words} half a minute to save. It is not requeued; "
        "submitting the same again goes on from the last checkpoint."
    )


def _write(prepared: Prepared) -> Prepared:
    """Writes the folder; takes the next free name where another submission took this one."""
    for _ in range(_NAME_TRIES):
        try:
            name = prepared.plan.job.name
            if name in registry.names():
                raise NameTakenError(f"there is a job {name} already.", "Choose another --name.")
            write_folder(prepared.plan.job.folder, prepared.files)
            return prepared
        except NameTakenError:
            plan = make_plan(prepared.request)
            prepared = replace(prepared, plan=plan, files=render_files(plan, prepared.request))
    raise UserError("other jobs take every name that is tried.", "Choose another --name.")


def _hand_over(entry: Entry, plan: Plan) -> Entry:
    try:
        scheduler_id = _start(plan)
    except UserError as error:
        with (entry.folder / "log.txt").open("a", encoding="utf-8") as log:
            log.write(f"portwright: {now()} not submitted: {error}\n")
        registry.write_entry(replace(entry, error=error.message))
        raise type(error)(
            f"{entry.name} was not submitted: {error.message}",
            f"{error.cure} What was made is in {entry.folder}; the same command can be given again.".strip(),
        ) from error
    taken = replace(entry, scheduler_id=scheduler_id)
    registry.write_entry(taken)
    atomic_write_text(entry.folder / SCHEDULER_ID, f"{scheduler_id}\n")
    return taken


def _start(plan: Plan) -> str:
    job = plan.job
    if job.site.scheduler == "slurm":
        try:
            return slurm.submit(job.folder / "job.sh")
        except slurm.NoAnswerError:  # the job may be in the queue all the same
            with suppress(UserError):
                if found := slurm.find_by_name(job.name):
                    return found
            raise
    limits = job.resources
    return local.start(
        job.folder, minutes=limits.minutes, grace_seconds=limits.grace_seconds, max_retries=job.max_retries
    )


_GIT_SECONDS = 10.0


class NameTakenError(UserError):
    """Another process has meanwhile made a folder of that name."""


def render_files(plan: Plan, request: Request) -> dict[str, str]:
    """All files of a job's folder, by name."""
    return {
        "job.sh": render_job(plan.job),
        "task.sh": render_task(plan.job),
        "params.yaml": plan.params.as_yaml(),
        MANIFEST: json.dumps(make_manifest(plan, request), indent=2, ensure_ascii=False) + "\n",
        "log.txt": "",
    }


def make_manifest(plan: Plan, request: Request) -> dict[str, Any]:
    """What was submitted, for a person and for `portwright jobs`; the values of passed variables are written to no file."""
    job, container = plan.job, plan.job.container
    return {
        "name": job.name,
        "site": request.site,  # as given, name or path
        "scheduler": job.site.scheduler,
        "subject": request.subject,
        "subject_folder": str(plan.subject.folder),
        "command": command_words(request),
        "mode": None if request.hpc else plan.mode,
        "target": job.target,
        "time": now(),
        "workdir": str(job.workdir),
        "model_dir": str(job.model_dir),
        "params_from": str(plan.params.source),
        "steps": [
            {"name": step.name, "ntasks": step.ntasks, "tasks": step.tasks, "words": list(step.words)}
            for step in job.steps
        ],
        "resources": {**asdict(job.resources), "flags": list(job.resources.flags)},
        "container": None if container is None else container.kind,
        "image": None if container is None else container.image,
        "binds": [] if container is None else [list(bind) for bind in container.binds],
        "modules": list(job.modules),
        "environment": sorted(job.environment),  # names; job.sh has the values
        "passed": list(job.passed),
        "max_retries": job.max_retries,
        "code": _describe_code(plan.subject.folder),
        "versions": _versions(),
    }


def command_words(request: Request) -> list[str]:
    """The command that was given, without the values of -D and --env, which only params.yaml and job.sh contain."""
    words = ["portwright", "submit", request.subject]
    for name, value in asdict(request).items():
        flag = _FLAGS.get(name, "--" + name.replace("_", "-"))
        if name == "subject" or value is None or value == () or value is False:
            continue
        for each in value if isinstance(value, tuple) else (value,):
            if name in ("overrides", "env"):
                each = each.partition("=")[0] + "=..."
            words += [flag] if each is True else [flag, str(each)]
    return words


_FLAGS = {
    "overrides": "-D",
    "model_dir": "--model_dir",
    "flags": "--flag",
    "binds": "--bind",
    "passed": "--pass",
    "memory": "--mem",
}


def write_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Makes `folder` with all its files, readable by its owner alone."""
    temp = folder.parent / f".new-{folder.name}-{secrets.token_hex(4)}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temp.mkdir(mode=0o700)
        try:
            for name, text in files.items():
                _write_private(temp / name, text, 0o700 if name.endswith(".sh") else 0o600)
            (temp / "steps").mkdir(mode=0o700)
            temp.rename(folder)  # fails where a folder of that name has files in it
        except OSError:
            shutil.rmtree(temp, ignore_errors=True)
            raise
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR) and os.path.lexists(folder):
            raise NameTakenError(f"{folder} exists already.", "Choose another --name.") from error
        raise explain_os_error(error, folder) from error


def _write_private(path: Path, text: str, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fchmod(file.fileno(), mode)  # whatever the umask
        os.fsync(file.fileno())


def _describe_code(folder: Path) -> dict[str, Any] | None:
    """The git commit that the code is at, and whether it was changed since; None outside of git."""

    def git(*words: str) -> str | None:
        answer = run_program(
            ["git", "--no-optional-locks", "-C", str(folder), *words], timeout_seconds=_GIT_SECONDS
        )
        return answer.out.strip() if answer.is_good else None

    commit = git("rev-parse", "--verify", "HEAD")
    if not commit:
        return None
    changes = git("status", "--porcelain", "--untracked-files=no", "--", ".")
    return {"commit": commit, "changed": None if changes is None else bool(changes)}


def _versions() -> dict[str, str]:
    found = {"portwright": __version__, "python": platform.python_version()}
    for name in ("torch", "tensorflow", "tensorflow-cpu"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
