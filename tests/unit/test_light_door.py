"""The base installation: what works without torch, TensorFlow and the rest that training needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
_WITHOUT = """
import importlib.machinery

LEFT_OUT = {"torch", "tensorflow", "tf_keras", "keras", "numpy", "tensorboard", "grpc", "sklearn", "h5py", "safetensors", "tokenizers"}
found = importlib.machinery.PathFinder.find_spec


def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in LEFT_OUT else found(name, path, target)


importlib.machinery.PathFinder.find_spec = staticmethod(find_spec)
"""
SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader([(torch.zeros(4), torch.zeros(1))] * 8, batch_size=4, drop_last=True)
for x, y in loader:
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "sitecustomize.py").write_text(_WITHOUT)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def portwright(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": f"{folder / 'without'}{os.pathsep}{ROOT / 'src'}"}
    env |= {
        "HOME": str(folder),
        "XDG_STATE_HOME": str(folder),
        "XDG_DATA_HOME": str(folder),
    }  # no job of the user's
    command = [sys.executable, "-m", "portwright", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        ("check train.py --target csx", 1, "runs after port"),
        ("port train.py --target ipu --style branches", 0, "poptorch"),
        ("explain PW504", 0, "to-device"),
        ("ops --target csx conv1d", 1, "legal"),
        ("targets", 0, "training needs torch, which is not installed. pip install 'portwright[torch]'"),
        ("sites", 0, "neocortex"),
        ("models", 0, "gpt2"),
        ("new mine", 0, "made mine"),
        ("undo train.py", 2, "nothing was saved"),
        ("jobs", 0, "no job"),
        ("--help", 0, "Usage"),
    ],
)
def test_a_command_that_needs_no_framework_works(folder: Path, words: str, status: int, told: str) -> None:
    done = portwright(folder, *words.split())
    assert done.returncode == status, done.stderr
    assert told in done.stdout + done.stderr


def test_a_job_is_planned(folder: Path) -> None:
    portwright(folder, "new", "mine")
    done = portwright(folder, "submit", "mine", "--site", "local", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "nothing was written" in done.stderr


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ("plan mine --target csx", "torch"),
        ("verify train.py train.py", "torch"),
        ("run mine CPU --mode train --params configs/params.yaml", "torch"),
        ("generate gpt2 --prompt a", "torch"),
        ("convert --from hf mine other", "torch"),
        ("data bench mine", "torch"),
        ("emulate ipu train.py", "torch"),
        ("input mine", "tensorflow"),
    ],
)
def test_a_command_that_needs_more_names_the_extra_in_one_line(folder: Path, words: str, extra: str) -> None:
    portwright(folder, "new", "mine")
    done = portwright(folder, *words.split())
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].endswith(f"pip install 'portwright[{extra}]'")
    assert "not installed" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_of_a_model_folder_names_the_extra_too(folder: Path) -> None:
    portwright(folder, "new", "mine")
    env = {**os.environ, "PYTHONPATH": f"{folder / 'without'}{os.pathsep}{ROOT / 'src'}"}
    done = subprocess.run(
        [sys.executable, "run.py", "CPU", "--mode", "train", "--params", "configs/params.yaml"],
        cwd=folder / "mine", env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert (
        done.stderr == "error: run() needs torch, which is not installed. pip install 'portwright[torch]'\n"
    )


def test_the_wheel_carries_every_file_of_the_package() -> None:
    package = ROOT / "src" / "portwright"
    with (ROOT / "pyproject.toml").open("rb") as file:
        globs = tomllib.load(file)["tool"]["setuptools"]["package-data"]["portwright"]
    carried = {path for pattern in globs for path in package.glob(pattern)}
    files = {p for p in package.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert sorted(p for p in files - carried if p.suffix != ".py") == []


def test_in_an_empty_environment_it_is_small_and_checks(tmp_path: Path) -> None:
    """What a newcomer types: pip install, then check; at most 80 MB, pip itself not counted."""
    (tmp_path / "train.py").write_text(SCRIPT)
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    # Of a copy: what setuptools leaves in a checkout would come into the next wheel.
    checkout = tmp_path / "checkout"
    shutil.copytree(
        ROOT / "src", checkout / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    call(sys.executable, "-m", "venv", "--without-pip", "empty")
    python = str(tmp_path / "empty" / "bin" / "python")
    made = call(sys.executable, "-m", "pip", "--python", python, "install", "-q", str(checkout))
    assert made.returncode == 0, made.stderr
    done = call(str(tmp_path / "empty" / "bin" / "portwright"), "check", "train.py", "--target", "csx")
    assert done.returncode == 1, done.stderr
    assert "runs after port" in done.stdout
    size = sum(
        p.stat().st_size for p in (tmp_path / "empty").rglob("*") if p.is_file() and not p.is_symlink()
    )
    assert size < 80e6
    assert call(python, "-c", "import torch").returncode == 1
