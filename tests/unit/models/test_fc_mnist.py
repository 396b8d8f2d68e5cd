"""fc_mnist's data: the embedded digits, and MNIST's own files."""

from __future__ import annotations

import gzip
import importlib.util
import struct
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from portwright import UserError
from portwright.discover import find_models


@pytest.fixture(scope="module")
def data() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fc_mnist_data", find_models()["fc_mnist"] / "data.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_idx(path: Path, values: np.ndarray) -> None:
    raw = (
        struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
        + values.astype(np.uint8).tobytes()
    )
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


def test_digits_are_split_once(data: ModuleType) -> None:
    train, test = data.read_digits("train"), data.read_digits("test")
    assert len(train[0]) + len(test[0]) == 1797
    assert len(test[0]) == 360
    assert train[0].min() >= 0
    assert train[0].max() <= 1


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_mnist_files_are_read(data: ModuleType, tmp_path: Path, ending: str) -> None:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (50, 28, 28)), rng.integers(0, 10, 50)
    write_idx(tmp_path / f"train-images-idx3-ubyte{ending}", images)
    write_idx(tmp_path / f"train-labels-idx1-ubyte{ending}", labels)
    options = {
        "data_dir": str(tmp_path),
        "batch_size": 50,
        "shuffle": False,
        "drop_last": False,
        "num_workers": 0,
    }
    (batch,) = list(data.make_dataloader(options, "train"))
    assert batch[0].shape == (50, 1, 28, 28)
    assert np.array_equal((batch[0].squeeze(1) * 255).round().numpy(), images)
    assert batch[1].tolist() == labels.tolist()


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00\x00", b"hello world", struct.pack(">BBBBI", 0, 0, 8, 1, 9) + b"123", b"\x1f\x8b broken"],
)
def test_damaged_files_are_named(data: ModuleType, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / ("x.gz" if content[:2] == b"\x1f\x8b" else "x")
    path.write_bytes(content)
    with pytest.raises(UserError, match=path.name):
        data.read_idx(path)


def test_missing_files_say_what_to_do(data: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="IDX files"):
        data.read_mnist(tmp_path, "test")


def test_the_network_is_its_equations() -> None:
    torch.manual_seed(0)
    spec = importlib.util.spec_from_file_location("fc_mnist_model", find_models()["fc_mnist"] / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sizes = {
        "input_size": 9,
        "hidden_sizes": [7, 5],
        "num_classes": 4,
        "activation_fn": "tanh",
        "dropout": 0.0,
    }
    network = module.MLP(sizes).double()
    images, labels = torch.randn(6, 1, 3, 3, dtype=torch.float64), torch.randint(0, 4, (6,))
    first, second, last = (network.layers[place] for place in (0, 3, 6))
    x = images.reshape(6, 9)
    for layer in (first, second):
        x = torch.tanh(x @ layer.weight.t() + layer.bias)
    stated = x @ last.weight.t() + last.bias
    logits = network(images)
    torch.testing.assert_close(logits, stated)
    weights = list(network.parameters())
    ours = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, labels), weights)
    entropy = (stated.logsumexp(1) - stated[torch.arange(6), labels]).mean()
    for gradient, expected in zip(ours, torch.autograd.grad(entropy, weights), strict=True):
        torch.testing.assert_close(gradient, expected)
