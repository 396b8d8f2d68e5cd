"""Input pipelines in the fastest order of stages: shard, interleave, cache, shuffle, repeat, batch, map, prefetch."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from portwright.errors import UserError

Batch = Any  # what model_fn receives: features, or (features, labels)
# Takes the data read, and the number of the batch, from 0.
MakeBatch = Callable[[dict[str, tf.Tensor], tf.Tensor], Batch]
Arrays = dict[str, np.ndarray[Any, Any]]

_LARGEST_ARRAYS_BYTES = 1 << 30  # the graph holds the arrays, and must stay below 2 GiB


def dataset_of_arrays(
    arrays: Arrays,
    options: Mapping[str, Any],
    training: bool,
    make_batch: MakeBatch,
    input_context: Any = None,
) -> tf.data.Dataset:
    """Batches of arrays of one length, in memory; `make_batch` is given them by name."""
    num_samples = len(next(iter(arrays.values())))
    num_pipelines = 1 if input_context is None else input_context.num_input_pipelines
    if num_samples < 1:
        raise UserError("There is not one sample that fits.", "Give more data, or longer sequences.")
    if num_samples < options["batch_size"] * num_pipelines and not _repeats(options, training):
        raise UserError(
            f"batch_size is {options['batch_size']}, and there are {num_samples} samples"
            + (f" for {num_pipelines} workers." if num_pipelines > 1 else "."),
            "Take a smaller batch_size or more data.",
        )
    size_bytes = sum(array.nbytes for array in arrays.values())
    if size_bytes > _LARGEST_ARRAYS_BYTES:
        raise UserError(
            f"The data is {size_bytes >> 20} MiB, too much to be held in the graph.",
            "Write it to *.tfrecord files and name their folder as data_dir.",
        )
    dataset = tf.data.Dataset.from_tensor_slices(arrays)
    if num_pipelines > 1:
        dataset = dataset.shard(num_pipelines, input_context.input_pipeline_id)
    return _finish(dataset, options, training, make_batch, num_samples)


def dataset_of_records(
    options: Mapping[str, Any],
    training: bool,
    spec: Mapping[str, Any],
    make_batch: MakeBatch,
    input_context: Any = None,
) -> tf.data.Dataset:
    """Batches of the *.tfrecord* files in data_dir; `spec` says what tf.io.parse_example finds in a record.

    Files are shared out among workers; where there are fewer files than workers, records are.
    """
    files = record_files(options["data_dir"])
    check_first_record(files[0], spec)
    num_pipelines = 1 if input_context is None else input_context.num_input_pipelines
    shuffle = _shuffles(options, training)
    dataset = tf.data.Dataset.from_tensor_slices(files)
    if 1 < num_pipelines <= len(files):
        dataset = dataset.shard(num_pipelines, input_context.input_pipeline_id)
    if shuffle:
        dataset = dataset.shuffle(len(files), seed=options["shuffle_seed"])
    dataset = dataset.interleave(
        tf.data.TFRecordDataset,
        cycle_length=min(options["n_parallel_reads"], len(files)),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,  # so that a resumed run gets the same batches
    )
    if num_pipelines > len(files):
        dataset = dataset.shard(num_pipelines, input_context.input_pipeline_id)

    def parse(serialized: tf.Tensor, number: tf.Tensor) -> Batch:
        parsed = tf.io.parse_example(serialized, dict(spec))
        narrow = {name: tf.cast(v, tf.int32) if v.dtype == tf.int64 else v for name, v in parsed.items()}
        return make_batch(narrow, number)

    return _finish(dataset, options, training, parse, 10 * options["batch_size"])


def split_labels(batch: dict[str, tf.Tensor], number: tf.Tensor, key: str = "labels") -> Batch:
    """A batch as features and labels."""
    features = dict(batch)
    labels = features.pop(key)
    return features, labels


def folders_of(data_dir: str | list[str]) -> list[str]:
    return [data_dir] if isinstance(data_dir, str) else list(data_dir)


def record_files(data_dir: str | list[str]) -> list[str]:
    folders = folders_of(data_dir)
    files = [name for folder in folders for name in sorted(tf.io.gfile.glob(f"{folder}/*.tfrecord*"))]
    if not files:
        raise UserError(
            f"data_dir {', '.join(repr(folder) for folder in folders)} has no *.tfrecord* file.",
            "Name a folder that has some, or leave data_dir out to use generated data.",
        )
    return files


def has_records(data_dir: str | list[str]) -> bool:
    return any(tf.io.gfile.glob(f"{folder}/*.tfrecord*") for folder in folders_of(data_dir))


def check_first_record(path: str, spec: Mapping[str, Any]) -> None:
    """Names the features that a file's first record lacks; without this check parsing would fail in the middle of a run."""
    with tf.io.gfile.GFile(path, "rb") as file:
        header = file.read(12)  # length, and its checksum
        length = struct.unpack("<Q", header[:8])[0] if len(header) == 12 else 0
        data = file.read(length) if 0 < length < 1 << 31 else b""
    if not data or len(data) != length:
        raise UserError(f"{path} has no whole record.", "Write the file again; compressed ones are not read.")
    try:
        found = tf.train.Example.FromString(data).features.feature
    except Exception as error:  # protobuf's DecodeError has no public place
        raise UserError(
            f"{path}: its first record is no tf.train.Example.", "Write the file again."
        ) from error
    for name, feature in spec.items():
        if name not in found:
            raise UserError(
                f"{path}: a record has no '{name}'.",
                f"It has {', '.join(sorted(found)) or 'nothing'}; write the file with {', '.join(spec)}.",
            )
        wanted = int(np.prod(feature.shape))
        kind = found[name].WhichOneof("kind")
        received = len(getattr(found[name], kind).value) if kind else 0
        if received != wanted:
            raise UserError(
                f"{path}: '{name}' has {received} values, where params.yaml makes it {wanted}.",
                "Set the lengths in train_input and eval_input to those of the files.",
            )


def _finish(
    dataset: tf.data.Dataset,
    options: Mapping[str, Any],
    training: bool,
    make_batch: Callable[..., Batch],
    shuffle_buffer: int,
) -> tf.data.Dataset:
    if options["cache"]:
        dataset = dataset.cache()
    if _shuffles(options, training):
        dataset = dataset.shuffle(options["shuffle_buffer"] or shuffle_buffer, seed=options["shuffle_seed"])
    if _repeats(options, training):
        dataset = dataset.repeat()
    dataset = dataset.batch(options["batch_size"], drop_remainder=True)
    # From the number a map derives its random draws for each batch; a random state of its own would be in no checkpoint.
    numbers = tf.data.Dataset.range(tf.int64.max)
    dataset = tf.data.Dataset.zip((dataset, numbers))
    dataset = dataset.map(make_batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return dataset.prefetch(tf.data.AUTOTUNE)


def _repeats(options: Mapping[str, Any], training: bool) -> bool:
    return training if options["repeat"] is None else bool(options["repeat"])


def _shuffles(options: Mapping[str, Any], training: bool) -> bool:
    return training if options["shuffle"] is None else bool(options["shuffle"])
