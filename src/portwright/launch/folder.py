"""The folder of a job: written whole or not at all, and readable by its owner alone."""

from __future__ import annotations

import errno
import json
import os
import platform
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from portwright import __version__
from portwright.errors import UserError
from portwright.job.atomic import atomic_write_text, explain_os_error
from portwright.launch.findings import run_program
from portwright.launch.job import MANIFEST, SCHEDULER_ID
from portwright.launch.planning import Plan, Request
from portwright.launch.times import now

_GIT_SECONDS = 10.0


class NameTakenError(UserError):
    """Another process has meanwhile made a folder of that name."""


def render_files(plan: Plan, request: Request) -> dict[str, str]:
    """All files of a job's folder, by name."""
    from portwright.launch.script import render_job
    from portwright.launch.task_script import render_task

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


def note_scheduler_id(folder: Path, scheduler_id: str) -> None:
    atomic_write_text(folder / SCHEDULER_ID, f"{scheduler_id}\n")


def note_error(folder: Path, message: str) -> None:
    """Writes to the job's log that it was not submitted, and why."""
    with (folder / "log.txt").open("a", encoding="utf-8") as log:
        log.write(f"portwright: {now()} not submitted: {message}\n")


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
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
