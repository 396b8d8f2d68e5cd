"""Checks that the files of a job exist, may be read or written, and are visible to the nodes; and that its container image is one."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from portwright.discover import get_target
from portwright.job.data_paths import named_paths
from portwright.launch.container import foreign_flags
from portwright.launch.findings import Finding, note, refusal, warning
from portwright.launch.job import Container, Job

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
MOUNTS = Path("/proc/self/mounts")
_DISK_TYPES = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs", "ramfs", "vfat", "9p"}


@dataclass(frozen=True)
class Needed:
    """A path of the job, and its purpose."""

    path: Path
    what: str
    use: Literal["read", "write"] = "read"
    level: Literal["error", "warning"] = "error"  # of the finding, if it is missing


def check_paths(job: Job, params: Mapping[str, Any], *, at_site: bool) -> Iterator[Finding]:
    unseen: dict[Finding, list[str]] = {}
    for needed in needed_paths(job, params):
        name = f"{needed.what} '{needed.path}'"
        if "\0" in str(needed.path):
            yield refusal(f"{needed.what} {str(needed.path)!r} is no path.", "Correct it.")
        elif _is_below(needed.path, job.site.storage.on_nodes):
            pass  # exists on the nodes alone
        elif (absent := _absent_root(needed.path, job)) is not None:
            yield note(f"{name} was not checked here: this machine has no {absent}.")
        elif wrong := _check_use(needed):
            yield wrong
        elif needed.what == _INTERPRETER and _is_below(needed.path, _SYSTEM):
            pass  # nodes have system folders too
        elif (problem := find_unseen(needed.path, job, at_site=at_site)) is not None:
            unseen.setdefault(problem, []).append(name)
    for problem, names in unseen.items():
        yield replace(problem, what=f"{problem.what}: {', '.join(names)}.")


def needed_paths(job: Job, params: Mapping[str, Any]) -> list[Needed]:
    """Every path that a job reads or writes, each once; the container's image is another check's."""
    found = [
        Needed(job.workdir, "the working folder"),
        Needed(job.folder, "the job's folder", "write"),
        Needed(job.model_dir, "model_dir", "write"),
    ]
    for key, text in named_paths(params):
        name = key.rpartition(".")[2]
        if name not in _MADE_BY_RUNS and not any(sign in text for sign in ("://", "$", "*")):
            # Only what input sections and checkpoint_path name is known to be read.
            is_read = key.partition(".")[0].endswith("_input") or name == "checkpoint_path"
            path = Path(os.path.normpath(job.workdir / Path(text).expanduser()))
            found.append(Needed(path, key, level="error" if is_read else "warning"))
    if job.container is not None:
        made = [path.resolve() for path in (job.model_dir, job.folder)]  # binds have links resolved
        binds = [Path(host) for host, _ in job.container.binds]
        found += [Needed(path, "the bound path") for path in binds if path not in made]
    elif os.sep in job.python:
        found.append(Needed(Path(job.python), _INTERPRETER))
    by_path: dict[Path, Needed] = {}
    for needed in found:
        by_path.setdefault(needed.path, needed)
    return list(by_path.values())


def _check_use(needed: Needed) -> Finding | None:
    path, name = needed.path, f"{needed.what} '{needed.path}'"
    try:
        is_there = path.exists()
    except OSError as error:
        return refusal(f"{name} is no path: {error.strerror}.", "Correct it.")
    if needed.use == "read" and not is_there:
        cure = "Correct the path; relative ones begin at the working folder. Make the folder, if the job is to fill it."
        if path.is_symlink():
            cure = "It is a link that leads nowhere: mend it."
        return Finding(needed.level, f"{name} does not exist.", cure)
    if needed.use == "read":
        wanted = os.R_OK | (os.X_OK if path.is_dir() else 0)
        cure = f"Ask its owner for it: ls -ld '{path}' shows the rights."
        return None if os.access(path, wanted) else refusal(f"{name} may not be read by you.", cure)
    if is_there and not path.is_dir():
        return refusal(f"{name} is a file, not a folder.", "Choose another, or move the file away.")
    place = nearest_existing(path)
    if not place.is_dir():
        return refusal(f"{name} lies below the file '{place}'.", "Choose another place.")
    if not os.access(place, os.W_OK | os.X_OK):
        cure = "Choose a folder of your own, or ask for the right to write."
        return refusal(f"{name} cannot be written: '{place}' is not yours to write.", cure)
    return None


def nearest_existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    return next((place for place in (path, *path.parents) if place.exists()), Path("/"))


def find_unseen(path: Path, job: Job, *, at_site: bool) -> Finding | None:
    """Why the nodes may not see a path, according to the file systems in the site's file; without the path's name."""
    if job.site.scheduler == "none":  # jobs run on this machine
        return None
    real = Path(os.path.realpath(path))
    shared = job.site.storage.shared
    if shared:
        if _is_below(real, shared) or _is_below(path, shared):
            return None
        why = f"not on a file system that the nodes of {job.site.name} see ({', '.join(shared)})"
        if not at_site:
            return note(f"{why}, nor is this machine the site's", "Copy it there, and submit there.")
        return refusal(
            why,
            f"Move it below {shared[0]}, or name the file system in storage.shared of the site's file.",
        )
    if _is_below(real, _LOCAL) or str(real).startswith(_LOCAL_DISKS):
        return warning(
            "on a disk that each machine has of its own, as a rule",
            "Put it on a file system that the nodes see too, or name this one in storage.shared of the site's file.",
        )
    _, kind = find_mount(real)
    if kind in _DISK_TYPES:
        why = f"on a disk of this machine ({kind}), and whether the nodes see it was not checked"
        return note(why, "--probe asks a node." if job.site.scheduler == "slurm" else "")
    return None


def _absent_root(path: Path, job: Job) -> str | None:
    """The site's shared file system that the path is on, where this machine does not have it."""
    on = (root for root in job.site.storage.shared if _is_below(path, (root,)))
    return next((root for root in on if not Path(root).exists()), None)


def _is_below(path: Path, roots: tuple[str, ...]) -> bool:
    return any(path == Path(root) or Path(root) in path.parents for root in roots)


def find_mount(path: Path) -> tuple[str, str]:
    """Device (/dev/sda1, server:/export) and kind (ext4, nfs, lustre) of the mount that a path is on, or would be.

    Both are empty where the system does not tell.
    """
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "", ""
    rows = (line.split() for line in lines)
    # A later mount covers an earlier one at the same place.
    mounts = {row[1].replace("\\040", " "): (row[0], row[2]) for row in rows if len(row) >= 3}
    places = (str(place) for place in (path, *path.parents))
    return next((mounts[place] for place in places if place in mounts), ("", ""))


_URI = re.compile(r"[a-z]+://")
_HEAD_BYTES = 2048
_EXT_OFFSET, _EXT_MAGIC = 1080, b"\x53\xef"
_KNOWN_HEADS = (
    (b"\x1f\x8b", "a gzip archive: unpack or build it first"),
    (b"version https://git-lfs", "a pointer of Git LFS, not the file itself: git lfs pull"),
    (b"<", "a page of HTML or XML: the download failed"),
    (b"PK\x03\x04", "a zip archive"),
)
_GPU_FLAGS = ("--nv", "--nvccli", "--rocm")


def check_container(job: Job, *, at_site: bool) -> Iterator[Finding]:
    container = job.container
    if container is None:
        return
    yield from _check_image(job, container, at_site=at_site)
    yield from _check_flags(job, container)
    if shutil.which(container.kind) is None and not job.modules:
        what = f"there is no {container.kind} on this machine; the nodes may have it."
        yield note(what, "--probe asks a node.")


def _check_image(job: Job, container: Container, *, at_site: bool) -> Iterator[Finding]:
    path, problem = Path(container.image), None
    if _URI.match(container.image):
        yield warning(
            f"the image is '{container.image}', which each node would fetch; many have no connection to the outside.",
            "Fetch it before: apptainer pull image.sif URI.",
        )
        return
    if (absent := _absent_root(path, job)) is not None:
        yield note(f"the image '{path}' was not checked here: this machine has no {absent}.")
        return
    try:
        if path.exists():
            problem = _problem_of(path, container.kind)
        elif container.images_on_nodes:
            yield warning(
                f"the image '{path}' does not exist here; a copy on the nodes ({container.images_on_nodes[0]}) may.",
                "Give another one with --image where the job does not find it.",
            )
            return
        else:
            yield refusal(f"the image '{path}' does not exist.", "Correct --image.")
            return
    except PermissionError:
        problem = "may not be read by you"
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    if problem is not None:
        cure = (
            "a folder or a SquashFS file with --image: ch-convert NAME image.sqfs makes one."
            if container.kind == "ch-run"
            else f"a SIF file or a sandbox with --image: {container.kind} build image.sif portwright.def makes one."
        )
        yield refusal(f"the image '{path}' {problem}.", f"Give {cure}")
    if (unseen := find_unseen(path, job, at_site=at_site)) is not None:
        yield replace(unseen, what=f"{unseen.what}: the image '{path}'.")


def _problem_of(path: Path, kind: str) -> str | None:
    if path.is_dir():
        names = {entry.name for entry in path.iterdir()}
        has = ", ".join(sorted(names)[:5]) or "nothing"
        is_root = names & {"bin", "usr", ".singularity.d"}
        return (
            None if is_root else f"is a folder without bin or usr, so not the root of a system (it has {has})"
        )
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if not head:
        return "is empty, as a copy that was interrupted"
    is_squashfs, is_sif = b"hsqs" in head[:64], b"SIF_MAGIC" in head[:64]
    is_known = is_squashfs or is_sif or head[_EXT_OFFSET:].startswith(_EXT_MAGIC)
    if is_squashfs and not is_sif if kind == "ch-run" else is_known:
        return None
    looks = (f" but {what}" for start, what in _KNOWN_HEADS if head.lstrip().startswith(start))
    other = " but a SIF file" if is_sif else next(looks, f" (it begins with {head[:12]!r})")
    return f"is no {'SquashFS' if kind == 'ch-run' else 'SIF'} file{other}"


def _check_flags(job: Job, container: Container) -> Iterator[Finding]:
    on_gpu = get_target(job.target).torch_device == "cuda" and container.kind == "ch-run"
    left_out = [
        flag
        for flag in foreign_flags(job.site, container.kind)
        if not (on_gpu and flag in _GPU_FLAGS)  # which has a finding of its own
    ]
    if left_out:
        yield note(
            f"container.flags of {job.site.name} ({' '.join(left_out)}) are not of {container.kind}, which is started without them.",
            f'Flags of {container.kind} go into a site\'s file that says container.kind = "{container.kind}".',
        )
    if on_gpu:
        yield note(
            "ch-run shows an image nothing of the node's GPU driver: its libraries must have been put into the image.",
            "Where that was not done: ch-fromhost --nvidia FOLDER, on a machine with the nodes' driver; a SquashFS file is made of the folder after it.",
        )
