"""Whether a job's container image is one, and is started with flags that its program knows."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from portwright.discover import get_target
from portwright.launch.check_paths import absent_root, find_unseen
from portwright.launch.container import foreign_flags
from portwright.launch.findings import Finding, note, refusal, warning
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


def check_container(job: Job, *, at_site: bool) -> list[Finding]:
    container = job.container
    if container is None:
        return []
    found = _check_image(job, container, at_site=at_site)
    found += _check_flags(job, container)
    if shutil.which(container.kind) is None and not job.modules:
        found.append(
            note(
                f"there is no {container.kind} on this machine; the nodes may have it.",
                "--probe asks a node.",
            )
        )
    return found


def _check_image(job: Job, container: Container, *, at_site: bool) -> list[Finding]:
    if _URI.match(container.image):
        return [
            warning(
                f"the image is '{container.image}', which each node would fetch; many have no connection to the outside.",
                "Fetch it before: apptainer pull image.sif URI.",
            )
        ]
    path = Path(container.image)
    if (absent := absent_root(path, job)) is not None:
        return [note(f"the image '{path}' was not checked here: this machine has no {absent}.")]
    try:
        if not path.exists():
            if container.images_on_nodes:
                return [
                    warning(
                        f"the image '{path}' does not exist here; a copy on the nodes ({container.images_on_nodes[0]}) may.",
                        "Give another one with --image where the job does not find it.",
                    )
                ]
            return [refusal(f"the image '{path}' does not exist.", "Correct --image.")]
        problem = _problem_of(path, container.kind)
    except PermissionError:
        problem = "may not be read by you"
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    found = [] if problem is None else [refusal(f"the image '{path}' {problem}.", _cure(container))]
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
    on_gpu = get_target(job.target).torch_device == "cuda" and container.kind == "ch-run"
    left_out = [
        flag
        for flag in foreign_flags(job.site, container.kind)
        if not (on_gpu and flag in _GPU_FLAGS)  # which has a finding of its own
    ]
    found = []
    if left_out:
        found.append(
            note(
                f"container.flags of {job.site.name} ({' '.join(left_out)}) are not of {container.kind}, which is started without them.",
                f'Flags of {container.kind} go into a site\'s file that says container.kind = "{container.kind}".',
            )
        )
    if on_gpu:
        found.append(
            note(
                "ch-run shows an image nothing of the node's GPU driver: its libraries must have been put into the image.",
                "Where that was not done: ch-fromhost --nvidia FOLDER, on a machine with the nodes' driver; a SquashFS file is made of the folder after it.",
            )
        )
    return found
