"""Files that others wrote: read where they can be, refused in one line where not, never run."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from portwright.errors import UserError
from portwright.runtime.checkpoint import TensorSpec, read_checkpoint

WEIGHTS = {"fc.weight": torch.arange(12.0).view(3, 4), "fc.bias": torch.ones(3, dtype=torch.bfloat16)}


def weights_of(path: Path) -> dict[str, torch.Tensor]:
    return {shard.name: shard.tensor for shard in read_checkpoint(path).shards}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


PREFIXED = {f"model/{name}": tensor for name, tensor in WEIGHTS.items()}


@pytest.mark.parametrize("new_format", [True, False])
@pytest.mark.parametrize("step", [7, 7.0, torch.tensor(7), torch.tensor([7.0])])
def test_old_layout_with_everything(tmp_path: Path, new_format: bool, step: object) -> None:
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    path = tmp_path / "checkpoint_7.mdl"
    contents = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "lr_scheduler": scheduler.state_dict(),
        "scaler": scaler.state_dict(),
        "global_step": step,
    }
    torch.save(contents, path, _use_new_zipfile_serialization=new_format)
    loaded = read_checkpoint(path)
    assert loaded.step == 7
    assert loaded.counters is None
    assert same({shard.name[6:]: shard.tensor for shard in loaded.shards}, dict(model.state_dict()))
    assert loaded.shards.specs["model/weight"] == TensorSpec((3, 4), torch.float32)
    assert read_checkpoint(path, weights_only=True).step == 7


@pytest.mark.parametrize("key", [None, "model", "state_dict", "model_state_dict"])
@pytest.mark.parametrize("kind", [dict, OrderedDict])
@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ""])
def test_weights_under_any_usual_key(tmp_path: Path, key: str | None, kind: Any, suffix: str) -> None:
    path = tmp_path / f"weights{suffix}"
    torch.save(kind(WEIGHTS) if key is None else {key: kind(WEIGHTS), "epoch": 3}, path)
    assert same(weights_of(path), PREFIXED)
    assert read_checkpoint(path).step == 0


def test_state_dict_of_a_module_and_views(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    torch.save(model.state_dict(), tmp_path / "a.pt")
    assert same(
        {name[6:]: tensor for name, tensor in weights_of(tmp_path / "a.pt").items()}, dict(model.state_dict())
    )
    base = torch.arange(10.0)
    torch.save({"a": base[::2], "b": torch.nn.Parameter(base), "c": base.view(2, 5).t()}, tmp_path / "b.pt")
    read = weights_of(tmp_path / "b.pt")
    assert torch.equal(read["model/a"], base[::2])
    assert torch.equal(read["model/c"], base.view(2, 5).t())
    assert not read["model/b"].requires_grad
    read["model/b"].fill_(0)
    assert torch.equal(weights_of(tmp_path / "b.pt")["model/b"], base)  # the file is not written through


def test_safetensors_of_others(tmp_path: Path) -> None:
    tensors = {**WEIGHTS, "scalar": torch.tensor(3, dtype=torch.int16), "none": torch.empty(0, 3)}
    path = tmp_path / "any name"
    save_file(tensors, path, metadata={"who": "somebody"})
    loaded = read_checkpoint(path)
    assert same({shard.name[6:]: shard.tensor for shard in loaded.shards}, tensors)
    assert (loaded.step, loaded.counters) == (0, None)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.uint16, torch.float8_e4m3fn])
def test_safetensors_of_others_in_rare_types(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.arange(8, dtype=torch.uint8).view(dtype)
    save_file({"w": tensor}, tmp_path / "a.safetensors")
    read = weights_of(tmp_path / "a.safetensors")["model/w"]
    assert read.dtype == dtype
    assert torch.equal(read.view(torch.uint8), tensor.view(torch.uint8))


def test_damaged_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file(WEIGHTS, path)
    data = path.read_bytes()
    for length in (*range(0, 40), len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(UserError):
            read_checkpoint(path)
    path.write_bytes(data + b"more")
    with pytest.raises(UserError, match="not a whole safetensors file"):
        read_checkpoint(path)
    path.write_bytes(data.replace(b'"F32"', b'"F99"'))
    with pytest.raises(UserError):
        read_checkpoint(path)


def test_truncated_torch_file(tmp_path: Path) -> None:
    for new_format in (True, False):
        path = tmp_path / f"{new_format}.pt"
        torch.save({"model": WEIGHTS}, path, _use_new_zipfile_serialization=new_format)
        data = path.read_bytes()
        for length in (*range(0, len(data) - 1, 37), len(data) - 1):
            path.write_bytes(data[:length])
            with pytest.raises(UserError):
                read_checkpoint(path)


def test_flipped_byte_in_the_weights_of_a_torch_file(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"w": torch.full((100,), 1.25)}, path)
    data = bytearray(path.read_bytes())
    data[data.index(torch.full((3,), 1.25).numpy().tobytes()) + 5] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match="checksum") as caught:
        read_checkpoint(path)
    assert "set_crc32_options" in caught.value.cure


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
        (b"  <!DOCTYPE html><html></html>", "web page"),
        (b"<html>404</html>", "web page"),
        (b"\x89HDF\r\n\x1a\n" + bytes(100), "HDF5"),
        (b"hello world, this is text", "begins with b'hello wo'"),
        (b'{"weight_map": {}}' + bytes(50), "not a checkpoint"),
        (b"PK\x03\x04 and then nothing", "truncated torch file"),
        (b"\x80", "cannot be read as a torch file"),
        (bytes(200), "begins with"),
        (b"\xff" * 8 + b"{}", "not a checkpoint"),
        (b"\xff" * 4 + bytes(4) + b"{}", "not a whole safetensors file"),
    ],
)
def test_not_a_checkpoint(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "given.pt"
    path.write_bytes(data)
    with pytest.raises(UserError, match=message) as caught:
        read_checkpoint(path)
    assert str(path) in caught.value.message
    assert "\n" not in str(caught.value)
    assert caught.value.cure


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Path, int]]:
        return Path.touch, (self.path, 0o666)


@pytest.mark.parametrize("new_format", [True, False])
def test_pickled_code_is_refused_and_not_run(tmp_path: Path, new_format: bool) -> None:
    path = tmp_path / "evil.pt"
    torch.save(
        {"model": WEIGHTS, "extra": Touch(tmp_path / "ran")}, path, _use_new_zipfile_serialization=new_format
    )
    with pytest.raises(UserError, match="would run code") as caught:
        read_checkpoint(path)
    assert "\n" not in str(caught.value)
    assert "state_dict" in caught.value.cure
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps(Touch(tmp_path / "ran")))
    with pytest.raises(UserError):
        read_checkpoint(tmp_path / "plain.pkl")
    assert not (tmp_path / "ran").exists()


def test_whole_module_is_refused(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), tmp_path / "model.pt")
    with pytest.raises(UserError, match=r"would run code from it \(torch\.nn\.modules\.linear\.Linear\)"):
        read_checkpoint(tmp_path / "model.pt")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_refused(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "script.pt")
    with pytest.raises(UserError):
        read_checkpoint(tmp_path / "script.pt")


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ([1, 2], "holds a list"),
        (torch.ones(3), "holds a Tensor"),
        ({}, "Its keys: none"),
        ({"net": WEIGHTS, "step": 1}, "Its keys: net, step"),
        ({"model": {}}, "no weights at all"),
        ({"model": {"a": torch.ones(1), "b": 3}}, "not tensors: b"),
        ({"a": torch.ones(1), "epoch": 3}, "not tensors: epoch"),
        ({"model": WEIGHTS, "global_step": -1}, "no step number: -1"),
        ({"model": WEIGHTS, "global_step": "many"}, "no step number: 'many'"),
        ({"model": WEIGHTS, "global_step": 1.5}, "no step number: 1.5"),
    ],
)
def test_torch_file_with_other_contents(tmp_path: Path, contents: object, message: str) -> None:
    torch.save(contents, tmp_path / "a.pt")
    with pytest.raises(UserError, match=message):
        read_checkpoint(tmp_path / "a.pt")
