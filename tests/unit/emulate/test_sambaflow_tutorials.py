"""SambaNova's own tutorials, unchanged, under the emulator; from the folder that PORTWRIGHT_CORPUS names."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

TUTORIALS = Path(os.environ.get("PORTWRIGHT_CORPUS", "/nonexistent")) / "sambanova+tutorials"
pytestmark = pytest.mark.skipif(not TUTORIALS.is_dir(), reason="PORTWRIGHT_CORPUS has no sambanova+tutorials")

# The few names of torchvision that they use, on digits that can be learned.
STUB = {
    "__init__.py": "from torchvision import datasets, transforms\n",
    "transforms.py": """
import numpy as np
import torch


class Compose:
    def __init__(self, steps):
        self.steps = steps

    def __call__(self, value):
        for step in self.steps:
            value = step(value)
        return value


class ToTensor:
    def __call__(self, image):
        return torch.as_tensor(np.asarray(image)).float() / 255


class Normalize:
    def __init__(self, mean, deviation):
        self.mean, self.deviation = mean[0], deviation[0]

    def __call__(self, image):
        return (image - self.mean) / self.deviation
""",
    "datasets.py": """
import numpy as np


class MNIST:
    def __init__(self, root, train=True, transform=None, download=False):
        made = np.random.default_rng(0 if train else 1)
        self.labels = made.integers(0, 10, 128 if train else 64)
        self.images = np.zeros((len(self.labels), 28, 28), np.uint8)
        self.images[np.arange(len(self.labels)), 2 * self.labels + 2] = 255
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.transform(self.images[index]), int(self.labels[index])
""",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    stub = tmp_path / "stub" / "torchvision"
    stub.mkdir(parents=True)
    for name, text in STUB.items():
        (stub / name).write_text(text)
    (tmp_path / "data").mkdir()
    for name, seed, count in (("train", 0, 128), ("t10k", 1, 64)):
        labels = np.random.default_rng(seed).integers(0, 10, count).astype(np.uint8)
        images = np.zeros((count, 28, 28), np.uint8)
        images[np.arange(count), 2 * labels + 2] = 255
        head = struct.pack(">IIII", 2051, count, 28, 28)
        (tmp_path / "data" / f"{name}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        (tmp_path / "data" / f"{name}-labels-idx1-ubyte").write_bytes(
            struct.pack(">II", 2049, count) + labels.tobytes()
        )
    return tmp_path


def emulate(folder: Path, script: str, *words: str) -> str:
    path = os.pathsep.join([str(folder / "stub"), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, "-m", "portwright.cli", "emulate", "rdu", str(TUTORIALS / script), *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout + ran.stderr


def test_hello_world(folder: Path) -> None:
    emulate(folder, "hello_world/logreg.py", "compile", "-b", "2", "--pef-name=logreg")
    ran = emulate(
        folder,
        "hello_world/logreg.py",
        "run",
        "-b",
        "2",
        "--pef=out/logreg/logreg.pef",
        "-e",
        "3",
        "--lr",
        "0.01",
    )
    assert "training of LogReg: 192 calls" in ran
    accuracies = [float(line.split()[2]) for line in ran.splitlines() if line.startswith("Test Accuracy")]
    assert accuracies[-1] > 90


def test_lenet(folder: Path) -> None:
    emulate(folder, "lenet/lenet.py", "compile", "-b=2", "--pef-name=lenet", "--output-folder=pef")
    run = ("lenet/lenet.py", "run", "--pef=pef/lenet/lenet.pef", "-b", "2", "--data-dir", "data")
    ran = emulate(
        folder, *run, "--ckpt-dir", "checkpoints", "-e", "2", "--lr", "0.05", "--weight-decay", "0.0"
    )
    assert "training of LeNet: 128 calls" in ran
    tested = emulate(folder, *run, "--test", "--init-ckpt-path", "checkpoints/128.pt")
    assert "Test Accuracy:" in tested
    assert float(tested.split("Test Accuracy:")[1].split()[0]) > 20
