"""A site that runs jobs, as its TOML file describes it, and the types of its values, each with a check and its message."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from portwright.errors import UserError, suggest
from portwright.job.problems import show
from portwright.job.section import Section, contradiction
from portwright.launch.times import minutes_of

NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_GRES = re.compile(r"[A-Za-z]\w*(:(?=[\w.-]*[A-Za-z])[\w.-]+)?(:[1-9][0-9]*[KMGTP]?)?", re.ASCII)
_MEMORY = re.compile(r"[0-9]+[KMGT]?")
# Names of variables that hold secrets. PWD and OLDPWD are folders, TOKENIZERS_PARALLELISM is no token, and a name that
# ends in _FILE tells where a secret lies.
SECRET = re.compile(
    r"^(?!.*_(?:FILE|PATH|DIR|SOCK|NAME|TYPE|URL|LENGTH|LEN|LIMIT|COUNT|SIZE|TIMEOUT|TTL)$)(?:"
    r".*(?:TOKEN|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASE|CREDENTIALS?|(?:API|ACCESS|PRIVATE)_?KEYS?)(?:_|\d*$)"
    r"|(?:.*_)?(?:JWT|CREDS?)(?:_|\d*$)"
    r"|(?:.*_)?(?:KEY|PAT|O?AUTH)\d*$"
    r"|.*(?<!BY)(?<!COM)PASS\d*$"
    r"|.+(?<!OLD)PWD\d*$)",
    re.IGNORECASE,
)
# A narrower pattern for keys of params: pad_token and label_key are no secrets.
_SECRET_KEY = re.compile(
    r"(?:SECRETS?|PASSWORDS?|PASSWD|PASSPHRASE|(?:API|ACCESS|PRIVATE|WANDB)_?KEYS?|CREDENTIALS?|_PWD|(?:^|_)(?:CREDS|JWT))$"
    r"|(?:^|(?:^|_)(?:API|AUTH|ACCESS|HF|HUB|HUGGINGFACE|SESSION|BEARER|USER|WANDB|GITHUB|GITLAB|SECRET))_?TOKEN$",
    re.IGNORECASE,
)
_LOGIN_IN_URL = re.compile(r"://[^/\s@:]*:[^/\s@]+@")
# Flags that job.sh sets itself, and the key of the site's file for each.
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
_ARRAY = (
    "would start tasks that share one folder, log and model_dir: one job is one run. "
    "Submit several jobs, each with its own --model_dir"
)
_WAIT = "keeps sbatch from answering: submit follows a job by itself, and --no-follow leaves it"
# Flags that change what sbatch does, and what to use instead.
_OTHER_FLAGS = {
    "--array": _ARRAY,
    "-a": _ARRAY,
    "--wait": _WAIT,
    "-W": _WAIT,
    "--wrap": "gives sbatch another script than the job's. Name what is to run as the subject of submit",
    "--test-only": "submits nothing. Use --dry-run, whose checks ask sbatch the same",
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


def _matching(fits: Callable[[str], object], expected: str) -> AfterValidator:
    """A check that refuses other values with a message of one form."""

    def check(value: str) -> str:
        if not fits(value):
            raise ValueError(f"expected {expected}, received {show(value)}")
        return value

    return AfterValidator(check)


def _is_bind(value: str) -> bool:
    parts = value.split(":")
    return len(parts) <= 2 and "," not in value and all(part.startswith("/") for part in parts)


def _check_own_flag(value: str) -> str:
    first, _, rest = re.sub(r"\s+", "=", value, count=1).partition("=")  # --qos=low or --qos low
    name = _full_name(first if value.startswith("--") else value[:2])
    if name in _OWN_FLAGS:
        raise ValueError(f"the script says {name} itself ({_OWN_FLAGS[name]}), received {show(value)}")
    if name in _OTHER_FLAGS:
        raise ValueError(f"{name} {_OTHER_FLAGS[name]}, received {show(value)}")
    if name == "--export" and "=" in rest:
        # The value may be a secret, and is not repeated.
        raise ValueError(
            "received --export with a value, which job.sh and SLURM's records would show. "
            "Give --env NAME=VALUE for what anybody may see, --pass NAME for what is set in your shell"
        )
    return value


def _full_name(given: str) -> str:
    """The flag that sbatch would take `given` for: it accepts the beginning of a long flag, as in --arr=0-3."""
    if len(given) < 4:
        return given
    return next((name for name in (*_OWN_FLAGS, *_OTHER_FLAGS) if name.startswith(given)), given)


def is_secret_key(key: str) -> bool:
    """Whether a key of params looks like that of a secret: train_input.api_key."""
    return _SECRET_KEY.search(key.rpartition(".")[2].strip()) is not None


def has_login(value: str) -> bool:
    """Whether an address in the value holds a password: http://user:password@host."""
    return _LOGIN_IN_URL.search(value) is not None


def _check_target(value: str) -> str:
    from portwright.discover import find_target, find_targets, suggest_target

    target = find_target(value)
    if target is None:
        raise ValueError(f"unknown target, received {show(value)}. {suggest_target(value, find_targets())}")
    return target.name


_FLAG = _matching(re.compile(r"--?[A-Za-z]").match, "a flag such as --qos=low")
Time = Annotated[str, BeforeValidator(_as_text), AfterValidator(_check_time)]
Gres = Annotated[
    str,
    _matching(
        lambda value: all(map(_GRES.fullmatch, value.split(","))),
        "name:count or name:type:count, such as gpu:2 or gpu:a100:2",
    ),
]
Memory = Annotated[
    str,
    BeforeValidator(_as_text),
    _matching(_MEMORY.fullmatch, "a size such as 64G or 4000M, or 0 for all of a node"),
]
Word = Annotated[str, _matching(re.compile(r"(?!-)\S+").fullmatch, "one word")]
Variable = Annotated[str, _matching(_VARIABLE.fullmatch, "the name of an environment variable")]
Folder = Annotated[str, _matching(lambda value: value.startswith("/"), "a path that begins with /")]
Bind = Annotated[str, _matching(_is_bind, "/path or /path:/path/inside, without a comma")]
Flag = Annotated[str, _FLAG]
JobFlag = Annotated[str, _FLAG, AfterValidator(_check_own_flag)]
TargetName = Annotated[str, AfterValidator(_check_target)]

CHANGES_BY_TARGET = ("tasks", "job", "launch", "container", "environment", "storage", "interactive")


def merge_tables(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are merged key by key; everything else, lists too, is replaced."""
    merged = dict(base)
    for key, value in changes.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            value = merge_tables(below, value)
        merged[key] = value
    return merged


class _Table(Section):
    """A table of a site's file."""

    @model_validator(mode="before")
    @classmethod
    def _take_away(cls, data: Any) -> Any:
        """An empty string removes a value of the extended site, since TOML has no null."""
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
                    raise ValueError(f"expected text on one line, received {show(text)}")
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
    run_flags: tuple[str, ...] = Field(
        default=(),
        description="Flags of run.py in steps that use the accelerator (train, eval); the shell expands `${NAME}` in them.",
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
    flags: tuple[Flag, ...] = Field(
        default=(),
        description="Further flags of the container's program, such as `--nv` for NVIDIA's driver.",
    )
    binds: tuple[Bind, ...] = Field(
        default=(), description="`/path` or `/path:/inside`, besides those that params name."
    )
    clean_env: bool = Field(
        default=True, description="The container sees no variable of the job but those passed."
    )

    @model_validator(mode="after")
    def _knows_its_flags(self) -> ContainerDefaults:
        if self.kind == "ch-run" and "--nv" in self.flags:
            raise contradiction(
                "ch-run has no flag --nv; inject NVIDIA's driver into its image instead (ch-fromhost)",
                "flags",
                "kind",
            )
        return self


class Environment(_Table):
    """What is set up before the steps."""

    modules: tuple[Word, ...] = Field(default=(), description="Loaded with `module load`, in this order.")
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
            if SECRET.search(name):  # its value is not repeated
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

    host: Word | None = Field(default=None, description="Login node.")
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
        default=(), validate_default=True, description="All targets that it has; without it the one above."
    )
    compile_only: tuple[TargetName, ...] = Field(
        default=(),
        description="Targets that it has the software of, and not the machine: it validates and compiles for them.",
    )
    tasks: Literal["stream", "parallel", "single"] = Field(
        default="parallel",
        description="What the tasks of a training step do: one trains and the others read its data (`stream`), "
        "all train (`parallel`), or there is one (`single`).",
    )
    hpc: bool = Field(
        default=False, description="Has the Cerebras SDK's `cslc` and `cs_python`, for `submit --hpc`."
    )
    job: JobDefaults = JobDefaults()
    launch: Launch = Launch()
    container: ContainerDefaults = ContainerDefaults()
    environment: Environment = Environment()
    storage: Storage = Storage()
    interactive: Interactive = Interactive()
    login: Login = Login()
    on: dict[TargetName, dict[str, Any]] = Field(
        default_factory=dict,
        description="What differs for one target: `[on.GPU.job]`, `[on.GPU.container]` and so on.",
    )

    def for_target(self, target: str) -> Site:
        """The site for jobs on this target, with the changes of `on`; a UserError where it has no such target."""
        name = target.upper()
        if name not in self.targets:
            raise UserError(f"the site {self.name} has no target '{target}'.", suggest(name, self.targets))
        plain = self.model_dump(exclude_unset=True, exclude={"on"})
        return Site.model_validate(merge_tables({**plain, "target": name}, self.on.get(name, {})))

    @field_validator("name")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        if not NAME.fullmatch(value):
            raise ValueError(f"expected small letters, digits and hyphens, received {show(value)}")
        return value

    @field_validator("targets")
    @classmethod
    def _at_least_its_own(cls, value: tuple[str, ...], known: ValidationInfo) -> tuple[str, ...]:
        return value or tuple(known.data[key] for key in ("target",) if key in known.data)

    @model_validator(mode="after")
    def _agrees(self) -> Site:
        if self.target not in self.targets:
            raise contradiction(
                f"target {self.target} is not among targets ({', '.join(self.targets)})", "target", "targets"
            )
        for key in ("compile_only", "on"):
            others = [name for name in getattr(self, key) if name not in self.targets]
            if others:
                raise contradiction(
                    f"{key} names {others[0]}, which is not among targets ({', '.join(self.targets)})",
                    key,
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
