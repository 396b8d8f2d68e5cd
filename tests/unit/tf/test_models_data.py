"""Text, tokens and input pipelines of the model folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from model_folder import NAMES, load, params_of

from portwright.errors import UserError
from portwright.tensorflow.input_check.check import look_at
from portwright.tensorflow.models_common import text_examples
from portwright.tensorflow.models_common.pipeline import dataset_of_arrays
from portwright.tensorflow.models_common.text_examples import (
    corrupt,
    lengths_after,
    python_documentation,
    raw_length_for,
    read_text_files,
)
from portwright.tensorflow.models_common.text_input import mask_tokens
from portwright.tensorflow.models_common.vocabulary import MASK, SPECIAL_TOKENS, Vocabulary
from portwright.text.shipped import english, german

OPTIONS: dict[str, Any] = {
    "batch_size": 4,
    "shuffle": None,
    "shuffle_seed": 3,
    "shuffle_buffer": None,
    "repeat": None,
    "cache": False,
    "n_parallel_reads": 2,
}


@pytest.fixture(autouse=True)
def _in_a_graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


def batches(dataset: tf.data.Dataset, count: int | None = None) -> list[Any]:
    iterator = tf.compat.v1.data.make_one_shot_iterator(dataset)
    element = iterator.get_next()
    found = []
    with tf.compat.v1.Session() as session:
        while count is None or len(found) < count:
            try:
                found.append(session.run(element))
            except tf.errors.OutOfRangeError:
                break
    return found


def write_records(path: Path, samples: list[dict[str, list[Any]]]) -> None:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for sample in samples:
            features = {}
            for name, values in sample.items():
                if isinstance(values[0], float):
                    features[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
                else:
                    features[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())


@pytest.mark.parametrize("model", NAMES)
def test_batches_are_static_and_what_the_params_say(model: str) -> None:
    params = params_of(model)
    data = load(model, "data")
    for function, section in ((data.train_input_fn, "train_input"), (data.eval_input_fn, "eval_input")):
        is_training = section == "train_input"
        with tf.Graph().as_default():
            dataset = function(params)
            assert look_at(dataset, name=section, is_training=is_training).findings == ()
            for spec in tf.nest.flatten(dataset.element_spec):
                assert spec.shape.is_fully_defined()
                assert spec.shape[0] == params[section]["batch_size"]
            (batch,) = batches(dataset, 1)
        for array in tf.nest.flatten(batch):
            assert np.isfinite(array).all()


@pytest.mark.parametrize("model", NAMES)
def test_training_begins_again_and_evaluation_ends_and_neither_sees_the_other(model: str) -> None:
    params = params_of(model)
    params["train_input"] |= {"shuffle": False}
    if "num_samples" in params["train_input"]:
        params["train_input"] |= {"num_samples": 40}
        params["eval_input"] |= {"num_samples": 40}
    params["train_input"]["batch_size"] = params["eval_input"]["batch_size"] = 4
    data = load(model, "data")

    def key(batch: Any) -> list[bytes]:
        features = batch[0] if isinstance(batch, tuple) else batch
        name = next(name for name in ("decoder_input_ids", "image", "input_mask") if name in features)
        first = features[name] if name != "input_mask" else features["input_ids"]
        return [sample.tobytes() for sample in first]

    with tf.Graph().as_default():
        evaluated = [sample for batch in batches(data.eval_input_fn(params)) for sample in key(batch)]
    with tf.Graph().as_default():
        trained = [sample for batch in batches(data.train_input_fn(params), 12) for sample in key(batch)]
    assert len(trained) == 48
    assert 0 < len(evaluated) < 4000
    if model not in ("transformer", "bert", "roberta", "linformer"):  # numbers repeat; masks differ by design
        assert not set(evaluated) & set(trained)


@pytest.mark.parametrize("model", ["bert", "roberta", "gpt2", "t5", "unet"])
def test_batches_are_the_same_each_time_and_change_with_the_batch_number(model: str) -> None:
    params, data = params_of(model), load(model, "data")
    runs = []
    for _ in range(2):
        with tf.Graph().as_default():
            tf.compat.v1.set_random_seed(1)
            runs.append([tf.nest.flatten(batch) for batch in batches(data.train_input_fn(params), 3)])
    for one, other in zip(runs[0], runs[1], strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)
    assert any((a != b).any() for a, b in zip(runs[0][0], runs[0][1], strict=True))


def test_records_of_the_model_zoo_are_read(tmp_path: Path) -> None:
    def sample(number: int) -> dict[str, list[Any]]:
        return {
            "input_ids": [number] * 6,
            "input_mask": [1, 1, 1, 1, 0, 0],
            "segment_ids": [0, 0, 1, 1, 0, 0],
            "masked_lm_positions": [1, 2],
            "masked_lm_ids": [7, 8],
            "masked_lm_weights": [1.0, 0.0],
            "next_sentence_labels": [number % 2],
        }

    for file in range(3):
        write_records(tmp_path / f"part-{file}.tfrecords", [sample(10 * file + i) for i in range(5)])
    changes = {
        "data_dir": str(tmp_path),
        "max_sequence_length": 6,
        "max_predictions_per_seq": 2,
        "batch_size": 4,
    }
    params = params_of("bert", train_input=changes, eval_input=changes)
    data = load("bert", "data")
    for name in ("train_input", "eval_input"):
        dataset = getattr(data, f"{name}_fn")(params)
        assert look_at(dataset, name=name, is_training=name == "train_input").findings == ()
    found = batches(data.eval_input_fn(params))
    assert len(found) == 3  # of 15 samples, without the short last batch
    features, labels = found[0]
    assert features["input_ids"].shape == (4, 6)
    assert features["input_ids"].dtype == np.int32
    assert labels.tolist() == (features["input_ids"][:, 0] % 2).tolist()
    assert features["masked_lm_weights"].tolist() == [[1.0, 0.0]] * 4
    trained = batches(data.train_input_fn(params), 15)
    ids = np.concatenate([features["input_ids"][:, 0] for features, _ in trained])
    assert sorted(set(ids.tolist())) == [*range(5), *range(10, 15), *range(20, 25)]

    for workers in (2, 3, 5):  # fewer and more than there are files
        seen: list[int] = []
        for worker in range(workers):
            context = SimpleNamespace(num_input_pipelines=workers, input_pipeline_id=worker)
            one = params_of("bert", eval_input=changes | {"batch_size": 1}, train_input=changes)
            with tf.Graph().as_default():
                parts = batches(data.eval_input_fn(one, context))
            seen += [int(features["input_ids"][0, 0]) for features, _ in parts]
        assert sorted(seen) == [*range(5), *range(10, 15), *range(20, 25)]


def test_records_of_images_and_of_pairs_are_read(tmp_path: Path) -> None:
    images = [{"image": [float(i)] * 32, "mask": [0.0, 1.0] * 8} for i in range(3)]
    write_records(tmp_path / "images.tfrecords", images)
    changes = {"data_dir": str(tmp_path), "image_shape": [4, 4, 2], "batch_size": 2}
    params = params_of("unet", train_input=changes, eval_input=changes)
    ((features, mask),) = batches(load("unet", "data").eval_input_fn(params))
    assert features["image"].shape == (2, 4, 4, 2)
    assert mask.tolist() == [[[0, 1, 0, 1]] * 4] * 2
    with pytest.raises(UserError, match="no 'encoder_input_ids'"):
        load("t5", "data").eval_input_fn(params_of("t5", eval_input={"data_dir": str(tmp_path)}))
    pairs = tmp_path / "pairs"
    pairs.mkdir()
    sides = {
        "encoder_input_ids": 3,
        "encoder_mask": 3,
        "decoder_input_ids": 2,
        "decoder_mask": 2,
        "labels": 2,
    }
    write_records(
        pairs / "a.tfrecord", [{name: [i] * size for name, size in sides.items()} for i in range(2)]
    )
    lengths = {"src_max_sequence_length": 3, "tgt_max_sequence_length": 2}
    params = params_of("t5", eval_input={"data_dir": str(pairs), "batch_size": 2} | lengths)
    ((features, labels),) = batches(load("t5", "data").eval_input_fn(params))
    assert features["encoder_input_ids"].tolist() == [[0] * 3, [1] * 3]
    assert labels.tolist() == [[0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("model", "section", "changes", "message"),
    [
        ("t5", "train_input", {"tgt_max_sequence_length": 3}, "targets of src_max_sequence_length 48 have"),
        ("t5", "train_input", {"extra_ids": 1}, "extra_ids is 1 of 1024 tokens"),
        ("t5", "train_input", {"extra_ids": 1024}, "extra_ids is 1024 of 1024 tokens"),
        ("unet", "train_input", {"image_shape": [30, 32, 1]}, "image_shape is"),
        ("bert", "train_input", {"max_sequence_length": 4}, "leaves 0 tokens for text"),
        ("transformer", "model", {"tgt_vocab_size": 8}, "tgt_vocab_size is 8"),
        ("bert", "model", {"vocab_size": 20}, "vocab_size is 20"),
        ("gpt2", "train_input", {"data_dir": "/absent"}, "has neither"),
        ("roberta", "model", {"pad_token_id": 7, "max_position_embeddings": 80}, "pad_token_id is 7"),
    ],
)
def test_what_cannot_be_is_told(model: str, section: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(model, "data").train_input_fn(params_of(model, **{section: changes}))


def test_records_that_do_not_fit_are_told_before_the_run(tmp_path: Path) -> None:
    tokens = [1, 2, 3]
    write_records(tmp_path / "a.tfrecord", [{"input_ids": tokens, "input_mask": tokens, "labels": tokens}])
    data = load("gpt2", "data")
    changes = {"data_dir": str(tmp_path), "max_sequence_length": 4}
    with pytest.raises(UserError, match=r"'input_ids' has 3 values, where params\.yaml makes it 4"):
        data.train_input_fn(params_of("gpt2", train_input=changes))
    (tmp_path / "a.tfrecord").unlink()
    write_records(tmp_path / "a.tfrecord", [{"input_ids": tokens, "tokens": tokens}])
    with pytest.raises(UserError, match="no 'input_mask'") as error:
        data.train_input_fn(params_of("gpt2", train_input=changes | {"max_sequence_length": 3}))
    assert "It has input_ids, tokens" in str(error.value)
    (tmp_path / "a.tfrecord").write_bytes(b"no record at all")
    with pytest.raises(UserError, match="no whole record"):
        data.train_input_fn(params_of("gpt2", train_input=changes))
    (tmp_path / "a.tfrecord").write_bytes(b"")
    with pytest.raises(UserError, match="no whole record"):
        data.train_input_fn(params_of("gpt2", train_input=changes))
    text = tmp_path / "text"
    text.mkdir()
    (text / "a.txt").write_text("Some words.\n" * 100)
    with pytest.raises(UserError, match="eval_input has no data_dir"):
        data.eval_input_fn(params_of("gpt2", train_input={"data_dir": str(text)}))


def test_text_of_ones_own(tmp_path: Path) -> None:
    lines = (
        "Der schnelle braune Fuchs springt über den faulen Hund.\nUnd noch einmal!\n\nEin anderes Dokument.\n"
    )
    (tmp_path / "a.txt").write_text(lines * 50, encoding="utf-8")
    changes = {"data_dir": str(tmp_path), "batch_size": 2, "max_sequence_length": 16}
    params = params_of("gpt2", train_input=changes, eval_input=changes)
    ((features, labels),) = batches(load("gpt2", "data").train_input_fn(params), 1)
    assert (features["input_ids"][:, 1:] == labels[:, :-1]).all()
    vocabulary = text_examples.load_vocabulary(params, 1024)
    assert "über" in vocabulary.decode(features["input_ids"].reshape(-1).tolist())
    (tmp_path / "a.txt").write_bytes("für".encode("latin-1"))
    with pytest.raises(UserError, match="not UTF-8"):
        read_text_files([str(tmp_path)])
    (tmp_path / "a.txt").write_text(" \n\n")
    with pytest.raises(UserError, match="have no text"):
        read_text_files([str(tmp_path)])
    with pytest.raises(UserError, match="has neither"):
        read_text_files([str(tmp_path / "absent")])


@pytest.mark.parametrize("model", ["bert", "roberta", "gpt2"])
def test_a_sample_longer_than_the_positions_is_told(model: str) -> None:
    with pytest.raises(UserError, match="max_position_embeddings"):
        load(model, "data").train_input_fn(params_of(model, train_input={"max_sequence_length": 100}))


@settings(max_examples=40, deadline=None)
@given(st.text())
def test_every_text_is_cut_into_known_tokens(text: str) -> None:
    vocabulary = Vocabulary.learn([text, "a few words more"], 10_000)
    ids = vocabulary.encode(text)
    assert vocabulary.ids["[UNK]"] not in ids or max(map(len, text.split()), default=0) > 100
    assert vocabulary.encode(vocabulary.decode(ids)) == ids


def test_a_vocabulary_cuts_what_it_lacks_and_refuses_what_it_cannot_be(tmp_path: Path) -> None:
    vocabulary = Vocabulary([*SPECIAL_TOKENS, "un", "##do", "##able", "do"])
    assert [vocabulary.tokens[i] for i in vocabulary.encode("Undoable do xyz")] == [
        "un",
        "##do",
        "##able",
        "do",
        "[UNK]",
    ]
    with pytest.raises(UserError, match="more than once"):
        Vocabulary([*SPECIAL_TOKENS, "a", "a"])
    with pytest.raises(UserError, match=r"lacks \[PAD\]"):
        Vocabulary(["a"])
    with pytest.raises(UserError, match="vocab_size is 6"):
        Vocabulary.learn(["some text"], 6)
    with pytest.raises(UserError, match="cannot be read"):
        Vocabulary.read(tmp_path / "absent")
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, "a"]))
    assert len(Vocabulary.read(tmp_path / "vocab.txt")) == 6


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 300), st.integers(0, 1000))
def test_corrupted_text_can_be_put_together_again(length: int, seed: int) -> None:
    raw = raw_length_for(length)
    tokens = list(range(100, 100 + raw))
    source, target = corrupt(tokens, range(99_999, 90_000, -1), 1, Random(seed))
    assert (len(source), len(target)) == lengths_after(raw)
    assert len(source) <= max(length, lengths_after(1)[0])
    spans: dict[int, list[int]] = {}
    for token in target[:-1]:
        if token > 90_000:
            spans[token] = []
            current = token
        else:
            spans[current].append(token)
    rebuilt = [t for token in source[:-1] for t in spans.get(token, [token])]
    assert rebuilt == tokens


def test_numbers_in_words() -> None:
    assert [english(n) for n in (0, 13, 20, 101, 1000, 42_317, 100_000)] == [
        "zero",
        "thirteen",
        "twenty",
        "one hundred one",
        "one thousand",
        "forty two thousand three hundred seventeen",
        "one hundred thousand",
    ]
    assert [german(n) for n in (0, 1, 13, 20, 21, 101, 1000, 1001, 42_317, 701_000)] == [
        "null",
        "eins",
        "dreizehn",
        "zwanzig",
        "ein und zwanzig",
        "ein hundert eins",
        "ein tausend",
        "ein tausend eins",
        "zwei und vierzig tausend drei hundert siebzehn",
        "sieben hundert ein tausend",
    ]


def test_masking_takes_fifteen_in_a_hundred_and_can_be_undone() -> None:
    vocabulary = Vocabulary([*SPECIAL_TOKENS, *(f"w{i}" for i in range(995))])
    random = np.random.default_rng(0)
    lengths = random.integers(3, 60, 64)
    mask = (np.arange(64) < lengths[:, None]).astype(np.int32)
    ids = np.where(mask == 1, random.integers(5, 1000, (64, 64)), 0).astype(np.int32)
    ids[:, 0] = vocabulary.ids["[CLS]"]

    def draw(number: int) -> dict[str, Any]:
        features = {"input_ids": tf.constant(ids), "input_mask": tf.constant(mask)}
        with tf.compat.v1.Session() as session:
            made: dict[str, Any] = session.run(mask_tokens(features, tf.constant(number), vocabulary, 12, 1))
            return made

    made = draw(0)
    weights, positions = made["masked_lm_weights"], made["masked_lm_positions"]
    expected = np.minimum(12, np.maximum(1, np.round((lengths - 1).astype(np.float32) * np.float32(0.15))))
    np.testing.assert_array_equal(weights.sum(1), expected)
    undone = made["input_ids"].copy()
    for row in range(64):
        counted = positions[row][weights[row] > 0]
        assert len(set(counted.tolist())) == len(counted)
        assert (mask[row, counted] == 1).all()
        assert 0 not in counted
        undone[row, counted] = made["masked_lm_ids"][row][weights[row] > 0]
    np.testing.assert_array_equal(undone, ids)
    replaced = made["input_ids"][made["input_ids"] != ids]
    assert 0.7 < (replaced == vocabulary.ids[MASK]).mean() < 1.0
    np.testing.assert_array_equal(draw(0)["input_ids"], made["input_ids"])
    assert (draw(1)["input_ids"] != made["input_ids"]).any()


def test_padding_stands_where_the_model_looks_for_it(tmp_path: Path) -> None:
    data = load("roberta", "data")
    params = params_of("roberta", model={"pad_token_id": 1, "max_position_embeddings": 60})
    (features,) = batches(data.eval_input_fn(params), 1)
    assert set(features["input_ids"][features["input_mask"] == 0].tolist()) == {1}
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, "a"]))
    params["train_input"]["vocab_file"] = str(tmp_path / "vocab.txt")
    with pytest.raises(UserError, match="pad_token_id is 1, and"):
        data.train_input_fn(params)


def test_pairs_say_truly_whether_they_follow() -> None:
    documents = [[f"alpha{d} beta{i} gamma{d * 100 + i}." for i in range(8)] for d in range(5)]
    vocabulary = Vocabulary.learn((s for d in documents for s in d), 5000)
    arrays = text_examples.sentence_pairs(documents, vocabulary, 15)
    texts = [vocabulary.decode(ids) for ids in arrays["input_ids"]]
    assert 0 < arrays["next_sentence_labels"].mean() < 1
    for text, label in zip(texts, arrays["next_sentence_labels"], strict=True):
        first, second = text.removeprefix("[CLS] ").removesuffix(" [SEP]").split(" [SEP] ")
        same = first.split()[0] == second.split()[0]
        assert label == 0 if same else label == 1
    segments = arrays["segment_ids"]
    assert (segments.sum(1) < arrays["input_mask"].sum(1)).all()


def test_a_batch_larger_than_the_data_is_told_unless_it_begins_again() -> None:
    arrays = {"x": np.arange(3, dtype=np.int32)}
    with pytest.raises(UserError, match="batch_size is 4, and there are 3 samples"):
        dataset_of_arrays(arrays, OPTIONS, False, lambda batch, number: batch)
    (batch,) = batches(dataset_of_arrays(arrays, OPTIONS, True, lambda batch, number: batch), 1)
    assert sorted(set(batch["x"].tolist())) == [0, 1, 2]


def test_pairs_of_ones_own_files(tmp_path: Path) -> None:
    (tmp_path / "en").write_text("one two\nthree\n\n")
    (tmp_path / "de").write_text("eins zwei\ndrei vier fünf\nnichts\n", encoding="utf-8")
    (tmp_path / "v").write_text("<pad>\n<unk>\n<s>\n</s>\none\ntwo\neins\nzwei\ndrei\n")
    changes = {
        "src_data_dir": str(tmp_path / "en"),
        "tgt_data_dir": str(tmp_path / "de"),
        "src_vocab_file": str(tmp_path / "v"),
        "tgt_vocab_file": str(tmp_path / "v"),
        "batch_size": 2,
        "src_max_sequence_length": 3,
        "tgt_max_sequence_length": 4,
    }
    data = load("transformer", "data")
    params = params_of("transformer", train_input=changes, eval_input=changes)
    ((features, labels),) = batches(data.eval_input_fn(params))
    assert features["encoder_input_ids"].tolist() == [[4, 5, 0], [1, 0, 0]]
    assert features["encoder_mask"].tolist() == [[1, 1, 0], [1, 0, 0]]
    assert features["decoder_input_ids"].tolist() == [[2, 6, 7, 0], [2, 8, 1, 1]]
    assert labels.tolist() == [[6, 7, 3, 0], [8, 1, 1, 3]]
    with pytest.raises(UserError, match="but not src_vocab_file"):
        data.train_input_fn(params_of("transformer", train_input=changes | {"src_vocab_file": None}))
    (tmp_path / "de").write_text("eins\n")
    with pytest.raises(UserError, match="3 lines"):
        data.train_input_fn(params)


def test_documentation_is_text() -> None:
    documents = python_documentation()
    assert len(documents) > 50
    assert sum(len(sentence.split()) for document in documents for sentence in document) > 50_000
