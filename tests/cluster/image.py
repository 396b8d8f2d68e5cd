"""A real container image, as a folder: bash, the usual commands, a C++ compiler for torch.compile, and a Python with torch
and this checkout's portwright.

Made of this host's own files, by hard links where the cache lies on the same file system, so that it needs no registry; it
holds nothing else of the host. Cached outside the checkout; what it holds of portwright is renewed on each call.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

FORMAT = 2  # counted up when what is below makes another image of the same host
CHECKOUT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "portwright" / "images"
VENV = "opt/venv"
COMMANDS = (
    "bash sh env cat chmod cp cut date df dirname basename echo false find flock grep head hostname id "
    "kill ln ls mkdir mktemp mv nproc ps pwd readlink realpath rm rmdir sed sleep sort stat tail tee test "
    "timeout touch tr true uname uniq wc which xargs"
)
# Large, and no part of a training run under PyTorch.
LEFT_OUT = (
    "tensorflow",
    "keras",
    "tf_keras",
    "pyarrow",
    "transformers",
    "mypy",
    "mypyc",
    "clang",
    "pip",
    "lightning",
)
FOLDERS = "dev etc home mnt opt proc root run srv sys tmp usr var usr/bin usr/local/bin var/tmp ch"
FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "etc/hosts": "",  # containers bind the host's
    "etc/resolv.conf": "",
    "etc/localtime": "",
    "ch/environment": "",
}


def image_folder(mount_points: Iterable[Path | str] = ()) -> Path:
    """The image, with empty folders at `mount_points`: ch-run binds only onto what a read-only image has."""
    image = CACHE / f"portwright-{_key()}"
    with lock():
        if not image.is_dir():
            fresh = CACHE / f".new-{os.getpid()}"
            for left in CACHE.glob(".new-*"):  # of a killed call: whoever makes one holds the lock
                shutil.rmtree(left)
            _make(fresh)
            fresh.rename(image)
        _renew_portwright(image)
        for point in mount_points:
            inside = image / str(point).lstrip("/")
            if not inside.exists():
                inside.mkdir(parents=True)
    return image


@contextmanager
def lock() -> Iterator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _packages() -> Path:
    return Path(sysconfig.get_path("purelib"))


def _key() -> str:
    """Of what the image is made of; portwright itself is not in it."""
    installed = sorted(path.name for path in _packages().glob("*.dist-info"))
    about = [str(FORMAT), sys.version, sys.base_prefix, sys.prefix, *installed]
    return hashlib.sha256("\n".join(about).encode()).hexdigest()[:12]


def _make(image: Path) -> None:
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):  # where /usr is merged they are links
        host = Path("/") / name
        if host.is_symlink():
            (image / name).parent.mkdir(parents=True, exist_ok=True)
            (image / name).symlink_to(host.readlink())
            (image / host.resolve().relative_to("/")).mkdir(parents=True, exist_ok=True)
    for name in FOLDERS.split():
        (image / name).mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        (image / name).write_text(text)
    found = (shutil.which(command) for command in COMMANDS.split())
    programs = [Path(path) for path in found if path]
    for program in programs:
        _place(image, program)
    programs += _place_compiler(image)
    executable, library = _place_python(image)
    _place_packages(image)
    # The package tree's libraries are asked where they lie on the host: there the loader finds what they need.
    for needed in sorted(_needed([*programs, executable, *_libraries(library), *_libraries(_packages())])):
        if not needed.startswith(f"{sys.prefix}/"):
            _place(image, Path(needed))
    for name in ("libnss_dns.so.2", "libnss_files.so.2"):
        for folder in sorted({Path(path).parent for path in _needed(programs)}):
            if (folder / name).exists():
                _place(image, folder / name)
    run_python = f'#!/bin/sh\nexec /{VENV}/bin/python "$@"\n'
    for name in ("usr/local/bin/python", "usr/local/bin/python3", "usr/bin/python", "usr/bin/python3"):
        _write_program(image / name, run_python)
    for name in ("usr/local/bin/portwright", "usr/bin/portwright"):
        _write_program(image / name, f'#!/bin/sh\nexec /{VENV}/bin/python -m portwright "$@"\n')


def _write_program(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)  # never write into what may be a hard link to the host's file
    path.write_text(text)
    path.chmod(0o755)


def _place_python(image: Path) -> tuple[Path, Path]:
    """The interpreter and its library, at the paths that they have on the host: it may have been built with them."""
    executable = Path(sys.executable).resolve()
    _place(image, executable)
    library = Path(sysconfig.get_path("stdlib"))
    _copy_tree(
        library,
        image / library.relative_to("/"),
        ("test", "site-packages", "dist-packages", "idlelib", "ensurepip"),
    )
    return executable, library


def _place_compiler(image: Path) -> list[Path]:
    """g++ with what it runs, reads and links; the programs of it."""

    def ask(question: str) -> Path:
        told = subprocess.run(["g++", question], check=True, capture_output=True, text=True).stdout.strip()
        return Path(told if "/" in told else shutil.which(told) or told)

    programs = [ask(f"-print-prog-name={name}") for name in ("g++", "as", "ld", "cc1plus", "collect2")]
    own = ask("-print-libgcc-file-name").resolve().parent
    for tree in (own, Path("/usr/include"), Path(sysconfig.get_path("include"))):
        _copy_tree(tree, image / tree.relative_to("/"), ())
    linked = "crt1.o Scrt1.o crti.o crtn.o libc.so libc_nonshared.a libm.so libmvec.so.1 libpthread.a libdl.a librt.a"
    found = (ask(f"-print-file-name={name}") for name in linked.split())
    ends = [path.parent / path.readlink() for path in own.iterdir() if path.is_symlink()]
    for path in (*programs, *found, *ends):
        if path.exists():
            _place(image, path)
    return programs


def _place_packages(image: Path) -> None:
    venv = image / VENV
    packages = venv / _packages().relative_to(sys.prefix)
    _copy_tree(_packages(), packages, LEFT_OUT, "__editable__*", "*__mypyc*.so")
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", venv / "pyvenv.cfg")


def _renew_portwright(image: Path) -> None:
    """A copy of `src` in a folder named by what it holds: processes that run go on with the one they began with."""
    source = CHECKOUT / "src"
    files = sorted(path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    digest = hashlib.sha256()
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(source)}\0{len(content)}\0".encode() + content)
    name = f"opt/portwright/src-{digest.hexdigest()[:12]}"
    copy = image / name
    if not copy.is_dir():
        fresh = copy.with_name(f".new-{os.getpid()}")
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(source, fresh)  # with what is compiled: the image is read-only
        fresh.rename(copy)
    os.utime(copy)  # a copy has the age of what it was made from
    for other in copy.parent.iterdir():
        if other != copy and other.stat().st_mtime < time.time() - 86400:
            shutil.rmtree(other)
    paths = image / VENV / _packages().relative_to(sys.prefix) / "portwright_source.pth"
    fresh_paths = paths.with_suffix(".new")
    fresh_paths.write_text(f"/{name}\n")
    fresh_paths.replace(paths)


# ---- files


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or too many links
        shutil.copy2(source, target)


def _copy_tree(source: Path, target: Path, without: Iterable[str], *patterns: str) -> None:
    left_out = set(without)

    def ignore(folder: str, names: list[str]) -> set[str]:
        return set(shutil.ignore_patterns(*patterns)(folder, names)) | (
            left_out & set(names) if Path(folder) == source else set()
        )

    shutil.copytree(source, target, symlinks=True, ignore=ignore, copy_function=_link, dirs_exist_ok=True)


def _place(image: Path, path: Path) -> None:
    """Puts one file where it lies on the host; the content that a link leads to, under the link's name."""
    target = image / path.parent.resolve().relative_to("/") / path.name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        _link(str(path.resolve()), str(target))


def _libraries(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        if Path(place) == _packages():
            folders[:] = [name for name in folders if name not in LEFT_OUT]
        yield from (Path(place) / name for name in names if re.search(r"\.so(\.[\d.]+)?$", name))


def _needed(programs: Iterable[Path]) -> set[str]:
    """Shared libraries, and the loader itself, that these would load here."""
    paths = [str(path) for path in programs]
    needed: set[str] = set()
    for at in range(0, len(paths), 200):
        told = subprocess.run(
            ["ldd", *paths[at : at + 200]], capture_output=True, text=True
        )  # status 1: some are static
        needed.update(re.findall(r"^\s+(?:\S+ => )?(/\S+) \(0x", told.stdout, flags=re.MULTILINE))
    return needed


if __name__ == "__main__":
    print(image_folder(sys.argv[1:]))
