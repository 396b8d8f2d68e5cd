from __future__ import annotations

import ctypes
import fnmatch
import os
import shutil
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from native_cases import Case, load

import portwright
from portwright.errors import UserError
from portwright.runtime.streaming.native import adam, build
from portwright.runtime.streaming.native.adam import NativeAdam, load_native

GOOD = """
for word in "$@"; do
  case "$last" in -o) out="$word";; esac
  last="$word"
done
cp "{made}" "$out"
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library as the real compiler makes it, for compilers that only pretend."""
    load()
    kept = build.cache_folder() / f"adam-{build._key()}.so"
    data = kept.read_bytes() if kept.is_file() else build._compile(tmp_path_factory.mktemp("scratch"))
    path = tmp_path_factory.mktemp("made") / "adam.so"
    path.write_bytes(data)
    return path


class Machine:
    """A machine with an empty cache and the compilers that a test puts on it."""

    def __init__(self, folder: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.programs, self.cache, self.made = folder / "bin", folder / "cache", made
        self.programs.mkdir()
        self.notes: list[str] = []
        for tool in ("cp", "sleep", "sh", "env"):
            (self.programs / tool).symlink_to(shutil.which(tool) or tool)
        monkeypatch.setenv("PATH", str(self.programs))
        monkeypatch.setenv("PORTWRIGHT_NATIVE_CACHE", str(self.cache))
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.delenv("PORTWRIGHT_NATIVE", raising=False)
        monkeypatch.setattr(adam, "_loaded", [])

    def put_compiler(self, name: str, script: str) -> Path:
        path = self.programs / name
        path.write_text(
            f"#!/bin/sh\necho x >> {self.programs}/{name}.calls\n{script.replace('{made}', str(self.made))}\n"
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def num_calls(self, name: str) -> int:
        calls = self.programs / f"{name}.calls"
        return len(calls.read_text().splitlines()) if calls.exists() else 0

    def load(self) -> NativeAdam | None:
        native = load_native(self.notes.append)
        if native is not None:
            Case(5).in_place(native)
        return native


@pytest.fixture
def machine(tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, made, monkeypatch)


def test_it_is_compiled_once_and_kept(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.put_compiler("cc", GOOD)
    assert machine.load()
    assert [path.suffix for path in machine.cache.iterdir()] == [".so"]
    assert machine.load()
    monkeypatch.setattr(adam, "_loaded", [])  # another process
    (machine.programs / "cc").unlink()  # on a machine that has no compiler
    assert machine.load()
    assert machine.num_calls("cc") == 1
    assert machine.notes == []


def test_without_a_compiler_there_is_one_note(machine: Machine) -> None:
    assert machine.load() is None
    assert machine.notes == [
        "The native optimizer was not compiled: there is no C compiler (cc, gcc, clang) on PATH."
        " Torch's own, slower kernels are used."
    ]


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo 'in a.h' >&2; echo 'adam.c:1: error: no such thing' >&2; exit 3", "exit status 3, adam.c:1: error: no such thing"),
        ("exit 1", "exit status 1, it said nothing"),
        ("exit 0", "exit status 0, but it wrote no file"),
        ("kill -9 $$", "exit status -9"),
        (GOOD.replace("cp \"{made}\"", "cp /bin/sh"), "Cannot load"),
        (GOOD.replace("cp \"{made}\" \"$out\"", "echo 'no library' > \"$out\""), "Cannot load"),
        (GOOD.replace("cp \"{made}\" \"$out\"", ": > \"$out\""), "Cannot load"),
    ],
    ids=["error", "silent", "no-file", "killed", "program", "text", "empty"],
)  # fmt: skip
def test_a_compiler_that_fails_is_quoted(machine: Machine, script: str, told: str) -> None:
    machine.put_compiler("cc", script)
    assert machine.load() is None
    assert len(machine.notes) == 1
    assert told in machine.notes[0]
    assert machine.notes[0].startswith("The native optimizer was not compiled: ")
    assert "\n" not in machine.notes[0]


def test_the_next_compiler_is_tried(machine: Machine) -> None:
    machine.put_compiler("cc", "exit 1")
    machine.put_compiler("clang", GOOD)
    assert machine.load()
    assert machine.notes == []


def test_a_compiler_that_does_not_know_the_processor_may_do_without(machine: Machine) -> None:
    machine.put_compiler("cc", 'case "$*" in *=native*) exit 1;; esac\n' + GOOD)
    assert machine.load()
    assert machine.num_calls("cc") == 3


def test_a_compiler_that_hangs_is_ended(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_COMPILE_SECONDS", 0.1)
    machine.put_compiler("cc", "exec sleep 60")
    assert machine.load() is None
    assert "did not end within 0.1 seconds" in machine.notes[0]


def test_cc_names_the_compiler(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.put_compiler("cc", "exit 1")
    chosen = machine.put_compiler("my compiler", 'test "$1" = --fast || exit 1\n' + GOOD)
    monkeypatch.setenv("CC", f"'{chosen}' --fast")
    assert machine.load()
    assert machine.num_calls("cc") == 0
    monkeypatch.setattr(adam, "_loaded", [])
    monkeypatch.setenv("CC", "'unbalanced")
    assert machine.load() is None
    assert "CC='unbalanced is no command line" in machine.notes[0]


def test_a_folder_that_cannot_be_written_costs_a_compilation_each_time(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.put_compiler("cc", GOOD)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PORTWRIGHT_NATIVE_CACHE", str(tmp_path / "file" / "cache"))
    assert machine.load()
    assert len(machine.notes) == 1
    assert f"Cannot write {tmp_path / 'file' / 'cache'}" in machine.notes[0]
    assert "compiled for this process alone" in machine.notes[0]


def test_no_home_is_no_obstacle(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    machine.put_compiler("cc", GOOD)
    monkeypatch.delenv("PORTWRIGHT_NATIVE_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", no_home)
    assert machine.load()
    assert machine.notes[0].startswith("Could not determine home directory: ")


def refuse_to_run(monkeypatch: pytest.MonkeyPatch, is_refused: Callable[[str], bool]) -> None:
    """As the loader does on a file system that is mounted noexec."""
    real = ctypes.CDLL

    def load_from(path: str) -> ctypes.CDLL:
        if is_refused(path):
            raise OSError(f"{path}: failed to map segment from shared object")
        return real(path)

    monkeypatch.setattr(build.ctypes, "CDLL", load_from)


def test_a_cache_that_nothing_may_be_run_from_is_gone_round(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.put_compiler("cc", GOOD)
    refuse_to_run(monkeypatch, lambda path: path.startswith(str(machine.cache)))
    assert machine.load()
    assert len(machine.notes) == 1
    assert "failed to map segment" in machine.notes[0]
    assert "compiled for this process alone" in machine.notes[0]


def test_where_nothing_may_be_run_anywhere_there_is_a_note(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.put_compiler("cc", GOOD)
    refuse_to_run(monkeypatch, lambda path: True)
    assert machine.load() is None
    assert len(machine.notes) == 1
    assert "failed to map segment" in machine.notes[0]


def test_no_room_to_compile_in_is_a_note(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **options: object) -> str:
        raise OSError(28, "No space left on device")

    machine.put_compiler("cc", GOOD)
    monkeypatch.setattr(build.tempfile, "TemporaryDirectory", full)
    assert machine.load() is None
    assert "there is no room to compile in: [Errno 28] No space left on device" in machine.notes[0]


@pytest.mark.parametrize("content", [b"", b"no library", b"\x7fELF" + bytes(100)])
def test_a_broken_file_in_the_cache_is_replaced(machine: Machine, content: bytes) -> None:
    machine.put_compiler("cc", GOOD)
    path = machine.cache / f"adam-{build._key()}.so"
    machine.cache.mkdir()
    path.write_bytes(content)
    assert machine.load()
    assert path.read_bytes() == machine.made.read_bytes()
    assert machine.notes == []


def test_a_library_of_another_layout_is_not_used(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.put_compiler("cc", GOOD)
    with pytest.raises(build.BuildError, match="has another layout"):
        build.load_library(1, machine.notes.append)


def test_processors_that_share_a_home_directory_do_not_share_code(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.put_compiler("cc", GOOD)
    assert machine.load()
    monkeypatch.setattr(build, "_processor", lambda: "another one")
    monkeypatch.setattr(adam, "_loaded", [])
    assert machine.load()
    assert len(list(machine.cache.iterdir())) == 2
    assert machine.num_calls("cc") == 2


def test_many_may_compile_at_once(machine: Machine) -> None:
    machine.put_compiler("cc", "sleep 0.2\n" + GOOD)
    layout = ctypes.sizeof(adam._AdamCall)
    with ThreadPoolExecutor(6) as processes:
        loaded = list(processes.map(lambda _: build.load_library(layout, machine.notes.append), range(6)))
    assert len(loaded) == 6
    assert machine.num_calls("cc") == 6
    assert len(list(machine.cache.iterdir())) == 1
    assert machine.notes == []


@pytest.mark.parametrize("value", ["0", "off", " No "])
def test_it_can_be_turned_off(machine: Machine, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    machine.put_compiler("cc", GOOD)
    monkeypatch.setenv("PORTWRIGHT_NATIVE", value)
    assert machine.load() is None
    assert machine.notes == [
        f"PORTWRIGHT_NATIVE={value.strip().lower()}: torch's own optimizer kernels are used."
    ]
    assert machine.num_calls("cc") == 0


def test_a_switch_that_is_neither_on_nor_off_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORTWRIGHT_NATIVE", "perhaps")
    with pytest.raises(
        UserError, match=r"PORTWRIGHT_NATIVE=perhaps is neither on nor off\. Set it to 0 or 1"
    ):
        load_native(print)


def test_all_sources_are_compiled_and_travel_in_the_wheel() -> None:
    package = Path(portwright.__file__).parent
    folder = Path(build.__file__).parent
    sources = {path.name for path in folder.iterdir() if path.suffix in (".c", ".h")}
    assert sources == set(build._SOURCES)
    pyproject = Path(__file__).parents[4] / "pyproject.toml"
    (line,) = [line for line in pyproject.read_text().splitlines() if line.startswith("portwright = [")]
    patterns = [part.strip().strip('"') for part in line.split("[", 1)[1].rstrip("]").split(",")]
    for name in sources:
        relative = (folder / name).relative_to(package).as_posix()
        assert any(fnmatch.fnmatch(relative, pattern) for pattern in patterns), relative


def test_the_key_names_this_processors_instructions() -> None:
    assert os.uname().machine in build._processor()
    assert build._key() == build._key()
