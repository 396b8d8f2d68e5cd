"""The container of a job's programs: the image, the host's folders that it sees, and the words that start it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

from portwright.errors import UserError, suggest
from portwright.launch.job import Container
from portwright.launch.site import Site

Kind = Literal["apptainer", "singularity", "ch-run"]
KINDS: tuple[Kind, ...] = ("apptainer", "singularity", "ch-run")
Bind = tuple[str, str]

# Characters that separate binds; Singularity's releases before Apptainer also interpret quotes.
_UNBINDABLE = {"apptainer": ":,", "singularity": ':,"', "ch-run": ":"}
# Binding one of these hides what the image itself needs.
_IMAGE_OWN = frozenset(
    [
        *("/", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys", "/usr", "/var"),
        *(
            "/usr/bin",
            "/usr/lib",
            "/usr/lib64",
            "/usr/local",
            "/usr/local/bin",
            "/usr/local/lib",
            "/usr/sbin",
        ),
    ]
)
_URI = re.compile(r"(docker|oras|library|shub|https?)://.")

CH_RUN_KEEPS = ("HOME", "TERM")  # apptainer keeps them by itself
IMAGE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def make_container(
    site: Site,
    *,
    image: str | None,
    kind: str | None,
    paths: Iterable[Path],
    extra_binds: Iterable[str] = (),
    packages: Path | None = None,
) -> Container | None:
    """The container of a job; None where its programs run without one.

    `image` and `kind` of the command line go before the site's; `paths` are bound to the same place inside.
    """
    chosen = kind or site.container.kind
    if chosen == "none":
        return None
    runner = _find_kind(chosen)
    named = image or site.container.image
    if not named:
        raise UserError(
            f"nothing says which image {runner} runs at {site.name}.",
            "Give it with --image, or run without a container: --container none.",
        )
    binds = [parse_bind(text) for text in (*site.container.binds, *extra_binds)]
    wanted = [path for path in (*paths, *([packages] if packages else ())) if str(path) != "."]
    binds += [(place, place) for path in wanted for place in _places(path)]
    for host, inside in binds:
        _check_bind(host, inside, runner)
    return Container(
        kind=runner,
        image=_find_image(named, runner),
        binds=fold_binds(binds),
        clean_env=site.container.clean_env,
        flags=() if foreign_flags(site, runner) else site.container.flags,
        images_on_nodes=() if image else site.container.images_on_nodes,
        packages=None if packages is None else _absolute(packages),
    )


def foreign_flags(site: Site, kind: Kind) -> tuple[str, ...]:
    """Flags of the site's file that `kind` does not know, since they belong to the site's own container program.

    Apptainer and Singularity share flags. Where a site names no program, its flags are those of these two, such as --nv.
    """
    of_ch_run = site.container.kind == "ch-run"
    return site.container.flags if of_ch_run != (kind == "ch-run") else ()


def _find_kind(name: str) -> Kind:
    if name not in KINDS:
        raise UserError(
            f"--container: '{name}' runs no containers that are known here.", suggest(name, [*KINDS, "none"])
        )
    return KINDS[KINDS.index(name)]


def _find_image(named: str, kind: Kind) -> str:
    if _URI.match(named):
        if kind == "ch-run":
            raise UserError(
                f"the image is '{named}', and ch-run takes a folder or a SquashFS file.",
                "Fetch it first: ch-image pull NAME, ch-convert NAME image.sqfs.",
            )
        return named
    return _absolute(Path(named))


def _absolute(path: Path) -> str:
    return os.path.normpath(Path.cwd() / path.expanduser())


def _places(path: Path) -> list[str]:
    """A path and what it links to: a link must find its target inside the container too."""
    place = _absolute(path)
    end = os.path.realpath(place)
    return [place] if end == place else [place, end]


def parse_bind(text: str) -> Bind:
    """Reads a bind: HOST or HOST:INSIDE."""
    host, colon, inside = text.partition(":")
    if not host or (colon and not inside) or ":" in inside:
        raise UserError(f"the bind is '{text}'.", "Write /path or /path:/inside.")
    host = _absolute(Path(host))
    if inside and not inside.startswith("/"):
        raise UserError(f"the bind is '{text}', and '{inside}' is no path inside.", "Begin it with /.")
    return host, os.path.normpath(inside) if inside else host


def _check_bind(host: str, inside: str, kind: Kind) -> None:
    for path in (host, inside):
        found = next((sign for sign in path if sign in _UNBINDABLE[kind] or not sign.isprintable()), None)
        if found is not None:
            raise UserError(
                f"the container cannot see {path!r}: {kind} does not take {found!r} in a path.",
                "Rename it, or reach it by a link without that sign.",
            )
    if inside in _IMAGE_OWN:
        raise UserError(
            f"the container cannot see '{host}' as '{inside}', which the image has itself.",
            "Move what the job needs into a folder of its own.",
        )


def fold_binds(binds: Iterable[Bind]) -> tuple[Bind, ...]:
    """Binds without repetition, parents first, without those inside another one; two sources for one place are an error."""
    by_place: dict[str, str] = {}
    for host, inside in binds:
        if by_place.setdefault(inside, host) != host:
            raise UserError(
                f"'{by_place[inside]}' and '{host}' are both bound to '{inside}'.",
                "Give one of them another place.",
            )
    kept: dict[str, str] = {}
    for inside in sorted(by_place, key=lambda place: (len(PurePosixPath(place).parts), place)):
        # Without a bind of its own, the place shows what the nearest covering bind has there.
        covering = next((str(above) for above in PurePosixPath(inside).parents if str(above) in kept), None)
        if covering is not None:
            seen = str(PurePosixPath(kept[covering]) / PurePosixPath(inside).relative_to(covering))
            if seen == by_place[inside]:
                continue
        kept[inside] = by_place[inside]
    return tuple((host, inside) for inside, host in kept.items())


def write_bind(bind: Bind) -> str:
    """A bind as the container programs take it."""
    host, inside = bind
    return host if host == inside else f"{host}:{inside}"


def start_words(container: Container, *, shell: bool = False) -> list[str]:
    """The program and its flags, before variables, binds, working folder and image."""
    if container.kind == "ch-run":
        return ["ch-run", *container.flags]
    clean = ["--cleanenv"] if container.clean_env else []
    return [container.kind, "shell" if shell else "exec", *clean, *container.flags]


def shell_words(container: Container, *, workdir: Path, visible: Sequence[str] = ()) -> list[str]:
    """The words that open a shell inside, where a clean environment has only the variables `visible`.

    Values never become words, which anybody can see: for apptainer and singularity the caller exports each as
    APPTAINERENV_NAME and SINGULARITYENV_NAME; ch-run takes them from the environment as they are.
    """
    words = start_words(container, shell=True)
    if container.kind == "ch-run":
        if container.clean_env:
            words += [f"--unset-env=!({'|'.join([*CH_RUN_KEEPS, *visible])})", f"--set-env=PATH={IMAGE_PATH}"]
        if (Path(container.image) / "ch" / "environment").is_file():
            words.append("--set-env")
    for bind in container.binds:
        words += ["--bind", write_bind(bind)]
    if container.kind == "ch-run":
        return [*words, "--cd", str(workdir), container.image, "--", "bash"]
    return [*words, "--pwd", str(workdir), container.image]
