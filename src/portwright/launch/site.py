"""A site: where jobs go, as its TOML file says it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class JobDefaults(_Section):
    """What a job asks the scheduler for where the command line says nothing."""

    partition: str | None = None
    account: Literal["required", "optional", "none"] = "optional"
    account_lower: bool = False  # charge names are groups, in small letters
    nodes: int | None = None
    ntasks: int = 1
    cpus_per_task: int | None = None
    gres: str | None = None
    memory: str | None = None
    time: str = "1:00:00"
    max_time: str | None = None
    grace_seconds: int = 120
    flags: tuple[str, ...] = ()
    max_retries: int = 3


class Launch(_Section):
    """How a step's tasks are started."""

    srun: tuple[str, ...] = ()  # flags of every srun
    prefix: tuple[str, ...] = ()  # words before python, such as poprun with its flags; ${NAME} is expanded by the shell


class ContainerDefaults(_Section):
    kind: Literal["apptainer", "singularity", "ch-run", "none"] = "none"
    image: str | None = None
    images_on_nodes: tuple[str, ...] = ()  # local copies, tried first on the node
    binds: tuple[str, ...] = ()  # HOST or HOST:INSIDE, besides what params name
    clean_env: bool = True


class Environment(_Section):
    modules: tuple[str, ...] = ()
    variables: dict[str, str] = Field(default_factory=dict)
    passed: tuple[str, ...] = ()  # names that a container must see although its environment is clean, such as CS_IP_ADDR


class Storage(_Section):
    shared: tuple[str, ...] = ()  # file systems that the nodes see; empty: not known, so nothing is said
    quota: tuple[str, ...] = ()  # a command that prints a user's quota


class Interactive(_Section):
    flags: tuple[str, ...] = ()  # of srun, for `portwright shell`


class Login(_Section):
    host: str | None = None  # for the ssh line of a tunnel
    user_note: str | None = None


class Site(_Section):
    """One site, whole."""

    name: str
    summary: str
    source: str  # where its facts are from
    scheduler: Literal["slurm", "csctl", "none"]
    target: str  # what its jobs run on unless the command says otherwise
    targets: tuple[str, ...]  # all that it has
    tasks: Literal["stream", "parallel", "single"] = "parallel"  # what a training step's tasks do; see docs/cluster.md
    job: JobDefaults = JobDefaults()
    launch: Launch = Launch()
    container: ContainerDefaults = ContainerDefaults()
    environment: Environment = Environment()
    storage: Storage = Storage()
    interactive: Interactive = Interactive()
    login: Login = Login()
    hpc: bool = False  # has the Cerebras SDK's cslc and cs_python
