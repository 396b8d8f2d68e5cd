from __future__ import annotations

from portwright.port.model_functions import functions_of
from portwright.port.rule import File, Findings
from portwright.port.tensorflow_names import TensorFlowRule, tensorflow_of

_TABLES = (
    "lookup.", "contrib.lookup.", "keras.layers.StringLookup", "keras.layers.IntegerLookup", "keras.layers.TextVectorization",
    "strings.", "string_split", "string_to_hash_bucket_fast", "string_to_hash_bucket", "string_join", "as_string",
)  # fmt: skip


class LookupTable(TensorFlowRule):
    """Finds lookup tables and text in a model_fn.

    ## Why
    Tables and strings live in the host's memory: an accelerator has neither.

    ## Example
    ```python
    import tensorflow as tf

    def model_fn(features, labels, mode, params):
        keys = tf.lookup.TextFileInitializer(params["vocab"], tf.string, 0, tf.int64, 1)
        return tf.lookup.StaticHashTable(keys, -1).lookup(features)
    ```

    ## Instead
    ```python
    import tensorflow as tf

    def input_fn(params):
        keys = tf.lookup.TextFileInitializer(params["vocab"], tf.string, 0, tf.int64, 1)
        table = tf.lookup.StaticHashTable(keys, -1)
        return tf.data.TextLineDataset(params["file"]).map(table.lookup).batch(8, drop_remainder=True).prefetch(1)
    ```

    ## Safety
    Manual: words become numbers in input_fn.
    """

    code = "PW620"
    needs = ("work_on_device",)
    words = ("lookup", "StringLookup", "IntegerLookup", "TextVectorization", "strings", "string")
    cure = "Move it to input_fn, so that the model gets numbers; what is looked up in predictions is done on the host."

    def find(self, file: File) -> Findings:
        functions = functions_of(file)
        for call, name in tensorflow_of(file).calls(*_TABLES):
            if functions.in_model_fn(call):
                yield self.report(file, call, f"tf.{name} works on the host only")
