"""load() of files that tf_zoo_data wrote: arrays in an npz a split, under data_dir/NAME."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import tensorflow as tf


def load(name, data_dir=None, with_info=False, as_dataset_kwargs=None, **unused):
    splits, sizes = {}, {}
    for path in sorted((Path(data_dir) / name).glob("*.npz")):
        with np.load(path, allow_pickle=False) as arrays:
            held = {key: arrays[key] for key in arrays.files}
        splits[path.stem] = tf.data.Dataset.from_tensor_slices(held)
        sizes[path.stem] = SimpleNamespace(num_examples=len(next(iter(held.values()))))
    return (splits, SimpleNamespace(splits=sizes)) if with_info else splits
