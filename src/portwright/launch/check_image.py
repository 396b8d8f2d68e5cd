"""Whether a job's container image is one."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from portwright.launch.check_paths import absent_root, find_unseen
from portwright.launch.findings import Finding
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


def check_container(job: Job, *, at_site: bool) -> list[Finding]:
    container = job.container
    if container is None:
        return []
    found = _check_image(job, container, at_site=at_site)
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
