from __future__ import annotations

from collections.abc import Iterator

from portwright.port.finding import Edit, Finding
from portwright.port.rule import File, Rule
from portwright.port.tensorflow_names import is_legacy_keras, is_lent, lend, tensorflow_of


class Version1Layer(Rule):
    """Finds tf.layers and tf.nn.rnn_cell, which need the legacy Keras.

    ## Why
    tf.layers is gone from TensorFlow 2, and tf.compat.v1.layers works only where TensorFlow comes with the Keras of
    its own time (tf_keras). Importing portwright.tensorflow first sees to that.

    ## Example
    ```python
    import tensorflow as tf

    def model_fn(features, labels, mode, params):
        return tf.layers.dense(features, 10)
    ```

    ## Instead
    ```python
    import portwright.tensorflow as ptf
    import tensorflow as tf

    def model_fn(features, labels, mode, params):
        return tf.compat.v1.layers.dense(features, 10)
    ```

    ## Safety
    Safe: the same layers with the same variables, by the name that is left. tf.keras.layers would be the modern
    spelling, with other variable names, so that old checkpoints would not load.
    """

    code = "PW615"
    name = "version-1-layer"
    targets = ("csx", "ipu", "rdu")
    safety = "safe"
    words = ("layers", "rnn_cell", "rnn", "dynamic_rnn")
    cure = "Use tf.compat.v1.layers after importing portwright.tensorflow; in new code tf.keras.layers."
    framework = "tensorflow"

    def find(self, file: File) -> Iterator[Finding]:
        for reference in tensorflow_of(file).references:
            if not is_legacy_keras(reference.name) or reference.generation == "compat.v2.":
                continue
            edits = [] if is_lent(file) else lend(file)[1]
            if not reference.generation:
                if reference.root is None:
                    continue
                _, end = file.source.span(reference.root)
                edits = [*edits, Edit(end, end, ".compat.v1")]
            if edits:
                message = f"tf.{reference.name} needs the legacy Keras"
                yield self.report(file, reference.node, message, edits)


RULE = Version1Layer()
