"""What is saved comes back bit for bit, and other tools can read it."""

from __future__ import annotations

import json
import string
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from portwright.errors import UserError
from portwright.runtime.checkpoint import (
    CheckpointWriter,
    LoadedCheckpoint,
    TensorSpec,
    find_last_good,
    read_checkpoint,
)
from portwright.target import Shard

NATIVE = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]
FOREIGN = [
    torch.complex128,
    torch.complex64,
    torch.complex32,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
]


def save(
    directory: Path, step: int, tensors: dict[str, torch.Tensor], counters: dict[str, Any] | None = None
) -> Path:
    with CheckpointWriter(directory, None, on_note=pytest.fail) as writer:
        writer.save(step, [Shard(name, tensor) for name, tensor in tensors.items()], counters or {})
    return directory / f"checkpoint_{step}"


def tensors_of(loaded: LoadedCheckpoint) -> dict[str, torch.Tensor]:
    return {shard.name: shard.tensor for shard in loaded.shards}


def random_tensor(dtype: torch.dtype, shape: list[int], seed: int) -> torch.Tensor:
    """Any bits at all, NaNs included; a bool holds 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(0, 256, (*shape, dtype.itemsize), generator=generator, dtype=torch.uint8)
    if dtype == torch.bool:
        bits %= 2
    return bits.view(dtype).squeeze(-1) if bits.numel() else torch.empty(shape, dtype=dtype)


def bits_of(tensor: torch.Tensor) -> bytes:
    """Its elements in order, whatever their strides; through uint8 since NaN equals nothing."""
    plain = tensor.resolve_conj().resolve_neg().flatten().clone(memory_format=torch.contiguous_format)
    return plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""


@st.composite
def awkward_tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(NATIVE + FOREIGN))
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    tensor = random_tensor(dtype, shape, draw(st.integers(0, 2**32)))
    if tensor.dim() >= 2 and draw(st.booleans()):
        tensor = tensor.transpose(0, -1)
    if tensor.dim() >= 1 and tensor.shape[0] > 1 and draw(st.booleans()):
        tensor = tensor[1::2]
    if tensor.dim() >= 1 and draw(st.booleans()):
        tensor = tensor[:1].expand(3, *tensor.shape[1:]) if tensor.shape[0] == 1 else tensor
    if dtype in (torch.complex64, torch.complex128) and draw(st.booleans()):
        tensor = tensor.conj()
        if draw(st.booleans()):
            tensor = tensor.imag  # a view that is negated when it is read
    return tensor


shard_names = st.one_of(
    st.builds(
        "{}/{}".format,
        st.sampled_from(["model", "optimizer", "rng", "extra", "Model"]),
        st.one_of(st.text(max_size=8), st.sampled_from(["__metadata__", "a/b", "\ud800", '"', "\n", "\x00"])),
    ),
    st.text(alphabet=string.ascii_letters, max_size=5),
)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@settings(max_examples=150, deadline=None)
@given(st.dictionaries(shard_names, awkward_tensors(), max_size=8), st.integers(0, 10**12))
def test_everything_comes_back_bit_for_bit(tensors: dict[str, torch.Tensor], step: int) -> None:
    with TemporaryDirectory() as folder:
        path = save(Path(folder), step, tensors, {"seen": [1, 2.5, None, "ü"]})
        loaded = read_checkpoint(path)
        assert loaded.step == step
        assert loaded.counters == {"seen": [1, 2.5, None, "ü"]}
        assert loaded.shards.specs == {
            name: TensorSpec(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()
        }
        back = tensors_of(loaded)
        assert back.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert back[name].dtype == tensor.dtype
            assert back[name].shape == tensor.shape
            assert bits_of(back[name]) == bits_of(tensor)
        load_file(path / "model.safetensors")  # the library agrees that it is a good file


@pytest.mark.parametrize("dtype", NATIVE)
def test_other_tools_read_the_weights(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {
        f"model/{name}": random_tensor(dtype, shape, 1)
        for name, shape in (("a.w", [3, 5]), ("b", []), ("c", [0, 2]))
    }
    path = save(tmp_path, 1, {**tensors, "model/odd": torch.ones(1, dtype=torch.uint8)})
    read = load_file(path / "model.safetensors")
    assert set(read) == {"a.w", "b", "c", "odd"}
    for name in ("a.w", "b", "c"):
        assert read[name].dtype == dtype
        assert read[name].shape == tensors[f"model/{name}"].shape
        assert bits_of(read[name]) == bits_of(tensors[f"model/{name}"])


def test_large_tensors_and_many_small_ones(tmp_path: Path) -> None:
    """More than one chunk, and small ones between large ones."""
    tensors = {"model/large": random_tensor(torch.float32, [3_000_000], 0)}
    tensors |= {
        f"model/{index:04}": random_tensor(torch.float32, [index % 40, 30], index) for index in range(2000)
    }
    tensors |= {
        "model/just": random_tensor(torch.uint8, [64 << 10], 2),
        "model/under": random_tensor(torch.uint8, [(64 << 10) - 1], 3),
    }
    back = tensors_of(read_checkpoint(save(tmp_path, 3, tensors)))
    assert all(bits_of(back[name]) == bits_of(tensor) for name, tensor in tensors.items())
    library = load_file(tmp_path / "checkpoint_3" / "model.safetensors")
    assert all(bits_of(library[name[6:]]) == bits_of(tensor) for name, tensor in tensors.items())


def test_tied_weights_come_back_under_both_names(tmp_path: Path) -> None:
    model = torch.nn.ModuleDict({"in": torch.nn.Linear(4, 4), "out": torch.nn.Linear(4, 4)})
    model["out"].weight = model["in"].weight
    path = save(tmp_path, 1, {f"model/{name}": tensor for name, tensor in model.state_dict().items()})
    back = {name[6:]: tensor for name, tensor in tensors_of(read_checkpoint(path)).items()}
    assert back.keys() == model.state_dict().keys()
    assert torch.equal(back["in.weight"], back["out.weight"])
    other = torch.nn.ModuleDict({"in": torch.nn.Linear(4, 4), "out": torch.nn.Linear(4, 4)})
    other["out"].weight = other["in"].weight
    other.load_state_dict(back)
    assert torch.equal(other["in"].weight, model["in"].weight)
    # overlapping views too
    base = torch.arange(6.0)
    path = save(tmp_path, 2, {"model/all": base, "model/part": base[2:4]})
    assert torch.equal(tensors_of(read_checkpoint(path))["model/part"], torch.tensor([2.0, 3.0]))


def test_tensor_without_data_is_refused(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, None, on_note=pytest.fail)
    for tensor, form in ((torch.eye(2).to_sparse(), "sparse"), (torch.empty(2, device="meta"), "meta")):
        with pytest.raises(UserError, match=f"Cannot save 'w': .*{form}"):
            writer.save(1, [Shard("model/w", tensor)], {})
    assert list(tmp_path.iterdir()) == []


def test_shards_can_be_read_again_and_belong_to_the_reader(tmp_path: Path) -> None:
    path = save(tmp_path, 1, {"model/w": torch.zeros(3), "optimizer/w/m": torch.ones(3)})
    loaded = read_checkpoint(path)
    for tensor in tensors_of(loaded).values():
        tensor.fill_(7)
    again = tensors_of(loaded)
    assert torch.equal(again["model/w"], torch.zeros(3))
    assert read_checkpoint(path).step == 1


def test_weights_only_leaves_the_rest_alone(tmp_path: Path) -> None:
    path = save(
        tmp_path, 5, {"model/w": torch.ones(3), "optimizer/w/m": torch.ones(3), "x": torch.ones(1)}, {"a": 1}
    )
    (path / "optimizer.safetensors").unlink()
    loaded = read_checkpoint(path, weights_only=True)
    assert list(tensors_of(loaded)) == ["model/w"]
    assert loaded.counters is None
    assert loaded.step == 5
    with pytest.raises(UserError, match=r"optimizer\.safetensors is missing"):
        read_checkpoint(path)


def test_file_of_a_checkpoint_stands_for_its_weights(tmp_path: Path) -> None:
    path = save(tmp_path, 5, {"model/w": torch.ones(3), "optimizer/w/m": torch.ones(3)}, {"a": 1})
    loaded = read_checkpoint(path / "model.safetensors")
    assert list(tensors_of(loaded)) == ["model/w"]
    assert loaded.counters is None
    data = bytearray((path / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "model.safetensors").write_bytes(data)
    with pytest.raises(UserError, match="checksum"):
        read_checkpoint(path / "model.safetensors")


def test_moved_checkpoint_can_be_read(tmp_path: Path) -> None:
    path = save(tmp_path, 5, {"model/w": torch.ones(3)})
    path.rename(tmp_path / "best model")
    assert read_checkpoint(tmp_path / "best model").step == 5
    (tmp_path / "best model").rename(tmp_path / "checkpoint_6")
    with pytest.raises(UserError, match="name says step 6, but it is of step 5"):
        read_checkpoint(tmp_path / "checkpoint_6")


def test_file_that_is_not_in_the_manifest_is_not_read(tmp_path: Path) -> None:
    path = save(tmp_path, 5, {"model/w": torch.ones(3)})
    other = save(tmp_path, 6, {"secret": torch.ones(3)})
    (other / "extra.safetensors").rename(path / "extra.safetensors")
    assert list(tensors_of(read_checkpoint(path))) == ["model/w"]


def test_missing_path_lists_what_is_near(tmp_path: Path) -> None:
    save(tmp_path, 5, {"model/w": torch.ones(3)})
    save(tmp_path, 10, {"model/w": torch.ones(3)})
    for path in (tmp_path / "checkpoint_7", tmp_path):
        with pytest.raises(UserError) as caught:
            read_checkpoint(path)
        assert caught.value.cure == f"Complete checkpoints in {tmp_path}: checkpoint_5, checkpoint_10."
    with pytest.raises(UserError, match="There is no checkpoint") as caught:
        read_checkpoint(tmp_path / "nowhere" / "checkpoint_7")
    assert "--checkpoint_path" in caught.value.cure


def test_device_is_no_checkpoint() -> None:
    with pytest.raises(UserError, match="not a file or a folder"):
        read_checkpoint(Path("/dev/null"))


def test_folder_without_manifest(tmp_path: Path) -> None:
    path = save(tmp_path, 5, {"model/w": torch.ones(3)})
    (path / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"no manifest\.json; its weights alone can be read from"):
        read_checkpoint(path)
    assert list(tensors_of(read_checkpoint(path / "model.safetensors"))) == ["model/w"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"not a checkpoint: it has no manifest\.json"):
        read_checkpoint(tmp_path / "empty")


def test_newer_format_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, 5, {"model/w": torch.ones(3)})
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "format": 2}))
    with pytest.raises(UserError, match="its format is 2, this version of Portwright reads 1"):
        read_checkpoint(path)
    notes: list[str] = []
    assert find_last_good(tmp_path, notes.append) is None
    assert "format is 2" in notes[0]
