"""Submitting a job, and ending one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portwright.errors import UserError
from portwright.launch import csctl, local, registry, slurm
from portwright.launch.ask import adopt, ask_state
from portwright.launch.folder import NameTakenError, note_error, note_scheduler_id, render_files, write_folder
from portwright.launch.planning import Plan, Request, make_plan
from portwright.launch.registry import Entry
from portwright.launch.times import now

if TYPE_CHECKING:
    from portwright.launch.checks import Finding

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
    from portwright.launch.checks import Finding, check_job

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
        entry = _entry_of(prepared)
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


def _entry_of(prepared: Prepared) -> Entry:
    job = prepared.plan.job
    return Entry(
        name=job.name,
        folder=job.folder,
        site=job.site.name,
        scheduler=job.site.scheduler,
        submitted=now(),
        model_dir=str(job.model_dir),
        title=prepared.request.subject,
    )


def _hand_over(entry: Entry, plan: Plan) -> Entry:
    try:
        scheduler_id = _start(plan)
    except UserError as error:
        note_error(entry.folder, str(error))
        registry.write_entry(replace(entry, error=error.message))
        raise type(error)(
            f"{entry.name} was not submitted: {error.message}",
            f"{error.cure} What was made is in {entry.folder}; the same command can be given again.".strip(),
        ) from error
    taken = replace(entry, scheduler_id=scheduler_id)
    registry.write_entry(taken)
    note_scheduler_id(entry.folder, scheduler_id)
    return taken


def _start(plan: Plan) -> str:
    job = plan.job
    if job.site.scheduler == "slurm":
        try:
            return slurm.submit(job.folder / "job.sh")
        except slurm.NoAnswerError:
            found = _search_queue(lambda: slurm.find_by_name(job.name))
            if found is None:
                raise
            return found
    limits = job.resources
    return local.start(
        job.folder, minutes=limits.minutes, grace_seconds=limits.grace_seconds, max_retries=job.max_retries
    )


def _search_queue(ask: Callable[[], str | None]) -> str | None:
    """Looks in the queue for a job whose answer from sbatch was lost."""
    try:
        return ask()
    except UserError:
        return None
