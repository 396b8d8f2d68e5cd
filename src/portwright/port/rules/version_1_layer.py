from __future__ import annotations

from portwright.port.rule import File, Findings
from portwright.port.tensorflow_names import (
    TensorFlowRule,
    is_legacy_keras,
    is_lent,
    lend,
    spell_old,
    tensorflow_of,
)


class Version1Layer(TensorFlowRule):
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
    Safe: the same layers with the same variables, by the name that is left, and tf.keras is then the legacy one too, which
    code with tf.layers was written for. tf.keras.layers would be the modern spelling, with other variable names, so that
    old checkpoints would not load. Weights that no initializer with a seed draws are others, as PW610 says.
    """

    code = "PW615"
    needs = ("tensorflow_2",)
    safety = "safe"
    words = ("layers", "rnn_cell", "rnn", "dynamic_rnn")
    cure = "Use tf.compat.v1.layers after importing portwright.tensorflow; in new code tf.keras.layers."

    def find(self, file: File) -> Findings:
        for reference in tensorflow_of(file).references:
            if not is_legacy_keras(reference.name) or reference.generation == "compat.v2.":
                continue
            is_old = not reference.generation and not tensorflow_of(file).comes_with_its_module(reference)
            edits = spell_old(file, reference) if is_old else []
            if (edits or not is_old) and not is_lent(file):
                edits = [*lend(file)[1], *edits]
            if edits or is_old:
                message = f"tf.{reference.name} needs the legacy Keras"
                yield self.report(file, reference.node, message, edits)
