"""Small data in the formats that the TensorFlow folders of model zoo 1.6 read. Written by us, from a seed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

WORDS = [f"w{index}" for index in range(90)]
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LENGTH, MASKED, CLASSES = 16, 4, 4


def write_vocab(path: Path, special: Sequence[str] = SPECIAL) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*special, *WORDS]) + "\n")
    return len(special) + len(WORDS)


def _feature(values: Any) -> Any:
    import tensorflow as tf

    array = np.asarray(values).reshape(-1)
    if array.dtype.kind == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=array.tolist()))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=array.tolist()))


def write_records(path: Path, examples: Sequence[Mapping[str, Any]]) -> None:
    import tensorflow as tf

    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for example in examples:
            features = tf.train.Features(feature={name: _feature(value) for name, value in example.items()})
            writer.write(tf.train.Example(features=features).SerializeToString())


def _many(
    path: Path, count: int, make: Callable[[np.random.Generator], Mapping[str, Any]], seed: int
) -> None:
    draw = np.random.default_rng(seed)
    write_records(path, [make(draw) for _ in range(count)])


def _tokens(draw: np.random.Generator) -> np.ndarray:
    """Each token follows from the one before, so that there is something to learn."""
    return (draw.integers(5, 90) + np.arange(LENGTH)) % 85 + 5


def gpt(folder: Path, count: int = 32, seed: int = 0) -> None:
    def make(draw: np.random.Generator) -> Mapping[str, Any]:
        ids = _tokens(draw)
        return {"input_ids": ids, "input_mask": np.ones(LENGTH, int), "labels": np.roll(ids, -1)}

    _many(folder / "part.tfrecord", count, make, seed)


def bert(folder: Path, count: int = 32, seed: int = 0) -> None:
    def make(draw: np.random.Generator) -> Mapping[str, Any]:
        ids = _tokens(draw)
        places = np.sort(draw.choice(LENGTH, MASKED, replace=False))
        return {
            "input_ids": np.where(np.isin(np.arange(LENGTH), places), 4, ids),
            "input_mask": np.ones(LENGTH, int),
            "segment_ids": np.repeat([0, 1], LENGTH // 2),
            "masked_lm_positions": places,
            "masked_lm_ids": ids[places],
            "masked_lm_weights": np.ones(MASKED),
            "next_sentence_labels": [draw.integers(2)],
        }

    _many(folder / "part.tfrecord", count, make, seed)


def tokens(folder: Path, count: int = 32, seed: int = 0) -> None:
    """Sequences of words, for masks that are drawn while training."""
    import tensorflow as tf

    draw = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(folder / "part.tfrecord")) as writer:
        for _ in range(count):
            words = [WORDS[index % len(WORDS)] for index in _tokens(draw)[: LENGTH - 2]]
            listed = [tf.train.Feature(bytes_list=tf.train.BytesList(value=[w.encode()])) for w in words]
            lists = tf.train.FeatureLists(feature_list={"tokens": tf.train.FeatureList(feature=listed)})
            writer.write(tf.train.SequenceExample(feature_lists=lists).SerializeToString())


def text(path: Path, count: int = 64, seed: int = 0, *, length: int = 12) -> None:
    draw = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        " ".join(WORDS[(start + i) % len(WORDS)] for i in range(length))
        for start in draw.integers(0, 90, count)
    ]
    path.write_text("\n".join(lines) + "\n")


def images(path: Path, size: int, count: int = 8, seed: int = 0) -> None:
    def make(draw: np.random.Generator) -> Mapping[str, Any]:
        image = draw.random((size, size, 1)).astype(np.float32)
        return {"image": image, "mask": (image > 0.5).astype(np.float32)}

    _many(path, count, make, seed)


def mnist(folder: Path) -> None:
    draw = np.random.default_rng(0)
    for split, count in (("train", 64), ("test", 32)):
        labels = draw.integers(0, 10, count)
        pixels = np.zeros((count, 28, 28, 1), np.uint8)
        for index, label in enumerate(labels):
            pixels[index, label * 2 : label * 2 + 4] = 200
        (folder / "mnist").mkdir(parents=True, exist_ok=True)
        np.savez(folder / "mnist" / f"{split}.npz", image=pixels, label=labels)


def sentences(folder: Path) -> None:
    """What glue/sst2 holds: sentences and whether they are positive."""
    draw = np.random.default_rng(0)
    for split in ("train", "validation"):
        labels = draw.integers(0, 2, 32)
        lines = [f"w1 w2 {'w70' if label else 'w10'} w3" for label in labels]
        (folder / "glue" / "sst2").mkdir(parents=True, exist_ok=True)
        np.savez(
            folder / "glue" / "sst2" / f"{split}.npz",
            sentence=np.array(lines, "S"),
            label=labels,
            idx=np.arange(32),
        )


def answers(path: Path, *, with_ids: bool = False) -> None:
    def make(draw: np.random.Generator) -> Mapping[str, Any]:
        base = {
            "input_ids": _tokens(draw),
            "input_mask": np.ones(LENGTH, int),
            "segment_ids": np.repeat([0, 1], LENGTH // 2),
        }
        if with_ids:
            return {**base, "unique_ids": [draw.integers(1000)]}
        return {**base, "start_positions": [draw.integers(LENGTH)], "end_positions": [draw.integers(LENGTH)]}

    _many(path, 32, make, 0)


def entities(folder: Path) -> None:
    def make(draw: np.random.Generator) -> Mapping[str, Any]:
        ids = _tokens(draw)
        return {
            "input_ids": ids,
            "input_mask": np.ones(LENGTH, int),
            "segment_ids": np.zeros(LENGTH, int),
            "label_ids": ids % CLASSES,
        }

    _many(folder / "part.tfrecord", 32, make, 0)
    (folder / "label2id.json").write_text(json.dumps({f"L{i}": i for i in range(CLASSES)}))


def summaries(folder: Path) -> None:
    def make(draw: np.random.Generator) -> Mapping[str, Any]:
        return {
            "input_ids": _tokens(draw),
            "input_mask": np.zeros(LENGTH, int),
            "segment_ids": np.zeros(LENGTH, int),
            "cls_indices": np.arange(CLASSES) * 3,
            "labels": draw.integers(0, 2, CLASSES),
            "cls_weights": np.ones(CLASSES),
        }

    _many(folder / "part.tfrecord", 32, make, 0)
