from __future__ import annotations

from portwright.port.rule import File, Findings
from portwright.port.tensorflow_names import TensorFlowRule, tensorflow_of

_START = "keras.mixed_precision.experimental."
_HOMES = {
    "Policy": "Policy",
    "set_policy": "set_global_policy",
    "global_policy": "global_policy",
}


class ExperimentalPrecision(TensorFlowRule):
    """Finds tf.keras.mixed_precision.experimental, which is gone.

    ## Why
    Mixed precision left its experimental place with TensorFlow 2.4, and the old names are gone.

    ## Example
    ```python
    import tensorflow as tf

    tf.keras.mixed_precision.experimental.set_policy("mixed_float16")
    ```

    ## Instead
    ```python
    import tensorflow as tf

    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    ```

    ## Safety
    Safe: the same policy by its name of today, with the same dtypes, and compile() scales the loss under mixed_float16 as it
    did. A policy that was given a loss scale, or whose loss scale the file reads, is left to you, since scaling is the
    optimizer's now.
    """

    code = "PW631"
    needs = ("tensorflow_2",)
    safety = "safe"
    words = ("mixed_precision",)
    cure = "Use tf.keras.mixed_precision; the loss scale is LossScaleOptimizer's, or loss_scaling_factor in params.yaml."

    def find(self, file: File) -> Findings:
        scaled = {
            call.func
            for call, _ in tensorflow_of(file).calls(_START)
            if any(k.arg in ("loss_scale", None) for k in call.keywords) or len(call.args) > 1
        }
        reads_scale = any(True for _ in file.attributes("loss_scale"))  # which today's policy lacks
        for reference in tensorflow_of(file).named(_START, _START.removesuffix(".")):
            last = reference.name.removeprefix(_START)
            message = f"tf.{reference.name} is gone from TensorFlow"
            edits = []
            text = tensorflow_of(file).spell(f"keras.mixed_precision.{_HOMES.get(last)}")
            if last in _HOMES and text is not None and reference.node not in scaled and not reads_scale:
                edits = [file.replace(reference.node, text)]
            yield self.report(file, reference.node, message, edits)
