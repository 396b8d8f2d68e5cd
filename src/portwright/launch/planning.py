"""Turns a command line into a job: names, steps, resources, container; writes nothing."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portwright.discover import get_target
from portwright.errors import UserError, suggest
from portwright.job.problems import check_model
from portwright.launch import hpc, registry
from portwright.launch.container import KINDS, make_container
from portwright.launch.job import Container, Job, Resources, Step, Tasks
from portwright.launch.resolved import (
    ResolvedParams,
    Subject,
    find_subject,
    read_hpc_params,
    resolve_params,
    with_fixed_end,
)
from portwright.launch.run_files import runconfig_of
from portwright.launch.site import Environment, JobDefaults, Site, has_login, is_secret_key
from portwright.launch.site_files import load_site
from portwright.launch.steps import ON_THE_HOST, choose_steps, compiles_on_the_host, make_steps, named_steps
from portwright.launch.times import minutes_of
from portwright.target import Target

JOBS_VARIABLE, DEFAULT_JOBS = "PORTWRIGHT_JOBS", "portwright_jobs"
TASKS: tuple[Tasks, ...] = ("stream", "parallel", "single")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True)
class Request:
    """The command line of `submit`, as it was given."""

    subject: str
    site: str = "local"
    account: str | None = None
    mode: str = "train"
    steps: str | None = None  # with commas between them
    target: str | None = None
    params: str | None = None
    overrides: tuple[str, ...] = ()
    model_dir: str | None = None
    ntasks: int | None = None
    nodes: int | None = None
    cpus_per_task: int | None = None
    gres: str | None = None
    memory: str | None = None
    time: str | None = None
    partition: str | None = None
    flags: tuple[str, ...] = ()
    image: str | None = None
    container: str | None = None
    binds: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    env: tuple[str, ...] = ()  # NAME=VALUE
    tasks: str | None = None
    name: str | None = None
    jobs_dir: str | None = None
    python: str | None = None
    packages: str | None = None
    hpc: bool = False


@dataclass(frozen=True)
class Plan:
    """A job, and what its folder says besides the scripts."""

    job: Job
    subject: Subject
    params: ResolvedParams
    mode: str
    notes: tuple[str, ...] = ()  # worth knowing before submission


def make_plan(request: Request) -> Plan:
    """The job that a command line means, with its params; every wrong value is an error that names its flag."""
    site = load_site(request.site)
    target = get_target(request.target or site.target)
    site = site.for_target(target.name)
    for path, what in ((_here(), "the current folder"), (request.subject, "the model")):
        _check_fits_script(path, what)
    subject = find_subject(request.subject, hpc=request.hpc, takes_configs=site.scheduler == "csctl")
    if request.hpc and not site.hpc:
        raise UserError(
            f"the site {site.name} has no cslc and cs_python, which --hpc asks for.",
            "Leave --hpc out, or choose another site: portwright sites.",
        )
    if request.hpc:
        _refuse_beside_hpc(request)
    workdir = _here()
    defaults, tasks = job_defaults(request, site)
    account = charged_account(request, site, defaults)
    params = (
        read_hpc_params(subject, request.params, request.overrides)
        if request.hpc
        else resolve_params(subject, request.params, request.overrides, target)
    )
    model_dir = subject.folder if request.hpc else _model_dir(request, params, subject)
    if not request.hpc and subject.config is None:
        params = with_fixed_end(params, model_dir)
    name = _free_name(request, subject)
    folder = jobs_root(request.jobs_dir) / name
    # Inside a container it is the image's own python; outside, Job.python takes its place.
    python = request.python or "python"
    seen = [workdir, model_dir, folder, *params.data_paths()]
    if subject.reference is None:  # a reference model is in the image's own portwright
        seen.append(subject.folder)
    container = None if request.hpc else find_container(request, site, seen)  # the SDK brings its own
    environment, passed = visible_environment(request, site)
    if request.hpc:
        names = hpc.STEPS if request.steps is None else named_steps(request.steps, hpc.STEPS)
        steps = hpc.hpc_steps(subject.folder, dict(params.values), names)
    else:
        steps = make_steps(
            choose_steps(request.steps, request.mode, target, params.values, site),
            subject=subject,
            target=target,
            mode=request.mode,
            params=folder / "params.yaml",
            model_dir=model_dir,
            python=python,
            tasks=tasks,
            ntasks=defaults.ntasks,
            site=site,
            job_name=name,
        )
    job = Job(
        name=name,
        folder=folder,
        workdir=workdir,
        site=site,
        target=target.name,
        steps=steps,
        resources=_resources(request, site, target, defaults, account, steps),
        model_dir=model_dir,
        container=container,
        python=sys.executable if request.python is None or container is not None else request.python,
        modules=site.environment.modules,
        environment=environment,
        passed=passed,
        max_retries=defaults.max_retries,
        title=request.subject,
    )
    return Plan(job, subject, params, request.mode, _notes(request, params, job))


def _refuse_beside_hpc(request: Request) -> None:
    """Refuses options that only a training has, since the SDK's programs would ignore them."""
    one_task = "Leave it out: each step is one task."
    brings = "Leave it out: cslc and cs_python bring their own container."
    place = (
        "Leave it out: the steps run in the program's folder, and compile.output names what cslc makes there."
    )
    picks = "Leave it out; --steps compile or --steps run picks one."
    refused = (
        (request.mode != Request.mode, f"--mode is '{request.mode}'", picks),
        (request.ntasks not in (None, 1), f"--ntasks is {request.ntasks}", one_task),
        (request.tasks is not None, f"--tasks is '{request.tasks}'", one_task),
        (request.container not in (None, "none"), f"--container is '{request.container}'", brings),
        (request.image is not None, f"--image is '{request.image}'", brings),
        (bool(request.binds), "--bind is given", brings),
        (request.packages is not None, "--packages is given", brings),
        (request.model_dir is not None, f"--model_dir is '{request.model_dir}'", place),
    )
    for is_given, what, cure in refused:
        if is_given:
            raise UserError(f"{what}, and --hpc compiles and runs programs of the Cerebras SDK.", cure)


def jobs_root(given: str | None) -> Path:
    """--jobs-dir, else $PORTWRIGHT_JOBS, else portwright_jobs here."""
    chosen = given or os.environ.get(JOBS_VARIABLE) or DEFAULT_JOBS
    return absolute(chosen, "--jobs-dir")


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise UserError("the current folder has been removed.", "Go to another one: cd ~") from error


def _check_fits_script(path: str | Path, what: str) -> None:
    text = str(path)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{what} is {text!r}, which is not UTF-8, so that no script can say it.", "Rename it."
        ) from error
    if not text or "\0" in text or "\n" in text or "\r" in text:
        raise UserError(f"{what} is {text!r}, which is no path that a script can say.", "Give another.")


def absolute(given: str, flag: str) -> Path:
    """A path of the user's, made absolute from the current folder."""
    _check_fits_script(given, flag)
    try:
        return Path(os.path.normpath(_here() / Path(given).expanduser()))
    except RuntimeError as error:  # ~user of an unknown user
        raise UserError(f"{flag} is '{given}': {error}", "Give another.") from error


def job_defaults(request: Request, site: Site) -> tuple[JobDefaults, Tasks]:
    """The site's defaults with the command line's changes, validated together."""
    defaults = site.job
    tasks = _tasks(request, site)
    given: dict[str, Any] = {
        name: getattr(request, name)
        for name in ("partition", "nodes", "ntasks", "cpus_per_task", "gres", "memory", "time")
        if getattr(request, name) is not None
    }
    if tasks == "single" and request.ntasks is None:
        given["ntasks"] = 1
    if request.flags:
        given["flags"] = [*defaults.flags, *request.flags]
    minutes = defaults.minutes if request.time is None else _minutes(request.time)
    # In a short job the grace time is at most half of the limit.
    given["grace_seconds"] = min(defaults.grace_seconds, minutes * 30)
    if defaults.max_minutes is not None and minutes > defaults.max_minutes:
        raise UserError(
            f"--time is {request.time}, and {site.name} allows at most {defaults.max_time}.",
            "Ask for less: a job that reaches its limit saves, goes back into the queue and resumes.",
        )
    checked, problems = check_model(JobDefaults, {**defaults.model_dump(exclude_unset=True), **given}, ())
    for problem in problems:
        key = str(problem.path[0]).replace("_", "-").replace("flags", "flag") if problem.path else ""
        flag = f"--{key}" if key else site.name
        raise UserError(f"{flag}: {problem.message}.", problem.cure)
    assert checked is not None
    if tasks == "single" and checked.ntasks > 1:
        raise UserError(
            f"--tasks single is one task, and --ntasks is {checked.ntasks}.",
            "Leave one of them out, or choose --tasks parallel or --tasks stream.",
        )
    if tasks == "stream" and checked.ntasks < 2 and not request.hpc:
        if request.tasks is not None:
            raise UserError(
                f"--tasks stream needs two tasks at least, one that trains and one that reads; --ntasks is {checked.ntasks}.",
                "Give --ntasks 2 or more, or --tasks single.",
            )
        tasks = "single"  # --ntasks 1 asks for that
    return checked, "single" if checked.ntasks == 1 else tasks


def _minutes(given: str) -> int:
    try:
        return minutes_of(given)
    except UserError as error:
        raise UserError(f"--time: {error.message}", error.cure) from error


def _tasks(request: Request, site: Site) -> Tasks:
    if request.tasks is None:
        return site.tasks
    if request.tasks not in TASKS:
        raise UserError(f"--tasks is '{request.tasks}'.", suggest(request.tasks, TASKS))
    return TASKS[TASKS.index(request.tasks)]


def _resources(
    request: Request,
    site: Site,
    target: Target,
    defaults: JobDefaults,
    account: str | None,
    steps: Sequence[Step],
) -> Resources:
    has_limit = site.scheduler == "slurm" or request.time is not None
    ntasks = max((step.ntasks for step in steps), default=1)
    nodes, gres = defaults.nodes, defaults.gres
    if nodes is not None and request.nodes is None:
        nodes = min(nodes, ntasks)
    if request.gres is None and not _needs_device(request, target, steps):
        gres = None  # the job does not need a device
    return Resources(
        account=account,
        partition=defaults.partition,
        nodes=nodes,
        ntasks=ntasks,
        cpus_per_task=defaults.cpus_per_task,
        gres=gres,
        memory=defaults.memory,
        minutes=defaults.minutes if has_limit else None,
        grace_seconds=defaults.grace_seconds,
        flags=defaults.flags,
    )


def _needs_device(request: Request, target: Target, steps: Sequence[Step]) -> bool:
    if request.hpc:
        return hpc.needs_machine(steps)
    return not compiles_on_the_host(target) or any(step.name not in ON_THE_HOST for step in steps)


def charged_account(request: Request, site: Site, defaults: JobDefaults) -> str | None:
    account = request.account
    if account is None and defaults.account != "none":
        account = os.environ.get("SBATCH_ACCOUNT") or os.environ.get("SLURM_ACCOUNT") or None
    if account is None:
        if defaults.account == "required":
            raise UserError(
                f"{site.name} charges an account, and none is given.",
                "Give yours: --account NAME, or set SBATCH_ACCOUNT.",
            )
        return None
    if defaults.account == "none":
        raise UserError(f"--account is '{account}', and {site.name} charges none.", "Leave it out.")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.@+-]*", account):
        raise UserError(f"--account is {account!r}, which is no account's name.", "Give one word.")
    return account.lower() if defaults.account_lower else account


def visible_environment(request: Request, site: Site) -> tuple[Mapping[str, str], tuple[str, ...]]:
    variables = dict(site.environment.variables)
    for text in request.env:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(
                f"--env is '{name}', without a value.",
                "Write NAME=VALUE; --pass takes a value from your shell.",
            )
        variables[name] = value
    passed = tuple(dict.fromkeys([*site.environment.passed, *request.passed]))
    checked, problems = check_model(Environment, {"variables": variables, "passed": passed}, ())
    for problem in problems:
        flag = "--pass" if problem.path and problem.path[0] == "passed" else "--env"
        # A value may be a secret, so that it is not repeated.
        raise UserError(
            f"{flag}: {problem.message}.", problem.cure or "Secrets go by --pass NAME, from your shell."
        )
    assert checked is not None
    for name, value in checked.variables.items():
        if has_login(value):  # the value is not repeated
            is_given = any(text.startswith(f"{name}=") for text in request.env)
            raise UserError(
                f"the value of {name} holds a password (://user:password@), and job.sh would show it.",
                f"Set {name} in your shell, and give --pass {name} instead."
                if is_given
                else f"Take {name} out of the variables of {site.name}, name it in environment.passed, and set it in your shell.",
            )
    both = [name for name in request.passed if name in variables]
    if both:
        raise UserError(f"{both[0]} is given with --env and with --pass.", "Give one of them.")
    return checked.variables, checked.passed


def find_container(request: Request, site: Site, paths: Sequence[Path]) -> Container | None:
    """The container of the programs, which sees these paths; None where there is none."""
    if (request.container or site.container.kind) == "none":
        if request.container is None and request.image is not None:
            raise UserError(
                f"--image is given, and {site.name} does not say what runs containers there.",
                f"Say it: --container {' or '.join(KINDS)}.",
            )
        for flag, given in (("--packages", request.packages), ("--bind", request.binds)):
            if given:
                cure = "Leave it out, or give --container and --image."
                raise UserError(f"{flag} is given, and nothing runs in a container.", cure)
        return None
    python = Path(request.python or "")
    if python.is_absolute() and python.exists():
        # The host's interpreter needs its own folder and, for a venv, that of the Python it was made from.
        paths = [*paths, python.parents[1], python.resolve().parents[1]]
    return make_container(
        site,
        image=request.image,
        kind=request.container,
        paths=paths,
        extra_binds=request.binds,
        packages=None if request.packages is None else absolute(request.packages, "--packages"),
    )


def _model_dir(request: Request, params: ResolvedParams, subject: Subject) -> Path:
    named = runconfig_of(params.values).get("model_dir")
    if request.model_dir is not None:
        return absolute(request.model_dir, "--model_dir")
    return absolute(str(named), "runconfig.model_dir") if named else subject.model_dir


def _free_name(request: Request, subject: Subject) -> str:
    """A name such as mymodel-3 that no job of the user and no folder among the jobs has."""
    if request.name is not None and not _NAME.fullmatch(request.name):
        raise UserError(
            f"--name is {request.name!r}.",
            "Use letters, digits, - and _, at most 64 of them, a letter or digit first.",
        )
    stem = request.name or re.sub(r"[^A-Za-z0-9_-]+", "-", subject.name).strip("-_")[:48] or "job"
    taken, root = registry.names(), jobs_root(request.jobs_dir)

    def is_free(name: str) -> bool:
        return name not in taken and not os.path.lexists(root / name)

    if request.name is not None and is_free(stem):
        return stem
    numbers = itertools.count(2 if request.name is not None else 1)
    return next(name for number in numbers if is_free(name := f"{stem}-{number}"))


def _notes(request: Request, params: ResolvedParams, job: Job) -> tuple[str, ...]:
    unset = [name for name in request.passed if name not in os.environ]
    notes = [
        f"--pass {name}: it is not set in this shell, so the job sees it only where the site sets it."
        for name in unset
    ]
    notes += _notes_of_secrets(request, job)
    only_of_slurm = {
        "--account": request.account,
        "--partition": request.partition,
        "--nodes": request.nodes,
        "--gres": request.gres,
        "--mem": request.memory,
        "--flag": request.flags,
    }
    idle = [flag for flag, value in only_of_slurm.items() if value and job.site.scheduler != "slurm"]
    if idle:
        notes.append(f"{', '.join(idle)}: without effect, since {job.site.name} has no SLURM to ask.")
    if request.hpc and (missing := hpc.lacks_compiled(job.model_dir, job.steps)) is not None:
        notes.append(
            f"there is no {missing} in {job.model_dir} yet, which the step run needs; --steps compile makes it."
        )
    return (*notes, *params.notes)


def _notes_of_secrets(request: Request, job: Job) -> list[str]:
    """Notes keys of -D whose secret values are readable in params files; the values are not repeated."""
    keys = dict.fromkeys(text.partition("=")[0].strip() for text in request.overrides)
    where = "the job's params.yaml (mode 0600)"
    if request.hpc:
        where += " and in job.sh"
    elif job.container is not None:
        where += ", which the container sees"
    return [
        f"-D {key}: it looks like a secret, and its value lies readable in {where}. "
        "Better have your code read a variable of the environment, and name that with --pass."
        for key in keys
        if is_secret_key(key)
    ]
