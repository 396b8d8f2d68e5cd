from __future__ import annotations

import ast

from portwright.port.pipelines import pipelines_of
from portwright.port.rewrite import insert_after
from portwright.port.rule import File, Findings
from portwright.port.tensorflow_names import TensorFlowRule, tensorflow_of

_READY = ("prefetch", "prefetch_to_device")
_BATCHES = ("batch", "padded_batch", "map_and_batch")


class MissingPrefetch(TensorFlowRule):
    """Finds input functions that return a dataset without prefetch().

    ## Why
    Without it the host makes a batch only when the accelerator asks for one, and each waits for the other.

    ## Example
    ```python
    import tensorflow as tf

    def train_input_fn(params):
        d = tf.data.Dataset.range(100)
        return d.batch(8, drop_remainder=True)
    ```

    ## Instead
    ```python
    import tensorflow as tf

    def train_input_fn(params):
        d = tf.data.Dataset.range(100)
        return d.batch(8, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    ```

    ## Safety
    Unsafe: the batches are the same, in the same order. But an operation without a seed of its own takes one from the
    number of operations in the graph before it, so that with tf_random_seed the first weights and the dropout are others; and
    a Python function of the pipeline runs ahead of the training that may share its random numbers.
    """

    code = "PW624"
    needs = ("steady_input",)
    safety = "unsafe"
    words = ("Dataset", "TFRecordDataset", "TextLineDataset")
    cure = "End the pipeline with prefetch(tf.data.AUTOTUNE)."

    def find(self, file: File) -> Findings:
        pipelines = pipelines_of(file)
        for statement in file.tree.all(ast.Return):
            value = statement.value
            function = file.tree.function_of(statement)
            if not isinstance(function, ast.FunctionDef) or "input_fn" not in function.name or value is None:
                continue
            chain = (
                {step.name for step in pipelines.chain_of(value)} if pipelines.is_dataset(value) else set()
            )
            if not chain & set(_BATCHES) or chain & set(_READY):
                continue  # batched elsewhere, or prefetched already
            buffer = tensorflow_of(file).spell("data.AUTOTUNE") or "-1"
            edits = insert_after(file, value, f".prefetch({buffer})")
            yield self.report(file, value, "nothing is made ahead of time", edits)
