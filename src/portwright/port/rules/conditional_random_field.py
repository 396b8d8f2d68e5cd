from __future__ import annotations

import ast

from portwright.port.rule import File, Findings
from portwright.port.tensorflow_names import TensorFlowRule, tensorflow_of

_LIBRARIES = ("tensorflow_addons.text.crf", "tensorflow_addons.text", "tf2crf", "keras_contrib.layers")


class ConditionalRandomField(TensorFlowRule):
    """Finds conditional random fields.

    ## Why
    Their likelihood and their decoding go through a sequence step by step, with a table of transitions and loops whose
    length depends on the data. The accelerators have no kernels for that.

    ## Example
    ```python
    import tensorflow as tf

    def model_fn(features, labels, mode, params):
        score, _ = tf.contrib.crf.crf_log_likelihood(features, labels, params["lengths"])
        return score
    ```

    ## Instead
    ```python
    import tensorflow as tf

    def model_fn(features, labels, mode, params):
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=features)
    ```

    ## Safety
    Manual: a model without it is another model.
    """

    code = "PW621"
    needs = ("work_on_device",)
    words = ("crf", "CRF")
    cure = "Train the tagger with a cross-entropy per token, and decode with the transitions on the host after predict()."

    def find(self, file: File) -> Findings:
        for call, name in tensorflow_of(file).calls("contrib.crf."):
            yield self.report(file, call, f"tf.{name} has no kernel on an accelerator")
        for call in file.tree.all(ast.Call):
            dotted = file.resolve(call.func) or ""
            if dotted.startswith(_LIBRARIES) and "crf" in dotted.lower():
                yield self.report(file, call, f"{dotted} has no kernel on an accelerator")
