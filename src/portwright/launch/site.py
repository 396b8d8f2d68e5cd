"""A site: where jobs go, as its TOML file says it."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from portwright.errors import UserError, suggest
from portwright.job.section import Section, contradiction
from portwright.launch.times import minutes_of, slurm_time

__all__ = [
    "ContainerDefaults", "Environment", "Interactive", "JobDefaults", "Launch", "Login", "Site", "Storage",
    "minutes_of", "slurm_time",
]  # fmt: skip

NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_GRES = re.compile(r"[A-Za-z]\w*(:(?=[\w.-]*[A-Za-z])[\w.-]+)?(:[1-9][0-9]*[KMGTP]?)?", re.ASCII)
_MEMORY = re.compile(r"[0-9]+[KMGT]?")
_SECRET = re.compile(
    r"(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIALS?)$", re.IGNORECASE
)
# Flags that a script says by itself, and the key that they are said with.
_OWN_FLAGS = {
    "--account": "job.account, and --account of the command",
    "-A": "job.account, and --account of the command",
    "--partition": "job.partition",
    "-p": "job.partition",
    "--nodes": "job.nodes",
    "-N": "job.nodes",
    "--ntasks": "job.ntasks",
    "-n": "job.ntasks",
    "--cpus-per-task": "job.cpus_per_task",
    "-c": "job.cpus_per_task",
    "--gres": "job.gres",
    "--mem": "job.memory",
    "--time": "job.time",
    "-t": "job.time",
    "--signal": "job.grace_seconds",
    "--job-name": "the job's name",
    "-J": "the job's name",
    "--output": "the job's folder",
    "-o": "the job's folder",
    "--error": "the job's folder",
    "-e": "the job's folder",
    "--open-mode": "the job's folder",
    "--requeue": "job.max_retries",
    "--no-requeue": "job.max_retries",
}


def _as_text(value: object) -> object:
    if isinstance(value, (datetime.time, datetime.date)):
        raise ValueError(f"TOML takes this for a clock's time, received {value}; put it in quotes")
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _check_time(value: str) -> str:
    try:
        minutes_of(value)
    except UserError as error:
        raise ValueError(str(error)) from None
    return value


def _check_gres(value: str) -> str:
    if not all(_GRES.fullmatch(part) for part in value.split(",")):
        raise ValueError(
            f"expected name:count or name:type:count, such as gpu:2 or gpu:a100:2, received {value!r}"
        )
    return value


def _check_memory(value: str) -> str:
    if not _MEMORY.fullmatch(value):
        raise ValueError(f"expected a size such as 64G or 4000M, or 0 for all of a node, received {value!r}")
    return value


def _check_word(value: str) -> str:
    if not value or any(c.isspace() for c in value) or value.startswith("-"):
        raise ValueError(f"expected one word, received {value!r}")
    return value


def _check_variable(value: str) -> str:
    if not _VARIABLE.fullmatch(value):
        raise ValueError(f"expected the name of an environment variable, received {value!r}")
    return value


def _check_folder(value: str) -> str:
    if not value.startswith("/"):
        raise ValueError(f"expected a path that begins with /, received {value!r}")
    return value


def _check_bind(value: str) -> str:
    parts = value.split(":")
    if len(parts) > 2 or "," in value or not all(part.startswith("/") for part in parts):
        raise ValueError(f"expected /path or /path:/path/inside, without a comma, received {value!r}")
    return value


def _check_flag(value: str) -> str:
    if not re.match(r"--?[A-Za-z]", value):
        raise ValueError(f"expected a flag such as --qos=low, received {value!r}")
    return value


def _check_own_flag(value: str) -> str:
    name = value.partition("=")[0] if value.startswith("--") else value[:2]
    if name in _OWN_FLAGS:
        raise ValueError(f"the script says {name} itself ({_OWN_FLAGS[name]}), received {value!r}")
    return value


def _check_target(value: str) -> str:
    from portwright.discover import find_targets

    if value.upper() not in find_targets():
        raise ValueError(f"unknown target, received {value!r}. {suggest(value.upper(), find_targets())}")
    return value.upper()


Time = Annotated[str, BeforeValidator(_as_text), AfterValidator(_check_time)]
Gres = Annotated[str, AfterValidator(_check_gres)]
Memory = Annotated[str, BeforeValidator(_as_text), AfterValidator(_check_memory)]
Word = Annotated[str, AfterValidator(_check_word)]
Variable = Annotated[str, AfterValidator(_check_variable)]
Folder = Annotated[str, AfterValidator(_check_folder)]
Bind = Annotated[str, AfterValidator(_check_bind)]
Flag = Annotated[str, AfterValidator(_check_flag)]
JobFlag = Annotated[str, AfterValidator(_check_flag), AfterValidator(_check_own_flag)]
TargetName = Annotated[str, AfterValidator(_check_target)]


class _Table(Section):
    """A table of a site's file."""

    @model_validator(mode="before")
    @classmethod
    def _take_away(cls, data: Any) -> Any:
        """TOML has no null: an empty string takes away what the site that is extended says."""
        if not isinstance(data, Mapping):
            return data
        optional = {name for name, field in cls.model_fields.items() if field.default is None}
        return {key: value for key, value in data.items() if not (value == "" and key in optional)}

    @field_validator("*", mode="after")
    @classmethod
    def _one_line(cls, value: Any) -> Any:
        """Values go into scripts and onto terminals."""
        words = (
            value.items() if isinstance(value, Mapping) else value if isinstance(value, tuple) else (value,)
        )
        for word in words:
            for text in word if isinstance(word, tuple) else (word,):
                if isinstance(text, str) and not text.isprintable():
                    raise ValueError(f"expected text on one line, received {text!r}")
        return value


class JobDefaults(_Table):
    """What a job asks the scheduler for where the command line says nothing."""

    partition: Word | None = Field(default=None, description="Partition; without it the scheduler's default.")
    account: Literal["required", "optional", "none"] = Field(
        default="optional", description="Whether a job must say whom it charges."
    )
    account_lower: bool = Field(default=False, description="Accounts are groups, in small letters.")
    nodes: int | None = Field(
        default=None, ge=1, description="Nodes; without it as the scheduler places the tasks."
    )
    ntasks: int = Field(default=1, ge=1, description="Tasks of the training step.")
    cpus_per_task: int | None = Field(default=None, ge=1, description="CPUs of a task.")
    gres: Gres | None = Field(
        default=None, description="Generic resources, as `name:count` or `name:type:count`."
    )
    memory: Memory | None = Field(
        default=None, description="Memory of a node, such as `64G`; `0` is all of it."
    )
    time: Time = Field(
        default="1:00:00",
        description="Time limit: minutes, `hours:minutes:seconds` or `days-hours:minutes:seconds`.",
    )
    max_time: Time | None = Field(default=None, description="Longest time limit that the site allows.")
    grace_seconds: int = Field(
        default=120,
        ge=1,
        le=65535,
        description="Between the signal to save and the time limit, for a checkpoint to be written.",
    )
    flags: tuple[JobFlag, ...] = Field(default=(), description="Further flags of `sbatch`, a word each.")
    max_retries: int = Field(
        default=3,
        ge=0,
        description="Times that a job is queued again after failures that are not its own, without a new checkpoint.",
    )

    @property
    def minutes(self) -> int:
        return minutes_of(self.time)

    @property
    def max_minutes(self) -> int | None:
        return None if self.max_time is None else minutes_of(self.max_time)

    @model_validator(mode="after")
    def _fits(self) -> JobDefaults:
        if self.max_minutes is not None and self.minutes > self.max_minutes:
            raise contradiction(f"time {self.time} is more than max_time {self.max_time}", "time", "max_time")
        if self.grace_seconds >= 60 * self.minutes:
            raise contradiction(
                f"grace_seconds {self.grace_seconds} leaves nothing of the time {self.time}",
                "grace_seconds",
                "time",
            )
        return self


class Launch(_Table):
    """How a step's tasks are started."""

    srun: tuple[Flag, ...] = Field(default=(), description="Flags of every `srun`.")
    prefix: tuple[str, ...] = Field(
        default=(),
        description="Words before `python`, such as `poprun` with its flags; the shell expands `${NAME}` in them.",
    )
    run_flags: dict[TargetName, tuple[str, ...]] = Field(
        default_factory=dict,
        description="Flags of run.py in steps that use the accelerator (train, eval), by target; the shell expands `${NAME}` in them.",
    )


class ContainerDefaults(_Table):
    """What the steps run in."""

    kind: Literal["apptainer", "singularity", "ch-run", "none"] = Field(
        default="none", description="Program that runs the container."
    )
    image: str | None = Field(
        default=None, description="Image; without it the command names one (`--image`)."
    )
    images_on_nodes: tuple[Folder, ...] = Field(
        default=(), description="Copies on the nodes' own disks, tried first."
    )
    binds: tuple[Bind, ...] = Field(
        default=(), description="`/path` or `/path:/inside`, besides those that params name."
    )
    clean_env: bool = Field(
        default=True, description="The container sees no variable of the job but those passed."
    )


class Environment(_Table):
    """What is set up before the steps."""

    modules: tuple[Word, ...] = Field(default=(), description="Loaded with `module load`, in this order.")
    sources: tuple[Folder, ...] = Field(
        default=(), description="Shell files that are sourced, after the modules."
    )
    variables: dict[Variable, str] = Field(
        default_factory=dict,
        description="Variables with plain values, which the script shows to all who read it.",
    )
    passed: tuple[Variable, ...] = Field(
        default=(),
        description="Names of variables that the steps see although their environment is clean; values are never written down.",
    )

    @field_validator("variables")
    @classmethod
    def _no_secrets(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if _SECRET.search(name):  # its value is not repeated
                raise ValueError(
                    f"{name} looks like a secret, and variables are written into scripts (its value was received, and is not shown). "
                    "Name it in environment.passed and set it in your shell"
                )
        return value


class Storage(_Table):
    """Which paths the nodes see."""

    shared: tuple[Folder, ...] = Field(
        default=(), description="File systems that the nodes see; empty: not known."
    )
    on_nodes: tuple[Folder, ...] = Field(
        default=(),
        description="Folders that only the nodes have: what lies there cannot be looked at before a job.",
    )
    quota: tuple[str, ...] = Field(
        default=(), description="A command that prints a user's quota, a word each."
    )


class Interactive(_Table):
    """What `portwright shell` asks for."""

    flags: tuple[Flag, ...] = Field(
        default=(), description="Flags of `srun`, besides `--pty` and those of the command."
    )


class Login(_Table):
    """How one comes to the site."""

    host: Word | None = Field(default=None, description="Login node, for the ssh line of a tunnel.")
    user_note: str | None = Field(
        default=None, description="What to know about the user name, or about a second hop."
    )


class Site(_Table):
    """One site, whole."""

    name: str = Field(description="Small letters, digits and hyphens; the file is called the same.")
    summary: str = Field(default="", description="What the site is, in one line.")
    source: str = Field(default="", description="Where the facts in the file are from.")
    scheduler: Literal["slurm", "csctl", "none"] = Field(
        description="`slurm`; `csctl` for a Cerebras cluster that queues by itself; `none` for subprocesses of this machine."
    )
    target: TargetName = Field(description="What jobs run on unless the command says otherwise.")
    targets: tuple[TargetName, ...] = Field(
        default=(), description="All targets that it has; without it the one above."
    )
    tasks: Literal["stream", "parallel", "single"] = Field(
        default="parallel",
        description="What the tasks of a training step do: one trains and the others read its data (`stream`), all train (`parallel`), or there is one (`single`).",
    )
    hpc: bool = Field(
        default=False, description="Has the Cerebras SDK's `cslc` and `cs_python`, for `submit --hpc`."
    )
    job: JobDefaults = JobDefaults()
    job_on: dict[TargetName, dict[str, Any]] = Field(
        default_factory=dict, description="Keys of `job` that differ for a target: `[job_on.GPU]`."
    )
    launch: Launch = Launch()
    container: ContainerDefaults = ContainerDefaults()
    environment: Environment = Environment()
    storage: Storage = Storage()
    interactive: Interactive = Interactive()
    login: Login = Login()

    def job_for(self, target: str) -> JobDefaults:
        """What a job on this target asks for: `job`, with the changes of `job_on`."""
        changes = self.job_on.get(target.upper(), {})
        return JobDefaults.model_validate({**self.job.model_dump(exclude_unset=True), **changes})

    @field_validator("name")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        if not NAME.fullmatch(value):
            raise ValueError(f"expected small letters, digits and hyphens, received {value!r}")
        return value

    @model_validator(mode="before")
    @classmethod
    def _at_least_its_own(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and isinstance(data.get("target"), str) and not data.get("targets"):
            return {**data, "targets": (data["target"],)}
        return data

    @model_validator(mode="after")
    def _agrees(self) -> Site:
        if self.target not in self.targets:
            raise contradiction(
                f"target {self.target} is not among targets ({', '.join(self.targets)})", "target", "targets"
            )
        for key, given in (("job_on", self.job_on), ("launch.run_flags", self.launch.run_flags)):
            others = [name for name in given if name not in self.targets]
            if others:
                raise contradiction(
                    f"{key} is about {others[0]}, which is not among targets ({', '.join(self.targets)})",
                    key.partition(".")[0],
                    "targets",
                )
        if self.tasks == "stream" and self.job.ntasks < 2:
            raise contradiction(
                f"tasks 'stream' needs job.ntasks of at least 2, one that trains and one that reads, received {self.job.ntasks}",
                "tasks",
                "job",
            )
        if self.tasks == "single" and self.job.ntasks > 1:
            raise contradiction(
                f"tasks 'single' goes with job.ntasks 1, received {self.job.ntasks}", "tasks", "job"
            )
        return self
