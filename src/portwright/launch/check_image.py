"""Whether a job's container image is one, and takes what the job binds into it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from portwright.launch.check_paths import absent_root, find_unseen
from portwright.launch.container import foreign_flags
from portwright.launch.findings import Finding, Run, run_program
from portwright.launch.job import Container, Job

_URI = re.compile(r"[a-z]+://")
_HEAD_BYTES = 2048
_EXT_MAGIC = (1080, b"\x53\xef")
_KNOWN_HEADS = (
    (b"\x1f\x8b", "a gzip archive: unpack or build it first"),
    (b"version https://git-lfs", "a pointer of Git LFS, not the file itself: git lfs pull"),
    (b"<", "a page of HTML or XML: the download failed"),
    (b"PK\x03\x04", "a zip archive"),
)
_GPU_FLAGS = ("--nv", "--nvccli", "--rocm")
# What ch-run puts over the image: the host's, so that the image need not have what lies below; --home does it for /home.
_CH_RUN_MOUNTS = ("/dev", "/proc", "/sys", "/tmp")
# A line of `unsquashfs -ll`: drwxr-xr-x root/root 24 2026-11-18 13:52 squashfs-root/a b
_LISTED = re.compile(r"^([a-z-])\S{9} +\S+ +[\d, ]+ \S+ \S+ squashfs-root(/.*)$", re.MULTILINE)


def check_container(job: Job, *, at_site: bool, run: Run = run_program) -> list[Finding]:
    container = job.container
    if container is None:
        return []
    found = _check_image(job, container, at_site=at_site)
    found += _check_flags(job, container)
    if not any(finding.level == "error" for finding in found):
        found += _check_bind_places(job, container, run)
    if shutil.which(container.kind) is None and not job.modules:
        found.append(
            Finding(
                "note",
                f"there is no {container.kind} on this machine; the nodes may have it.",
                "--probe asks a node.",
            )
        )
    return found


def _check_image(job: Job, container: Container, *, at_site: bool) -> list[Finding]:
    if _URI.match(container.image):
        return [
            Finding(
                "warning",
                f"the image is '{container.image}', which each node would fetch; many have no connection to the outside.",
                "Fetch it before: apptainer pull image.sif URI.",
            )
        ]
    path = Path(container.image)
    if (absent := absent_root(path, job)) is not None:
        return [
            Finding("note", f"the image '{path}' was not checked here: this machine has no {absent}.", "")
        ]
    try:
        if not path.exists():
            if container.images_on_nodes:
                return [
                    Finding(
                        "warning",
                        f"the image '{path}' does not exist here; a copy on the nodes ({container.images_on_nodes[0]}) may.",
                        "Give another one with --image where the job does not find it.",
                    )
                ]
            return [Finding("error", f"the image '{path}' does not exist.", "Correct --image.")]
        problem = _problem_of(path, container.kind)
    except PermissionError:
        problem = "may not be read by you"
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    found = [] if problem is None else [Finding("error", f"the image '{path}' {problem}.", _cure(container))]
    if (unseen := find_unseen(path, job, at_site=at_site)) is not None:
        found.append(unseen.as_finding(f"the image '{path}'"))
    return found


def _problem_of(path: Path, kind: str) -> str | None:
    if path.is_dir():
        names = {entry.name for entry in path.iterdir()}
        if not names & {"bin", "usr", ".singularity.d"}:
            return f"is a folder without bin or usr, so not the root of a system (it has {', '.join(sorted(names)[:5]) or 'nothing'})"
        return None
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if not head:
        return "is empty, as a copy that was interrupted"
    is_squashfs = b"hsqs" in head[:64]
    if kind == "ch-run":
        if is_squashfs and b"SIF_MAGIC" not in head[:64]:
            return None
        return "is no SquashFS file" + (" but a SIF file" if b"SIF_MAGIC" in head[:64] else _looks_like(head))
    offset, magic = _EXT_MAGIC
    if b"SIF_MAGIC" in head[:64] or is_squashfs or head[offset : offset + 2] == magic:
        return None
    return "is no SIF file" + _looks_like(head)


def _looks_like(head: bytes) -> str:
    return next(
        (f" but {what}" for start, what in _KNOWN_HEADS if head.lstrip().startswith(start)),
        f" (it begins with {head[:12]!r})",
    )


def _cure(container: Container) -> str:
    if container.kind == "ch-run":
        return "Give a folder or a SquashFS file with --image: ch-convert NAME image.sqfs makes one."
    return f"Give a SIF file or a sandbox with --image: {container.kind} build image.sif portwright.def makes one."


def _check_flags(job: Job, container: Container) -> list[Finding]:
    on_gpu = job.target == "GPU" and container.kind == "ch-run"
    left_out = [
        flag
        for flag in foreign_flags(job.site, container.kind)
        if not (on_gpu and flag in _GPU_FLAGS)  # of which there is more to say
    ]
    found = []
    if left_out:
        found.append(
            Finding(
                "note",
                f"container.flags of {job.site.name} ({' '.join(left_out)}) are not of {container.kind}, which is started without them.",
                f'Flags of {container.kind} go into a site\'s file that says container.kind = "{container.kind}".',
            )
        )
    if on_gpu:
        found.append(
            Finding(
                "note",
                "ch-run shows an image nothing of the node's GPU driver: its libraries must have been put into the image.",
                "Where that was not done: ch-fromhost --nvidia FOLDER, on a machine with the nodes' driver; a SquashFS file is made of the folder after it.",
            )
        )
    return found


def _check_bind_places(job: Job, container: Container, run: Run) -> list[Finding]:
    """ch-run binds only onto what a SquashFS file has; in a folder task.sh makes what is missing."""
    places = _places_in_image(container)
    if not places or not Path(container.image).is_file():
        return []
    listed = _list_squashfs(container.image, run)
    image = f"the image '{container.image}'"
    cure = (
        "Give a folder instead, in which the job makes them: ch-convert FILE FOLDER, --image FOLDER. "
        "Or make a folder above them in the image before it becomes a file, and --bind that."
    )
    if listed is None:
        asked = _quoted(places)
        what = f"{image} must have {asked}, since ch-run binds only onto what a file has; it was not looked at, as unsquashfs does not answer here."
        return [Finding("warning", what, f"Look with 'unsquashfs -l FILE'. {cure}")]
    missing = [place for place in places if place not in listed and not _has_link(place, listed)]
    unsure = [place for place in places if _has_link(place, listed)]
    # Binds whose source a node lacks are left out there.
    later = [place for place in missing if not _will_exist(places[place], job)]
    sure = [place for place in missing if place not in later]
    found = []
    if sure:
        what = f"{image} has no {_quoted(sure)}, and ch-run binds only onto what a file has."
        found.append(Finding("error", what, cure))
    if later:
        what = f"{image} has no {_quoted(later)}: on nodes that have what is to be bound there, ch-run fails."
        found.append(Finding("warning", what, cure))
    if unsure:
        what = f"in {image} links lead to {_quoted(unsure)}, and ch-run may not bind there."
        found.append(Finding("warning", what, "--probe asks a node."))
    return found


def _places_in_image(container: Container) -> dict[str, str]:
    """Places that an image must have for ch-run to bind there, and what is bound to each."""
    if container.kind != "ch-run" or any(flag.startswith(("-W", "--write-fake")) for flag in container.flags):
        return {}  # such an image takes new folders
    mounted = {*_CH_RUN_MOUNTS, *(["/home"] if "--home" in container.flags else [])}
    bound = {inside for _, inside in container.binds}
    found = {}
    for host, inside in container.binds:
        above = {str(path) for path in PurePosixPath(inside).parents}
        if not above & bound and not {inside, *above} & mounted:
            found[inside] = host
    return found


def _list_squashfs(image: str, run: Run) -> Mapping[str, str] | None:
    """The kind of each thing in it by its path, as `ls -l` begins a line; None where that cannot be had."""
    answer = run(["unsquashfs", "-ll", image])
    if not answer.is_good:
        return None
    found = {}
    for kind, path in _LISTED.findall(answer.out):
        found[path.partition(" -> ")[0] if kind == "l" else path] = kind
    return found or None


def _has_link(place: str, listed: Mapping[str, str]) -> bool:
    return any(listed.get(str(path)) == "l" for path in (PurePosixPath(place), *PurePosixPath(place).parents))


def _will_exist(host: str, job: Job) -> bool:
    """The job makes two of them itself."""
    made = {os.path.realpath(path) for path in (job.model_dir, job.folder)}
    return Path(host).exists() or os.path.realpath(host) in made


def _quoted(places: Iterable[str]) -> str:
    return ", ".join(f"'{place}'" for place in places)
