"""How many samples a second a pipeline gives, and how many a step on this machine takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from portwright.errors import UserError

v1 = tf.compat.v1


def measure_pipeline(make_dataset: Callable[[], Any], seconds: float) -> dict[str, Any]:
    """Draws batches for `seconds`, or to the end of the data; the first one, which fills the buffers, is timed separately."""
    with tf.Graph().as_default():
        dataset = make_dataset()
        element = v1.data.make_initializable_iterator(dataset)
        batch = element.get_next()
        targets = [tensor.op for tensor in tf.nest.flatten(batch, expand_composites=True)]
        size = next((t for t in tf.nest.flatten(batch, expand_composites=True) if t.shape.rank != 0), None)
        samples = tf.constant(1) if size is None else tf.shape(size)[0]
        with v1.Session() as session:
            session.run([v1.tables_initializer(), element.initializer])
            draw = session.make_callable([samples, *targets])
            start = time.perf_counter()
            try:
                draw()
            except tf.errors.OutOfRangeError:
                raise UserError(
                    "the dataset is empty: not one batch came.", "Look at its files and at its batch size; drop_remainder drops a short one."
                ) from None  # fmt: skip
            first = time.perf_counter() - start
            num_samples, num_batches = 0, 0
            start = time.perf_counter()
            passed = 0.0
            while passed < seconds:
                try:
                    num_samples += int(draw()[0])
                except tf.errors.OutOfRangeError:
                    break
                num_batches += 1
                passed = time.perf_counter() - start
            passed = max(time.perf_counter() - start, 1e-9)
    return {
        "samples_per_second": num_samples / passed if num_batches else None,
        "batches": num_batches + 1,
        "seconds": passed,
        "first_batch_seconds": first,
        "ended": passed < seconds,
    }


def measure_step(
    make_dataset: Callable[[], Any], make_train_op: Callable[[Any], Any], seconds: float
) -> dict[str, Any]:
    """Trains repeatedly on one batch in memory, so that only the step is timed; nothing is saved.

    `make_train_op(batch)` builds the model on tensors and returns what a step runs.
    """
    with tf.Graph().as_default():
        v1.train.get_or_create_global_step()
        dataset = make_dataset().take(1).cache().repeat()
        iterator = v1.data.make_initializable_iterator(dataset)
        batch = iterator.get_next()
        train_op = make_train_op(batch)
        sizes = [t.shape[0] for t in tf.nest.flatten(batch) if t.shape.rank]
        if not sizes or sizes[0] is None:
            raise UserError("the batch size is unknown.", "Say .batch(..., drop_remainder=True).")
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer(), v1.tables_initializer(), iterator.initializer])  # fmt: skip
            step = session.make_callable([train_op.op if tf.is_tensor(train_op) else train_op])
            step()
            start, num_steps = time.perf_counter(), 0
            while num_steps < 2 or time.perf_counter() - start < seconds:
                step()
                num_steps += 1
            passed = time.perf_counter() - start
    return {"samples_per_second": int(sizes[0]) * num_steps / passed, "steps": num_steps}
