"""Environments of vendors: found, made, mended and registered, with a vendor of our own that installs in a second."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from portwright.errors import UnsupportedError, UserError
from portwright.job import vendor_env
from portwright.job.vendor_env import (
    HANDED_OVER,
    STAMP,
    VendorEnvironment,
    command_words,
    envs_folder,
    explain_missing,
    find_base_python,
    find_known,
    find_usable,
    hand_over_if_elsewhere,
    lent_folder,
    make_env,
    make_environment,
    register_python,
    write_record,
)


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VendorEnvironment:
    monkeypatch.setenv("PORTWRIGHT_ENVS", str(tmp_path / "envs"))
    monkeypatch.delenv(HANDED_OVER, raising=False)
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("# nothing to install\n")
    return VendorEnvironment(
        target="toy",
        title="the toy SDK",
        module="toy_sdk_that_is_nowhere",
        distribution="toy_sdk",
        version="1.0",
        python=sys.version_info[:2],
        machine=platform.machine(),
        requirements=requirements,
        size="nothing",
    )


def stand_in(environment: VendorEnvironment, portwright: str = "editable") -> Path:
    """An environment that looks whole."""
    python = environment.folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    stamp = {"requirements": environment.fingerprint(), "sdk": "1.0", "portwright": portwright}
    write_record(environment.folder / STAMP, stamp)
    return python


def test_where_environments_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PORTWRIGHT_ENVS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert envs_folder() == tmp_path / "portwright" / "envs"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert envs_folder() == tmp_path / "home" / ".cache" / "portwright" / "envs"
    monkeypatch.setenv("PORTWRIGHT_ENVS", "~/somewhere")
    assert envs_folder() == tmp_path / "home" / "somewhere"


def test_nothing_is_known_at_first(environment: VendorEnvironment) -> None:
    assert find_known(environment) is None
    assert find_usable(environment) is None
    assert explain_missing(environment) == ""


def test_a_whole_one_is_known_and_a_torn_one_is_not(environment: VendorEnvironment) -> None:
    python = stand_in(environment)
    known = find_known(environment)
    assert known is not None
    assert (known.python, known.sdk, known.is_registered) == (python, "1.0", False)
    (environment.folder / STAMP).write_text('{"requirements": ')
    assert find_known(environment) is None
    (environment.folder / STAMP).unlink()
    assert find_known(environment) is None
    assert "not whole" in explain_missing(environment)


def test_other_requirements_make_it_stale(environment: VendorEnvironment) -> None:
    stand_in(environment)
    environment.requirements.write_text("something==2\n")
    assert find_known(environment) is None
    assert "another installation of Portwright" in explain_missing(environment)


def test_a_registered_one_goes_first_and_may_vanish(environment: VendorEnvironment, tmp_path: Path) -> None:
    stand_in(environment)
    own = tmp_path / "own python"
    own.symlink_to(sys.executable)
    write_record(environment.record, {"python": str(own), "sdk": "0.9"})
    known = find_known(environment)
    assert known is not None
    assert (known.python, known.sdk, known.is_registered) == (own, "0.9", True)
    own.unlink()
    known = find_known(environment)
    assert known is not None
    assert not known.is_registered
    (environment.folder / STAMP).unlink()
    assert "own python, which was registered for it, is gone" in explain_missing(environment)


def test_register_asks_the_interpreter(environment: VendorEnvironment, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="cannot import toy_sdk_that_is_nowhere: ModuleNotFoundError"):
        register_python(environment, Path(sys.executable))
    assert not environment.record.exists()
    has_it = dataclasses.replace(environment, module="json")
    known = register_python(has_it, Path(sys.executable))
    assert known.is_registered
    assert json.loads(environment.record.read_text())["python"] == sys.executable
    assert find_known(has_it) == known


@pytest.mark.parametrize("kind", ["missing", "text", "folder", "not python"])
def test_register_refuses_what_is_no_interpreter(
    environment: VendorEnvironment, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "thing"
    if kind == "text":
        path.write_text("hello")
    elif kind == "folder":
        path.mkdir()
    elif kind == "not python":
        path = Path("/bin/true")
    with pytest.raises(UserError, match="interpreter"):
        register_python(environment, path)


def make_quick(environment: VendorEnvironment, monkeypatch: pytest.MonkeyPatch) -> VendorEnvironment:
    """Leaves out what takes long: a venv is a link to this Python, and nothing is installed."""

    def run(command: list[str], log: Path, say: object, aim: str) -> None:
        if "venv" in command:
            python = Path(command[-1]) / "bin" / "python"
            python.parent.mkdir(parents=True, exist_ok=True)
            python.symlink_to(sys.executable)
        time.sleep(0.05)

    monkeypatch.setattr(vendor_env, "_probe", lambda python, environment: {"sdk": "1.0"})
    monkeypatch.setattr(vendor_env, "_run", run)
    return environment


def test_make_then_nothing_to_do_then_mend(
    environment: VendorEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_quick(environment, monkeypatch)
    said: list[str] = []
    known = make_environment(environment, said.append)
    assert said[0].startswith("making ")
    said.clear()
    assert make_environment(environment, said.append) == known
    assert said == []
    (environment.folder / STAMP).unlink()  # as a kill in the middle leaves it
    (environment.folder / "kept").write_text("")
    make_environment(environment, said.append)
    assert said[0].startswith("completing ")
    assert (environment.folder / "kept").exists()
    (environment.folder / STAMP).unlink()
    (environment.folder / "bin" / "python").unlink()  # killed while the venv itself was made
    make_environment(environment, said.append)
    assert find_known(environment) == known


def test_recreate_forgets_what_was_registered(
    environment: VendorEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_it = dataclasses.replace(environment, module="json")
    register_python(has_it, Path(sys.executable))
    make_quick(environment, monkeypatch)
    assert make_environment(environment, print).is_registered
    made = make_environment(environment, print, recreate=True)
    assert not made.is_registered
    assert not environment.record.exists()


def test_a_failed_step_is_told_with_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = "print('Downloading torch-2.4.0.whl (797.2 MB)'); print('ERROR: no route to \u00fc'); raise SystemExit(1)"
    said: list[str] = []
    with pytest.raises(UnsupportedError, match="could not install toy: ERROR: no route") as caught:
        vendor_env._run([sys.executable, "-c", code], log, said.append, "install toy")
    assert str(log) in caught.value.cure
    assert "no route" in log.read_text(encoding="utf-8")
    assert said == ["  torch-2.4.0.whl (797.2 MB)"]


def test_a_failure_leaves_it_unknown_until_it_is_mended(
    environment: VendorEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_quick(environment, monkeypatch)
    make_environment(environment, print)
    quick = vendor_env._run

    def fail(*arguments: object) -> None:
        raise UnsupportedError("could not install", "try again")

    monkeypatch.setattr(vendor_env, "_run", fail)
    environment.requirements.write_text("# other pins\n")
    with pytest.raises(UnsupportedError):
        make_environment(environment, print)
    assert find_known(environment) is None
    monkeypatch.setattr(vendor_env, "_run", quick)
    assert make_environment(environment, print).sdk == "1.0"


def test_two_at_once_make_one(environment: VendorEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    make_quick(environment, monkeypatch)
    said: list[str] = []
    threads = [threading.Thread(target=make_environment, args=(environment, said.append)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(line.startswith("making ") for line in said) == 1
    assert any("waiting" in line for line in said)


def test_an_environment_of_another_installation_is_left_as_it_is(
    environment: VendorEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_quick(environment, monkeypatch)
    theirs = make_environment(environment, print)
    stamp = (environment.folder / STAMP).read_bytes()
    environment.requirements.write_text("# the pins of another release\n")
    assert find_known(environment) is None
    ours = make_environment(environment, print)
    assert ours.python != theirs.python
    assert (theirs.python.parents[1] / STAMP).read_bytes() == stamp
    assert make_environment(environment, print) == ours


def test_without_the_right_python(environment: VendorEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    other = dataclasses.replace(environment, python=(3, 99))
    with pytest.raises(UnsupportedError, match=r"CPython 3\.99 on Linux.*python3\.99 is not on PATH"):
        find_base_python(other)
    with pytest.raises(UnsupportedError, match=r"needs CPython .* riscv"):
        find_base_python(dataclasses.replace(environment, machine="riscv"))


def test_a_broken_python_on_path_is_passed_over(
    environment: VendorEnvironment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = "python{}.{}".format(*sys.version_info[:2])
    for folder, text in (
        ("broken", "#!/bin/sh\nexit 127\n"),
        ("good", f'#!/bin/sh\nexec {sys.executable} "$@"\n'),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(text)
        (tmp_path / folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'broken'}{os.pathsep}{tmp_path / 'good'}")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert find_base_python(environment) == tmp_path / "good" / name


def test_hand_over_leaves_alone_what_is_here_or_nowhere(environment: VendorEnvironment) -> None:
    hand_over_if_elsewhere(None, ["run.py"], print)
    hand_over_if_elsewhere(dataclasses.replace(environment, module="json"), ["run.py"], print)
    hand_over_if_elsewhere(environment, ["run.py"], print)  # none is known: the run itself says so


def test_hand_over_does_not_go_round_in_circles(
    environment: VendorEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(environment)
    monkeypatch.setenv(HANDED_OVER, environment.name)
    with pytest.raises(UnsupportedError, match="cannot import toy_sdk_that_is_nowhere"):
        hand_over_if_elsewhere(environment, ["run.py"], print)


def test_hand_over_becomes_the_other_process(environment: VendorEnvironment, tmp_path: Path) -> None:
    """Words, streams, exit status and variables are those of the same command there."""
    stand_in(environment)
    script = tmp_path / "go.py"
    script.write_text(
        "import os, sys\n"
        "from pathlib import Path\n"
        "from portwright.job.vendor_env import command_words, hand_over_if_elsewhere\n"
        "from portwright.job.vendor_env import VendorEnvironment\n"
        f"toy = VendorEnvironment('toy', 'the toy SDK', 'toy_sdk_that_is_nowhere', 'toy', '1.0', (3, 11), 'x', Path({str(environment.requirements)!r}), '')\n"
        "if 'PORTWRIGHT_HANDED_OVER' not in os.environ:\n"
        "    print('before')\n"
        "    hand_over_if_elsewhere(toy, command_words(sys.argv[1:]), lambda line: print(line, file=sys.stderr))\n"
        "print('there', sys.executable, sys.argv[1:], sys.stdin.read(), os.environ['OMP_NUM_THREADS'], flush=True)\n"
        "sys.exit(85)\n"
    )
    env = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    env["PYTHONPATH"] = str(Path(vendor_env.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-u", str(script), "CSX", "--x=a b"],
        input="fed", capture_output=True, text=True, env=env, check=False,
    )  # fmt: skip
    assert done.returncode == 85, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "before"
    assert lines[1] == f"there {environment.folder / 'bin' / 'python'} ['CSX', '--x=a b'] fed 1"
    assert len(done.stderr.splitlines()) == 1
    assert "the toy SDK 1.0" in done.stderr


def test_a_call_inside_another_program_is_not_its_command_line() -> None:
    assert command_words(["CSX", "--mode", "train"]) is None
    assert command_words([]) is None


def test_env_variables_lend_the_checkout(environment: VendorEnvironment) -> None:
    former = {"PYTHONHOME": "/x", "VIRTUAL_ENV": "/y", "OMP_NUM_THREADS": "4", "PYTHONPATH": "/mine"}
    env = make_env(environment, former)
    assert env["OMP_NUM_THREADS"] == "4"
    assert "PYTHONHOME" not in env
    assert env["PYTHONPATH"] == f"{Path(vendor_env.__file__).parents[2]}{os.pathsep}/mine"


def test_an_installed_portwright_is_lent_without_its_neighbours(
    environment: VendorEnvironment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site = tmp_path / "site-packages"
    (site / "portwright" / "job").mkdir(parents=True)
    monkeypatch.setattr("portwright.job.vendor_env.__file__", str(site / "portwright" / "job" / "lent.py"))
    folder = lent_folder()
    assert folder == lent_folder()
    assert [path.name for path in folder.iterdir()] == ["portwright"]
    assert (folder / "portwright").resolve() == site / "portwright"
