"""Input functions over arrays and data frames, as `tf.estimator.inputs` had them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from portwright.tensorflow.arguments import BadType, BadValue

v1 = tf.compat.v1

__all__ = ["numpy_input_fn", "pandas_input_fn"]

# A graph must stay below 2 GB, and far smaller ones are slow to copy already.
_MOST_BYTES_IN_GRAPH = 64 << 20


def numpy_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
) -> Callable[[], Any]:
    """Makes an input function over an array or a dict of arrays, with labels `y` of the same form.

    A batch may contain samples of two epochs; only the last batch may be smaller. `num_threads` has no effect: rows are
    read in the order that the seed gives.
    """
    _check_options(batch_size, num_epochs, shuffle)
    features = _arrays("x", x)
    labels = None if y is None else _arrays("y", y)
    sizes = {
        f"{part} {name}".strip(): len(array)
        for part, arrays in (("x", features), ("y", labels or {}))
        for name, array in arrays.items()
    }
    if len(set(sizes.values())) != 1:
        raise BadValue(
            f"The arrays have different lengths: {sizes}.", "Give one row of each for every example."
        )
    shuffled = min(sizes.popitem()[1], max(queue_capacity, 1)) if shuffle else 0

    def input_fn() -> Any:
        rows = _read(
            {"x": features, "y": labels} if labels else {"x": features}, batch_size, num_epochs, shuffled
        )
        found = rows["x"] if isinstance(x, Mapping) else rows["x"][""]
        if labels is None:
            return found
        return found, rows["y"] if isinstance(y, Mapping) else rows["y"][""]

    return input_fn


def pandas_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
    target_column: str = "target",
) -> Callable[[], Any]:
    """As numpy_input_fn, over the columns of a DataFrame; `y` is a Series or a DataFrame with the same index."""
    if not hasattr(x, "columns") or not hasattr(x, "index"):
        raise BadType(f"x is a {type(x).__name__}.", "Give a pandas DataFrame.")
    features = {name: np.asarray(x[name]) for name in x.columns}
    labels: Any = None
    if y is not None:
        if target_column in x:
            raise BadValue(
                f"x has a column '{target_column}', the name of the target.", "Give another target_column."
            )
        if not np.array_equal(x.index, y.index):
            raise BadValue(
                f"The index of x ({x.index}) differs from that of y ({y.index}).", "Give both the same index."
            )
        labels = {name: np.asarray(y[name]) for name in y.columns} if hasattr(y, "columns") else np.asarray(y)
    return numpy_input_fn(features, labels, batch_size, num_epochs, shuffle, queue_capacity, num_threads)


def _check_options(batch_size: int, num_epochs: int | None, shuffle: bool | None) -> None:
    if not isinstance(shuffle, bool):
        raise BadValue(f"shuffle is {shuffle!r}.", "Say shuffle=True, as for training, or shuffle=False.")
    for what, value in (("batch_size", batch_size), ("num_epochs", num_epochs)):
        if value is not None and value <= 0:
            raise BadValue(f"{what} is {value}.", "Give a positive number.")


def _arrays(what: str, given: Any) -> dict[str, Any]:
    if isinstance(given, Mapping):
        if not given:
            raise BadValue(f"{what} is an empty dict.", "Give one array or more.")
        arrays = {str(name): np.asarray(array) for name, array in given.items()}
    elif isinstance(given, np.ndarray):
        arrays = {"": given}
    else:
        raise BadType(f"{what} is a {type(given).__name__}.", "Give a numpy array or a dict of arrays.")
    for name, array in arrays.items():
        if array.ndim == 0:
            raise BadValue(f"{what} '{name}' is a single number.", "Give an array with one row an example.")
        if array.dtype.kind in "OU":
            arrays[name] = _as_bytes(array)
    return arrays


def _as_bytes(strings: Any) -> Any:
    """Strings as bytes, TensorFlow's type for them; those of a DataFrame may be bytes already."""
    flat = [item if isinstance(item, bytes) else str(item).encode() for item in strings.reshape(-1)]
    return np.array(flat, dtype=np.bytes_).reshape(strings.shape)


def _read(arrays: dict[str, dict[str, Any]], batch_size: int, num_epochs: int | None, shuffled: int) -> Any:
    """The tensors of one batch; their iterator is initialised together with the graph's tables."""
    flat = tf.nest.flatten(arrays)
    if sum(array.nbytes for array in flat) <= _MOST_BYTES_IN_GRAPH:
        data = tf.data.Dataset.from_tensor_slices(arrays)
        read = None
    else:
        data = tf.data.Dataset.range(len(flat[0]))
        read = _row_reader(arrays, flat)
    if shuffled:
        data = data.shuffle(shuffled, reshuffle_each_iteration=True)
    data = data.repeat(num_epochs).batch(batch_size)
    if read is not None:
        data = data.map(read)
    iterator = v1.data.make_initializable_iterator(data.prefetch(1))
    v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next()


def _row_reader(arrays: Any, flat: list[Any]) -> Callable[[Any], Any]:
    def read(rows: Any) -> Any:
        types = [tf.as_dtype(array.dtype) for array in flat]
        found = tf.numpy_function(lambda numbers: [array[numbers] for array in flat], [rows], types)
        for tensor, array in zip(found, flat, strict=True):
            tensor.set_shape([None, *array.shape[1:]])
        return tf.nest.pack_sequence_as(arrays, found)

    return read
