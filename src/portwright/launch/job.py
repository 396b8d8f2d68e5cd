"""A job: all that its scripts will contain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from portwright.launch.site import Site

Tasks = Literal["stream", "parallel", "single"]
MANIFEST, SCHEDULER_ID = "manifest.json", "scheduler_id"  # files of a job's folder


@dataclass(frozen=True)
class Step:
    """One link of the chain: it begins when the one before has ended well, and is not repeated after a requeue."""

    name: str  # validate, compile, train, eval, predict; of an HPC job: compile, run
    ntasks: int
    words: tuple[str, ...]  # the command, as words of a program; no shell syntax
    tasks: Tasks = "single"
    literal: tuple[int, ...] = ()  # places in `words` where ${NAME} is expanded, such as ${CS_IP_ADDR}
    folder: Path | None = None  # where it runs; without it in Job.workdir
    contained: bool = True  # in the job's container, where it has one
    tells_end: bool = False  # its program writes the file PORTWRIGHT_END_NOTE at its end, as ours do


@dataclass(frozen=True)
class Container:
    """What the steps run in."""

    kind: Literal["apptainer", "singularity", "ch-run"]
    image: str
    binds: tuple[tuple[str, str], ...]  # host path, path inside
    clean_env: bool = True
    flags: tuple[str, ...] = ()  # further ones of its program, such as --nv
    images_on_nodes: tuple[str, ...] = ()  # copies on a node's own disks, taken first where they exist
    packages: str | None = None  # a folder of `pip install --target`, for an image that lacks portwright


@dataclass(frozen=True)
class Resources:
    """What the scheduler is asked for."""

    account: str | None = None
    partition: str | None = None
    nodes: int | None = None
    ntasks: int = 1
    cpus_per_task: int | None = None
    gres: str | None = None
    memory: str | None = None  # as SLURM writes it, such as 64G
    minutes: int | None = None  # the time limit
    grace_seconds: int = 120  # between the signal to save and the time limit
    flags: tuple[str, ...] = ()  # further ones, as words: --qos=low


@dataclass(frozen=True)
class Job:
    """A job as `submit` decided it; `script.py` writes its scripts, and a scheduler runs them."""

    name: str  # unique among a user's jobs: mymodel-3; letters, digits, - and _ only
    folder: Path  # of the job: job.sh, task.sh, params.yaml, manifest.json, log.txt, steps/; absolute
    workdir: Path  # where commands run: relative paths of the params begin here; absolute
    site: Site
    target: str  # CPU, GPU, CSX, ...
    steps: tuple[Step, ...]
    resources: Resources
    model_dir: Path  # absolute
    container: Container | None = None
    python: str = "python"  # outside a container: the interpreter that submitted
    modules: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)  # plain values, which may be seen by all
    passed: tuple[
        str, ...
    ] = ()  # variables of the submitting shell, whose values are never written to a file
    max_retries: int = 3  # attempts without a new checkpoint, after failures that are not the user's
    title: str = ""  # the subject as given, for people
