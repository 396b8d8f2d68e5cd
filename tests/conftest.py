"""What all tests share: small model folders, and counting skips aloud."""

from __future__ import annotations

import gc
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from warm_python import WarmPython

pytest_plugins = ["tensorflow_tests"]
# CI tries the same examples each time, so that a change is judged by itself; elsewhere new ones are drawn.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two cores: more threads make small steps slower

TRAIN = ("CPU", "--mode", "train", "--params", "configs/params.yaml", "--max_steps", "4")
FC_MNIST = Path(__file__).parents[1] / "src" / "portwright" / "models" / "fc_mnist"


def pytest_collection_finish() -> None:
    """What was imported stays: no collection need look at it again, and no fork copy it."""
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _leave_nothing_behind() -> Iterator[None]:
    """One module's tests hand nothing on to the next."""
    yield
    for name in ("model", "data", "utils"):  # every model folder has these
        sys.modules.pop(name, None)
    gc.collect()  # now, since what many modules' TensorFlow graphs leave takes a minute at once
    gc.freeze()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    reasons: dict[str, int] = {}
    for report in skipped:
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[reason] = reasons.get(reason, 0) + 1
    terminalreporter.write_line(f"skipped: {len(skipped)}")
    for reason, count in reasons.items():
        terminalreporter.write_line(f"  {count} x {reason}")


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """A copy of fc_mnist that a test may change."""
    folder = tmp_path / "mymodel"
    shutil.copytree(FC_MNIST, folder, ignore=shutil.ignore_patterns("__pycache__", "model_dir"))
    return folder


RunScript = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def warm_python() -> Iterator[WarmPython]:
    warm = WarmPython()
    yield warm
    warm.close()


@pytest.fixture(scope="session")
def warm_tensorflow() -> Iterator[WarmPython]:
    """TensorFlow as `portwright.tensorflow` has it, with the legacy Keras."""
    warm = WarmPython(("tensorflow", "tf_keras"), TF_USE_LEGACY_KERAS="1", TF_CPP_MIN_LOG_LEVEL="2")
    yield warm
    warm.close()


@pytest.fixture(scope="session")
def _warm_recorders() -> Iterator[WarmPython]:
    warm = WarmPython(PYTHONHASHSEED="0", PYTHONUNBUFFERED="1")
    yield warm
    warm.close()


@pytest.fixture(scope="module")
def warm_recorder(_warm_recorders: WarmPython) -> Iterator[None]:
    """Scripts under verify's recorder start from a Python that has torch; test_verify_cli.py starts them anew."""
    from portwright.verify import launch

    with pytest.MonkeyPatch.context() as patched:
        lent = SimpleNamespace(**{**vars(subprocess), "Popen": _warm_recorders.popen})
        patched.setattr(launch, "subprocess", lent)
        yield


@pytest.fixture
def run_script(request: pytest.FixtureRequest, warm_python: WarmPython) -> RunScript:
    """Runs a model folder's run.py in a process of its own; `fresh` imports torch in it anew, as a user's does."""
    is_quick = "e2e" in request.path.parts and request.node.get_closest_marker("vendor") is None

    def run(
        folder: Path,
        *arguments: str,
        env: dict[str, str] | None = None,
        timeout: float = 300,
        fresh: bool = False,
    ) -> Any:
        whole = {**os.environ, "NO_COLOR": "1", "COLUMNS": "400", **(env or {})}
        if is_quick and not fresh and warm_python.can_run(whole):
            return warm_python.run(arguments, folder, whole, timeout)
        return subprocess.run(
            [sys.executable, "run.py", *arguments],
            cwd=folder,
            env=whole,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run


@pytest.fixture(scope="session")
def run_cli(warm_python: WarmPython) -> RunScript:
    """`python -m portwright.cli`, from the Python that has torch where the environment is not its own."""

    def run(
        *arguments: str | Path, cwd: Path, env: dict[str, str] | None = None, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        words = tuple(map(str, arguments))
        whole = {**os.environ, "NO_COLOR": "1", **(env or {})}
        what = ("-m", "portwright.cli")
        if warm_python.can_run(whole):
            return warm_python.run(words, cwd, whole, timeout, what)
        command = [sys.executable, *what, *words]
        return subprocess.run(command, cwd=cwd, env=whole, capture_output=True, text=True, timeout=timeout)

    return run


class Folder:
    """A model folder to break, and a way to run it inside this process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.arguments: tuple[str, ...] = TRAIN

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.path / name).read_text()
        assert old in text, f"{old!r} is not in {name}"
        (self.path / name).write_text(text.replace(old, new))

    def run(self) -> int:
        saved_argv, saved_path, saved_folder = sys.argv, list(sys.path), Path.cwd()
        os.chdir(self.path)
        sys.argv = ["run.py", *self.arguments]
        sys.path.insert(0, str(self.path))
        try:
            runpy.run_path("run.py", run_name="__main__")
        except SystemExit as stop:
            return int(stop.code or 0)
        finally:
            sys.argv, sys.path[:] = saved_argv, saved_path
            os.chdir(saved_folder)
            for name in ("model", "data", "utils"):
                sys.modules.pop(name, None)
        return 0


@pytest.fixture
def folder(model_folder: Path) -> Folder:
    return Folder(model_folder)
