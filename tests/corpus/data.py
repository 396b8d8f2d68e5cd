"""Data that the projects of the corpus read, generated in the formats that they read it in.

Each function takes the folder in which the project's command runs, and the folder of the project's own files.
"""

from __future__ import annotations

import json
import pickle
import random
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import numpy as np


def words(folder: Path, _: Path) -> None:
    """Three files of text, one sentence a line, under data/ (word language models)."""
    rng = random.Random(0)
    vocabulary = [f"w{number}" for number in range(60)]
    for place in (folder / "data", folder / "data" / "wikitext-2", folder / "data" / "penn"):
        place.mkdir(parents=True, exist_ok=True)
        for name, lines in (("train", 900), ("valid", 40), ("test", 40)):
            text = "".join(" ".join(rng.choices(vocabulary, k=12)) + "\n" for _ in range(lines))
            (place / f"{name}.txt").write_text(text)


def waves(folder: Path, _: Path) -> None:
    """Sine waves as a saved array, fewer and shorter than the project's own."""
    import torch

    starts = np.random.RandomState(2).randint(-80, 80, 8).reshape(8, 1)
    torch.save(np.sin((np.arange(40) + starts) / 20.0).astype("float64"), folder / "traindata.pt")


def cora(folder: Path, project: Path) -> None:
    """A citation graph in the format of Cora, and the archive that its address would give, from a `requests` beside the script."""
    import io
    import tarfile

    rng = random.Random(0)
    rows = [
        "\t".join([str(100 + number), *rng.choices("01", weights=(9, 1), k=30), f"class{number % 7}"])
        for number in range(1800)
    ]
    edges = [f"{100 + rng.randrange(1800)}\t{100 + rng.randrange(1800)}" for _ in range(3000)]
    place = folder / "cora"
    place.mkdir()
    (place / "cora.content").write_text("\n".join(rows) + "\n")
    (place / "cora.cites").write_text("\n".join(edges) + "\n")
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as made:
        made.add(place, "cora")
    (folder / "cora.tgz").write_bytes(archive.getvalue())
    (project / "requests.py").write_text(
        "import contextlib, types\n\n\ndef get(url, stream=False):\n"
        "    return contextlib.nullcontext(types.SimpleNamespace(raw=open('cora.tgz', 'rb')))\n"
    )


def characters(folder: Path, _: Path) -> None:
    """One file of text, text.txt (character models)."""
    rng = random.Random(0)
    (folder / "text.txt").write_text("".join(rng.choices("abcdefgh .\n", k=5000)))


def tokens(folder: Path, project: Path) -> None:
    """Token numbers in a binary file (nanoGPT), and the file that its script reads its settings with."""
    place = folder / "data" / "generated"
    place.mkdir(parents=True, exist_ok=True)
    rng = np.random.RandomState(0)
    for name in ("train", "val"):
        rng.randint(0, 50, 4000).astype(np.uint16).tofile(place / f"{name}.bin")
    (place / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 50}))
    (folder / "configurator.py").write_text((project / "configurator.py").read_text())


def sentence_pairs(folder: Path, project: Path) -> None:
    """Pairs of sentences, and the vocabulary made of them by the project's own class (BERT)."""
    rng = random.Random(0)
    lines = [
        "\t".join(" ".join(rng.choices([f"w{n}" for n in range(40)], k=6)) for _ in range(2))
        for _ in range(400)
    ]
    (folder / "corpus.txt").write_text("\n".join(lines) + "\n")
    sys.path.insert(0, str(project))
    try:
        from bert_pytorch.dataset.vocab import WordVocab  # type: ignore[import-not-found]

        WordVocab(lines, max_size=None, min_freq=1).save_vocab(str(folder / "vocab.pkl"))
    finally:
        sys.path.remove(str(project))


def translation(folder: Path, _: Path) -> None:
    """A pickle of examples of one length, as the project's preprocessing leaves it (attention-is-all-you-need)."""
    from torchtext.data import Field  # type: ignore[import-not-found]  # the stand-in

    rng = random.Random(0)
    field = Field(["<blank>", "<unk>", "<s>", "</s>", *(f"w{number}" for number in range(30))])
    sentence = lambda: ["<s>", *rng.choices(field.vocab.itos[4:], k=8), "</s>"]  # noqa: E731
    examples = [SimpleNamespace(src=sentence(), trg=sentence()) for _ in range(480)]
    content = {
        "settings": Namespace(max_len=10),
        "vocab": {"src": field, "trg": field},
        "train": examples,
        "valid": examples[:32],
    }
    (folder / "pairs.pkl").write_bytes(pickle.dumps(content))


def citations(folder: Path, _: Path) -> None:
    """A small citation graph in cora's two files (graph networks); the scripts train on nodes 0 to 139 of 1,500."""
    rng = np.random.RandomState(0)
    number, num_features = 1500, 24
    labels = rng.randint(0, 4, number)
    features = (rng.rand(number, num_features) < 0.2).astype(int)
    features[np.arange(number), labels] = 1
    rows = [f"{100 + n}\t" + "\t".join(map(str, features[n])) + f"\tClass_{labels[n]}" for n in range(number)]
    edges = rng.randint(0, number, (3000, 2))
    for place in (folder / "data" / "cora", folder.parent / "data" / "cora"):
        place.mkdir(parents=True, exist_ok=True)
        (place / "cora.content").write_text("\n".join(rows) + "\n")
        (place / "cora.cites").write_text("".join(f"{100 + a}\t{100 + b}\n" for a, b in edges))


def segmentation(folder: Path, _: Path) -> None:
    """Pictures with masks of two classes (U-Net)."""
    from PIL import Image

    rng = np.random.RandomState(0)
    for name in ("imgs", "masks"):
        (folder / "data" / name).mkdir(parents=True, exist_ok=True)
    for number in range(60):
        mask = np.zeros((64, 64), np.uint8)
        top, left = rng.randint(0, 40, 2)
        mask[top : top + 20, left : left + 20] = 255
        picture = rng.randint(0, 100, (64, 64, 3)).astype(np.uint8) + (mask // 2)[:, :, None]
        Image.fromarray(picture).save(folder / "data" / "imgs" / f"{number}.png")
        Image.fromarray(mask).save(folder / "data" / "masks" / f"{number}_mask.png")


def pictures(folder: Path, _: Path) -> None:
    """The folders of BSDS300, with 48 generated pictures (super resolution)."""
    from PIL import Image

    rng = np.random.RandomState(0)
    for name, number in (("train", 48), ("test", 8)):
        place = folder / "dataset" / "BSDS300" / "images" / name
        place.mkdir(parents=True, exist_ok=True)
        for index in range(number):
            small = rng.randint(0, 255, (16, 16, 3)).astype(np.uint8)
            Image.fromarray(small).resize((260, 260), Image.Resampling.BICUBIC).save(place / f"{index}.png")


def point_clouds(folder: Path, _: Path) -> None:
    """Point clouds of two classes in the layout of ShapeNet's parts (PointNet)."""
    rng = np.random.RandomState(0)
    place = folder / "shapes"
    names = {"Airplane": "02691156", "Chair": "03001627"}
    place.mkdir(parents=True, exist_ok=True)
    (place / "synsetoffset2category.txt").write_text("".join(f"{k}\t{v}\n" for k, v in names.items()))
    (place / "train_test_split").mkdir(exist_ok=True)
    for split, number in (("train", 88), ("test", 8), ("val", 8)):
        files = []
        for index in range(number):
            stretch = 1.0 + index % 2
            category = list(names.values())[index % 2]
            for part in ("points", "points_label"):
                (place / category / part).mkdir(parents=True, exist_ok=True)
            name = f"{split}{index}"
            points = rng.randn(64, 3) * [1.0, stretch, 1.0]
            np.savetxt(place / category / "points" / f"{name}.pts", points)
            np.savetxt(place / category / "points_label" / f"{name}.seg", rng.randint(1, 3, 64), fmt="%d")
            files.append(f"shape_data/{category}/{name}")
        (place / "train_test_split" / f"shuffled_{split}_file_list.json").write_text(json.dumps(files))


def ratings(folder: Path, _: Path) -> None:
    """Ratings in the format of MovieLens 1M (factorisation machines) and of NCF's own files."""
    rng = np.random.RandomState(0)
    lines = [f"{u}::{i}::{r}::0" for u, i, r in zip(*_drawn(rng, 3000), strict=True)]
    (folder / "ratings.dat").write_text("\n".join(lines) + "\n")
    (folder / "chkpt").mkdir(exist_ok=True)
    users, items, stars = _drawn(rng, 600)
    rows = [f"{u - 1}\t{i - 1}\t{r}\t0" for u, i, r in zip(users, items, stars, strict=True)]
    (folder / "ml-1m.train.rating").write_text("\n".join(rows) + "\n")
    negatives = [f"({u},{u % 40})\t" + "\t".join(str(n) for n in range(99 % 40 + 1)) for u in range(50)]
    (folder / "ml-1m.test.negative").write_text("\n".join(negatives) + "\n")


def _drawn(rng: np.random.RandomState, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    users, items, stars = rng.randint(1, 51, number), rng.randint(1, 41, number), rng.randint(1, 6, number)
    users[0], items[0] = 50, 40  # so that every file has the same sizes
    return users, items, stars


def sprites(folder: Path, _: Path) -> None:
    """White squares on black, in dSprites' file (beta-VAE)."""
    rng = np.random.RandomState(0)
    pictures = np.zeros((256, 64, 64), np.uint8)
    for picture, (top, left) in zip(pictures, rng.randint(0, 48, (256, 2)), strict=True):
        picture[top : top + 16, left : left + 16] = 1
    place = folder / "data" / "dsprites-dataset"
    place.mkdir(parents=True, exist_ok=True)
    np.savez(place / "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz", imgs=pictures)


def reviews(folder: Path, _: Path) -> None:
    """Sentences in two files, of the length to which the project would pad them (text classification)."""
    rng = random.Random(0)
    place = folder / "rt-polaritydata"
    place.mkdir(parents=True, exist_ok=True)
    for name in ("neg", "pos"):
        words_ = [f"{name}word{number}" for number in range(20)] + [f"both{number}" for number in range(40)]
        lines = [" ".join(rng.choices(words_, k=12)) for _ in range(240)]
        (place / f"rt-polarity.{name}").write_text("\n".join(lines) + "\n")


def activities(folder: Path, _: Path) -> None:
    """Windows of nine sensors, as the project's preprocessing leaves them (activity recognition)."""
    rng = np.random.RandomState(0)
    content = {}
    for name, number in (("train", 24 * 32), ("test", 32)):
        labels = rng.randint(0, 6, number)
        content[f"X_{name}"] = rng.randn(number, 128, 9) + labels[:, None, None]
        content[f"Y_{name}"] = np.eye(6)[labels]
    np.savez(folder / "data_har.npz", **content)  # type: ignore[arg-type]
