"""CosmicTagger's data: events drawn by index, and larcv3's files."""

from __future__ import annotations

import importlib.util
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from unit.models.cosmic_folder import load

from portwright import UserError

synthetic, larcv, data, utils = (load(name) for name in ("synthetic_planes", "larcv_file", "data", "utils"))


# -- synthetic events ----------------------------------------------------------------------------------------


def make(num_samples: int = 6, seed: int = 1, name: str = "train_input") -> Any:
    return synthetic.SyntheticPlanes(num_samples, (40, 64), seed, name)


def test_an_event() -> None:
    event = make()[2]
    assert event["image"].shape == event["label"].shape == (3, 40, 64)
    assert event["image"].dtype == torch.float32
    assert event["label"].dtype == torch.int32
    assert event["image"].min() >= 0
    for plane in range(3):
        assert set(event["label"][plane].unique().tolist()) == {0, 1, 2}
    assert (event["image"][event["label"] > 0] > 0).all(), "a labelled pixel has charge"


def test_events_are_a_function_of_seed_name_and_index() -> None:
    expected = [make()[index]["image"] for index in range(6)]
    np.random.seed(5)
    again = [make(num_samples=100)[index]["image"] for index in reversed(range(6))]
    assert all(torch.equal(a, b) for a, b in zip(expected, again[::-1], strict=True))
    assert not torch.equal(make(seed=2)[0]["image"], expected[0])
    assert not torch.equal(make(name="eval_input")[0]["image"], expected[0])
    assert not torch.equal(expected[0], expected[1])


def test_the_same_events_everywhere() -> None:
    event = make()[0]
    assert torch.bincount(event["label"].flatten()).tolist() == EVENT_0_LABELS
    assert float(event["image"].sum()) == pytest.approx(EVENT_0_CHARGE, rel=1e-4)


EVENT_0_LABELS = [6789, 823, 68]
EVENT_0_CHARGE = 2532.62427


def test_labels_can_be_told_apart() -> None:
    """By charge and by the drift time that the planes have in common, not by position."""
    events = [make()[index] for index in range(6)]
    images, labels = (torch.stack([event[key] for event in events]) for key in ("image", "label"))
    charge = [images[labels == label].mean().item() for label in range(3)]
    assert charge[2] > 1.5 * charge[1] > 1.5 * 5 * charge[0]
    for event in events:
        rows = [(event["label"][plane] == 2).any(1).nonzero().flatten() for plane in range(3)]
        assert max(r[0] for r in rows) - min(r[0] for r in rows) <= 3


def test_indices_end() -> None:
    for index in (6, -1):
        with pytest.raises(IndexError):
            make()[index]


def test_a_loader_and_its_workers() -> None:
    params = utils.set_defaults(
        {
            "train_input": {"num_samples": 5, "downsample": 6, "num_workers": 2},
            "eval_input": {"downsample": 5},
            "model": {"depth": 2},
        }
    )
    batches = list(data.get_train_dataloader(params))
    assert [tuple(batch["image"].shape) for batch in batches] == [(2, 3, 20, 32)] * 2
    assert next(iter(data.get_eval_dataloader(params)))["label"].shape == (2, 3, 40, 64)


def test_images_that_the_network_cannot_halve() -> None:
    params = utils.set_defaults({"train_input": {"downsample": 6}, "model": {"depth": 3}})
    with pytest.raises(UserError, match=r"20 x 32 \(downsample 6\) cannot be halved 3 times"):
        data.get_train_dataloader(params)


# -- larcv3's files ------------------------------------------------------------------------------------------

needs_h5py = pytest.mark.skipif(importlib.util.find_spec("h5py") is None, reason="h5py is not installed")
EXTENT = np.dtype({"names": ["first", "N"], "formats": ["<u8", "<u4"], "offsets": [0, 8], "itemsize": 16})
ID_EXTENT = np.dtype([("first", "<u8"), ("N", "<u4"), ("ID", "<u4")])
VOXEL = np.dtype({"names": ["id", "value"], "formats": ["<u8", "<f4"], "offsets": [0, 8], "itemsize": 16})
META = np.dtype(
    {
        "names": ["valid", "projection_id", "image_sizes", "number_of_voxels", "origin"],
        "formats": ["u1", "<u8", ("<f8", (2,)), ("<u8", (2,)), ("<f8", (2,))],
        "offsets": [0, 8, 16, 32, 48],
        "itemsize": 72,
    }
)


def write_larcv(path: Path, **producers: np.ndarray[Any, Any]) -> None:
    """A file as larcv3 lays it out: of each producer dense images [events, planes, ticks, wires], kept where not zero."""
    import h5py

    with h5py.File(path, "w") as file:
        ids_of_events = np.dtype([("run", "<i8"), ("subrun", "<i8"), ("event", "<i8")])
        file["Events/event_id"] = np.zeros(len(next(iter(producers.values()))), ids_of_events)
        for producer, images in producers.items():
            num_events, num_planes, ticks, wires = images.shape
            voxels, extents = [], []
            for plane in images.reshape(-1, ticks, wires):
                flat = plane.T.reshape(-1)  # wire by wire
                ids = np.flatnonzero(flat)
                extents.append((sum(map(len, voxels)), len(ids), len(extents) % num_planes))
                voxels.append(np.array(list(zip(ids, flat[ids], strict=True)), VOXEL))
            meta = [
                (1, p, (wires, ticks), (wires, ticks), (0, 0))
                for _ in range(num_events)
                for p in range(num_planes)
            ]
            group = file.create_group(f"Data/sparse2d_{producer}_group")
            rows = {
                "extents": np.array([(e * num_planes, num_planes) for e in range(num_events)], EXTENT),
                "voxel_extents": np.array(extents, ID_EXTENT),
                "image_meta": np.array(meta, META),
                "voxels": np.concatenate(voxels) if voxels else np.zeros(0, VOXEL),
            }
            for name, values in rows.items():
                group.create_dataset(name, data=values, maxshape=(None,), chunks=(100,), compression="gzip")


@pytest.fixture
def dense() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    images = random.random((4, 3, 16, 24)).astype(np.float32)
    images[random.random(images.shape) < 0.8] = 0
    images[1, 2] = 0  # a plane without a pixel
    return images, (random.integers(0, 3, images.shape) * (images > 0)).astype(np.float32)


@pytest.fixture
def file(tmp_path: Path, dense: Any) -> Path:
    path = tmp_path / "events.h5"
    write_larcv(path, sbndwire=dense[0], sbnd_cosmicseg=dense[1])
    return path


@needs_h5py
def test_a_file_is_read(file: Path, dense: Any) -> None:
    dataset = larcv.LarcvPlanes(file)
    assert len(dataset) == 4
    assert dataset.image_size == (16, 24)
    for index in range(4):
        assert np.array_equal(dataset[index]["image"].numpy(), dense[0][index])
        assert np.array_equal(dataset[index]["label"].numpy(), dense[1][index])
    assert dataset[0]["label"].dtype == torch.int32
    assert len(larcv.LarcvPlanes(file, num_samples=2)) == 2
    assert len(larcv.LarcvPlanes(file, num_samples=200)) == 4
    with pytest.raises(IndexError):
        dataset[4]


@needs_h5py
@pytest.mark.parametrize("downsample", [1, 2, 3])
def test_downsampling(file: Path, dense: Any, downsample: int) -> None:
    """Charge is averaged over all pixels of a window, empty ones too; labels take the greatest."""
    event = larcv.LarcvPlanes(file, downsample)[0]
    images, labels = (torch.from_numpy(each[0]) for each in dense)
    side = 2**downsample
    torch.testing.assert_close(event["image"], torch.nn.functional.avg_pool2d(images, side))
    assert torch.equal(event["label"].float(), torch.nn.functional.max_pool2d(labels, side))


@needs_h5py
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_reads_it(file: Path, dense: Any, num_workers: int) -> None:
    options = {"file": str(file), "downsample": 1, "num_workers": num_workers}
    params = utils.set_defaults({"train_input": options, "model": {"depth": 2}})
    batches = list(data.get_train_dataloader(params))
    assert len(batches) == 2
    whole = [larcv.LarcvPlanes(file, 1)[index]["image"] for index in range(4)]
    assert torch.equal(torch.cat([batch["image"] for batch in batches]), torch.stack(whole))
    dataset = larcv.LarcvPlanes(file)
    dataset[0]
    assert np.array_equal(pickle.loads(pickle.dumps(dataset))[3]["image"].numpy(), dense[0][3])


@needs_h5py
def test_producers_of_other_names(tmp_path: Path, dense: Any) -> None:
    path = tmp_path / "other.h5"
    write_larcv(path, wire=dense[0], seg=dense[1])
    assert len(larcv.LarcvPlanes(path, image_producer="wire", label_producer="seg")) == 4
    with pytest.raises(UserError, match="no sparse2d images of 'wires'") as caught:
        larcv.LarcvPlanes(path, image_producer="wires", label_producer="seg")
    assert "wire" in str(caught.value)


@needs_h5py
def test_what_is_no_larcv_file(tmp_path: Path, dense: Any, file: Path) -> None:
    import h5py

    with pytest.raises(UserError, match=r"no file .*nowhere\.h5"):
        larcv.LarcvPlanes(tmp_path / "nowhere.h5")
    text = tmp_path / "text.h5"
    text.write_text("hello")
    with pytest.raises(UserError, match=r"text\.h5' cannot be read"):
        larcv.LarcvPlanes(text)
    empty = tmp_path / "empty.h5"
    with h5py.File(empty, "w"):
        pass
    with pytest.raises(UserError, match="no sparse2d images of 'sbndwire'"):
        larcv.LarcvPlanes(empty)
    with h5py.File(file, "a") as opened:
        del opened["Data/sparse2d_sbndwire_group/voxel_extents"]
    with pytest.raises(UserError, match="voxel_extents: no such table"):
        larcv.LarcvPlanes(file)[0]


@needs_h5py
def test_events_that_cannot_be(tmp_path: Path, dense: Any) -> None:
    images, labels = dense
    path = tmp_path / "x.h5"
    write_larcv(path, sbndwire=images, sbnd_cosmicseg=labels[:3])
    with pytest.raises(UserError, match="4 events of 'sbndwire' but 3"):
        larcv.LarcvPlanes(path)
    write_larcv(path, sbndwire=images[:0], sbnd_cosmicseg=labels[:0])
    with pytest.raises(UserError, match="has no events"):
        larcv.LarcvPlanes(path)
    write_larcv(path, sbndwire=images[:, :2], sbnd_cosmicseg=labels[:, :2])
    with pytest.raises(UserError, match="has 2 planes"):
        larcv.LarcvPlanes(path)[0]
    write_larcv(path, sbndwire=images, sbnd_cosmicseg=labels * 2)
    with pytest.raises(UserError, match="labels from 0 to 4"):
        larcv.LarcvPlanes(path)[0]
    write_larcv(path, sbndwire=images, sbnd_cosmicseg=labels)
    with pytest.raises(UserError, match="cannot be halved 9 times"):
        larcv.LarcvPlanes(path, 9)


@needs_h5py
def test_a_damaged_file(file: Path) -> None:
    import h5py

    with h5py.File(file, "a") as opened:
        voxels = opened["Data/sparse2d_sbndwire_group/voxels"]
        rows = voxels[:]
        rows["id"][0] = 10**9
        voxels[:] = rows
    with pytest.raises(UserError, match="has a pixel 1000000000"):
        larcv.LarcvPlanes(file)[0]
    with h5py.File(file, "a") as opened:
        del opened["Data/sparse2d_sbndwire_group/voxels"]
        opened["Data/sparse2d_sbndwire_group/voxels"] = rows[:5]
    with pytest.raises(UserError, match="and it has 5"):
        larcv.LarcvPlanes(file)[3]


def test_without_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(UserError, match="needs h5py") as caught:
        larcv.LarcvPlanes(tmp_path / "events.h5")
    assert "pip install 'portwright[torch]'" in str(caught.value)
