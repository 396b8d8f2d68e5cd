"""Compiles the C beside this file with the machine's own compiler, once a processor and version, and loads it."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from portwright.errors import UserError
from portwright.job.atomic import atomic_write_bytes, clean_leftovers

_SOURCES = ("adam.c", "half.h", "stream.h", "threads.h")
_COMPILERS = ("cc", "gcc", "clang")
# No contraction: the source says where a product and a sum are rounded once. errno and traps would keep sqrt from being vectorised.
_FLAGS = ("-std=gnu11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared", "-pthread")  # fmt: skip
# Which of these a compiler takes depends on the processor it is for.
_PROCESSOR_FLAGS = (("-march=native",), ("-mcpu=native",), ())
_COMPILE_SECONDS = 120  # takes two; a network file system or a licence server may hang
_PROCESSOR_FIELDS = re.compile(
    r"^(flags|Features|model name|CPU implementer|CPU part)\s*:(.*)$", re.MULTILINE
)


class BuildError(Exception):
    """Why there is no library, in one line."""


def load_library(layout: int, note: Callable[[str], None]) -> ctypes.CDLL:
    """The compiled library: the cached one of this source and processor, else one compiled now.

    `layout` is what its `portwright_layout` must give; a file that gives something else is compiled anew. Processes that compile
    at the same time each put a whole file in the same place. Where none can be put, or what lies there may not be run, the
    library is this process's alone, and a note says so.
    """
    name = f"adam-{_key()}.so"
    try:
        cached = cache_folder() / name
        with contextlib.suppress(OSError):
            return _load(cached, layout)
    except RuntimeError as error:  # no home directory
        cached, problem = None, str(error)
    try:
        with tempfile.TemporaryDirectory(prefix="portwright-native-") as scratch:
            data = _compile(Path(scratch))
    except OSError as error:
        raise BuildError(f"there is no room to compile in: {error}") from error
    if cached is not None:
        try:
            atomic_write_bytes(cached, data)
            with contextlib.suppress(OSError):
                clean_leftovers(cached.parent)  # of processes that were killed while they wrote
            return _load(cached, layout)
        except UserError as error:
            problem = error.message
        except OSError as error:  # mounted so that nothing there may be run; or the compiler gave no library
            problem = f"Cannot load {cached}: {error}"
    for folder in _temporary_folders():
        with contextlib.suppress(OSError):
            (folder / name).write_bytes(data)
            library = _load(folder / name, layout)  # outlives its file
            note(
                f"{problem.rstrip('.')}: the native optimizer was compiled for this process alone."
                " PORTWRIGHT_NATIVE_CACHE names another folder to keep it in."
            )
            return library
    raise BuildError(problem.rstrip("."))


def cache_folder() -> Path:
    """Where compiled libraries are kept: PORTWRIGHT_NATIVE_CACHE, else the user's cache."""
    chosen = os.environ.get("PORTWRIGHT_NATIVE_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser().absolute() / "portwright" / "native"


def _key() -> str:
    """A hash of all that the compiled code depends on: machines with other processors may share the home directory."""
    digest = hashlib.sha256()
    for source in _SOURCES:
        digest.update(_source(source))
    for part in (
        *_FLAGS,
        str(_PROCESSOR_FLAGS),
        os.environ.get("CC", ""),
        platform.system(),
        *platform.libc_ver(),
        _processor(),
    ):
        digest.update(b"\0" + part.encode())
    return digest.hexdigest()[:24]


def _processor() -> str:
    """Which instructions there are; of a machine with several kinds of cores all that are named."""
    with contextlib.suppress(OSError):
        found = _PROCESSOR_FIELDS.findall(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))
        return platform.machine() + str(sorted(set(found)))
    return f"{platform.machine()} {platform.processor()} {platform.node()}"


def _source(name: str) -> bytes:
    return (Path(__file__).parent / name).read_bytes()


def _compile(scratch: Path) -> bytes:
    """Tries each compiler; gives the library's bytes."""
    for name in _SOURCES:
        (scratch / name).write_bytes(_source(name))
    compilers = list(_compilers())
    if not compilers:
        raise BuildError(f"there is no C compiler ({', '.join(_COMPILERS)}) on PATH")
    problems: list[str] = []
    for compiler in compilers:
        for processor in _PROCESSOR_FLAGS:
            problem = _run(compiler, processor, scratch)
            if problem is None:
                return (scratch / "adam.so").read_bytes()
        problems.append(f"{shlex.join(compiler)}: {problem}")  # of the plainest attempt
    raise BuildError("; ".join(problems))


def _compilers() -> Iterator[list[str]]:
    """CC's first, then those on PATH, each once."""
    seen = set()
    chosen = os.environ.get("CC", "")
    try:
        commands = [shlex.split(chosen), *([name] for name in _COMPILERS)]
    except ValueError as error:
        raise BuildError(f"CC={chosen} is no command line ({error})") from error
    for words in commands:
        program = shutil.which(words[0]) if words else None
        if program and (real := (os.path.realpath(program), *words[1:])) not in seen:
            seen.add(real)
            yield [program, *words[1:]]


def _run(compiler: list[str], processor: tuple[str, ...], scratch: Path) -> str | None:
    """Compiles into adam.so; gives what went wrong."""
    target = scratch / "adam.so"
    target.unlink(missing_ok=True)
    command = [*compiler, *_FLAGS, *processor, "-o", str(target), str(scratch / "adam.c"), "-lm"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_COMPILE_SECONDS
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"did not end within {_COMPILE_SECONDS} seconds"
    except OSError as error:
        return str(error.strerror or error)
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        telling = [line for line in lines if "error" in line.lower()] or lines or ["it said nothing"]
        return f"exit status {done.returncode}, {telling[0][:200]}"
    if not target.is_file():
        return "exit status 0, but it wrote no file"
    return None


def _load(path: Path, version: int) -> ctypes.CDLL:
    if not path.is_file():
        raise FileNotFoundError(path)
    library = ctypes.CDLL(str(path))
    try:
        found = library.portwright_layout()
    except AttributeError as error:
        raise OSError(f"{path} is a library, but not ours") from error
    if found != version:
        raise OSError(f"{path} has another layout ({found} instead of {version})")
    return library


def _temporary_folders() -> Iterator[Path]:
    """Makes a private folder in each temporary place, since some of them do not allow to run code."""
    with contextlib.suppress(OSError):
        for place in dict.fromkeys((tempfile.gettempdir(), "/dev/shm", "/var/tmp")):
            with contextlib.suppress(OSError):
                folder = tempfile.mkdtemp(prefix="portwright-native-", dir=place)
                try:
                    yield Path(folder)
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
