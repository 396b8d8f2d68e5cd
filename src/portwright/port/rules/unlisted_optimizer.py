from __future__ import annotations

from portwright.port.rule import File, Findings
from portwright.port.tensorflow_names import TensorFlowRule, tensorflow_of

_PLACES = ("train.", "keras.optimizers.", "keras.optimizers.legacy.", "contrib.opt.")


class UnlistedOptimizer(TensorFlowRule):
    """Finds optimizers that a CS system has no update for.

    ## Why
    The update of the weights is a part of the compiled step. The vendor's TensorFlow has SGD, momentum, Adam, AdamW and
    RMSProp.

    ## Example
    ```python
    import tensorflow as tf

    optimizer = tf.compat.v1.train.FtrlOptimizer(0.1)
    ```

    ## Instead
    ```python
    import tensorflow as tf

    optimizer = tf.compat.v1.train.AdamOptimizer(0.001)
    ```

    ## Safety
    Manual: another optimizer is another training run.
    """

    code = "PW630"
    needs = ("known_tensorflow_optimizers",)
    words = ("Optimizer", "optimizers")
    cure = "Use SGD, momentum, Adam, AdamW or RMSProp."

    def find(self, file: File) -> Findings:
        for call, name in tensorflow_of(file).calls(*_PLACES):
            last = name.rpartition(".")[2]
            is_other = name.startswith("train.") and not last.endswith("Optimizer")
            if last[:1].isupper() and ".schedules." not in name and not is_other:
                message = f"{last} is not among the optimizers of the target's TensorFlow"
                yield self.report(file, call, message, given=[last])
