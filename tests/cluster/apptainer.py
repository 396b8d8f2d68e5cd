"""Apptainer, where it can be had: it is in Debian's unstable suite only, and runs here with that suite's own C library.

Nothing is installed: packages are unpacked in a cache folder, and the programs told to load their libraries from there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from image import CACHE, lock

FORMAT = 1  # counted up when what is below unpacks otherwise
SUITE = "sid"
PLACE = CACHE.parent / f"apptainer-{FORMAT}"
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class UnavailableError(Exception):
    """Apptainer cannot be had here; the message says why."""


@cache
def apptainer_folder() -> Path:
    """A folder for PATH, with the programs `apptainer` and `singularity`."""
    found = shutil.which("apptainer")
    if found:
        return Path(found).parent
    with lock():
        if not PLACE.is_dir():
            fresh = PLACE.with_name(f".new-{PLACE.name}")
            shutil.rmtree(fresh, ignore_errors=True)
            _unpack(fresh)
            fresh.rename(PLACE)
    _run("apptainer does not run", PLACE / "bin/apptainer", "version")
    return PLACE / "bin"


def _run(failure: str, *words: str | Path, timeout: float = 60) -> str:
    try:
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=timeout)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{failure}: {error}") from None
    if done.returncode:
        told = (done.stderr or done.stdout).strip().splitlines()
        raise UnavailableError(f"{failure}: {told[-1] if told else f'status {done.returncode}'}")
    return done.stdout


def _archive() -> str:
    """Of this machine's own packages, as apt is set up; its other suites lie beside."""
    told = re.search(r"^VERSION_CODENAME=(\w+)$", Path("/etc/os-release").read_text(), flags=re.MULTILINE)
    asked = _run("no apt-get here", "apt-get", "update", "--print-uris")
    found = re.search(
        rf"^'(\S+?)/?dists/{told.group(1) if told else '-'}/InRelease'", asked, flags=re.MULTILINE
    )
    if not found:
        raise UnavailableError("apt is not set up with an archive of this system's release")
    return found.group(1)


def _unpack(place: Path) -> None:
    apt = place / "apt"
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (apt / folder).mkdir(parents=True)
    (apt / "state/status").touch()
    signed = f"[signed-by={KEYS}] " if KEYS.exists() else ""
    archive = _archive()
    (apt / "sources.list").write_text(f"deb {signed}{archive} {SUITE} main\n")
    options = {
        "Dir::Etc::SourceList": apt / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State": apt / "state",
        "Dir::State::status": apt / "state/status",  # as if nothing was installed: the C library comes too
        "Dir::Cache": apt / "cache",
        "Acquire::Languages": "none",
        "Acquire::Retries": "2",
        "Acquire::http::Timeout": "10",
        "Acquire::https::Timeout": "10",
        "APT::Sandbox::User": "root",
    }
    command = [
        "apt-get",
        "-y",
        *(word for name, value in options.items() for word in ("-o", f"{name}={value}")),
    ]
    _run(f"the suite {SUITE} cannot be reached", *command, "update", "--error-on=any")
    wanted = ("install", "--download-only", "--no-install-recommends", "apptainer", "patchelf")
    _run(f"apptainer is not in the suite {SUITE}", *command, *wanted, timeout=120)
    root = place / "root"
    for package in sorted((apt / "cache/archives").glob("*.deb")):
        _run(f"{package.name} cannot be unpacked", "dpkg-deb", "-x", package, root)
    shutil.rmtree(apt)
    _relocate(place, root)


def _relocate(place: Path, root: Path) -> None:
    """The programs look for settings and their mount folder beside themselves; both places are given."""
    libraries = next(iter(root.glob("usr/lib/*/libc.so.6"))).parent
    loader = next(iter(libraries.glob("ld-linux*.so*")))
    final = PLACE / libraries.relative_to(place)
    for program in (root / "usr/bin/apptainer", *root.glob("usr/lib*/**/apptainer/bin/starter")):
        _run(
            f"{program.name} cannot be patched", loader, "--library-path", libraries, root / "usr/bin/patchelf",
            "--set-interpreter", final / loader.name, "--force-rpath", "--set-rpath", final, program,
        )  # fmt: skip
    for at, up in ((root / "usr", ".."), (root / "usr/lib", "../..")):
        for name in ("etc", "var"):
            (at / name).symlink_to(f"{up}/{name}")
    (root / "var/lib/apptainer/mnt/session").mkdir(parents=True, exist_ok=True)
    (place / "bin").mkdir()
    for name in ("apptainer", "singularity"):
        script = place / "bin" / name
        # Root in a virtual machine without set-uid programs: it needs no further privileges, and is not asked for them.
        script.write_text(f'#!/bin/sh\nAPPTAINER_NO_PRIVS=1 exec "{PLACE}/root/usr/bin/apptainer" "$@"\n')
        script.chmod(0o755)


if __name__ == "__main__":
    print(f"export PATH={apptainer_folder()}{os.pathsep}$PATH")
