"""The interactive allocation of a site: the command that opens it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from portwright.discover import get_target
from portwright.errors import UserError
from portwright.launch.container import shell_words
from portwright.launch.job import Container
from portwright.launch.planning import (
    Request,
    charged_account,
    find_container,
    job_defaults,
    visible_environment,
)
from portwright.launch.site import JobDefaults, Site
from portwright.launch.site_files import load_site
from portwright.launch.steps import compiles_on_the_host
from portwright.launch.times import slurm_time

# Passes the variables of these names into a container that starts with a clean environment.
_PASS_VARIABLES = (
    "for name in {names}; do if [[ -n ${{!name+set}} ]]; then "
    'export "APPTAINERENV_$name=${{!name}}" "SINGULARITYENV_$name=${{!name}}"; fi; done'
)


@dataclass(frozen=True)
class Shell:
    """A command that replaces this process."""

    words: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)  # added to those of this shell

    def as_text(self) -> str:
        """The command line as a person would type it."""
        sets = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*sets, shlex.join(self.words)])

    def become(self) -> NoReturn:
        """Replaces this process by the command."""
        try:
            os.execvpe(self.words[0], list(self.words), {**os.environ, **self.environment})
        except OSError as error:
            raise UserError(
                f"cannot start {self.words[0]}: {(error.strerror or str(error)).lower()}.",
                "Run this on a login node of the site, or name another with --site.",
            ) from error


def make_shell(request: Request) -> Shell:
    """`srun --pty` with the container's shell, or without a scheduler a shell of this machine."""
    site = load_site(request.site)
    target = get_target(request.target or site.target)
    site = site.for_target(target.name)
    defaults, _ = job_defaults(request, site)
    account = charged_account(request, site, defaults)
    environment, passed = visible_environment(request, site)
    workdir = Path.cwd()
    container = find_container(request, site, [workdir])
    visible = tuple(dict.fromkeys([*environment, *passed]))
    inside = _inside(site, container, visible, workdir)
    if site.scheduler != "slurm":
        return Shell(tuple(inside), dict(environment))
    if compiles_on_the_host(target) and request.gres is None:
        # Validating and compiling for this target need no device, which others can use meanwhile.
        defaults = defaults.model_copy(update={"gres": None})
    words = ["srun", "--pty", *_srun_flags(request, site, defaults, account), *inside]
    return Shell(tuple(words), dict(environment))


def _inside(site: Site, container: Container | None, visible: Sequence[str], workdir: Path) -> list[str]:
    """The command inside the allocation: sets up the environment, then opens the container's shell."""
    shell = ["bash"] if site.scheduler == "slurm" else [os.environ.get("SHELL") or "bash"]
    if container is not None:
        shell = shell_words(container, workdir=workdir, visible=visible)
    before = [f"module load {shlex.join(site.environment.modules)}"] if site.environment.modules else []
    if container is not None and container.clean_env and container.kind != "ch-run" and visible:
        # Evaluated on the node, since the site sets some variables only there.
        before.append(_PASS_VARIABLES.format(names=" ".join(visible)))
    if not before:
        return shell
    login = ["-l"] if site.environment.modules else []  # whose profile defines `module`
    return ["bash", *login, "-c", "; ".join([*before, f"exec {shlex.join(shell)}"])]


def _srun_flags(request: Request, site: Site, defaults: JobDefaults, account: str | None) -> list[str]:
    """The flags of srun: the command line's go before the site's interactive ones, and these before those of its jobs."""
    asked: dict[str, str | int | None] = {
        "--account": account,
        "--partition": defaults.partition,
        "--ntasks": 1,
        "--cpus-per-task": defaults.cpus_per_task,
        "--gres": defaults.gres,
        "--mem": defaults.memory,
        "--time": slurm_time(defaults.minutes),
    }
    given = {
        "--cpus-per-task": request.cpus_per_task,
        "--gres": request.gres,
        "--mem": request.memory,
        "--time": request.time,
        "--partition": request.partition,
    }
    own = [flag for flag in site.interactive.flags if given.get(flag.partition("=")[0]) is None]
    said = {flag.partition("=")[0] for flag in own}
    flags = [f"{name}={x}" for name, x in asked.items() if x is not None and name not in said]
    return [*flags, *defaults.flags, *own]
