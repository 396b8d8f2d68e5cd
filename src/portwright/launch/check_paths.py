"""Whether the files that a job needs are there, may be used, and are where the nodes see them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from portwright.launch.findings import Finding
from portwright.launch.job import Job
from portwright.launch.mounts import find_mount

_PATH_ENDS = ("_dir", "_path", "_file", "_dirs", "_paths", "_files")
_MADE_BY_RUNS = {
    "model_dir",
    "compile_dir",
    "log_dir",
    "output_dir",
    "export_dir",
    "summary_dir",
    "cache_dir",
}
_INTERPRETER = "the interpreter"
_SYSTEM = ("/usr", "/bin", "/opt")
_LOCAL = ("/tmp", "/var/tmp", "/dev/shm", "/run")
_LOCAL_DISKS = ("/local", "/scratch/local", "/nvme", "/mnt/ram")
_DISK_TYPES = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs", "ramfs", "vfat", "9p"}


@dataclass(frozen=True)
class Needed:
    """A path of the job, and what it is there for."""

    path: Path
    what: str
    use: Literal["read", "write"] = "read"
    level: Literal["error", "warning"] = "error"  # where it is missing


@dataclass(frozen=True)
class Unseen:
    """Why nodes may not see paths."""

    level: Literal["error", "warning", "note"]
    why: str
    cure: str

    def as_finding(self, paths: str) -> Finding:
        return Finding(self.level, f"{self.why}: {paths}.", self.cure)


def check_paths(job: Job, params: Mapping[str, Any], *, at_site: bool) -> list[Finding]:
    found, unseen = [], dict[Unseen, list[Needed]]()
    for needed in needed_paths(job, params):
        if "\0" in str(needed.path):
            found.append(Finding("error", f"{needed.what} {str(needed.path)!r} is no path.", "Correct it."))
            continue
        if _is_below(needed.path, job.site.storage.on_nodes):
            continue  # only the nodes have it
        if (absent := absent_root(needed.path, job)) is not None:
            found.append(
                Finding(
                    "note",
                    f"{needed.what} '{needed.path}' was not checked here: this machine has no {absent}.",
                    "",
                )
            )
            continue
        if wrong := _check_use(needed):
            found += wrong
            continue
        if needed.what == _INTERPRETER and _is_below(needed.path, _SYSTEM):
            continue  # nodes have the system's own too
        if (problem := find_unseen(needed.path, job, at_site=at_site)) is not None:
            unseen.setdefault(problem, []).append(needed)
    for problem, paths in unseen.items():
        found.append(problem.as_finding(", ".join(f"{needed.what} '{needed.path}'" for needed in paths)))
    return found


def needed_paths(job: Job, params: Mapping[str, Any]) -> list[Needed]:
    """Every path that a job reads or writes, each once; the container's image is another check's."""
    found = [
        Needed(job.workdir, "the working folder"),
        Needed(job.folder, "the job's folder", "write"),
        Needed(job.model_dir, "model_dir", "write"),
        *_paths_of(params, "", job.workdir),
    ]
    if job.container is not None:
        made = [
            path.resolve() for path in (job.model_dir, job.folder)
        ]  # by the job: a bind names the end of a link
        binds = [Path(host) for host, _ in job.container.binds]
        found += [Needed(path, "the bound path") for path in binds if path not in made]
    elif os.sep in job.python:
        found.append(Needed(Path(job.python), _INTERPRETER))
    by_path: dict[Path, Needed] = {}
    for needed in found:
        by_path.setdefault(needed.path, needed)
    return list(by_path.values())


def _paths_of(values: Any, name: str, workdir: Path) -> Iterator[Needed]:
    if not isinstance(values, Mapping):
        return
    for key, value in values.items():
        place = f"{name}.{key}" if name else str(key)
        if isinstance(value, Mapping):
            yield from _paths_of(value, place, workdir)
        elif isinstance(key, str) and key.endswith(_PATH_ENDS) and key not in _MADE_BY_RUNS:
            # Only what input sections and checkpoint_path name is known to be read.
            is_read = place.partition(".")[0].endswith("_input") or key == "checkpoint_path"
            for text in value if isinstance(value, list) else [value]:
                if (
                    isinstance(text, str)
                    and text
                    and "://" not in text
                    and "$" not in text
                    and "*" not in text
                ):
                    path = Path(os.path.normpath(workdir / Path(text).expanduser()))
                    yield Needed(path, place, level="error" if is_read else "warning")


def _check_use(needed: Needed) -> list[Finding]:
    path = needed.path
    try:
        is_there = path.exists()
    except OSError as error:
        return [Finding("error", f"{needed.what} '{path}' is no path: {error.strerror}.", "Correct it.")]
    if needed.use == "read":
        if not is_there:
            cure = (
                "It is a link that leads nowhere: mend it."
                if path.is_symlink()
                else "Correct the path; relative ones begin at the working folder."
            )
            return [Finding(needed.level, f"{needed.what} '{path}' does not exist.", cure)]
        wanted = os.R_OK | (os.X_OK if path.is_dir() else 0)
        if not os.access(path, wanted):
            return [
                Finding(
                    "error",
                    f"{needed.what} '{path}' may not be read by you.",
                    f"Ask its owner for it: ls -ld '{path}' shows the rights.",
                )
            ]
        return []
    if is_there and not path.is_dir():
        return [
            Finding(
                "error",
                f"{needed.what} '{path}' is a file, not a folder.",
                "Choose another, or move the file away.",
            )
        ]
    place = next((place for place in (path, *path.parents) if place.exists()), Path("/"))
    if not place.is_dir():
        return [
            Finding(
                "error", f"{needed.what} '{path}' lies below the file '{place}'.", "Choose another place."
            )
        ]
    if not os.access(place, os.W_OK | os.X_OK):
        return [
            Finding(
                "error",
                f"{needed.what} '{path}' cannot be written: '{place}' is not yours to write.",
                "Choose a folder of your own, or ask for the right to write.",
            )
        ]
    return []


def find_unseen(path: Path, job: Job, *, at_site: bool) -> Unseen | None:
    """Why the nodes may not see a path, by what the site's file says of its file systems."""
    if job.site.scheduler == "none":  # all of it runs here
        return None
    real = Path(os.path.realpath(path))
    shared = job.site.storage.shared
    if shared:
        if _is_below(real, shared) or _is_below(path, shared):
            return None
        why = f"not on a file system that the nodes of {job.site.name} see ({', '.join(shared)})"
        if not at_site:
            return Unseen(
                "note", f"{why}, nor is this machine the site's", "Copy it there, and submit there."
            )
        return Unseen(
            "error",
            why,
            f"Move it below {shared[0]}, or name the file system in storage.shared of the site's file.",
        )
    if _is_below(real, _LOCAL) or str(real).startswith(_LOCAL_DISKS):
        return Unseen(
            "warning",
            "on a disk that each machine has of its own, as a rule",
            "Put it on a file system that the nodes see too, or name this one in storage.shared of the site's file.",
        )
    mount = find_mount(real)
    if mount is not None and mount.kind in _DISK_TYPES:
        why = f"on a disk of this machine ({mount.kind}), and whether the nodes see it was not checked"
        return Unseen("note", why, "--probe asks a node." if job.site.scheduler == "slurm" else "")
    return None


def absent_root(path: Path, job: Job) -> str | None:
    """The site's shared file system that the path names, where this machine has no such thing."""
    for root in job.site.storage.shared:
        if _is_below(path, (root,)) and not Path(root).exists():
            return root
    return None


def _is_below(path: Path, roots: tuple[str, ...]) -> bool:
    return any(path == Path(root) or Path(root) in path.parents for root in roots)
