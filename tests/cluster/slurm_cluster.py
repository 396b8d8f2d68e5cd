"""A real SLURM of a few nodes on this host, for tests and for trying things by hand.

    with SlurmCluster(folder, nodes=4) as cluster:
        job = cluster.submit("job.sh")
        cluster.wait_state(job, {"COMPLETED"})

    python tests/cluster/slurm_cluster.py start FOLDER [--prefix x] [--nodes 4]
    eval "$(python tests/cluster/slurm_cluster.py env FOLDER)"; sinfo
    python tests/cluster/slurm_cluster.py stop FOLDER

Several live side by side: each has its own ports, munge key and socket, state, and node names.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

RUNNING = Path(
    "/run/portwright-slurm"
)  # of this host: a lock, a note a cluster, munge's sockets, whose paths must be short
HOSTS = Path("/etc/hosts")
MARK = "PORTWRIGHT_TEST_CLUSTER"  # in the environment of every daemon, which its step daemons inherit
PROGRAMS = ("munged", "mungekey", "slurmctld", "slurmd", "sbatch", "scontrol")
CPUS = 128  # told, not had: nothing binds tasks to cores

# Enough for every shipped site's script to be placed.
GRES = {
    "cs": (("cerebras", 1),),
    "gpu": (("v100-16", 8), ("v100-32", 8), ("v100", 8), ("l40s-48", 8), ("h100-80", 8)),
    "ipu": (("", 64),),
    "rdu": (("", 8),),
}
PARTITIONS = (
    "sdf Default=YES DefaultTime=4:00:00 MaxTime=2-00:00:00",
    "RM MaxTime=3-00:00:00",
    "RM-shared MaxTime=3-00:00:00",
    "RM-512 MaxTime=3-00:00:00",
    "EM MaxTime=5-00:00:00",
    "GPU MaxTime=2-00:00:00",
    "GPU-shared MaxTime=2-00:00:00",
    "p64",
    "sambanova",
    "gpu",
    "low PriorityTier=1 PreemptMode=REQUEUE GraceTime=30",
    "cancelled PriorityTier=1 PreemptMode=CANCEL",
    "high PriorityTier=10",
)


class ClusterError(Exception):
    """The cluster did not do what was asked of it in time; the message says what it did."""


class SlurmCluster:
    """Munge, a controller and `nodes` node daemons; made anew on each start, whatever the folder held."""

    def __init__(self, folder: Path | str, *, nodes: int = 4, prefix: str | None = None) -> None:
        self.folder = Path(folder).absolute()
        self.id = hashlib.sha256(str(self.folder).encode()).hexdigest()[:8]
        self.prefix = prefix or f"pw{self.id[:4]}"
        self.names = [f"{self.prefix}-{number}" for number in range(1, nodes + 1)]
        self.conf = self.folder / "slurm.conf"
        self.logs = self.folder / "log"
        self._children: list[subprocess.Popen[bytes]] = []

    @property
    def environ(self) -> dict[str, str]:
        """Of commands that shall talk to this cluster."""
        return {**outside_of_jobs(os.environ), "SLURM_CONF": str(self.conf)}

    # ---- life

    def __enter__(self) -> SlurmCluster:
        self.start(owner=os.getpid())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, *, owner: int | None = None) -> None:
        """Returns when all nodes are idle; with an owner, a later start ends the cluster if the owner died."""
        _check_host()
        with _host_lock():
            _end_abandoned()
            self._end()  # of an earlier start in the same folder
            for name in ("state", "spool", "munge"):
                shutil.rmtree(self.folder / name, ignore_errors=True)
            for name in ("state", "munge", "log", *(f"spool/{node}" for node in self.names)):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
            (self.folder / "munge").chmod(0o700)
            self._write_configuration()
            self._write_note(owner)
            _edit_hosts(add=f"127.0.0.1 {' '.join(self.names)} # {MARK}={self.id}")
            try:
                self._start_munge()
                self._spawn("slurmctld", "slurmctld", "-D", "-c", "-f", str(self.conf))
                for name in self.names:
                    self._start_node(name)
                self.wait_nodes("idle")
            except BaseException:
                self._end()
                raise

    def stop(self) -> None:
        """Ends every process of the cluster and its jobs; configuration and logs stay."""
        with _host_lock():
            self._end()

    def _end(self) -> None:
        for _ in range(50):
            processes = self._processes()
            if not processes:
                break
            _kill(processes)
            time.sleep(0.05)
        else:
            raise ClusterError(f"processes {sorted(processes)} of the cluster in {self.folder} do not end")
        for child in self._children:
            child.wait()
        self._children.clear()
        _edit_hosts(drop=f"# {MARK}={self.id}")
        for path in RUNNING.glob(f"{self.id}.*"):
            path.unlink()

    # ---- nodes

    def node_down(self, name: str) -> None:
        """Kills all that runs on a node, as if its power went; the controller is not told and finds out by itself."""
        _kill(self._processes(name), signal.SIGSTOP)  # none may tell of another's end
        for _ in range(50):
            processes = self._processes(name)
            if not processes:
                break
            _kill(processes)
            time.sleep(0.05)
        self._reap()

    def node_up(self, name: str) -> None:
        """Starts a node's daemon again; returns when jobs can run there."""
        if not self._processes(name):
            self._start_node(name)
        self.wait_nodes("idle", "mixed", "allocated", names=[name])

    def node_states(self) -> dict[str, str]:
        """Of each node, in small letters: idle, mixed, down*, ..."""
        answer = self.run("sinfo", "-h", "-N", "-p", "sdf", "-o", "%N %t", check=False)
        longer = {"alloc": "allocated", "mix": "mixed", "comp": "completing"}
        pairs = (line.split() for line in answer.stdout.splitlines())
        return {name: longer.get(state, state) for name, state in (pair for pair in pairs if len(pair) == 2)}

    def wait_nodes(self, *states: str, names: Collection[str] | None = None, timeout: float = 90) -> None:
        wanted = list(names or self.names)

        def reached() -> bool:
            now = self.node_states()
            return all(
                now.get(name, "").rstrip("*") in states and not now[name].endswith("*") for name in wanted
            )

        self.wait(
            reached, timeout, lambda: f"nodes {wanted} are not {' or '.join(states)}: {self.node_states()}"
        )

    # ---- jobs

    def run(
        self, *words: str | Path, check: bool = True, timeout: float = 120, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """One command against this cluster."""
        command = [str(word) for word in words]
        done = subprocess.run(
            command,
            env=self.environ,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )
        if check and done.returncode:
            raise ClusterError(
                f"{shlex.join(command)} ended with {done.returncode}: {done.stderr.strip() or done.stdout.strip()}"
            )
        return done

    def submit(self, *words: str | Path, cwd: Path | None = None) -> int:
        """`sbatch` with these words; the job's id."""
        return int(self.run("sbatch", "--parsable", *words, cwd=cwd).stdout.split(";")[0])

    def job(self, job: int | str) -> dict[str, str]:
        """What `scontrol show job` says; empty when it knows the job no more."""
        shown = self.run("scontrol", "show", "job", "-o", str(job), check=False)
        return dict(re.findall(r"(\S+?)=(\S*)", shown.stdout))

    def state(self, job: int | str) -> str:
        return self.job(job).get("JobState", "UNKNOWN")

    def restarts(self, job: int | str) -> int:
        return int(self.job(job).get("Restarts", "0"))

    def wait_state(self, job: int | str, states: Collection[str], timeout: float = 240) -> str:
        """The state of `states` that the job reached; one that it can leave no more, or the time, ends the waiting."""
        final = {
            "COMPLETED",
            "FAILED",
            "CANCELLED",
            "TIMEOUT",
            "NODE_FAIL",
            "OUT_OF_MEMORY",
            "DEADLINE",
            "BOOT_FAIL",
        }
        told = f"job {job} did not reach {sorted(states)}"
        state = ""

        def reached() -> bool:
            nonlocal state
            state = self.state(job)
            if state in final - set(states):
                raise ClusterError(f"{told}, it is {state}: {self.job(job)}")
            return state in states

        self.wait(reached, timeout, lambda: f"{told}: {self.job(job)}")
        return state

    def wait(self, reached: Callable[[], bool], timeout: float, told: Callable[[], str]) -> None:
        """Asks again and again, with a bound; a daemon that died meanwhile is told too."""
        end = time.monotonic() + timeout
        while not reached():
            if time.monotonic() > end:
                raise ClusterError(f"{told()} after {timeout:g} s{self._dead_daemons()}; logs: {self.logs}")
            time.sleep(0.2)

    # ---- parts

    def _write_configuration(self) -> None:
        here = socket.gethostname().split(".")[0]
        ports = _free_ports(1 + len(self.names))
        gres = ",".join(
            f"{name}:{kind}:{count}".replace("::", ":")
            for name, kinds in GRES.items()
            for kind, count in kinds
        )
        nodes = [
            f"NodeName={name} NodeHostname={here} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} CoresPerSocket={CPUS} "
            f"RealMemory=2000000 Gres={gres}"
            for name, port in zip(self.names, ports[1:], strict=True)
        ]
        every = ",".join(self.names)
        partitions = [
            f"PartitionName={line} Nodes={every} State=UP{'' if 'PreemptMode' in line else ' PreemptMode=OFF'}"
            for line in PARTITIONS
        ]
        prolog = self.folder / "task_prolog.sh"
        # Stands in for what the sites' own prologs tell tasks.
        prolog.write_text("#!/bin/sh\necho export CS_IP_ADDR=127.0.0.1\n")
        prolog.chmod(0o755)
        lines = [
            f"ClusterName={self.prefix}",
            f"SlurmctldHost={here}(127.0.0.1)",
            f"SlurmctldPort={ports[0]}",
            "SlurmUser=root",
            "AuthType=auth/munge",
            f"AuthInfo=socket={RUNNING / self.id}.sock,cred_expire=5",  # a requeued job waits for credentials to expire
            f"StateSaveLocation={self.folder}/state",
            f"SlurmdSpoolDir={self.folder}/spool/%n",
            f"SlurmctldPidFile={self.folder}/state/slurmctld.pid",
            f"SlurmdPidFile={self.folder}/spool/%n/slurmd.pid",
            f"SlurmctldLogFile={self.logs}/slurmctld.log",
            f"SlurmdLogFile={self.logs}/slurmd-%n.log",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core",
            "SlurmdParameters=config_overrides",
            "SchedulerParameters=sched_interval=2,batch_sched_delay=1,bf_interval=5",
            "PreemptType=preempt/partition_prio",
            "PreemptMode=REQUEUE",
            "ReturnToService=2",
            "SlurmdTimeout=15",
            "MessageTimeout=30",
            "KillWait=10",
            "MinJobAge=86400",  # there is no database: an ended job must stay to be asked for
            "MpiDefault=none",
            f"TaskProlog={prolog}",
            f"GresTypes={','.join(GRES)}",
            *nodes,
            *partitions,
        ]
        self.conf.write_text("\n".join(lines) + "\n")
        (self.folder / "gres.conf").write_text(
            "".join(f"NodeName={every} {line}\n" for line in self._gres_lines())
        )

    def _gres_lines(self) -> Iterator[str]:
        for name, kinds in GRES.items():
            for kind, count in kinds:
                said = f"Name={name}{f' Type={kind}' if kind else ''}"
                if name != "gpu":
                    yield f"{said} Count={count}"
                    continue
                # SLURM counts GPUs by their device files, and is content with any files.
                for number in range(count):
                    device = self.folder / "dev" / f"{kind}_{number}"
                    device.parent.mkdir(exist_ok=True)
                    device.touch()
                yield f"{said} File={self.folder}/dev/{kind}_[0-{count - 1}]"

    def _write_note(self, owner: int | None) -> None:
        born = _process_start(owner) if owner else None
        note = {
            "folder": str(self.folder),
            "prefix": self.prefix,
            "nodes": len(self.names),
            "owner": owner,
            "born": born,
        }
        (RUNNING / f"{self.id}.json").write_text(json.dumps(note))

    def _start_munge(self) -> None:
        place = self.folder / "munge"
        key = place / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        at = RUNNING / f"{self.id}.sock"
        files = [
            f"--key-file={key}",
            f"--log-file={place}/log",
            f"--pid-file={place}/pid",
            f"--seed-file={place}/seed",
        ]
        # --force: a folder that others may write to, as temporary ones are, is no danger to a test's key.
        self._spawn("munged", "munged", "--foreground", "--force", f"--socket={at}", *files)
        self.wait(at.exists, 30, lambda: "munged made no socket")

    def _start_node(self, name: str) -> None:
        self._spawn(f"slurmd-{name}", "slurmd", "-D", "-c", "-N", name, "-f", str(self.conf), node=name)

    def _spawn(self, log: str, program: str, *words: str, node: str = "-") -> None:
        environ = {**self.environ, MARK: f"{self.id}:{node}:"}
        with (self.logs / f"{log}.out").open("ab") as out:
            child = subprocess.Popen(
                [_which(program), *words],
                env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, cwd="/",
            )  # fmt: skip
        self._children.append(child)

    def _reap(self) -> None:
        for child in self._children:
            child.poll()

    def _dead_daemons(self) -> str:
        dead = [child for child in self._children if child.poll() is not None]
        return "".join(f"; {child.args!r} ended with {child.returncode}" for child in dead)

    def _processes(self, node: str | None = None) -> set[int]:
        """Of the cluster, or of one node: daemons, their children, and what the jobs left without a parent."""
        mark = f"{MARK}={self.id}:{node + ':' if node else ''}".encode()
        conf = b"SLURM_CONF=" + os.fsencode(self.conf)
        found = set()
        for pid in _pids():
            variables = _read(pid, "environ").split(b"\0")
            of_job = conf in variables and any(word.startswith(b"SLURM_JOB_ID=") for word in variables)
            there = node is None or b"SLURMD_NODENAME=" + node.encode() in variables
            if any(word.startswith(mark) for word in variables) or (of_job and there):
                found.add(pid)
        children: dict[int, list[int]] = {}
        for pid in _pids():
            children.setdefault(_parent(pid), []).append(pid)
        waiting = list(found)
        while waiting:
            for pid in children.get(waiting.pop(), ()):
                if pid not in found:
                    found.add(pid)
                    waiting.append(pid)
        return {pid for pid in found if pid != os.getpid() and _process_start(pid) is not None}


# ---- this host


def outside_of_jobs(environ: Mapping[str, str]) -> dict[str, str]:
    """Without what a job of another cluster, in which this may run, would tell sbatch and srun."""
    return {name: value for name, value in environ.items() if not name.startswith(("SLURM", "SBATCH"))}


def _which(program: str) -> str:
    found = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        raise ClusterError(
            f"no {program} here: `make test-cluster` installs it (Debian: slurm-wlm and munge)"
        )
    return found


def _check_host() -> None:
    if os.geteuid() != 0:
        raise ClusterError("the test cluster needs root: node daemons start jobs as other users")
    for program in PROGRAMS:
        _which(program)


@contextmanager
def _host_lock() -> Iterator[None]:
    RUNNING.mkdir(mode=0o755, exist_ok=True)
    with (RUNNING / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _end_abandoned() -> None:
    """Ends clusters whose test run was killed."""
    for path in RUNNING.glob("*.json"):
        note = json.loads(path.read_text() or "{}")
        owner = note.get("owner")
        if owner and _process_start(owner) != note["born"]:
            SlurmCluster(note["folder"], nodes=note["nodes"], prefix=note["prefix"])._end()


def _edit_hosts(*, add: str | None = None, drop: str | None = None) -> None:
    """Written in place, under the lock: in containers the file is a mount, which cannot be replaced."""
    before = HOSTS.read_text()
    lines = before.splitlines()
    kept = [line for line in lines if drop is None or not line.endswith(drop)]
    after = "\n".join([*kept, *([add] if add else [])]) + "\n"
    if kept != lines or add:
        HOSTS.write_text(after)


def _free_ports(count: int) -> list[int]:
    """Below the range from which the kernel, and our jobs' MASTER_PORT, take theirs."""
    ports: list[int] = []
    for port in random.SystemRandom().sample(range(10000, 20000), 2000):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise ClusterError("no free ports between 10000 and 20000")


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it ended meanwhile
        return b""


def _stat(pid: int) -> list[bytes]:
    return _read(pid, "stat").rpartition(b")")[2].split()


def _parent(pid: int) -> int:
    stat = _stat(pid)
    return int(stat[1]) if stat else 0


def _process_start(pid: int) -> int | None:
    """When it began, in ticks: with the id, who it is. None: it ended, or waits to be reaped."""
    stat = _stat(pid)
    return int(stat[19]) if stat and stat[0] not in b"ZX" else None


def _kill(pids: Collection[int], number: signal.Signals = signal.SIGKILL) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _found(folder: Path) -> SlurmCluster:
    cluster = SlurmCluster(folder)
    note = RUNNING / f"{cluster.id}.json"
    if not note.exists():
        return cluster
    known = json.loads(note.read_text())
    return SlurmCluster(folder, nodes=known["nodes"], prefix=known["prefix"])


def main() -> None:
    parser = argparse.ArgumentParser(description="A real SLURM on this host, for trying things.")
    parser.add_argument("command", choices=("start", "stop", "env", "down", "up"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("node", nargs="?", help="of down and up: a node's name")
    parser.add_argument("--prefix", help="of the nodes' names")
    parser.add_argument("--nodes", type=int, default=4)
    given = parser.parse_args()
    try:
        if given.command == "start":
            cluster = SlurmCluster(given.folder, nodes=given.nodes, prefix=given.prefix)
            cluster.start()
            print(f"export SLURM_CONF={shlex.quote(str(cluster.conf))}")
        elif given.command == "stop":
            _found(given.folder).stop()
        elif given.command == "env":
            print(f"export SLURM_CONF={shlex.quote(str(_found(given.folder).conf))}")
        else:
            cluster = _found(given.folder)
            if given.node not in cluster.names:
                sys.exit(f"no node {given.node}; there are {', '.join(cluster.names)}")
            cluster.node_down(given.node) if given.command == "down" else cluster.node_up(given.node)
    except ClusterError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
