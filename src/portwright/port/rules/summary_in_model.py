from __future__ import annotations

from portwright.port.model_functions import functions_of
from portwright.port.rule import File, Findings
from portwright.port.tensorflow_names import TensorFlowRule, tensorflow_of

_KINDS = ("scalar", "histogram", "image", "audio", "text", "tensor_summary", "merge_all")


class SummaryInModel(TensorFlowRule):
    """Finds summaries in model code.

    ## Why
    On a CS system each summary brings a tensor back to the host, which slows the run, a histogram or an image most of
    all. The loss and the learning rate are logged anyway.

    ## Example
    ```python
    import tensorflow as tf

    def model_fn(features, labels, mode, params):
        loss = tf.reduce_mean(features)
        tf.compat.v1.summary.histogram("features", features)
        return loss
    ```

    ## Instead
    ```python
    import tensorflow as tf

    def model_fn(features, labels, mode, params):
        loss = tf.reduce_mean(features)
        return loss
    ```

    ## Safety
    Manual: what you want to see is yours to choose.
    """

    code = "PW628"
    needs = ("no_summaries",)
    words = ("summary",)
    cure = "Keep few scalars, and write them every so many steps (save_summary_steps); make the rest on CPU or GPU."

    def find(self, file: File) -> Findings:
        functions = functions_of(file)
        for call, name in tensorflow_of(file).calls("summary.", "contrib.summary."):
            if name.rpartition(".")[2] in _KINDS and functions.in_model(call):
                yield self.report(file, call, f"tf.{name} brings a tensor back to the host")
