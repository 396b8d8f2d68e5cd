"""Who does what among the tasks of a step: one coordinator trains, the workers read the data for it.

The first task is elected: every task knows its number without asking the others, a requeued job elects again, and
the first one is where MASTER_ADDR points. TF_CONFIG says the same to TensorFlow.
"""

from __future__ import annotations

import os
import secrets
import stat
import time
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portwright.errors import UserError
from portwright.job.atomic import explain_os_error
from portwright.job.launch_env import export_slurm_rendezvous, read_launch

KEY_FILE = "PORTWRIGHT_STREAM_KEY_FILE"
TASK_HOSTS = "PORTWRIGHT_TASK_HOSTS"  # one a task, with commas between them
FIRST_TF_PORT = 23111  # of the chief; the workers' follow

KEY_SECONDS = 60.0  # how long a worker waits for the coordinator's key
_OWN_KEY = ".stream_key"  # file in model_dir, for a launch whose job made no key


@dataclass(frozen=True)
class Role:
    """What this task is, and where the coordinator can be reached."""

    rank: int
    num_workers: int
    address: str  # host:port of the coordinator

    @property
    def is_coordinator(self) -> bool:
        return self.rank == 0

    @property
    def name(self) -> str:
        return "coordinator" if self.is_coordinator else f"worker {self.rank}"


def read_role(environ: Mapping[str, str] = os.environ) -> Role:
    """The role of this process among those that torchrun or srun started; one that is alone is refused."""
    launch = read_launch(environ)
    if launch.world_size < 2:
        raise UserError(
            "--stream_data needs at least two tasks, one that trains and one that reads, and this process is alone.",
            "Start them with `srun --ntasks 7 python run.py ...` or `portwright submit --tasks stream`, or leave --stream_data out.",
        )
    if launch.source == "SLURM" and environ is os.environ:
        export_slurm_rendezvous(launch)
    host, port = environ.get("MASTER_ADDR", "localhost"), environ.get("MASTER_PORT", "29500")
    if not port.isdecimal() or not 0 < int(port) < 65535:
        raise UserError(f"the environment variable MASTER_PORT is '{port}', not a port.", "Unset it.")
    # torchrun itself listens at MASTER_PORT.
    return Role(launch.rank, launch.world_size - 1, f"{host}:{int(port) + 1}")


def stand_alone(environ: MutableMapping[str, str] = os.environ) -> None:
    """Sets the variables so that a framework takes the coordinator for a run of one process."""
    environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    environ.pop("TF_CONFIG", None)


def give_key(model_dir: Path, environ: Mapping[str, str] = os.environ) -> str:
    """The key that workers must prove to have: the job's, or a new one, which is left in model_dir for them."""
    if environ.get(KEY_FILE):
        return _read_key(Path(environ[KEY_FILE]))
    key = secrets.token_urlsafe(32)
    path = model_dir / _OWN_KEY
    try:
        model_dir.mkdir(parents=True, exist_ok=True)
        # A worker may be waiting for this file: it appears whole, and readable by its owner alone.
        temp = path.with_name(f"{_OWN_KEY}.{os.getpid()}")
        temp.unlink(missing_ok=True)
        with os.fdopen(os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(key)
        temp.replace(path)
    except OSError as error:
        raise explain_os_error(error, path) from error
    return key


def forget_key(model_dir: Path) -> None:
    """Removes a key that `give_key` made; a worker of the next run would take it for that run's."""
    with suppress(OSError):
        (model_dir / _OWN_KEY).unlink(missing_ok=True)


def find_key(model_dir: Path, environ: Mapping[str, str] = os.environ) -> str:
    """The same key, as a worker finds it; waits for a coordinator that has not begun."""
    path = Path(environ[KEY_FILE]) if environ.get(KEY_FILE) else model_dir / _OWN_KEY
    deadline = time.monotonic() + KEY_SECONDS
    while not path.is_file() and time.monotonic() < deadline:
        time.sleep(0.2)
    return _read_key(path)


def _read_key(path: Path) -> str:
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise UserError(f"{path} can be read by others.", f"Run: chmod 600 {path}")
        key = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot read the key of the stream, {path}: {error}.",
            f"Every task must see that file; or unset {KEY_FILE} to let the coordinator make one in model_dir.",
        ) from error
    if not key:
        raise UserError(f"the key of the stream, {path}, is empty.", "Remove it and start again.")
    return key


def tf_config(environ: Mapping[str, str] = os.environ, first_port: int = FIRST_TF_PORT) -> dict[str, Any]:
    """The cluster as TensorFlow's TF_CONFIG names it: the coordinator is its chief, and each task has a port of its own."""
    launch = read_launch(environ)
    listed = [host for host in environ.get(TASK_HOSTS, "").split(",") if host]
    if not listed:
        listed = [environ.get("MASTER_ADDR", "localhost")] * launch.world_size
    if len(listed) != launch.world_size:
        raise UserError(
            f"{TASK_HOSTS} names {len(listed)} hosts for {launch.world_size} tasks.",
            "Name one a task, with commas between them, or unset it.",
        )
    addresses = [f"{host}:{first_port + number}" for number, host in enumerate(listed)]
    is_chief = launch.rank == 0
    task = {"type": "chief" if is_chief else "worker", "index": 0 if is_chief else launch.rank - 1}
    return {"cluster": {"chief": addresses[:1], "worker": addresses[1:]}, "task": task}
