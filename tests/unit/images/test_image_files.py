"""Images and masks from files: what is read, what is refused and by which name."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from PIL import Image

from portwright.data.draws import Draws
from portwright.errors import UserError
from portwright.images.dataset import (
    ImageArchive,
    ImageFolder,
    ImageFormat,
    flip,
    normalize,
    open_images,
    to_unit,
)
from portwright.images.decoding import MaskFormat, find_pairs, read_image, read_mask, resize

BINARY = MaskFormat(2)
SHAPE = (8, 12, 1)


def save(path: Path, pixels: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npy":
        np.save(path, pixels)
    else:
        Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for index in range(7):
        save(tmp_path / f"images/ü {index}.png", random.integers(0, 256, (8, 12), np.uint8))
        save(tmp_path / f"masks/ü {index}.png", random.integers(0, 2, (8, 12), np.uint8) * 255)
    return tmp_path


def make(folder: Path, **options: Any) -> ImageFolder:
    shape = options.pop("shape", SHAPE)
    masks = options.pop("masks", BINARY)
    cache = options.pop("cache_bytes", 0)
    return ImageFolder(folder, ImageFormat(shape, **options), masks, cache_bytes=cache)


def test_a_batch_holds_the_files_pixels(folder: Path) -> None:
    batch = make(folder, normalize="zero_one").gather(np.array([5, 0]))
    for row, index in enumerate((5, 0)):
        pixels = np.asarray(Image.open(folder / f"images/ü {index}.png"))
        mask = np.asarray(Image.open(folder / f"masks/ü {index}.png"))
        assert np.array_equal(np.rint(batch["image"][row, 0] * 255), pixels)
        assert np.array_equal(batch["mask"][row], mask // 255)
    assert batch["image"].dtype == np.float32
    assert batch["mask"].dtype == np.int32


@pytest.mark.parametrize("ending", ["png", "tif", "bmp", "npy"])
def test_formats_without_loss_give_the_same(tmp_path: Path, ending: str) -> None:
    pixels = np.arange(96, dtype=np.uint8).reshape(8, 12)
    assert np.array_equal(read_image(save(tmp_path / f"a.{ending}", pixels), 1)[..., 0], pixels)
    colours = np.stack([pixels, pixels + 1, pixels + 2], 2)
    assert np.array_equal(read_image(save(tmp_path / f"c.{ending}", colours), 3), colours)


def test_jpeg_is_read_nearly(tmp_path: Path) -> None:
    pixels = np.tile(np.arange(0, 240, 20, dtype=np.uint8), (8, 1))
    assert abs(read_image(save(tmp_path / "a.jpg", pixels), 1)[..., 0].astype(int) - pixels).max() < 12


def test_grey_and_colours_become_each_other_and_deep_files_stay_deep(tmp_path: Path) -> None:
    grey = save(tmp_path / "g.png", np.full((4, 4), 100, np.uint8))
    assert np.array_equal(read_image(grey, 3), np.full((4, 4, 3), 100))
    colours = save(tmp_path / "c.png", np.full((4, 4, 3), (10, 10, 10), np.uint8))
    assert np.array_equal(read_image(colours, 1), np.full((4, 4, 1), 10))
    deep = save(tmp_path / "d.tif", np.full((4, 4), 40000, np.uint16))
    assert read_image(deep, 1).dtype == np.uint16
    assert to_unit(read_image(deep, 1))[0, 0, 0] == pytest.approx(40000 / 65535)
    assert read_image(deep, 3)[0, 0, 0] == 40000 >> 8
    real = save(tmp_path / "f.tif", np.full((4, 4), 0.25, np.float32))
    assert to_unit(read_image(real, 1))[0, 0, 0] == 0.25


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([[0, 1]], BINARY, [[0, 1]]),
        ([[0, 255]], BINARY, [[0, 1]]),
        ([[0, 0]], BINARY, [[0, 0]]),
        ([[0, 2, 3]], MaskFormat(4), [[0, 2, 3]]),
        ([[3, 200, 90]], MaskFormat(2, threshold=127), [[0, 1, 0]]),
        ([[0, 255, 1]], MaskFormat(2, ignore_index=255), [[0, 255, 1]]),
    ],
)
def test_masks_become_class_numbers(
    tmp_path: Path, values: list[list[int]], kind: MaskFormat, expected: list[list[int]]
) -> None:
    path = save(tmp_path / "m.png", np.array(values, np.uint8))
    assert read_mask(path, kind).tolist() == expected


def test_palettes_by_number_and_by_colour(tmp_path: Path) -> None:
    numbers = Image.fromarray(np.array([[0, 1], [2, 1]], np.uint8))
    paletted = numbers.copy()
    paletted.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
    paletted.save(tmp_path / "p.png")
    with Image.open(tmp_path / "p.png") as saved:
        assert saved.mode == "P"
    assert read_mask(tmp_path / "p.png", MaskFormat(3)).tolist() == [[0, 1], [2, 1]]
    coloured = MaskFormat(3, palette=[(0, 0, 0), (0, 255, 0), (255, 0, 0)])
    assert read_mask(tmp_path / "p.png", coloured).tolist() == [[0, 2], [1, 2]]
    fewer = MaskFormat(2, palette=[(0, 0, 0), (0, 255, 0)])
    with pytest.raises(UserError, match=r"p\.png has the colour \[255, 0, 0\]"):
        read_mask(tmp_path / "p.png", fewer)
    lenient = MaskFormat(2, palette=[(0, 0, 0), (0, 255, 0)], ignore_index=9)
    assert read_mask(tmp_path / "p.png", lenient).tolist() == [[0, 9], [1, 9]]


@pytest.mark.parametrize(
    ("values", "kind", "text"),
    [
        (np.array([[0, 3]], np.uint8), BINARY, "value 3"),
        (np.array([[0, 254]], np.uint8), BINARY, "mask_threshold"),
        (np.array([[0, -1]], np.int32), MaskFormat(3), "value -1"),
        (np.array([[0, 1.5]]), MaskFormat(3), "value 1.5"),
        (np.zeros((2, 2, 2), np.uint8), MaskFormat(3), "shape"),
        (np.array([["a"]]), MaskFormat(3), "numbers"),
    ],
)
def test_masks_that_are_no_classes_are_named(
    tmp_path: Path, values: np.ndarray, kind: MaskFormat, text: str
) -> None:
    path = save(tmp_path / "wrong.npy", values)
    with pytest.raises(UserError, match=text) as caught:
        read_mask(path, kind)
    assert "wrong.npy" in str(caught.value)


def test_a_mask_in_colours_needs_a_palette(tmp_path: Path) -> None:
    path = save(tmp_path / "m.png", np.full((2, 2, 3), (255, 0, 0), np.uint8))
    with pytest.raises(UserError, match="mask_palette"):
        read_mask(path, BINARY)


@pytest.mark.parametrize("name", ["x.png", "x.npy", "x.tif", "x.jpg"])
@pytest.mark.parametrize("content", [b"", b"no image at all", b"\x89PNG\r\n\x1a\n\x00\x00"])
def test_damaged_files_are_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=name):
        read_image(tmp_path / name, 1)


def test_a_file_cut_short_is_named(tmp_path: Path) -> None:
    path = save(tmp_path / "cut.png", np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8))
    path.write_bytes(path.read_bytes()[:-900])
    with pytest.raises(UserError, match=r"cut\.png"):
        read_image(path, 1)


def test_pickles_are_not_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "o.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match=r"o\.npy"):
        read_image(tmp_path / "o.npy", 1)


def test_pairs_by_name_whatever_the_ending(tmp_path: Path) -> None:
    grey = np.zeros((2, 2), np.uint8)
    save(tmp_path / "images/a.jpg", grey)
    save(tmp_path / "images/b.png", grey)
    save(tmp_path / "masks/a.png", grey)
    save(tmp_path / "masks/b_mask.npy", grey)
    (tmp_path / "images/.DS_Store").write_bytes(b"")
    (tmp_path / "images/notes.txt").write_text("not an image")
    found = find_pairs(tmp_path)
    assert [(pair.image.name, pair.mask and pair.mask.name) for pair in found] == [
        ("a.jpg", "a.png"),
        ("b.png", "b_mask.npy"),
    ]


def test_the_layout_of_dagm(tmp_path: Path) -> None:
    grey = np.zeros((2, 2), np.uint8)
    for name in ("0576.PNG", "0577.PNG", "Label/0577_label.PNG"):
        save(tmp_path / name, grey)
    assert [pair.image.name for pair in find_pairs(tmp_path, "skip")] == ["0577.PNG"]
    assert [pair.mask is None for pair in find_pairs(tmp_path, "background")] == [True, False]
    with pytest.raises(UserError, match=r"0576\.PNG"):
        find_pairs(tmp_path)
    dataset = ImageFolder(tmp_path, ImageFormat((2, 2, 1)), BINARY, "background")
    assert dataset.gather(np.array([0]))["mask"].sum() == 0


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ([], "no folder masks"),
        (["images/a.png"], "no folder masks"),
        (["masks/a.png"], "no image"),
        (["images/a.png", "masks/b.png"], r"a\.png"),
        (["images/a.png", "masks/a.png", "masks/b.png"], r"b\.png"),
        (["images/a.png", "images/a.jpg", "masks/a.png"], "Keep one"),
    ],
)
def test_folders_that_do_not_match_are_named(tmp_path: Path, files: list[str], text: str) -> None:
    for name in files:
        save(tmp_path / name, np.zeros((2, 2), np.uint8))
    with pytest.raises(UserError, match=text):
        find_pairs(tmp_path)
    with pytest.raises(UserError, match="no folder"):
        find_pairs(tmp_path / "nowhere")


def test_images_and_masks_of_two_sizes_are_named(folder: Path) -> None:
    save(folder / "masks/ü 3.png", np.zeros((8, 11), np.uint8))
    with pytest.raises(UserError, match=r"8 x 12 and its mask .*ü 3\.png 8 x 11"):
        make(folder).gather(np.array([3]))


def test_resizing_keeps_classes_whole(folder: Path) -> None:
    batch = make(folder, shape=(5, 7, 1)).gather(np.arange(7))
    assert batch["image"].shape == (7, 1, 5, 7)
    assert set(np.unique(batch["mask"])) <= {0, 1}
    colours = np.random.default_rng(0).integers(0, 256, (6, 6, 3), np.uint8)
    same = np.asarray(Image.fromarray(colours).resize((3, 4), Image.Resampling.BILINEAR))
    assert abs(resize(colours, 4, 3, smooth=True).astype(int) - same).max() <= 1


def test_crops_are_the_middle_or_a_draw_of_the_sample(folder: Path) -> None:
    whole = make(folder).gather(np.array([2]))["image"][0, 0]
    middle = make(folder, shape=(4, 4, 1), fit="crop").gather(np.array([2]))["image"][0, 0]
    assert np.array_equal(middle, whole[2:6, 4:8])
    anywhere = make(folder, shape=(4, 4, 1), fit="crop", crops_anywhere=True)
    corners = set()
    for epoch in range(60):
        got = anywhere.gather(np.array([2]), Draws(1, epoch, [2]))["image"][0, 0]
        (corner,) = [
            (top, left)
            for top in range(5)
            for left in range(9)
            if np.array_equal(whole[top : top + 4, left : left + 4], got)
        ]
        corners.add(corner)
    assert {top for top, _ in corners} == set(range(5))
    assert {left for _, left in corners} == set(range(9))
    with pytest.raises(UserError, match="too small"):
        make(folder, shape=(9, 4, 1), fit="crop").gather(np.array([0]))


def test_flips_turn_image_and_mask_alike_and_belong_to_the_sample(folder: Path) -> None:
    plain, flipped = make(folder), make(folder, flips=True)
    indices = np.arange(7)
    as_they_are = plain.gather(indices)
    seen = set()
    for epoch in range(12):
        draws = Draws(1, epoch, indices)
        turned = flipped.gather(indices, draws)
        for row in range(7):
            axes = [axis for axis in (0, 1) if draws.uniform("flip", 2)[row, axis] < 0.5]
            seen.add(tuple(axes))
            assert np.array_equal(turned["image"][row, 0], np.flip(as_they_are["image"][row, 0], axes))
            assert np.array_equal(turned["mask"][row], np.flip(as_they_are["mask"][row], axes))
        alone = flipped.gather(indices[3:4], Draws(1, epoch, [3]))
        assert np.array_equal(alone["image"][0], turned["image"][3])
    assert len(seen) == 4


def test_what_was_decoded_is_kept_up_to_the_limit(folder: Path) -> None:
    one = 2 * 8 * 12
    dataset = make(folder, cache_bytes=3 * one)
    before = dataset.gather(np.arange(7))
    for path in folder.glob("*/*"):
        path.unlink()
    kept = dataset.gather(np.arange(3))
    assert np.array_equal(kept["image"], before["image"][:3])
    with pytest.raises(UserError, match=r"ü 3\.png"):
        dataset.gather(np.array([3]))
    with pytest.raises(UserError, match=r"ü 0\.png"):  # another process has a memory of its own
        pickle.loads(pickle.dumps(dataset)).gather(np.array([0]))


def test_normalising_is_the_model_zoos() -> None:
    image = np.array([0, 255, 51, 204], np.uint8).reshape(1, 2, 2, 1)
    assert normalize(image, "zero_one").flatten().tolist() == pytest.approx([0, 1, 0.2, 0.8])
    assert normalize(image, "zero_centered").flatten().tolist() == pytest.approx([-1, 1, -0.6, 0.6])
    scored = normalize(image, "standard_score")
    assert scored.mean() == pytest.approx(0, abs=1e-6)
    assert scored.std() == pytest.approx(1, abs=1e-5)
    assert np.isfinite(normalize(np.zeros((1, 2, 2, 1), np.uint8), "standard_score")).all()


def test_files_of_different_depths_share_a_batch(tmp_path: Path) -> None:
    save(tmp_path / "images/a.png", np.full((2, 2), 255, np.uint8))
    save(tmp_path / "images/b.tif", np.full((2, 2), 65535, np.uint16))
    for name in "ab":
        save(tmp_path / f"masks/{name}.png", np.zeros((2, 2), np.uint8))
    batch = make(tmp_path, shape=(2, 2, 1), normalize="zero_one").gather(np.arange(2))
    assert (batch["image"] == 1).all()


def write_hdf5(path: Path, image: np.ndarray, mask: np.ndarray) -> None:
    with h5py.File(path, "w") as file:
        file["image"], file["mask"] = image, mask


def test_hdf5_files_are_one_data_set(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    images, masks = (
        random.integers(0, 256, (5, 8, 12, 1), np.uint8),
        random.integers(0, 2, (5, 8, 12), np.uint8),
    )
    write_hdf5(tmp_path / "a.h5", images[:2], masks[:2])
    write_hdf5(tmp_path / "b.hdf5", images[2:, ..., 0], masks[2:])
    dataset = open_images(tmp_path, ImageFormat(SHAPE, normalize="zero_one"), BINARY, "error", 0)
    assert isinstance(dataset, ImageArchive)
    assert len(dataset) == 5
    batch = pickle.loads(pickle.dumps(dataset)).gather(np.array([4, 1, 2]))
    assert np.array_equal(np.rint(batch["image"][:, 0] * 255), images[[4, 1, 2], ..., 0])
    assert np.array_equal(batch["mask"], masks[[4, 1, 2]])


@pytest.mark.parametrize(
    ("image", "mask", "text"),
    [
        (np.zeros((2, 8, 12, 3)), np.zeros((2, 8, 12)), "image_shape"),
        (np.zeros((2, 8, 12, 1)), np.zeros((3, 8, 12)), "image: 2, mask: 3"),
        (np.zeros((2, 8, 12, 1)), np.zeros((2, 8, 11)), "image_shape"),
        (np.zeros((2, 8, 12, 1)), np.full((2, 8, 12), 7), "sample 0 has values outside"),
    ],
)
def test_wrong_hdf5_is_named(tmp_path: Path, image: np.ndarray, mask: np.ndarray, text: str) -> None:
    write_hdf5(tmp_path / "wrong.h5", image, mask)
    with pytest.raises(UserError, match=text) as caught:
        ImageArchive([tmp_path / "wrong.h5"], ImageFormat(SHAPE), BINARY).gather(np.array([0]))
    assert "wrong.h5" in str(caught.value)


def test_damaged_hdf5_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.h5").write_bytes(b"no HDF5")
    with h5py.File(tmp_path / "y.h5", "w") as file:
        file["picture"] = [1]
    for name in ("x.h5", "y.h5"):
        with pytest.raises(UserError, match=name):
            ImageArchive([tmp_path / name], ImageFormat(SHAPE), BINARY)


def test_workers_give_what_one_process_gives(folder: Path) -> None:
    dataset = make(folder, flips=True, cache_bytes=1 << 20)
    alone = list(torch.utils.data.DataLoader(dataset, batch_size=3))
    together = list(torch.utils.data.DataLoader(dataset, batch_size=3, num_workers=2))
    for one, other in zip(alone, together, strict=True):
        assert one["image"].equal(other["image"])
        assert one["mask"].equal(other["mask"])


def test_flip_of_nothing_is_nothing() -> None:
    image, mask = flip(np.zeros((0, 2, 2, 1)), np.zeros((0, 2, 2)), Draws(0, 0, []))
    assert image.shape == (0, 2, 2, 1)
    assert mask.shape == (0, 2, 2)


def test_compressed_hdf5_files_give_what_they_hold_in_any_process(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    images, masks = random.random((9, 8, 12, 1)), random.integers(0, 2, (9, 8, 12), np.int64)
    for name, part in (("a", slice(0, 4)), ("b", slice(4, 9))):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.create_dataset("image", data=images[part], chunks=(3, 4, 12, 1), compression="gzip")
            file.create_dataset("mask", data=masks[part], chunks=(2, 8, 12), compression="gzip")
    dataset = open_images(tmp_path, ImageFormat(SHAPE, normalize="none"), BINARY, "error", 0)
    places = np.array([8, 0, 3, 4, 0])
    for reader in (dataset, pickle.loads(pickle.dumps(dataset))):
        batch = reader.gather(places)
        assert np.array_equal(batch["image"][:, 0], images[places, ..., 0].astype(np.float32))
        assert np.array_equal(batch["mask"], masks[places])
    loaded = torch.utils.data.DataLoader(dataset, batch_size=4, num_workers=2)
    assert np.array_equal(np.concatenate([batch["mask"] for batch in loaded]), masks)
